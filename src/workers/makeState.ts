/**
 * The beginning of a worker's state, and the stream of its events.
 */
import { Effect, Stream } from "effect"
import { Clock } from "../services/Clock.js"
import { Queue } from "../services/QueueStore.js"
import { controlTopic, queueTopic, Wake } from "../services/Wake.js"
import type { WorkerState } from "./held.js"
import type { Policy } from "./policy.js"
import { makeTelemetryHooks } from "./telemetryHooks.js"
import type { WorkerEvent } from "./WorkerEvent.js"

export const makeEvents = <E = WorkerEvent>(observe: (event: E) => void = () => {}) => {
  const readers = new Set<(event: E) => void>()
  const events = Stream.asyncPush<E>(
    (emit) => {
      const read = (event: E) => void emit.single(event)
      return Effect.acquireRelease(
        Effect.sync(() => readers.add(read)),
        () => Effect.sync(() => readers.delete(read))
      )
    },
    { bufferSize: 10_000, strategy: "sliding" }
  )
  const publish = (event: E) => {
    observe(event)
    for (const read of readers) read(event)
  }
  return { events, publish }
}

export const makeState = (queueName: string, workerId: string, policy: Policy, publish: (event: WorkerEvent) => void) =>
  Effect.gen(function* () {
    const wake = yield* Wake
    const clock = yield* Clock
    // What stood still before this worker was there is not its jobs' doing
    const { mark: stallMark } = yield* clock.stall(Number.POSITIVE_INFINITY)
    const latch = () => Effect.unsafeMakeLatch(false)
    const telemetry = yield* makeTelemetryHooks(queueName, workerId)
    return {
      queueName,
      workerId,
      policy,
      queue: yield* Queue,
      clock,
      wake,
      subscription: yield* wake.subscribe(queueTopic(queueName)),
      control: yield* wake.subscribe(controlTopic(queueName)),
      telemetry,
      held: new Map(),
      buffer: [],
      refillAt: -1,
      running: 0,
      stuck: 0,
      paused: false,
      queuePaused: false,
      draining: false,
      leftBehind: false,
      reserved: 0,
      caughtUp: false,
      claiming: false,
      state: "running",
      counters: { acked: 0, retried: 0, released: 0, dead: 0, lost: 0 },
      meanRun: undefined,
      meanSize: 0,
      startedAt: yield* clock.monotonic,
      lastClaim: undefined,
      lastRenewal: undefined,
      failing: new Map(),
      outage: false,
      room: latch(),
      nudge: latch(),
      rearm: latch(),
      armedFor: Number.POSITIVE_INFINITY,
      holding: latch(),
      beats: latch(),
      settles: latch(),
      toSettle: [],
      idle: latch(),
      stallMark,
      recent: [],
      publish: (event) => {
        telemetry.count(event)
        publish(event)
      }
    } satisfies WorkerState as WorkerState
  })
