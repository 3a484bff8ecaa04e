/** Expiry: a job that was not claimed in time is dead, whoever meets it, and hides no other. */
import { Effect, TestClock } from "effect"
import { expect } from "vitest"
import { claimOne, deadRows, freshQueue, liveRows, onlyLetter, onlyRow, type Suite, sweep, virtual } from "./support.js"

export const expirySuite: Suite = (engine, options) => {
  virtual(engine, options, "expiry", (it) => {
    it.effect("a job can be claimed until its expiry, and is dead (expired) from then on, by a claim (G23, G53)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2], { expires: "10 seconds" })
        yield* TestClock.adjust(9_999)
        expect((yield* claimOne(queue)).payload).toBe(1)
        yield* TestClock.adjust(1)
        expect(yield* queue.claim()).toEqual([])
        expect((yield* liveRows(queue)).map(({ payload }) => payload)).toEqual(["1"])
        expect(yield* onlyLetter(queue)).toMatchObject({ payload: "2", reason: "expired", attempts: 0, failures: 0 })
      })
    )

    it.effect("by a sweep, which counts it; delayed ones too (G53)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([0, 1, 2], (_, index) => ({ delay: index * 1_000, expires: "10 seconds" }))
        yield* queue.enqueue("stays")
        yield* TestClock.adjust(11_000)
        expect(yield* sweep(queue)).toMatchObject({ expired: 2, recovered: 0, crashed: 0 })
        expect((yield* liveRows(queue)).map(({ payload }) => payload)).toEqual(["2", '"stays"'])
        yield* TestClock.adjust(1_000)
        yield* sweep()
        expect((yield* deadRows(queue)).map(({ payload }) => payload)).toEqual(["2", "1", "0"])
      })
    )

    it.effect("an instant that comes before the job was ever due again counts as well", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, { expires: "1 minute" })
        yield* (yield* claimOne(queue)).retry({ delay: "1 hour" })
        yield* TestClock.adjust("1 minute")
        yield* sweep(queue)
        expect(yield* onlyLetter(queue)).toMatchObject({ reason: "expired", attempts: 1, failures: 1 })
      })
    )

    it.effect("a running job does not expire; given back after its expiry it does (G53)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(["acked", "released"], { expires: "10 seconds" })
        const jobs = yield* queue.claim({ limit: 2, visibilityTimeout: "1 hour" })
        yield* TestClock.adjust("1 minute")
        expect(yield* sweep(queue)).toMatchObject({ expired: 0, recovered: 0, crashed: 0 })
        expect(yield* liveRows(queue)).toHaveLength(2)
        yield* jobs[0]?.ack ?? Effect.void
        yield* jobs[1]?.release ?? Effect.void
        expect(yield* deadRows(queue)).toEqual([])
        expect(yield* queue.claim({ limit: 10 })).toEqual([])
        expect(yield* onlyLetter(queue)).toMatchObject({ payload: '"released"', reason: "expired" })
      })
    )

    it.effect("a crashed job past its expiry is not run again (G53)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, { expires: "10 seconds" })
        yield* claimOne(queue, { visibilityTimeout: "1 minute" })
        yield* TestClock.adjust("1 minute")
        expect(yield* queue.claim()).toEqual([])
        expect(yield* queue.claim()).toEqual([])
        expect(yield* onlyLetter(queue)).toMatchObject({ reason: "expired", crashes: 1, attempts: 1 })
      })
    )

    it.effect("thousands of expired jobs at the head do not hide a healthy one (G53)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(
          Array.from({ length: 2_500 }, (_, n) => n),
          { expires: "1 second", priority: 5 }
        )
        yield* queue.enqueue("healthy")
        yield* TestClock.adjust("1 minute")
        expect((yield* queue.claim({ limit: 1 })).map(({ payload }) => payload)).toEqual(["healthy"])
        yield* sweep(queue)
        expect(yield* deadRows(queue)).toHaveLength(2_500)
        expect(yield* onlyRow(queue)).toMatchObject({ state: "leased" })
      })
    )

    it.effect("expired and healthy jobs side by side: each goes its own way (G53)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(
          Array.from({ length: 40 }, (_, n) => n),
          (_, n) => (n % 2 === 0 ? { expires: "1 second" } : {})
        )
        yield* TestClock.adjust("1 minute")
        const jobs = yield* queue.claim({ limit: 100 })
        expect(jobs.map(({ payload }) => payload)).toEqual(Array.from({ length: 20 }, (_, n) => n * 2 + 1))
        expect((yield* deadRows(queue)).map(({ reason }) => reason)).toEqual(
          Array.from({ length: 20 }, () => "expired")
        )
      })
    )

    it.effect("sweeps and claims at once kill each expired job once (G51, G54)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(
          Array.from({ length: 700 }, (_, n) => n),
          { expires: "1 second" }
        )
        yield* TestClock.adjust("1 minute")
        const calls = [sweep(queue), sweep(), queue.claim({ limit: 50 }), sweep(queue), queue.claim({ limit: 700 })]
        yield* Effect.all(
          calls as ReadonlyArray<Effect.Effect<unknown, unknown, Effect.Effect.Context<(typeof calls)[number]>>>,
          {
            concurrency: "unbounded"
          }
        )
        expect(yield* liveRows(queue)).toEqual([])
        expect(yield* deadRows(queue)).toHaveLength(700)
      })
    )
  })
}
