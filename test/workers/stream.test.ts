/** Whether jobs that come in a stream gather between claims, by a clock that is moved by hand. */
import type { Clock } from "alkstore"
import { Effect } from "effect"
import { expect, test } from "vitest"
import { stream } from "../../src/schedule/Polling.js"
import { makeStream } from "../../src/workers/stream.js"

/** Milliseconds between a claim's answer and the next claim, if it waits for nothing. */
const workMillis = 2

const makeWorker = () => {
  let now = 0
  let waited = 0
  const clock: Clock.Service = {
    source: "process",
    virtual: false,
    now: Effect.sync(() => now),
    monotonic: Effect.sync(() => now),
    monotonicOf: () => now,
    stall: () => Effect.succeed({ millis: 0, mark: 0 }),
    breath: (call) => call,
    lull: (millis) =>
      Effect.sync(() => {
        now += millis
        waited += millis
      })
  }
  const state = { clock, lastClaim: 0 }
  const { found, gather, gathers, handed } = makeStream(state)
  let gathered = false
  return {
    /** A claim that finds what `come` in the time since the last one, and what is done between it and the next. */
    claim: (come: (millis: number, gathered: boolean) => number): boolean => {
      const count = come(now - state.lastClaim, gathered)
      state.lastClaim = now
      found(count)
      now += workMillis
      gathered = Effect.runSync(gather(count))
      return gathered
    },
    rest: (millis: number): void => {
      now += millis
    },
    /** Jobs that are handed over with each of so many enqueues, until they are to gather. */
    hands: (enqueues: number, count: number): number => {
      let done = 0
      while (done < enqueues && !gathers()) {
        now += workMillis
        handed(count, now)
        done++
      }
      return done
    },
    waited: () => waited
  }
}

type Worker = ReturnType<typeof makeWorker>

/** How many of so many claims were followed by a wait. */
const waits = (worker: Worker, claims: number, come: Parameters<Worker["claim"]>[0]): number =>
  Array.from({ length: claims }, () => worker.claim(come)).filter((gathered) => gathered).length

/** Producers that are held up by each claim: in the time of a wait far more come. */
const heldUp = (_: number, gathered: boolean) => (gathered ? 40 : 4)

/** The handlers' own jobs: as many, whenever. */
const chain = () => 5

/** So many in each millisecond, whatever the worker does. */
const steady = (millis: number) => Math.max(stream.jobs, 3 * millis)

test("both ways are tried, and the one that brings more is kept", () => {
  const worker = makeWorker()
  expect(waits(worker, 2 * stream.trials, heldUp)).toBe(stream.trials)
  expect(waits(worker, 50, heldUp)).toBeGreaterThanOrEqual(50 - 2 * stream.trials)
})

test("where they bring as many either way, the others are left alone", () => {
  const worker = makeWorker()
  waits(worker, 20, steady)
  expect(waits(worker, 50, steady)).toBeGreaterThanOrEqual(50 - 2 * stream.trials)
})

test("where a wait brings nothing, none is made but to try it again", () => {
  const worker = makeWorker()
  waits(worker, 2 * stream.trials, chain)
  const claims = stream.trialMillis / workMillis
  expect(waits(worker, claims, chain)).toBeLessThanOrEqual(stream.trials)
  expect(waits(worker, 10 * claims, chain)).toBeLessThanOrEqual(11 * stream.trials)
})

test("what changes is found out", () => {
  const worker = makeWorker()
  for (const [come, waiting] of [
    [heldUp, true],
    [chain, false],
    [heldUp, true]
  ] as const) {
    waits(worker, 1_000, come)
    const count = waits(worker, 200, come)
    if (waiting) expect(count).toBeGreaterThan(150)
    else expect(count).toBeLessThan(30)
  }
})

test("the time in which nothing came is nobody's", () => {
  const worker = makeWorker()
  waits(worker, 50, heldUp)
  worker.rest(600_000)
  worker.claim(heldUp)
  // The time for a trial has come, and then it is as before
  waits(worker, stream.trials, heldUp)
  expect(waits(worker, 20, heldUp)).toBe(20)
})

test("fewer jobs than that are no stream", () => {
  expect(waits(makeWorker(), 100, () => stream.jobs - 1)).toBe(0)
})

test("a wait lasts no longer than until that many milliseconds after the claim's answer", () => {
  const worker = makeWorker()
  const count = waits(worker, 100, heldUp)
  expect(worker.waited()).toBe(count * (stream.millis - workMillis))
})

test("a stream of jobs that are handed over is one, too: they gather where that brings more", () => {
  const worker = makeWorker()
  expect(worker.hands(100, 4)).toBe(stream.trials + 1)
  expect(waits(worker, 50, heldUp)).toBeGreaterThanOrEqual(50 - 2 * stream.trials)
})

test("where it does not, they are handed over, but for what is tried again", () => {
  const worker = makeWorker()
  const enqueues = 1_000
  let handed = 0
  let claims = 0
  while (handed < enqueues) {
    handed += worker.hands(enqueues - handed, 10)
    // As many came while they waited
    if (handed < enqueues) {
      worker.claim(() => 10)
      claims++
    }
  }
  expect(claims).toBeGreaterThan(0)
  expect(claims).toBeLessThanOrEqual((stream.trials + 1) * (1 + (enqueues * workMillis) / stream.trialMillis))
})

test("few that are handed over are no stream", () => {
  expect(makeWorker().hands(1_000, stream.jobs - 1)).toBe(1_000)
})

test("when no more come, what comes next is handed over again", () => {
  const worker = makeWorker()
  worker.hands(100, 4)
  waits(worker, 50, heldUp)
  worker.rest(1_000)
  worker.claim(() => 1)
  expect(worker.hands(10, 1)).toBe(10)
})
