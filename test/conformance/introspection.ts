/** What can be seen of queues: counts, what runs, a job wherever it is, lists by page, names. */
import { SqlClient } from "@effect/sql"
import { Queue, transaction } from "alkstore"
import { Effect, TestClock } from "effect"
import { expect } from "vitest"
import { plant } from "./deadLetters.js"
import { claimOne, failsWith, freshName, freshQueue, live, type Suite, sweep, virtual } from "./support.js"

type AnyQueue = ReturnType<typeof freshQueue>

/** The counts of a queue as plain numbers; all of them exact. */
const numbers = (queue: AnyQueue) =>
  Effect.map(queue.counts, ({ blocked, completed, dead, delayed, leased, ready }) => {
    const all = { ready, delayed, blocked, leased, dead, completed }
    for (const count of Object.values(all)) expect(count.exact).toBe(true)
    return Object.fromEntries(Object.entries(all).map(([name, { count }]) => [name, count]))
  })

const nothing = { ready: 0, delayed: 0, blocked: 0, leased: 0, dead: 0, completed: 0 }

/** All pages of a list. */
const pages = <Row, E>(
  size: number,
  list: (after: Row | undefined) => Effect.Effect<ReadonlyArray<Row>, E, Queue.Queue>
) =>
  Effect.gen(function* () {
    const rows: Array<Row> = []
    for (;;) {
      const page: ReadonlyArray<Row> = yield* list(rows.at(-1))
      rows.push(...page)
      if (page.length < size) return rows as ReadonlyArray<Row>
    }
  })

export const introspectionSuite: Suite = (engine, options) => {
  virtual(engine, options, "counts", (it) => {
    it.effect("follow a job through its states, and by the clock (G157)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ retainCompleted: "1 day" })
        expect(yield* numbers(queue)).toEqual(nothing)
        expect(yield* queue.counts).toMatchObject({
          queue: queue.name,
          paused: false,
          oldestReadyMillis: undefined,
          nextDueMillis: undefined
        })
        yield* queue.enqueueMany([1, 2, 3, 4], (_, n) => ({ priority: n - 2, delay: n * 1_000 }))
        yield* queue.enqueueMany([5, 6, 7], { orderingKey: "o", delay: "1 hour" })
        expect(yield* numbers(queue)).toEqual({ ...nothing, ready: 1, delayed: 4, blocked: 2 })
        expect(yield* queue.counts).toMatchObject({ oldestReadyMillis: 0, nextDueMillis: 1_000 })
        yield* TestClock.adjust(2_500)
        expect(yield* numbers(queue)).toEqual({ ...nothing, ready: 3, delayed: 2, blocked: 2 })
        expect(yield* queue.counts).toMatchObject({ oldestReadyMillis: 2_500, nextDueMillis: 500 })
        const [a, b] = yield* queue.claim({ limit: 2, visibilityTimeout: "1 minute" })
        expect(yield* numbers(queue)).toEqual({ ...nothing, ready: 1, leased: 2, delayed: 2, blocked: 2 })
        yield* a?.ack ?? Effect.void
        yield* b?.fail() ?? Effect.void
        expect(yield* numbers(queue)).toEqual({ ready: 1, delayed: 2, blocked: 2, leased: 0, dead: 1, completed: 1 })
        yield* queue.pause
        expect((yield* queue.counts).paused).toBe(true)
        yield* queue.resume
        yield* queue.clear
        yield* queue.deadLetters.purge({ all: true })
        expect(yield* numbers(queue)).toEqual({ ...nothing, completed: 1 })
        expect(yield* queue.counts).toMatchObject({ oldestReadyMillis: undefined, nextDueMillis: undefined })
      })
    )

    it.effect("a key that is free has its next job counted as ready, without a claim (G157)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2, 3], { orderingKey: "o" })
        yield* (yield* claimOne(queue)).ack
        expect(yield* numbers(queue)).toEqual({ ...nothing, ready: 1, blocked: 1 })
      })
    )

    it.effect("are a queue's own (G157)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const beside = freshQueue()
        yield* beside.enqueueMany([1, 2, 3])
        yield* claimOne(beside)
        expect(yield* numbers(queue)).toEqual(nothing)
        expect(yield* numbers(beside)).toEqual({ ...nothing, ready: 2, leased: 1 })
      })
    )

    it.effect("are exact up to ten thousand, in sum over the priorities, and say when they are not (G157)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const of = (count: number) => Array.from({ length: count }, (_, n) => n)
        yield* queue.enqueueMany(of(10_000), (_, n) => ({ priority: n % 3 }))
        yield* plant(engine.table("dead_letters"), queue, 10_000)
        expect(yield* numbers(queue)).toEqual({ ...nothing, ready: 10_000, dead: 10_000 })
        yield* queue.enqueue("one more")
        yield* plant(engine.table("dead_letters"), queue, 2_000)
        const sql = yield* SqlClient.SqlClient
        yield* sql.unsafe("ANALYZE")
        const { blocked, dead, delayed, leased, ready } = yield* queue.counts
        expect([ready.exact, dead.exact]).toEqual([false, false])
        expect([delayed, blocked, leased]).toEqual([1, 2, 3].map(() => ({ count: 0, exact: true })))
        for (const [count, truth] of [
          [ready.count, 10_001],
          [dead.count, 12_000]
        ] as const) {
          expect(count).toBeGreaterThan(10_000)
          // The planner's guess after an ANALYZE; SQLite says that there are more than ten thousand
          expect(count).toBeLessThan(engine.engine === "postgres" ? 2 * truth : 10_002)
        }
        // In a transaction as well
        expect((yield* transaction(queue.counts)).ready.exact).toBe(false)
      })
    )
  })

  virtual(engine, options, "lists of jobs", (it) => {
    it.effect("list answers live jobs of every state by id, page by page (G157)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const beside = freshQueue()
        for (let round = 0; round < 5; round++) {
          yield* queue.enqueueMany(
            Array.from({ length: 20 }, (_, n) => n),
            (_, n) => ({
              priority: n % 4,
              ...(n % 3 === 0 ? { orderingKey: `o${n % 2}` } : {}),
              ...(n % 5 === 0 ? { delay: "1 hour" as const } : {})
            })
          )
          yield* beside.enqueueMany([1, 2, 3])
        }
        yield* queue.claim({ limit: 15 })
        const all = yield* queue.list({ limit: 1_000 })
        expect(all).toHaveLength(100)
        expect(new Set(all.map(({ state }) => state))).toEqual(new Set(["ready", "delayed", "blocked", "leased"]))
        expect(all.map(({ id }) => id)).toEqual([...all.map(({ id }) => id)].sort((a, b) => a - b))
        expect(all.every((row) => row.queue === queue.name)).toBe(true)
        expect(yield* pages(7, (after: Queue.LiveRow | undefined) => queue.list({ limit: 7, after }))).toEqual(all)
        expect(yield* queue.list({ limit: 0 })).toEqual([])
        yield* failsWith(queue.list({ limit: 1_001 }), "InvalidArgument")
        yield* failsWith(queue.running({ limit: -1 }), "InvalidArgument")
        const wrong = (after: unknown) => ({ after: after as Queue.LiveRow & Queue.DeadRow & Queue.CompletedRow })
        for (const id of [1e300, "7", -1, Number.NaN, undefined]) {
          const row = { id, deadline: 1, diedAt: 1, completedAt: 1 }
          expect((yield* failsWith(queue.list(wrong(row)), "InvalidArgument")).argument).toBe("after.id")
          yield* failsWith(queue.running(wrong(row)), "InvalidArgument")
          yield* failsWith(queue.completed(wrong(row)), "InvalidArgument")
          yield* failsWith(queue.deadLetters.list(wrong(row)), "InvalidArgument")
        }
        const nowhere = { id: 1, deadline: "1", diedAt: Number.NaN, completedAt: 1e300 }
        expect((yield* failsWith(queue.running(wrong(nowhere)), "InvalidArgument")).argument).toBe("after.deadline")
        yield* failsWith(queue.completed(wrong(nowhere)), "InvalidArgument")
        yield* failsWith(queue.deadLetters.list(wrong(nowhere)), "InvalidArgument")
      })
    )

    it.effect("list and filters of a queue of more than ten thousand jobs miss none (G147, G157)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(
          Array.from({ length: 10_300 }, (_, n) => n),
          (_, n) => ({
            ...(n % 100 === 0 ? { delay: "1 hour" as const } : {})
          })
        )
        const all = yield* pages(1_000, (after: Queue.LiveRow | undefined) => queue.list({ limit: 1_000, after }))
        expect(all.map(({ payload }) => Number(payload))).toEqual(Array.from({ length: 10_300 }, (_, n) => n))
        expect(yield* queue.runNow({ state: "delayed" })).toEqual({ changed: 103, leased: 0, tooLate: 0 })
        expect(yield* queue.cancelMany({ state: "ready" })).toEqual({ cancelled: 10_300, requested: 0, tooLate: 0 })
      })
    )

    it.effect("running answers leased jobs with their worker, by the end of their lease (G157)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const store = yield* Queue.Queue
        yield* queue.enqueueMany([1, 2, 3, 4, 5])
        const claim = (limit: number, visibilityMillis: number, worker: string) =>
          store.claim({ queue: queue.name, limit, prefetch: 0, visibilityMillis, worker, probe: true })
        yield* claim(1, 60_000, "slow")
        yield* claim(2, 20_000, "quick 'w' 😀")
        yield* claim(1, 40_000, "middle")
        const rows = yield* queue.running()
        expect(rows.map(({ payload, worker }) => [payload, worker])).toEqual([
          ["2", "quick 'w' 😀"],
          ["3", "quick 'w' 😀"],
          ["4", "middle"],
          ["1", "slow"]
        ])
        const now = yield* Effect.clockWith((clock) => clock.currentTimeMillis)
        expect(rows[0]).toMatchObject({
          state: "leased",
          claimedAt: now,
          deadline: now + 20_000,
          attempt: 1,
          cancelRequested: false
        })
        expect(yield* pages(1, (after: Queue.LiveRow | undefined) => queue.running({ limit: 1, after }))).toEqual(rows)
        yield* queue.cancel(rows[0]?.id ?? 0)
        expect((yield* queue.running({ limit: 1 }))[0]).toMatchObject({ cancelRequested: true })
        yield* TestClock.adjust("30 seconds")
        // Lapsed, and not taken yet: it may run still
        expect(yield* queue.running()).toHaveLength(4)
        yield* sweep(queue)
        expect((yield* queue.running()).map(({ worker }) => worker)).toEqual(["middle", "slow"])
      })
    )

    it.effect("find answers a job wherever it is, and nothing where it is not (G157)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ retainCompleted: "1 hour" })
        const { id } = yield* queue.enqueue({ a: 1 })
        expect(yield* Queue.find(id)).toMatchObject({
          _tag: "Live",
          job: { id, queue: queue.name, state: "ready", payload: '{"a":1}' }
        })
        yield* (yield* claimOne(queue)).fail("no")
        expect(yield* Queue.find(id)).toMatchObject({
          _tag: "Dead",
          job: { id, reason: "failed", errors: [{ message: "no" }] }
        })
        yield* queue.deadLetters.requeue({ id })
        expect(yield* Queue.find(id)).toMatchObject({ _tag: "Live", job: { id, history: [{ reason: "failed" }] } })
        yield* (yield* claimOne(queue)).ack
        expect(yield* Queue.find(id)).toMatchObject({ _tag: "Completed", job: { id, attempts: 1 } })
        yield* TestClock.adjust("1 hour")
        yield* sweep(queue)
        expect(yield* Queue.find(id)).toBeUndefined()
        expect(yield* Queue.find(Number.MAX_SAFE_INTEGER)).toBeUndefined()
        yield* failsWith(Queue.find(-1), "InvalidArgument")
      })
    )

    it.effect("names are those of all queues that are defined or have jobs, each once, in order (G157)", () =>
      Effect.gen(function* () {
        const prefix = freshName("names")
        const [b, a, c] = ["b", "a", "c"].map((name) => freshQueue({}) && `${prefix}:${name}`)
        const store = yield* Queue.Queue
        const define = (name = "", deadLetterQueue?: string) =>
          Queue.make(name, { payload: freshQueue().payload, deadLetterQueue })
        yield* define(b).enqueue(1)
        yield* define(a, c).enqueue(1)
        yield* (yield* claimOne(define(a, c))).fail()
        // Nobody has defined this one: it has an envelope
        expect((yield* Queue.names).filter((name) => name.startsWith(prefix))).toEqual([a, b, c])
        yield* store.setPaused(`${prefix}:d`, true)
        const all = yield* Queue.names
        expect(all).toContain(`${prefix}:d`)
        expect(new Set(all).size).toBe(all.length)
      })
    )
  })

  live(engine, options, "looks, while jobs come and go", (it) => {
    it.effect("a job that is requeued and dies again and again is always found (G157)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { id } = yield* queue.enqueue(1)
        const churn = Effect.repeatN(
          Effect.gen(function* () {
            for (const job of yield* queue.claim()) yield* job.fail()
            yield* queue.deadLetters.requeue({ id })
          }),
          40
        )
        const look = Effect.repeatN(
          Effect.map(Queue.find(id), (found) => expect(found?.job.id).toBe(id)),
          200
        )
        yield* Effect.all([churn, look, look], { concurrency: "unbounded" })
      })
    )
  })
}
