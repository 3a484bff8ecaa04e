/** Live jobs, operated on by somebody who does not hold them: run now, rescheduled, reprioritised, cancelled, cleared. */
import { SqlClient } from "@effect/sql"
import { Queue, transaction, Worker } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, Layer, TestClock } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  failsWith,
  freshQueue,
  live,
  liveRows,
  onlyLetter,
  onlyRow,
  type Suite,
  sweep,
  virtual
} from "./support.js"

type AnyQueue = ReturnType<typeof freshQueue>
type Call = Effect.Effect<unknown, { readonly _tag: string }, Queue.Queue>

const now = Effect.clockWith((clock) => clock.currentTimeMillis)

/** One job in each state. */
const oneOfEach = (queue: AnyQueue) =>
  Effect.gen(function* () {
    const leased = yield* queue.enqueue("leased", { priority: 9, dedupeKey: "leased" })
    const job = yield* claimOne(queue, { visibilityTimeout: "10 hours" })
    const head = yield* queue.enqueue("head", { orderingKey: "o", delay: "1 hour" })
    const blocked = yield* queue.enqueue("blocked", { orderingKey: "o" })
    const ready = yield* queue.enqueue("ready", { dedupeKey: "ready" })
    const delayed = yield* queue.enqueue("delayed", { delay: "2 hours", dedupeKey: "delayed" })
    return { job, leased: leased.id, head: head.id, blocked: blocked.id, ready: ready.id, delayed: delayed.id }
  })

export const operationsSuite: Suite = (engine, options) => {
  virtual(engine, options, "runNow and reschedule", (it) => {
    it.effect("runNow makes a delayed job ready now; the expiry of a duration moves along (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const at = new Date((yield* now) + 30_000_000)
        const [a, b] = yield* queue.enqueueMany(["duration", "instant"], (name) => ({
          delay: "1 hour",
          dedupeKey: String(name),
          expires: name === "duration" ? "1 minute" : at
        }))
        expect(yield* queue.runNow({ id: [a?.id ?? 0, b?.id ?? 0] })).toEqual({ changed: 2, leased: 0, tooLate: 0 })
        const start = yield* now
        expect(yield* liveRows(queue)).toMatchObject([
          { state: "ready", dueAt: start, expiresAt: start + 60_000 },
          { state: "ready", dueAt: start, expiresAt: at.getTime() }
        ])
        expect(yield* queue.claim({ limit: 2 })).toHaveLength(2)
      })
    )

    it.effect("what is ready already keeps its place and its expiry (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue("first", { expires: "1 hour" })
        yield* TestClock.adjust("1 second")
        yield* queue.enqueue("second")
        yield* TestClock.adjust("1 second")
        const before = yield* liveRows(queue)
        expect((yield* queue.runNow({ state: "ready" })).changed).toBe(2)
        expect((yield* queue.reschedule({ all: true }, { runAt: new Date(0) })).changed).toBe(2)
        expect(yield* liveRows(queue)).toEqual(before)
        expect((yield* claimOne(queue)).payload).toBe("first")
      })
    )

    it.effect(
      "a job that is put off takes an expiry that counts from when it is due along, and is not claimed before (G156)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const { id } = yield* queue.enqueue("a", { expires: "1 minute" })
          yield* queue.reschedule({ id }, { delay: "2 hours" })
          yield* TestClock.adjust("2 minutes")
          expect(yield* queue.claim()).toEqual([])
          yield* TestClock.adjust("118 minutes")
          expect(yield* queue.claim()).toMatchObject([{ id }])
        })
    )

    it.effect("reschedule moves a waiting job to a delay or an instant, there and back (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { id } = yield* queue.enqueue(1)
        const start = yield* now
        yield* queue.reschedule({ id }, { delay: "1 minute" })
        expect(yield* onlyRow(queue)).toMatchObject({ state: "delayed", dueAt: start + 60_000 })
        expect(yield* queue.claim()).toEqual([])
        yield* queue.reschedule({ id }, { runAt: new Date(start + 10_000) })
        yield* TestClock.adjust("10 seconds")
        const job = yield* claimOne(queue)
        expect(job).toMatchObject({ id, attempt: 1 })
        yield* job.retry({ delay: "1 day", error: "kept" })
        yield* queue.runNow({ id })
        expect(yield* claimOne(queue)).toMatchObject({ id, attempt: 2, errors: [{ message: "kept" }] })
      })
    )

    it.effect("a blocked job stays blocked and is due at its new time when its turn comes (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { blocked, head } = yield* oneOfEach(queue)
        yield* queue.runNow({ id: blocked })
        expect((yield* liveRows(queue)).find(({ id }) => id === blocked)).toMatchObject({ state: "blocked" })
        yield* queue.reschedule({ id: blocked }, { delay: "5 hours" })
        yield* queue.runNow({ id: head })
        yield* queue.cancelMany({ state: ["delayed", "leased"] })
        const jobs = yield* queue.claim({ limit: 9 })
        expect(jobs.map(({ payload }) => payload)).toEqual(["head", "ready"])
        for (const job of jobs) yield* job.ack
        expect(yield* queue.claim({ limit: 9 })).toEqual([])
        yield* TestClock.adjust("5 hours")
        expect((yield* claimOne(queue)).payload).toBe("blocked")
      })
    )

    it.effect("a leased job is left alone; one that is gone or has expired is too late (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { job, leased } = yield* oneOfEach(queue)
        const before = yield* liveRows(queue)
        expect(yield* queue.runNow({ id: leased })).toEqual({ changed: 0, leased: 1, tooLate: 0 })
        expect(yield* queue.setPriority({ id: leased }, 5)).toEqual({ changed: 0, leased: 1, tooLate: 0 })
        expect(yield* liveRows(queue)).toEqual(before)
        yield* job.ack
        const store = yield* Queue.Queue
        const move = { delayMillis: 0, runAt: null, priority: null }
        expect(yield* store.change(queue.name, [leased, 123_456_789], move)).toEqual(["tooLate", "tooLate"])
        const brief = yield* queue.enqueue("brief", { expires: "1 second", delay: "1 second" })
        yield* TestClock.adjust("1 minute")
        // No sweep has come by: it is dead all the same
        expect(yield* queue.runNow({ id: brief.id })).toEqual({ changed: 0, leased: 0, tooLate: 1 })
        yield* sweep(queue)
        expect(yield* onlyLetter(queue)).toMatchObject({ id: brief.id, reason: "expired" })
        // Another queue's job is none of this one's
        const other = yield* freshQueue().enqueue("other")
        expect(yield* store.change(queue.name, [other.id], move)).toEqual(["tooLate"])
        expect(yield* store.cancel(queue.name, [other.id])).toEqual(["tooLate"])
      })
    )

    it.effect("setPriority changes the order of claims, to the ends of its range (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const receipts = yield* queue.enqueueMany(["a", "b", "c"])
        const [a, b, c] = receipts.map(({ id }) => id)
        expect((yield* queue.setPriority({ id: c ?? 0 }, 32_767)).changed).toBe(1)
        yield* queue.setPriority({ id: a ?? 0 }, -32_768)
        expect((yield* queue.claim({ limit: 3 })).map(({ id }) => id)).toEqual([c, b, a])
      })
    )

    it.scoped("a worker that sleeps is woken by what is due now (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const seen: Array<unknown> = []
        yield* queue.enqueue("later", { delay: "1 day" })
        yield* Worker.fork(queue, {
          shutdownGrace: 0,
          handler: (job) => Effect.sync(() => void seen.push(job.payload))
        })
        yield* Testing.settle
        expect((yield* queue.runNow({ all: true })).changed).toBe(1)
        if (options.silent) yield* Testing.advance("1 minute")
        yield* Testing.settle
        expect(seen).toEqual(["later"])
      })
    )

    it.effect(
      "filters select by id, key, ordering key, state and time of enqueue, all of them at once (G147, G156)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const beside = freshQueue()
          yield* beside.enqueueMany([1, 2, 3], { delay: "1 hour" })
          const jobs = yield* oneOfEach(queue)
          const middle = new Date((yield* now) + 1)
          yield* TestClock.adjust("1 minute")
          const late = yield* queue.enqueue("late", { orderingKey: "p" })
          const store = yield* Queue.Queue
          const none = { ids: null, dedupeKey: null, orderingKey: null, states: null, from: null, until: null }
          const select = (filter: Partial<Parameters<typeof store.select>[1]>) =>
            store.select(queue.name, { ...none, ...filter }, { after: 0, limit: 100 })
          const all = [jobs.leased, jobs.head, jobs.blocked, jobs.ready, jobs.delayed, late.id]
          expect(yield* select({})).toEqual(all)
          expect(yield* select({ ids: [late.id, jobs.head, 1_000_000_007] })).toEqual([jobs.head, late.id])
          expect(yield* select({ ids: [] })).toEqual([])
          expect(yield* select({ states: [] })).toEqual([])
          expect(yield* select({ dedupeKey: "ready" })).toEqual([jobs.ready])
          expect(yield* select({ dedupeKey: "nobody's" })).toEqual([])
          expect(yield* select({ orderingKey: "o" })).toEqual([jobs.head, jobs.blocked])
          expect(yield* select({ states: ["ready"] })).toEqual([jobs.ready, late.id])
          expect(yield* select({ states: ["delayed"] })).toEqual([jobs.head, jobs.delayed])
          expect(yield* select({ states: ["blocked", "leased", "leased"] })).toEqual([jobs.leased, jobs.blocked])
          expect(yield* select({ from: middle.getTime() })).toEqual([late.id])
          expect(yield* select({ until: middle.getTime(), states: ["ready", "blocked"] })).toEqual([
            jobs.blocked,
            jobs.ready
          ])
          expect(yield* select({ orderingKey: "o", states: ["blocked"], ids: all })).toEqual([jobs.blocked])
          expect(yield* select({ orderingKey: "o", dedupeKey: "ready" })).toEqual([])
          expect(yield* store.select(queue.name, none, { after: jobs.blocked, limit: 2 })).toEqual([
            jobs.ready,
            jobs.delayed
          ])
          const quoted = yield* queue.enqueue("q", { dedupeKey: `'; DROP TABLE jobs; -- %_" 😀`, orderingKey: `'"%_` })
          expect(yield* select({ dedupeKey: `'; DROP TABLE jobs; -- %_" 😀`, orderingKey: `'"%_` })).toEqual([
            quoted.id
          ])
        })
    )

    it.effect("a filter without a criterion, or with one that is none, is refused, and nothing is done (G147)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* oneOfEach(queue)
        const before = yield* liveRows(queue)
        const bad: ReadonlyArray<Call> = [
          queue.cancelMany({}),
          queue.cancelMany({ id: undefined }),
          queue.cancelMany({ all: false as unknown as true }),
          queue.cancelMany({ reason: "failed" } as {}),
          queue.runNow({ state: "dead" as "ready" }),
          queue.runNow({ dedupeKey: "" }),
          queue.runNow({ enqueuedAfter: new Date(Number.NaN) }),
          queue.cancel(-1),
          queue.cancel(0.5),
          queue.setPriority({ all: true }, 40_000),
          queue.setPriority({ all: true }, 0.5),
          queue.reschedule({ all: true }, {}),
          queue.reschedule({ all: true }, { delay: 1, runAt: new Date() }),
          queue.reschedule({ all: true }, { delay: "soon" as "1 second" }),
          queue.reschedule({ all: true }, { delay: Number.POSITIVE_INFINITY }),
          queue.reschedule({ all: true }, { runAt: new Date(Number.NaN) })
        ]
        for (const call of bad) yield* failsWith(call, "InvalidArgument")
        expect(yield* queue.cancelMany({ state: [] })).toEqual({ cancelled: 0, requested: 0, tooLate: 0 })
        expect(yield* queue.runNow({ id: [] })).toEqual({ changed: 0, leased: 0, tooLate: 0 })
        expect(yield* liveRows(queue)).toEqual(before)
      })
    )
  })

  virtual(engine, options, "cancel and clear", (it) => {
    it.effect("cancel ends a waiting job, in whatever state, with all it had (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const jobs = yield* oneOfEach(queue)
        yield* TestClock.adjust("1 second")
        for (const id of [jobs.head, jobs.blocked, jobs.ready, jobs.delayed]) {
          expect(yield* queue.cancel(id)).toBe("cancelled")
          expect(yield* queue.cancel(id)).toBe("tooLate")
        }
        expect(yield* onlyRow(queue)).toMatchObject({ id: jobs.leased, state: "leased" })
        const letters = yield* deadRows(queue)
        expect(letters.map(({ payload }) => JSON.parse(payload)).sort()).toEqual([
          "blocked",
          "delayed",
          "head",
          "ready"
        ])
        expect(letters.every(({ reason, attempts }) => reason === "cancelled" && attempts === 0)).toBe(true)
        expect(yield* queue.enqueue(0, { dedupeKey: "ready" })).toMatchObject({ deduplicated: false })
      })
    )

    it.effect("cancelMany over pages: each once, and the next of an ordering key goes on (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(
          Array.from({ length: 1_150 }, (_, n) => n),
          (_, n) => ({ orderingKey: n % 2 === 0 ? `o${n % 10}` : undefined, headers: {} })
        )
        const from = new Date((yield* now) + 1)
        yield* TestClock.adjust("1 second")
        yield* queue.enqueueMany(["a", "b"], { orderingKey: "o2" })
        expect(yield* queue.cancelMany({ enqueuedBefore: from })).toEqual({
          cancelled: 1_150,
          requested: 0,
          tooLate: 0
        })
        expect((yield* claimOne(queue)).payload).toBe("a")
        expect(yield* queue.claim()).toEqual([])
        expect(yield* queue.deadLetters.purge({ reason: "cancelled" })).toBe(1_150)
      })
    )

    it.effect("clear deletes what waits, without letters; leased jobs and other queues stay (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ deadLetterQueue: freshQueue().name })
        const beside = freshQueue()
        yield* beside.enqueue(1)
        const jobs = yield* oneOfEach(queue)
        yield* queue.enqueueMany(
          Array.from({ length: 1_100 }, (_, n) => n),
          (_, n) => ({ priority: n % 7, ...(n % 3 === 0 ? { orderingKey: `c${n % 4}` } : {}) })
        )
        expect(yield* queue.clear).toBe(1_104)
        expect(yield* onlyRow(queue)).toMatchObject({ id: jobs.leased })
        expect(yield* deadRows(queue)).toEqual([])
        expect(yield* queue.clear).toBe(0)
        yield* onlyRow(beside)
        // Keys and places are free
        expect(yield* queue.enqueue(0, { dedupeKey: "ready", orderingKey: "o" })).toMatchObject({
          deduplicated: false,
          state: "ready"
        })
        expect(yield* queue.enqueue(0, { dedupeKey: "leased" })).toMatchObject({ id: jobs.leased, deduplicated: true })
        expect((yield* claimOne(queue)).orderingKey).toBe("o")
        yield* jobs.job.ack
      })
    )
  })

  virtual(engine, options, "operations in transactions", (it) => {
    const calls = (queue: AnyQueue): Readonly<Record<string, Call>> => ({
      requeue: queue.deadLetters.requeue({ all: true }),
      "requeue elsewhere": queue.deadLetters.requeue({ all: true }, { to: freshQueue() }),
      purge: queue.deadLetters.purge({ all: true }),
      cancel: Effect.flatMap(liveRows(queue), ([row]) => queue.cancel(row?.id ?? 0)),
      cancelMany: queue.cancelMany({ all: true }),
      runNow: queue.runNow({ all: true }),
      reschedule: queue.reschedule({ all: true }, { delay: "1 hour" }),
      setPriority: queue.setPriority({ all: true }, 1),
      clear: queue.clear,
      pause: queue.pause,
      replace: queue.enqueue("replaced", { dedupeKey: "ready", onDuplicate: "replace" })
    })

    /** All that the database has of a queue. */
    const everything = (queue: AnyQueue) =>
      Effect.gen(function* () {
        const sql = yield* SqlClient.SqlClient
        const rows = (table: string, column = "queue") =>
          sql.unsafe(`SELECT * FROM ${engine.table(table)} WHERE ${column} = '${queue.name}' ORDER BY 1`)
        return yield* Effect.all([
          rows("jobs"),
          rows("dead_letters"),
          rows("completed_jobs"),
          rows("dedupe_keys"),
          rows("lane_blocks"),
          rows("queues", "name")
        ])
      })

    const prepared = Effect.gen(function* () {
      const queue = freshQueue({ retainCompleted: "1 hour" })
      yield* queue.enqueueMany(["acked", "failed"], (name) => ({
        priority: 9,
        dedupeKey: String(name),
        dedupeWindow: "1 hour"
      }))
      const [acked, failed] = yield* queue.claim({ limit: 2 })
      yield* acked?.ack ?? Effect.void
      yield* failed?.fail() ?? Effect.void
      yield* oneOfEach(queue)
      // Marks of ordering keys are gone through, so that nothing is left to be done by the way
      yield* queue.counts
      return queue
    })

    it.effect("each one, rolled back, leaves no trace; committed, it stands (G159)", () =>
      Effect.gen(function* () {
        for (const name of Object.keys(calls(freshQueue()))) {
          const queue = yield* prepared
          const before = yield* everything(queue)
          const call = calls(queue)[name] ?? Effect.void
          yield* Effect.either(transaction(Effect.zipRight(call, Effect.fail("mine"))))
          expect(yield* everything(queue), name).toEqual(before)
          const sql = yield* SqlClient.SqlClient
          yield* Effect.either(sql.withTransaction(Effect.zipRight(call, Effect.fail("mine"))))
          expect(yield* everything(queue), name).toEqual(before)
          yield* transaction(call)
          expect(yield* everything(queue), name).not.toEqual(before)
        }
      })
    )

    it.effect("each one in a transaction of another client is refused, and nothing is done (G14, G159)", () =>
      Effect.gen(function* () {
        const queue = yield* prepared
        const before = yield* everything(queue)
        const context = yield* Layer.build(engine.client)
        const foreign = yield* Effect.provide(SqlClient.SqlClient, context)
        for (const [name, call] of Object.entries(calls(queue))) {
          const error = yield* failsWith(foreign.withTransaction(call), "ForeignTransaction")
          expect(error, name).toMatchObject({ retryable: false })
          expect(yield* everything(queue), name).toEqual(before)
        }
      }).pipe(Effect.scoped, Effect.orDie)
    )

    it.effect("reads see what the transaction has done so far (G159)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* transaction(
          Effect.gen(function* () {
            const { id } = yield* queue.enqueue(1)
            expect((yield* queue.counts).ready.count).toBe(1)
            expect(yield* queue.list()).toHaveLength(1)
            expect(yield* Queue.find(id)).toMatchObject({ _tag: "Live" })
            yield* queue.cancel(id)
            expect((yield* queue.counts).dead.count).toBe(1)
            expect(yield* queue.deadLetters.list()).toHaveLength(1)
            expect(yield* Queue.find(id)).toMatchObject({ _tag: "Dead" })
          })
        )
      })
    )
  })

  live(engine, options, "operations, many at once", (it) => {
    it.effect("cancels, changes, claims and clears of the same jobs: each job has one end (G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const receipts = yield* queue.enqueueMany(
          Array.from({ length: 400 }, (_, n) => n),
          (_, n) => ({ dedupeKey: `k${n}`, ...(n % 4 === 0 ? { orderingKey: `o${n % 20}` } : {}) })
        )
        const acked: Array<number> = []
        const consume = Effect.repeatN(
          Effect.flatMap(queue.claim({ limit: 20 }), (jobs) =>
            Effect.forEach(jobs, (job) =>
              Effect.map(Effect.either(job.ack), (ack) => ack._tag === "Right" && acked.push(job.id))
            )
          ),
          15
        )
        const [, cancelled, , , cleared] = yield* Effect.all(
          [
            consume,
            queue.cancelMany({ id: receipts.slice(0, 200).map(({ id }) => id) }),
            queue.setPriority({ all: true }, 5),
            queue.reschedule({ state: "ready" }, { delay: 1 }),
            queue.clear,
            consume
          ],
          { concurrency: "unbounded" }
        )
        const left = yield* liveRows(queue)
        const dead = yield* deadRows(queue)
        expect(acked.length + cleared + left.length + dead.length).toBe(400)
        expect(new Set([...acked, ...left.map(({ id }) => id), ...dead.map(({ id }) => id)]).size).toBe(400 - cleared)
        expect(dead.length).toBeGreaterThanOrEqual(cancelled.cancelled)
      })
    )
  })
}
