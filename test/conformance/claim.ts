/** claim: which jobs, in which order, how many, under which tokens. */
import { Queue } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, Schema, TestClock } from "effect"
import { expect } from "vitest"
import { claimOne, failsWith, freshQueue, live, liveRows, onlyLetter, onlyRow, type Suite, virtual } from "./support.js"

const range = (length: number) => Array.from({ length }, (_, n) => n)

export const claimSuite: Suite = (engine, options) => {
  virtual(engine, options, "claim", (it) => {
    it.effect("goes by priority, then the due time, then the id, within a claim and across claims (G20)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(range(60), (_, n) => ({
          priority: ((n * 7) % 5) - 2,
          delay: ((n * 11) % 4) * 1_000
        }))
        yield* queue.enqueue("top", { priority: 32_767, delay: 2_500 })
        yield* queue.enqueue("bottom", { priority: -32_768 })
        yield* Testing.advance("1 minute")
        const expected = [...(yield* liveRows(queue))]
          .sort((a, b) => b.priority - a.priority || a.dueAt - b.dueAt || a.id - b.id)
          .map(({ id }) => id)
        const claims = yield* Effect.forEach([1, 7, 20, 100], (limit) => queue.claim({ limit }))
        expect(claims.flat().map(({ id }) => id)).toEqual(expected)
        expect(claims.flat()[0]?.payload).toBe("top")
        expect(claims.flat().at(-1)?.payload).toBe("bottom")
      })
    )

    it.effect("a thousand of one batch come in their order (G20)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(range(1_000))
        const claims = yield* Effect.forEach(range(4), () => queue.claim({ limit: 300 }))
        expect(claims.map((jobs) => jobs.length)).toEqual([300, 300, 300, 100])
        expect(claims.flat().map(({ payload }) => payload)).toEqual(range(1_000))
      })
    )

    it.effect("an urgent job that comes later goes first (G20)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2, 3])
        expect((yield* claimOne(queue)).payload).toBe(1)
        yield* queue.enqueue("urgent", { priority: 1 })
        expect((yield* queue.claim({ limit: 2 })).map(({ payload }) => payload)).toEqual(["urgent", 2])
      })
    )

    it.effect("takes as many as asked for, one by default, none for 0 (G21)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        expect(yield* queue.claim({ limit: 10 })).toEqual([])
        yield* queue.enqueueMany(range(10))
        expect(yield* queue.claim({ limit: 0 })).toEqual([])
        expect((yield* liveRows(queue)).filter(({ state }) => state === "leased")).toEqual([])
        expect(yield* queue.claim()).toHaveLength(1)
        expect(yield* queue.claim({ limit: 3 })).toHaveLength(3)
        expect((yield* liveRows(queue)).filter(({ state }) => state === "leased")).toHaveLength(4)
        expect(yield* queue.claim({ limit: 100 })).toHaveLength(6)
        expect(yield* queue.claim({ limit: 100 })).toEqual([])
      })
    )

    it.effect("refuses limits and visibility timeouts that are none, and takes nothing (G6)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        for (const limit of [-1, 1.5, Number.NaN, 10_001, "1" as never, null as never]) {
          expect((yield* failsWith(queue.claim({ limit }), "InvalidArgument")).argument).toBe("limit")
        }
        for (const visibilityTimeout of [
          0,
          99,
          -1,
          Number.NaN,
          Number.POSITIVE_INFINITY,
          "2 days" as const,
          "soon" as never
        ]) {
          const error = yield* failsWith(queue.claim({ visibilityTimeout }), "InvalidArgument")
          expect(error.argument).toBe("visibilityTimeout")
        }
        expect(yield* onlyRow(queue)).toMatchObject({ state: "ready", attempt: 0 })
      })
    )

    it.effect("takes only the queue's own jobs", () =>
      Effect.gen(function* () {
        const one = freshQueue()
        const two = freshQueue()
        yield* one.enqueue("one")
        yield* two.enqueueMany(["two", "two"])
        expect((yield* two.claim({ limit: 10 })).map(({ payload }) => payload)).toEqual(["two", "two"])
        expect(yield* onlyRow(one)).toMatchObject({ state: "ready", attempt: 0 })
      })
    )

    it.effect("a delayed job is not claimed a millisecond before it is due (G8, G23)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue("later", { delay: "10 seconds", priority: 100 })
        yield* queue.enqueue("now")
        expect((yield* queue.claim({ limit: 10 })).map(({ payload }) => payload)).toEqual(["now"])
        yield* TestClock.adjust(9_999)
        expect(yield* queue.claim({ limit: 10 })).toEqual([])
        yield* TestClock.adjust(1)
        expect((yield* queue.claim({ limit: 10 })).map(({ payload }) => payload)).toEqual(["later"])
      })
    )

    it.effect("delays beyond the reach of a timer hold, and end (G65)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue("after years", { delay: "400 days" })
        yield* TestClock.adjust("399 days")
        expect(yield* queue.claim()).toEqual([])
        yield* TestClock.adjust("1 day")
        expect((yield* claimOne(queue)).payload).toBe("after years")
      })
    )

    it.effect("a leased job is nobody else's until its lease ends (G19, G23)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        yield* claimOne(queue, { visibilityTimeout: "10 seconds" })
        expect(yield* queue.claim({ limit: 10 })).toEqual([])
        yield* TestClock.adjust(9_999)
        expect(yield* queue.claim({ limit: 10 })).toEqual([])
        expect(yield* onlyRow(queue)).toMatchObject({ state: "leased", attempt: 1, worker: "manual" })
      })
    )

    it.effect("counts attempts from 1, on the handle and on the row (G44)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        for (const attempt of [1, 2, 3, 4]) {
          const job = yield* claimOne(queue)
          expect([job.attempt, job.lease.attempt, (yield* onlyRow(queue)).attempt]).toEqual([attempt, attempt, attempt])
          expect(job.failures).toBe(attempt - 1)
          yield* job.retry({ delay: 0 })
        }
      })
    )

    it.effect("each claim's tokens are greater than all before, over all queues and jobs (G27)", () =>
      Effect.gen(function* () {
        const queues = [freshQueue(), freshQueue()]
        for (const queue of queues) yield* queue.enqueueMany(range(40))
        let last = 0
        const seen = new Set<number>()
        for (const n of range(12)) {
          const queue = queues[n % 2] as (typeof queues)[number]
          const jobs = yield* queue.claim({ limit: 10 })
          expect(jobs).toHaveLength(10)
          const tokens = jobs.map(({ lease }) => lease.token)
          expect(Math.min(...tokens)).toBeGreaterThan(last)
          last = Math.max(...tokens)
          for (const token of tokens) seen.add(token)
          // Half of them come again, half are gone: neither gives a token back
          yield* Effect.forEach(jobs, (job, index) => (index % 2 === 0 ? job.release : job.ack))
        }
        expect(seen.size).toBe(120)
      })
    )
  })

  virtual(engine, options, "payloads that cannot be decoded", (it) => {
    it.effect("cost no attempt, come back later and hold nothing up (G26)", () =>
      Effect.gen(function* () {
        const producer = freshQueue()
        const consumer = Queue.make(producer.name, { payload: Schema.Struct({ n: Schema.Number }) })
        yield* producer.enqueueMany(["old shape", { n: 1 }])
        expect((yield* consumer.claim({ limit: 10 })).map(({ payload }) => payload)).toEqual([{ n: 1 }])
        const [undecodable] = yield* liveRows(producer)
        expect(undecodable).toMatchObject({ state: "delayed", attempt: 0, failures: 0, crashes: 0 })
        yield* TestClock.adjust("1 second")
        expect((yield* producer.claim()).map(({ attempt, payload }) => [attempt, payload])).toEqual([[1, "old shape"]])
      })
    )

    it.effect("are dead (undecodable) after a day of that (G26)", () =>
      Effect.gen(function* () {
        const producer = freshQueue()
        const consumer = Queue.make(producer.name, { payload: Schema.Number })
        yield* producer.enqueue("text", { maxAttempts: 2 })
        const start = (yield* onlyRow(producer)).dueAt
        let looks = 0
        while ((yield* liveRows(producer)).length > 0) {
          expect(yield* consumer.claim()).toEqual([])
          yield* TestClock.adjust("1 hour")
          if (++looks > 30) expect.fail("still alive after more than a day")
        }
        const letter = yield* onlyLetter(producer)
        expect(letter).toMatchObject({ reason: "undecodable", payload: '"text"' })
        expect(letter.diedAt - start).toBeGreaterThanOrEqual(86_400_000)
        expect(letter.diedAt - start).toBeLessThan(86_400_000 + 2 * 3_600_000)
        expect(letter.errors.at(-1)?.kind).toBe("undecodable")
      })
    )
  })

  live(engine, options, "claims, many at once", (it) => {
    it.effect("each job is claimed once (G19, G27)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(range(500))
        const claimed: Array<{ readonly id: number; readonly token: number }> = []
        const consume = queue.claim({ limit: 7 }).pipe(
          Effect.tap((jobs) =>
            Effect.sync(() => claimed.push(...jobs.map(({ id, lease }) => ({ id, token: lease.token }))))
          ),
          Effect.repeat({ until: (jobs) => jobs.length === 0 })
        )
        yield* Effect.all(
          range(20).map(() => consume),
          { concurrency: "unbounded" }
        )
        // A claim that finds the rest locked by others answers early: whatever is left is for the next one
        yield* consume
        expect(claimed).toHaveLength(500)
        expect(new Set(claimed.map(({ id }) => id)).size).toBe(500)
        expect(new Set(claimed.map(({ token }) => token)).size).toBe(500)
      })
    )
  })
}
