/** Leases: what happens when one ends, and what keeps it. */
import { SqlClient } from "@effect/sql"
import { Queue } from "alkstore"
import { Clock, Effect, Schema, TestClock } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  failsWith,
  freshQueue,
  liveRows,
  onlyLetter,
  onlyRow,
  type Suite,
  sweep,
  virtual
} from "./support.js"

/** Both who can meet a lapsed lease. */
const finders = [
  ["a claim", (queue: ReturnType<typeof freshQueue>) => Effect.asVoid(queue.claim())],
  ["a sweep", (queue: ReturnType<typeof freshQueue>) => Effect.asVoid(sweep(queue))]
] as const

export const leaseSuite: Suite = (engine, options) => {
  virtual(engine, options, "the end of a lease", (it) => {
    it.effect("makes the job claimable again, an attempt and a crash more, without any sweep (G31, G44, G52)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const first = yield* claimOne(queue, { visibilityTimeout: "10 seconds" })
        expect(first.lease.deadline).toBe((yield* Clock.currentTimeMillis) + 10_000)
        yield* TestClock.adjust("10 seconds")
        const second = yield* claimOne(queue)
        expect(second).toMatchObject({ id: first.id, attempt: 2, crashes: 1, failures: 0 })
        expect(second.lease.token).toBeGreaterThan(first.lease.token)
        expect(second.errors).toMatchObject([{ attempt: 1, kind: "crash" }])
        expect(second.errors[0]?.message).toContain("manual")
      })
    )

    it.effect("is met by a sweep, which counts what it did (G52)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2, 3], (_, index) => ({ maxAttempts: index === 0 ? 1 : 5 }))
        yield* queue.claim({ limit: 3, visibilityTimeout: "10 seconds" })
        yield* TestClock.adjust(9_999)
        expect(yield* sweep(queue)).toMatchObject({ expired: 0, recovered: 0, crashed: 0 })
        yield* TestClock.adjust(1)
        expect(yield* sweep(queue)).toMatchObject({ expired: 0, recovered: 2, crashed: 1 })
        expect(yield* sweep(queue)).toMatchObject({ expired: 0, recovered: 0, crashed: 0 })
        expect(yield* liveRows(queue)).toMatchObject([
          { state: "ready", attempt: 1, crashes: 1, worker: null },
          { state: "ready", attempt: 1, crashes: 1, worker: null }
        ])
      })
    )

    it.effect("a sweep of all queues meets all, hundreds of pages or few (G54)", () =>
      Effect.gen(function* () {
        const queues = [freshQueue(), freshQueue(), freshQueue()]
        for (const queue of queues) {
          yield* queue.enqueueMany(Array.from({ length: 1_100 }, (_, n) => n))
          yield* queue.claim({ limit: 1_100, visibilityTimeout: "1 second" })
        }
        yield* TestClock.adjust("2 seconds")
        const results = yield* Effect.all([sweep(), sweep(), sweep()], { concurrency: "unbounded" })
        expect(results.reduce((sum, { recovered }) => sum + recovered, 0)).toBe(3_300)
        for (const queue of queues) {
          const rows = yield* liveRows(queue)
          expect(rows.filter(({ crashes, state }) => state === "ready" && crashes === 1)).toHaveLength(1_100)
        }
      })
    )

    for (const [finder, find] of [...finders, ["both", () => Effect.void] as const]) {
      it.effect(
        `puts the job behind what was due before its end, ahead of what came after (G31), met by ${finder}`,
        () =>
          Effect.gen(function* () {
            const queue = freshQueue()
            yield* queue.enqueue("crashed")
            yield* claimOne(queue, { visibilityTimeout: "10 seconds" })
            yield* TestClock.adjust("5 seconds")
            yield* queue.enqueue("before")
            yield* TestClock.adjust("10 seconds")
            yield* queue.enqueue("after")
            yield* TestClock.adjust("1 second")
            if (finder !== "a claim") yield* sweep(queue)
            const jobs = yield* queue.claim({ limit: 10 })
            // Without a sweep, the claim itself meets the lapsed job and answers it in its place
            expect(jobs.map(({ payload }) => payload)).toEqual(["before", "crashed", "after"])
          })
      )

      it.effect(`more than maxCrashes of them: dead (crashed), met by ${finder} (G52)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue({ maxCrashes: 2 })
          yield* queue.enqueue(1)
          for (const crashes of [0, 1, 2]) {
            expect((yield* claimOne(queue, { visibilityTimeout: "1 second" })).crashes).toBe(crashes)
            yield* TestClock.adjust("1 second")
          }
          if (finder === "both") yield* Effect.all([sweep(queue), queue.claim()], { concurrency: "unbounded" })
          else yield* find(queue)
          expect(yield* liveRows(queue)).toEqual([])
          const letter = yield* onlyLetter(queue)
          expect(letter).toMatchObject({ reason: "crashed", attempts: 3, crashes: 3, failures: 0 })
          expect(letter.errors.map(({ kind }) => kind)).toEqual(["crash", "crash", "crash"])
        })
      )

      it.effect(`on the last attempt: dead (crashed), met by ${finder} (G52)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue({ maxCrashes: 100 })
          yield* queue.enqueue(1, { maxAttempts: 2 })
          yield* (yield* claimOne(queue)).retry({ delay: 0 })
          yield* claimOne(queue, { visibilityTimeout: "1 second" })
          yield* TestClock.adjust("1 second")
          if (finder === "both") yield* Effect.all([sweep(queue), queue.claim()], { concurrency: "unbounded" })
          else yield* find(queue)
          expect(yield* liveRows(queue)).toEqual([])
          expect(yield* onlyLetter(queue)).toMatchObject({ reason: "crashed", attempts: 2, crashes: 1, failures: 1 })
        })
      )
    }

    it.effect("with maxCrashes 0 the first crash is the last; by default the sixth is (G52)", () =>
      Effect.gen(function* () {
        const none = freshQueue({ maxCrashes: 0 })
        yield* none.enqueue(1)
        yield* claimOne(none, { visibilityTimeout: "1 second" })
        yield* TestClock.adjust("1 second")
        expect(yield* none.claim()).toEqual([])
        expect((yield* onlyLetter(none)).crashes).toBe(1)

        const five = freshQueue()
        yield* five.enqueue(1)
        for (let n = 0; n < 6; n++) {
          yield* claimOne(five, { visibilityTimeout: "1 second" })
          yield* TestClock.adjust("1 second")
        }
        expect(yield* five.claim()).toEqual([])
        expect((yield* onlyLetter(five)).crashes).toBe(6)
      })
    )

    it.effect("failures are not crashes: they do not count against maxCrashes (G44, G52)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ maxCrashes: 1 })
        yield* queue.enqueue(1)
        for (let n = 0; n < 5; n++) yield* (yield* claimOne(queue)).retry({ delay: 0 })
        yield* claimOne(queue, { visibilityTimeout: "1 second" })
        yield* TestClock.adjust("1 second")
        expect(yield* claimOne(queue)).toMatchObject({ attempt: 7, failures: 5, crashes: 1 })
      })
    )

    it.effect("maxCrashes is the queue's, as stored: a sweep of all queues goes by it (G55)", () =>
      Effect.gen(function* () {
        const strict = freshQueue({ maxCrashes: 0 })
        const lenient = freshQueue()
        for (const queue of [strict, lenient]) {
          yield* queue.enqueue(1)
          yield* claimOne(queue, { visibilityTimeout: "1 second" })
        }
        yield* TestClock.adjust("1 second")
        yield* sweep()
        expect(yield* deadRows(strict)).toHaveLength(1)
        expect(yield* liveRows(lenient)).toHaveLength(1)
      })
    )

    it.effect("a worker's definition beats a producer's, in whatever order they come (G55)", () =>
      Effect.gen(function* () {
        const store = yield* Queue.Queue
        const producer = freshQueue()
        yield* producer.enqueue(1)
        yield* store.define({ ...producer.settings, maxCrashes: 0 }, "worker")
        yield* Queue.make(producer.name, { payload: Schema.Unknown, maxCrashes: 9 }).enqueue(2)
        yield* producer.claim({ limit: 2, visibilityTimeout: "1 second" })
        yield* TestClock.adjust("1 second")
        yield* sweep(producer)
        expect(yield* deadRows(producer)).toHaveLength(2)
      })
    )

    it.effect("a lease that would begin only in the future was written by a clock that ran ahead: ended (G38)", () =>
      Effect.gen(function* () {
        const sql = yield* SqlClient.SqlClient
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const job = yield* claimOne(queue, { visibilityTimeout: "30 seconds" })
        const far = job.lease.deadline + 365 * 86_400_000
        yield* sql.unsafe(`UPDATE ${engine.table("jobs")} SET visible_at = ${far} WHERE id = ${job.id}`)
        yield* sweep(queue)
        const row = yield* onlyRow(queue)
        expect(row).toMatchObject({ state: "ready", crashes: 1 })
        expect(row.dueAt).toBeLessThanOrEqual(yield* Clock.currentTimeMillis)
        expect(yield* claimOne(queue)).toMatchObject({ attempt: 2, crashes: 1 })
        // PostgreSQL has one clock, the server's: there it takes a sweep
        if (engine.engine === "postgres") return
        yield* sql.unsafe(`UPDATE ${engine.table("jobs")} SET visible_at = ${far} WHERE id = ${job.id}`)
        expect(yield* claimOne(queue)).toMatchObject({ attempt: 3, crashes: 2 })
      })
    )
  })

  virtual(engine, options, "a clock that is set back", (it) => {
    it.effect("by up to 30 s ends no lease that was given before: it ends at its deadline (G38)", () =>
      Effect.gen(function* () {
        const sql = yield* SqlClient.SqlClient
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const job = yield* claimOne(queue, { visibilityTimeout: "10 seconds" })
        // As if the clock had been 30 s further on when it was claimed
        yield* sql.unsafe(`UPDATE ${engine.table("jobs")} SET visible_at = visible_at + 30000 WHERE id = ${job.id}`)
        for (const millis of [0, 10_000, 29_999]) {
          yield* TestClock.adjust(millis)
          expect(yield* queue.claim()).toEqual([])
          yield* sweep(queue)
          expect(yield* onlyRow(queue)).toMatchObject({ state: "leased", crashes: 0 })
        }
        yield* TestClock.adjust(1)
        expect(yield* claimOne(queue)).toMatchObject({ attempt: 2, crashes: 1 })
      })
    )

    it.effect("by more than that: it was written by a clock that ran ahead, and has ended (G38)", () =>
      Effect.gen(function* () {
        const sql = yield* SqlClient.SqlClient
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const job = yield* claimOne(queue, { visibilityTimeout: "10 seconds" })
        yield* sql.unsafe(`UPDATE ${engine.table("jobs")} SET visible_at = visible_at + 30001 WHERE id = ${job.id}`)
        yield* sweep(queue)
        expect(yield* claimOne(queue)).toMatchObject({ attempt: 2, crashes: 1 })
      })
    )
  })

  virtual(engine, options, "heartbeats by hand", (it) => {
    it.effect("renew the lease for its visibility timeout from then (G37)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const job = yield* claimOne(queue, { visibilityTimeout: "10 seconds" })
        for (let n = 0; n < 5; n++) {
          yield* TestClock.adjust("8 seconds")
          yield* job.heartbeat()
          expect((yield* onlyRow(queue)).deadline).toBe((yield* Clock.currentTimeMillis) + 10_000)
          expect(yield* queue.claim()).toEqual([])
          yield* sweep(queue)
        }
        yield* TestClock.adjust(9_999)
        expect(yield* queue.claim()).toEqual([])
        yield* TestClock.adjust(1)
        expect(yield* claimOne(queue)).toMatchObject({ attempt: 2, crashes: 1 })
      })
    )

    it.effect("nothing else renews: a read, an enqueue or another job's heartbeat do not (G37)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2])
        const [one] = yield* queue.claim({ limit: 2, visibilityTimeout: "10 seconds" })
        yield* TestClock.adjust("5 seconds")
        yield* one?.heartbeat("mine") ?? Effect.void
        yield* liveRows(queue)
        yield* queue.enqueue(3, { delay: "1 hour" })
        yield* TestClock.adjust("5 seconds")
        expect((yield* queue.claim({ limit: 10 })).map(({ payload }) => payload)).toEqual([2])
      })
    )

    it.effect("keep progress, which is seen in the row and handed to every later attempt (G36)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const first = yield* claimOne(queue, { visibilityTimeout: "1 second" })
        expect(first.progress).toBeUndefined()
        yield* first.heartbeat({ done: 1, text: "\u0000 \ud83d 😀" })
        expect((yield* onlyRow(queue)).progress).toBe(JSON.stringify({ done: 1, text: "\u0000 \ud83d 😀" }))
        yield* first.heartbeat()
        yield* TestClock.adjust("1 second")
        const second = yield* claimOne(queue)
        expect(second.progress).toEqual({ done: 1, text: "\u0000 \ud83d 😀" })
        yield* second.heartbeat(null)
        yield* second.release
        const third = yield* claimOne(queue)
        expect(third.progress).toBeNull()
        yield* third.heartbeat("x".repeat(8 * 1024 - 2))
        yield* third.retry({ delay: 0 })
        expect((yield* claimOne(queue)).progress).toBe("x".repeat(8 * 1024 - 2))
      })
    )

    it.effect("refuse progress that is not JSON or over 8 KiB, and change nothing (G36)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const job = yield* claimOne(queue)
        yield* job.heartbeat("kept")
        const before = yield* onlyRow(queue)
        yield* TestClock.adjust("1 second")
        for (const progress of ["x".repeat(8 * 1024 - 1), 1n, Number.NaN, new Date(0), () => 1, new Map()]) {
          expect((yield* failsWith(job.heartbeat(progress), "InvalidArgument")).argument).toBe("progress")
        }
        expect(yield* onlyRow(queue)).toEqual(before)
      })
    )

    it.effect("are answered one by one when many are renewed at once (G28)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const store = yield* Queue.Queue
        yield* queue.enqueueMany([1, 2, 3])
        const jobs = yield* queue.claim({ limit: 3, visibilityTimeout: "10 seconds" })
        yield* jobs[1]?.ack ?? Effect.void
        yield* TestClock.adjust("1 second")
        const outcomes = yield* store.renew(
          jobs.map(({ id, lease }, index) => ({
            id,
            token: lease.token + (index === 2 ? 1 : 0),
            visibilityMillis: 60_000,
            progress: undefined
          }))
        )
        expect(outcomes).toEqual(["renewed", "gone", "lost"])
        const now = yield* Clock.currentTimeMillis
        expect((yield* liveRows(queue)).map(({ deadline }) => deadline)).toEqual([now + 60_000, now + 9_000])
      })
    )

    it.effect("of two leases of one job renewed together only the one that holds it counts (G28)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const store = yield* Queue.Queue
        yield* queue.enqueue(1)
        const stale = yield* claimOne(queue, { visibilityTimeout: "1 second" })
        yield* TestClock.adjust("2 seconds")
        const held = yield* claimOne(queue)
        const both = [
          { id: stale.id, token: stale.lease.token, visibilityMillis: 3_600_000, progress: '"stale"' },
          { id: held.id, token: held.lease.token, visibilityMillis: 60_000, progress: '"held"' }
        ]
        for (const renewals of [both, [...both].reverse()]) {
          const outcomes = yield* store.renew(renewals)
          expect(outcomes).toEqual(renewals.map(({ token }) => (token === held.lease.token ? "renewed" : "lost")))
          const now = yield* Clock.currentTimeMillis
          expect(yield* onlyRow(queue)).toMatchObject({ deadline: now + 60_000, progress: '"held"' })
        }
      })
    )
  })
}
