/** The testing Layer: the real engine, whose time is the test's. */
import { layer } from "@effect/vitest"
import { Queue, transaction, Worker } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Deferred, Effect, Either, Fiber, Schedule, Schema, TestClock } from "effect"
import { describe, expect } from "vitest"

const make = (name: string) => Queue.make(name, { payload: Schema.String })

describe("alkstore/Testing", () => {
  layer(Testing.layer)((it) => {
    it.effect("G66 a delayed job is due when the test says so, to the millisecond", () =>
      Effect.gen(function* () {
        const queue = make("delayed")
        yield* queue.enqueue("a", { delay: "1 hour" })
        yield* Testing.advance("59 minutes")
        yield* Testing.advance("59999 millis")
        expect(yield* queue.claim()).toEqual([])
        yield* Testing.advance(1)
        expect(yield* queue.claim()).toMatchObject([{ payload: "a", attempt: 1 }])
      })
    )

    it.effect("G66 a lease ends when the test says so, and is swept by the way", () =>
      Effect.gen(function* () {
        const queue = make("leased")
        yield* queue.enqueue("a")
        yield* queue.claim({ visibilityTimeout: "1 minute" })
        yield* Testing.advance("59999 millis")
        expect(yield* Testing.enqueued(queue)).toMatchObject([{ state: "leased" }])
        yield* Testing.advance(1)
        expect(yield* Testing.enqueued(queue)).toMatchObject([{ state: "ready", crashes: 1 }])
      })
    )

    it.effect("G66 nothing that is idle has a timer in the way of years: the Layer none, a worker one a day", () =>
      Effect.gen(function* () {
        yield* Testing.settle
        expect([...(yield* TestClock.sleeps())]).toEqual([])
        const queue = make("idle")
        yield* queue.enqueue("a")
        yield* Worker.fork(queue, { handler: () => Effect.void })
        yield* Testing.settle
        const today = yield* Clock.currentTimeMillis
        // The last beat of the lease that there was
        yield* Testing.advance("1 minute")
        expect([...(yield* TestClock.sleeps())]).toEqual([today + 86_400_000])
      })
    )

    it.effect("G66 a drain lets time pass for a handler that waits for it inside a transaction", () =>
      Effect.gen(function* () {
        const queue = make("asleep")
        const other = make("beside")
        yield* Worker.fork(queue, { transactional: true, handler: () => Effect.sleep("1 second") })
        yield* Worker.fork(other, { handler: () => transaction(Effect.sleep("1 second")) })
        yield* queue.enqueue("a", { delay: "1 minute" })
        yield* other.enqueue("a", { delay: "2 minutes" })
        yield* Testing.drain(other)
        expect(yield* Testing.enqueued(queue)).toEqual([])
        expect(yield* Testing.enqueued(other)).toEqual([])
      })
    )

    it.effect("G66 a drain beside a transaction that waits for something else fails", () =>
      Effect.gen(function* () {
        const queue = make("held-up")
        yield* queue.enqueue("a")
        const gate = yield* Deferred.make<void>()
        const open = yield* Effect.fork(transaction(Deferred.await(gate)))
        yield* Testing.settle
        const failed = yield* Effect.flip(Testing.drain(queue, { within: "1 hour" }))
        expect(failed).toMatchObject({ _tag: "InvalidArgument", argument: "within" })
        expect(failed.message).toContain("a transaction is open")
        yield* Deferred.succeed(gate, undefined)
        yield* Fiber.join(open)
      })
    )

    it.effect("G66 a job expires when the test says so", () =>
      Effect.gen(function* () {
        const queue = make("expiring")
        yield* queue.enqueue("a", { expires: "1 day" })
        yield* Testing.advance("23 hours")
        expect(yield* Testing.deadLetters(queue)).toEqual([])
        yield* Testing.advance("1 hour")
        expect(yield* Testing.deadLetters(queue)).toMatchObject([{ reason: "expired" }])
      })
    )

    it.effect("G66 backoff and timeouts of a worker follow, days in an instant", () =>
      Effect.gen(function* () {
        const queue = make("worked")
        yield* queue.enqueue("fails", { maxAttempts: 3 })
        yield* queue.enqueue("hangs", { maxAttempts: 1 })
        const runs: Array<string> = []
        yield* Worker.fork(queue, {
          handler: ({ attempt, payload }) =>
            Effect.zipRight(
              Effect.sync(() => runs.push(`${payload} ${attempt}`)),
              payload === "hangs" ? Effect.never : Effect.fail("no")
            ),
          retry: Schedule.spaced("3 days"),
          timeout: "2 hours",
          visibilityTimeout: "1 hour"
        })
        yield* Testing.settle
        expect(runs).toEqual(["fails 1", "hangs 1"])
        yield* Testing.drain(queue, { within: "7 days" })
        expect(runs).toEqual(["fails 1", "hangs 1", "fails 2", "fails 3"])
        const letters = yield* Testing.deadLetters(queue)
        expect(letters.map(({ diedAt, enqueuedAt }) => (diedAt - enqueuedAt) / 3_600_000)).toEqual([6 * 24, 2])
      })
    )

    it.effect("completed jobs that a queue retains can be looked at", () =>
      Effect.gen(function* () {
        const queue = Queue.make("retained", { payload: Schema.String, retainCompleted: "1 hour" })
        yield* queue.enqueue("a")
        const [job] = yield* queue.claim()
        yield* job?.ack ?? Effect.void
        expect((yield* Testing.completed(queue)).map(({ payload }) => payload)).toEqual(['"a"'])
      })
    )

    it.effect("G66 all that there is can be looked at, however much", () =>
      Effect.gen(function* () {
        const queue = Queue.make("crowded", { payload: Schema.Number, retainCompleted: "1 hour" })
        /** How many, and the ends: whole lists would make a failure unreadable. */
        const span = (rows: ReadonlyArray<{ readonly id: number; readonly payload: unknown }>) =>
          [new Set(rows.map(({ id }) => id)).size, rows[0], rows.at(-1)].map((at) =>
            typeof at === "object" ? Number(at.payload) : at
          )
        yield* queue.enqueueMany(Array.from({ length: 10_001 }, (_, n) => n))
        expect(span(yield* Testing.enqueued(queue))).toEqual([10_001, 0, 10_000])
        const jobs = yield* queue.claim({ limit: 2_100 })
        yield* Effect.forEach(jobs.slice(0, 1_050), (job) => job.ack, { discard: true })
        yield* Effect.forEach(jobs.slice(1_050), (job) => job.fail("no"), { discard: true })
        // All of one instant: the newest is the one with the greatest id
        expect(span(yield* Testing.completed(queue))).toEqual([1_050, 1_049, 0])
        expect(span(yield* Testing.deadLetters(queue))).toEqual([1_050, 2_099, 1_050])
      })
    )

    it.effect("a drain sweeps what expires and whose lease ends, without a worker too (G66)", () =>
      Effect.gen(function* () {
        const queue = Queue.make("unattended-expiry", { payload: Schema.String, maxAttempts: 1 })
        const start = yield* Clock.currentTimeMillis
        yield* queue.enqueueMany(["a", "b"], { expires: "1 hour" })
        yield* queue.enqueue("held", { priority: 1 })
        expect(yield* queue.claim({ visibilityTimeout: "10 minutes" })).toMatchObject([{ payload: "held" }])
        yield* Testing.drain(queue)
        expect((yield* Clock.currentTimeMillis) - start).toBe(3_600_000)
        const letters = yield* Testing.deadLetters(queue)
        expect(letters.map(({ diedAt, reason }) => [reason, diedAt - start])).toEqual([
          ["expired", 3_600_000],
          ["expired", 3_600_000],
          ["crashed", 600_000]
        ])
      })
    )

    it.effect("a drain of what a paused queue holds ends with its expiry (G66)", () =>
      Effect.gen(function* () {
        const queue = make("paused-expiry")
        yield* Worker.fork(queue, { handler: () => Effect.void })
        yield* queue.pause
        const start = yield* Clock.currentTimeMillis
        yield* queue.enqueue("a", { expires: "1 day" })
        yield* Testing.drain(queue)
        expect((yield* Clock.currentTimeMillis) - start).toBe(86_400_000)
        expect(yield* Testing.deadLetters(queue)).toMatchObject([{ reason: "expired" }])
      })
    )

    it.effect("a drain waits for no expiry beyond its limit (G66)", () =>
      Effect.gen(function* () {
        const queue = make("long-lived")
        const start = yield* Clock.currentTimeMillis
        yield* queue.enqueue("a", { expires: "1 day" })
        expect(yield* Effect.flip(Testing.drain(queue, { within: "1 hour" }))).toMatchObject({ argument: "within" })
        expect((yield* Clock.currentTimeMillis) - start).toBeLessThanOrEqual(3_600_000)
      })
    )

    it.effect("drain says so when jobs are left and nothing moves any more", () =>
      Effect.gen(function* () {
        const queue = make("unattended")
        yield* queue.enqueue("a")
        const drained = yield* Effect.either(Testing.drain(queue))
        expect(Either.isLeft(drained) && drained.left).toMatchObject({ _tag: "InvalidArgument", argument: "within" })
      })
    )
  })
})
