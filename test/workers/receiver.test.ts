/** What a worker says to those who would hand it jobs as they are enqueued. */
import { Effect } from "effect"
import { expect, test } from "vitest"
import type { ClaimedRow } from "../../src/services/Settlement.js"
import type { WorkerState } from "../../src/workers/held.js"
import { makeReceiver } from "../../src/workers/intake.js"
import type { Stream } from "../../src/workers/stream.js"

const row = (token: number) =>
  ({ id: token, token, crashes: 0, payload: "{}", claimedMonotonic: 17, visibilityMillis: 30_000 }) as ClaimedRow

/** A worker that waits, with ten handlers. */
const scene = () => {
  const told: Array<readonly [count: number, now: number]> = []
  let gathers = false
  const stream: Stream = {
    found: () => {},
    handed: (count, now) => void told.push([count, now]),
    gathers: () => gathers,
    gather: () => Effect.succeed(false)
  }
  const latch = () => Effect.unsafeMakeLatch()
  const state = {
    queueName: "queue",
    workerId: "worker",
    policy: { batchSize: 1, concurrency: 10, maxPrefetch: 0, visibilityMillis: 30_000, maxWaitMillis: 0 },
    telemetry: { claimed: () => {}, waits: () => {} },
    held: new Map(),
    buffer: [],
    running: 0,
    reserved: 0,
    meanSize: 0,
    caughtUp: true,
    state: "running",
    armedFor: 0,
    holding: latch(),
    rearm: latch(),
    room: latch(),
    idle: latch()
  } as unknown as WorkerState
  return {
    told,
    state,
    receiver: makeReceiver(state, { start: () => {} }, stream),
    setGathers: (to: boolean) => {
      gathers = to
    }
  }
}

test("it takes as many as it has handlers for, and what comes counts as a stream (G196)", () => {
  const { receiver, state, told } = scene()
  expect(receiver.reserve(11)).toBe(false)
  expect(receiver.reserve(10)).toBe(true)
  expect(receiver.reserve(1)).toBe(false)
  receiver.take(10, [row(1), row(2), row(3)])
  expect(told).toEqual([[3, 17]])
  expect([...state.held.keys()]).toEqual([1, 2, 3])
  expect(receiver.reserve(7)).toBe(true)
})

test("nothing of an enqueue that was rolled back counts (G196)", () => {
  const { receiver, told } = scene()
  expect(receiver.reserve(10)).toBe(true)
  receiver.take(10, [])
  expect(told).toEqual([])
  expect(receiver.reserve(10)).toBe(true)
})

test("while jobs gather between its claims, it takes none (G196)", () => {
  const { receiver, setGathers } = scene()
  setGathers(true)
  expect(receiver.reserve(1)).toBe(false)
  setGathers(false)
  expect(receiver.reserve(1)).toBe(true)
})
