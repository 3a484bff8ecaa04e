/** Ordering keys: one job of a key at a time, in their order, whatever becomes of each. */
import { SqlClient } from "@effect/sql"
import { Queue, transaction } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Effect, Either, Layer, Schema, TestClock } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  expectEmpty,
  failsWith,
  freshName,
  freshQueue,
  live,
  liveRows,
  onlyLetter,
  type Suite,
  sweep,
  virtual
} from "./support.js"

type AnyQueue = Queue.Definition<unknown, unknown>

const range = (length: number) => Array.from({ length }, (_, n) => n)
const k = { orderingKey: "k" }

/** Everything that can be claimed now. */
const claimAll = (queue: AnyQueue) => queue.claim({ limit: 1_000 })

const payloads = (jobs: ReadonlyArray<{ readonly payload: unknown }>) => jobs.map(({ payload }) => payload)

/** Nothing of the queue can be claimed now, not even when a sweep has passed. */
const expectNone = (queue: AnyQueue) =>
  Effect.gen(function* () {
    expect(payloads(yield* claimAll(queue))).toEqual([])
    yield* sweep(queue)
    expect(payloads(yield* claimAll(queue))).toEqual([])
  })

/** The rest of a queue with one key, in the order in which it comes; each time one job, no more. */
const drain = (queue: AnyQueue) =>
  Effect.gen(function* () {
    const order: Array<unknown> = []
    for (;;) {
      const jobs = yield* claimAll(queue)
      if (jobs.length === 0) return order
      expect(jobs).toHaveLength(1)
      for (const job of jobs) {
        order.push(job.payload)
        yield* job.ack
      }
    }
  })

/** All that can be claimed now, acked. */
const drainOnce = (queue: AnyQueue) => Effect.tap(claimAll(queue), (jobs) => Effect.forEach(jobs, (job) => job.ack))

const states = (queue: AnyQueue) => Effect.map(liveRows(queue), (rows) => rows.map(({ state }) => state))

/** What may end the head of a key, or give it back; and whether its place is free then. */
const endings: ReadonlyArray<
  readonly [string, (queue: AnyQueue) => Effect.Effect<unknown, unknown, Queue.Queue | SqlClient.SqlClient>]
> = [
  ["is acked", (queue) => Effect.flatMap(claimOne(queue), (job) => job.ack)],
  ["fails", (queue) => Effect.flatMap(claimOne(queue), (job) => job.fail("no"))],
  ["is exhausted", (queue) => Effect.flatMap(claimOne(queue), (job) => job.retry({ error: "no" }))],
  [
    "crashes on its last attempt, and a claim meets it",
    (queue) => Effect.zipRight(claimOne(queue), TestClock.adjust("30 seconds"))
  ],
  [
    "crashes on its last attempt, and a sweep meets it",
    (queue) => Effect.zipRight(claimOne(queue), Effect.zipRight(TestClock.adjust("30 seconds"), sweep(queue)))
  ],
  ["is cancelled while it waits", (queue) => queue.cancelMany({ state: "ready" })],
  [
    "is cancelled while it is leased, and goes back",
    (queue) =>
      Effect.gen(function* () {
        const job = yield* claimOne(queue)
        expect(yield* queue.cancel(job.id)).toBe("requested")
        yield* expectNone(queue)
        yield* Effect.either(job.release)
      })
  ],
  [
    "is cancelled while it is leased, and its process dies",
    (queue) =>
      Effect.gen(function* () {
        expect(yield* queue.cancel((yield* claimOne(queue)).id)).toBe("requested")
        yield* TestClock.adjust("29 seconds")
        yield* expectNone(queue)
        yield* TestClock.adjust("1 second")
      })
  ]
]

export const orderingSuite: Suite = (engine, options) => {
  virtual(engine, options, "ordering keys", (it) => {
    it.effect("a key has one head, as the database itself sees to: no hand makes another (G160)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const sql = yield* SqlClient.SqlClient
        yield* queue.enqueueMany([1, 2], k)
        const second = (yield* liveRows(queue))[1]?.id
        const unblock = sql.unsafe(`UPDATE ${engine.table("jobs")} SET visible_at = 0 WHERE id = ${second}`)
        yield* failsWith(unblock, "SqlError")
        const first = yield* claimOne(queue)
        yield* failsWith(unblock, "SqlError")
        yield* first.ack
        expect(yield* drain(queue)).toEqual([2])
      })
    )

    it.effect("one job of a key at a time, in the order of the enqueues; others beside it (G160)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        for (const n of range(5)) {
          yield* queue.enqueue(`a${n}`, { orderingKey: "a" })
          yield* queue.enqueue(`b${n}`, { orderingKey: "b" })
        }
        yield* queue.enqueue("free")
        const first = yield* claimAll(queue)
        expect(payloads(first)).toEqual(["a0", "b0", "free"])
        yield* expectNone(queue)
        expect(first[0]?.orderingKey).toBe("a")
        yield* (first[1] as (typeof first)[number]).ack
        const second = yield* claimAll(queue)
        expect(payloads(second)).toEqual(["b1"])
        yield* (first[0] as (typeof first)[number]).ack
        const third = yield* claimAll(queue)
        expect(payloads(third)).toEqual(["a1"])
        for (const job of [...second, ...third, first[2] as (typeof first)[number]]) yield* job.ack
        for (const n of [2, 3, 4]) {
          expect(payloads(yield* drainOnce(queue))).toEqual([`a${n}`, `b${n}`])
        }
        yield* expectEmpty(queue)
      })
    )

    it.effect("a batch of many keys is a mailbox for each, in the batch's order (G160)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const count = 600
        const receipts = yield* queue.enqueueMany(range(count), (_, n) => ({ orderingKey: `key ${n % 200}` }))
        expect(receipts.map(({ state }) => state)).toEqual(range(count).map((n) => (n < 200 ? "ready" : "blocked")))
        const rounds: Array<ReadonlyArray<unknown>> = []
        for (let round = 0; round < 3; round++) {
          rounds.push(payloads(yield* drainOnce(queue)))
        }
        expect(rounds).toEqual([0, 1, 2].map((round) => range(200).map((n) => n + 200 * round)))
        yield* expectEmpty(queue)
      })
    )

    it.effect(
      "a batch keeps its order, also where dedupe keys are held by what has expired or ended (G160, G189)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue("expires", { dedupeKey: "spent", expires: "1 second" })
          yield* queue.enqueue("ends", { dedupeKey: "ended", dedupeWindow: "1 second", priority: 1 })
          yield* (yield* claimOne(queue)).ack
          yield* TestClock.adjust("1 second")
          const dedupeKeys = ["spent", "ended"]
          const receipts = yield* queue.enqueueMany([0, 1, 2, 3], (_, index) => ({
            ...k,
            dedupeKey: dedupeKeys[index]
          }))
          expect(receipts.map(({ state }) => state)).toEqual(["ready", "blocked", "blocked", "blocked"])
          expect(yield* drain(queue)).toEqual([0, 1, 2, 3])
          expect(yield* onlyLetter(queue)).toMatchObject({ payload: '"expires"', reason: "expired" })
        })
    )

    it.effect("more keys than one pass looks at (G160)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* transaction(
          Effect.forEach(range(5), (n) =>
            queue.enqueueMany(range(1_000), (_, m) => ({ orderingKey: `key ${n * 1_000 + m}` }))
          )
        )
        expect(yield* queue.claim({ limit: 10_000 })).toHaveLength(5_000)
      })
    )

    it.effect("keys are the queue's own (G160)", () =>
      Effect.gen(function* () {
        const [one, two] = [freshQueue(), freshQueue()]
        yield* one.enqueueMany([1, 2], k)
        yield* two.enqueueMany([3, 4], k)
        expect(payloads(yield* claimAll(one))).toEqual([1])
        expect(payloads(yield* claimAll(two))).toEqual([3])
        yield* expectNone(one)
      })
    )

    it.effect("any key of 1 to 512 bytes is a key of its own, others are refused (G6, G160)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const keys = [
          "a",
          "A",
          "a ",
          "ä",
          "a\u0308",
          "%",
          "_",
          "'",
          '"',
          "\\",
          "\n",
          "🙂",
          "x".repeat(512),
          "é".repeat(256)
        ]
        for (const orderingKey of keys) yield* queue.enqueueMany([1, 2], { orderingKey })
        const jobs = yield* claimAll(queue)
        expect(jobs.map(({ orderingKey }) => orderingKey)).toEqual(keys)
        for (const orderingKey of ["", "x".repeat(513), "é".repeat(257), "a\u0000", 1 as never, null as never])
          expect((yield* failsWith(queue.enqueue(3, { orderingKey }), "InvalidArgument")).argument).toBe("orderingKey")
      })
    )

    it.effect("receipts tell who is ready, delayed and blocked (G161)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ onDead: "block" })
        const enqueue = (payload: unknown, more: Queue.EnqueueOptions = {}) =>
          Effect.map(queue.enqueue(payload, { ...k, ...more }), ({ state }) => state)
        expect(yield* enqueue(1)).toBe("ready")
        expect(yield* enqueue(2)).toBe("blocked")
        expect(yield* enqueue(3, { delay: "1 hour" })).toBe("blocked")
        expect(yield* enqueue(4, { orderingKey: "other", delay: "1 hour" })).toBe("delayed")
        expect(yield* enqueue(5, { orderingKey: "other" })).toBe("blocked")
        expect(yield* states(queue)).toEqual(["ready", "blocked", "blocked", "delayed", "blocked"])
        const job = yield* claimOne(queue)
        expect(yield* enqueue(6)).toBe("blocked")
        yield* job.fail("dead, and holds its key")
        expect(yield* enqueue(7)).toBe("blocked")
        const batch = yield* queue.enqueueMany([1, 2, 3], (_, n) => ({ orderingKey: n === 1 ? "new" : "newer" }))
        expect(batch.map(({ state }) => state)).toEqual(["ready", "ready", "blocked"])
      })
    )

    it.effect("whoever looks is told so too, right after a transaction (G161)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const [receipt] = yield* transaction(queue.enqueueMany([1], () => ({ ...k, dedupeKey: "d" })))
        expect(receipt?.state).toBe("ready")
        const again = (orderingKey: string) => queue.enqueue(1, { orderingKey, dedupeKey: "d" })
        expect(yield* again("k")).toMatchObject({ id: receipt?.id, deduplicated: true, state: "ready" })
        yield* transaction(queue.enqueue(2, { orderingKey: "found" }))
        const found = yield* transaction(queue.enqueue(3, { orderingKey: "found too" }))
        expect(yield* Queue.find(found.id)).toMatchObject({ job: { state: "ready" } })
        yield* transaction(queue.enqueue(4, { orderingKey: "listed" }))
        expect((yield* queue.list()).map(({ state }) => state)).toEqual(["ready", "ready", "ready", "ready"])
      })
    )

    it.effect("whoever enqueues again within the transaction is told so too (G161)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const enqueue = (dedupeKey: string, more: Queue.EnqueueOptions = {}) =>
          Effect.map(queue.enqueue(dedupeKey, { ...k, dedupeKey, ...more }), ({ state }) => state)
        const within = yield* transaction(
          Effect.all([
            enqueue("a"),
            enqueue("b"),
            enqueue("a"),
            enqueue("b"),
            enqueue("a", { onDuplicate: "replace", delay: "1 hour" }),
            enqueue("a"),
            enqueue("a", { onDuplicate: "replace" })
          ])
        )
        expect(within).toEqual(["ready", "blocked", "ready", "blocked", "delayed", "delayed", "ready"])
        yield* claimOne(queue)
        expect(yield* transaction(Effect.all([enqueue("a"), enqueue("b")]))).toEqual(["leased", "blocked"])
      })
    )

    // SQLite deals with them in the transaction itself
    if (engine.engine === "postgres") {
      const marks = (queue: { readonly name: string }) =>
        Effect.flatMap(SqlClient.SqlClient, (sql) =>
          sql.unsafe(`SELECT 1 FROM ${engine.table("lane_marks")} WHERE queue = '${queue.name}'`)
        )

      it.effect("keys that a transaction has left have their turn while claims find enough without them (G163)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueueMany(["a", "b", "c"])
          yield* transaction(queue.enqueue("urgent", { ...k, priority: 5 }))
          expect((yield* claimOne(queue)).payload).toBe("a")
          yield* Testing.settle
          expect((yield* claimOne(queue)).payload).toBe("urgent")
        })
      )

      it.effect("what nobody claims from is dealt with by a sweep (G54)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* transaction(queue.enqueue(1, k))
          expect(yield* marks(queue)).toHaveLength(1)
          yield* sweep()
          expect(yield* marks(queue)).toEqual([])
        })
      )
    }

    it.effect("a duplicate in a batch takes no place (G160, G161)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(0, { ...k, dedupeKey: "0" })
        const receipts = yield* queue.enqueueMany([0, 1, 1, 2], (n) => ({ orderingKey: "k", dedupeKey: String(n) }))
        expect(receipts.map(({ deduplicated, state }) => [deduplicated, state])).toEqual([
          [true, "ready"],
          [false, "blocked"],
          [true, "blocked"],
          [false, "blocked"]
        ])
        expect(yield* drain(queue)).toEqual([0, 1, 2])
        yield* expectEmpty(queue)
      })
    )

    it.effect("retry, snooze, release and a lapsed lease keep the key's place (G162)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2], k)
        const wait = (step: Effect.Effect<unknown, unknown>, time: number) =>
          Effect.gen(function* () {
            yield* step
            yield* TestClock.adjust(time - 1)
            yield* expectNone(queue)
            expect(yield* states(queue)).toEqual([expect.stringMatching("delayed|leased"), "blocked"])
            yield* TestClock.adjust(1)
          })
        yield* wait((yield* claimOne(queue)).retry({ delay: "1 hour", error: "no" }), 3_600_000)
        yield* wait((yield* claimOne(queue)).snooze("2 hours"), 7_200_000)
        const released = yield* claimOne(queue)
        expect(released.payload).toBe(1)
        yield* released.release
        yield* wait(claimOne(queue).pipe(Effect.orDie, Effect.provide(yield* Effect.context<Queue.Queue>())), 30_000)
        const lapsed = yield* claimOne(queue)
        expect([lapsed.payload, lapsed.crashes]).toEqual([1, 1])
        yield* lapsed.ack
        expect(yield* drain(queue)).toEqual([2])
      })
    )

    it.effect("the delay of a head holds its key, whoever is due before (G162)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue("late", { ...k, delay: "1 minute" })
        yield* queue.enqueue("due", k)
        yield* queue.enqueue("beside", { orderingKey: "other" })
        expect(payloads(yield* drainOnce(queue))).toEqual(["beside"])
        yield* TestClock.adjust("59 seconds")
        yield* expectNone(queue)
        yield* TestClock.adjust("1 second")
        const job = yield* claimOne(queue)
        expect(job.payload).toBe("late")
        yield* job.ack
        expect((yield* claimOne(queue)).payload).toBe("due")
      })
    )

    it.effect("the next of a key has its own delay, counted from its enqueue (G162)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, k)
        yield* queue.enqueue(2, { ...k, delay: "10 seconds" })
        yield* queue.enqueue(3, { ...k, delay: "5 seconds" })
        const job = yield* claimOne(queue)
        yield* TestClock.adjust("6 seconds")
        yield* job.ack
        yield* expectNone(queue)
        yield* TestClock.adjust("4 seconds")
        expect(yield* drain(queue)).toEqual([2, 3])
      })
    )

    it.effect("priority acts between keys, not within one (G163)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue("a low", { orderingKey: "a", priority: -5 })
        yield* queue.enqueue("a high", { orderingKey: "a", priority: 9 })
        yield* queue.enqueue("b", { orderingKey: "b", priority: 1 })
        yield* queue.enqueue("c", { orderingKey: "c", priority: 2 })
        const jobs = yield* claimAll(queue)
        expect(payloads(jobs)).toEqual(["c", "b", "a low"])
        yield* queue.enqueue("d", { orderingKey: "d", priority: 3 })
        yield* (jobs[2] as (typeof jobs)[number]).ack
        expect(payloads(yield* claimAll(queue))).toEqual(["a high", "d"])
      })
    )

    for (const [how, end] of endings)
      it.effect(`when the head ${how}, the next goes on (G164)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue({ maxAttempts: 1 })
          yield* queue.enqueueMany([1, 2, 3], k)
          yield* end(queue)
          expect(payloads(yield* drainOnce(queue))).toEqual([2])
          expect(yield* drain(queue)).toEqual([3])
          expect(yield* liveRows(queue)).toEqual([])
        })
      )

    it.effect("an expired head is dead, and the next goes on; so are expired ones behind it (G164)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, { ...k, expires: "1 minute" })
        yield* queue.enqueueMany(range(30), { ...k, expires: "2 minutes" })
        yield* queue.enqueue(2, k)
        yield* queue.enqueue(3, { ...k, expires: "10 minutes" })
        yield* TestClock.adjust("2 minutes")
        expect(yield* drain(queue)).toEqual([2, 3])
        const letters = yield* deadRows(queue)
        expect(letters).toHaveLength(31)
        expect(new Set(letters.map(({ reason }) => reason))).toEqual(new Set(["expired"]))
      })
    )

    const soon = Effect.map(Clock.currentTimeMillis, (now) => new Date(now + 60_000))
    type Hold = (queue: AnyQueue) => Effect.Effect<unknown, unknown, Queue.Queue>
    const holds: Readonly<Record<string, Hold>> = {
      retried: (queue) =>
        Effect.zipRight(
          queue.enqueue("head", { orderingKey: "k", expires: "1 minute" }),
          Effect.flatMap(claimOne(queue), (job) => job.retry({ delay: "2 hours" }))
        ),
      rescheduled: (queue) =>
        Effect.flatMap(soon, (expires) =>
          Effect.flatMap(queue.enqueue("head", { orderingKey: "k", expires }), ({ id }) =>
            queue.reschedule({ id }, { delay: "2 hours" })
          )
        ),
      "rescheduled while it was blocked": (queue) =>
        Effect.gen(function* () {
          yield* queue.enqueue("before", k)
          const { id } = yield* queue.enqueue("head", { ...k, expires: yield* soon })
          yield* queue.reschedule({ id }, { delay: "2 hours" })
          yield* (yield* claimOne(queue)).ack
        })
    }
    it.effect.each(Object.entries(holds))(
      "a head that is delayed beyond its expiry holds its key until that, though nobody sweeps: %s (G53, G164)",
      ([, hold]) =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* hold(queue)
          yield* queue.enqueue("next", { orderingKey: "k" })
          yield* TestClock.adjust("59 seconds")
          expect(yield* queue.claim()).toEqual([])
          yield* TestClock.adjust("1 second")
          expect(yield* drain(queue)).toEqual(["next"])
          expect(yield* onlyLetter(queue)).toMatchObject({ payload: '"head"', reason: "expired" })
        })
    )

    it.effect("a blocked job that expires dies while the head goes on (G164)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, k)
        yield* queue.enqueue(2, { ...k, expires: "10 seconds" })
        yield* queue.enqueue(3, k)
        const head = yield* claimOne(queue, { visibilityTimeout: "1 hour" })
        yield* TestClock.adjust("10 seconds")
        expect(yield* sweep(queue)).toMatchObject({ expired: 1 })
        expect((yield* onlyLetter(queue)).payload).toBe("2")
        yield* expectNone(queue)
        yield* head.ack
        expect(yield* drain(queue)).toEqual([3])
      })
    )

    it.effect("what cannot be decoded keeps its place until it is dead (G162, G164)", () =>
      Effect.gen(function* () {
        const name = freshName()
        const writer = Queue.make(name, { payload: Schema.Unknown })
        const reader = Queue.make(name, { payload: Schema.Number })
        yield* writer.enqueueMany(["not a number", 2], k)
        expect(yield* reader.claim({ limit: 10 })).toEqual([])
        yield* TestClock.adjust("30 minutes")
        expect(yield* reader.claim({ limit: 10 })).toEqual([])
        expect(yield* states(writer)).toEqual(["delayed", "blocked"])
        yield* TestClock.adjust("24 hours")
        expect(yield* reader.claim({ limit: 10 })).toEqual([])
        expect((yield* onlyLetter(writer)).reason).toBe("undecodable")
        expect(payloads(yield* reader.claim({ limit: 10 }))).toEqual([2])
      })
    )

    it.effect("a blocked job that is cancelled is left out, the last of a key leaves nothing behind (G164)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const [, second, , fourth] = yield* queue.enqueueMany([1, 2, 3, 4], k)
        expect(yield* queue.cancel(second?.id ?? 0)).toBe("cancelled")
        const head = yield* claimOne(queue)
        expect(yield* queue.cancel(fourth?.id ?? 0)).toBe("cancelled")
        yield* expectNone(queue)
        yield* head.ack
        expect(yield* drain(queue)).toEqual([3])
        yield* queue.enqueue(5, k)
        expect(yield* drain(queue)).toEqual([5])
        yield* queue.enqueueMany([6, 7], k)
        expect(yield* queue.cancelMany({ orderingKey: "k" })).toEqual({ cancelled: 2, requested: 0, tooLate: 0 })
        yield* queue.enqueue(8, k)
        expect(yield* drain(queue)).toEqual([8])
      })
    )

    it.effect("a queue that is cleared while a head runs goes on with what comes after (G164)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(range(1_200), k)
        const head = yield* claimOne(queue)
        expect(yield* queue.clear).toBe(1_199)
        yield* queue.enqueue("after", k)
        yield* expectNone(queue)
        yield* head.ack
        expect(yield* drain(queue)).toEqual(["after"])
        yield* expectEmpty(queue)
      })
    )

    it.effect("an ack of a lost lease frees nothing (G19, G164)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2], k)
        const old = yield* claimOne(queue)
        yield* TestClock.adjust("30 seconds")
        const again = yield* claimOne(queue)
        expect(again.payload).toBe(1)
        yield* failsWith(old.ack, "LeaseLost")
        yield* expectNone(queue)
        yield* again.ack
        expect(yield* drain(queue)).toEqual([2])
      })
    )

    it.effect("live jobs that are changed keep their order (G162)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const [first, second, third] = yield* queue.enqueueMany([1, 2, 3], { ...k, delay: "1 hour" })
        yield* queue.runNow({ id: third?.id ?? 0 })
        yield* queue.setPriority({ id: second?.id ?? 0 }, 9)
        yield* expectNone(queue)
        expect(yield* states(queue)).toEqual(["delayed", "blocked", "blocked"])
        yield* queue.runNow({ id: first?.id ?? 0 })
        expect(yield* drain(queue)).toEqual([1])
        yield* queue.runNow({ id: second?.id ?? 0 })
        expect(yield* drain(queue)).toEqual([2, 3])
      })
    )

    it.effect("a blocked job that is replaced keeps its place (G162)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, k)
        yield* queue.enqueue("old", { ...k, dedupeKey: "d" })
        yield* queue.enqueue(3, k)
        const receipt = yield* queue.enqueue("new", { ...k, dedupeKey: "d", onDuplicate: "replace", delay: "1 minute" })
        expect(receipt).toMatchObject({ state: "blocked", deduplicated: true, replaced: true })
        expect(yield* drain(queue)).toEqual([1])
        expect(yield* states(queue)).toEqual(["delayed", "blocked"])
        yield* TestClock.adjust("1 minute")
        expect(yield* drain(queue)).toEqual(["new", 3])
      })
    )

    it.effect("a paused queue goes on where it was (G160)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2], k)
        const head = yield* claimOne(queue)
        yield* queue.pause
        yield* head.ack
        yield* queue.enqueue(3, k)
        yield* expectNone(queue)
        yield* queue.resume
        expect(yield* drain(queue)).toEqual([2, 3])
      })
    )
  })

  virtual(engine, options, "ordering keys and dead letters", (it) => {
    it.effect("onDead continue: a requeued letter joins the end (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2, 3], k)
        yield* (yield* claimOne(queue)).fail("no")
        const second = yield* claimOne(queue)
        expect(second.payload).toBe(2)
        expect(yield* queue.deadLetters.requeue({ reason: "failed" })).toMatchObject({ requeued: 1 })
        yield* expectNone(queue)
        yield* second.ack
        expect(yield* drain(queue)).toEqual([3, 1])
        yield* expectEmpty(queue)
      })
    )

    it.effect("onDead continue: the key goes on though all of its others are gone (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, k)
        yield* (yield* claimOne(queue)).fail("no")
        yield* queue.deadLetters.requeue({ reason: "failed" })
        expect(yield* states(queue)).toEqual(["ready"])
        yield* queue.enqueue(2, k)
        expect(yield* drain(queue)).toEqual([1, 2])
      })
    )

    it.effect("onDead block: the letter holds its key, and comes back at its head (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ onDead: "block", maxAttempts: 1 })
        yield* queue.enqueueMany([1, 2], k)
        yield* queue.enqueue("beside", { orderingKey: "other" })
        const jobs = yield* claimAll(queue)
        yield* (jobs[0] as (typeof jobs)[number]).retry({ error: "no" })
        yield* queue.enqueue(3, k)
        yield* expectNone(queue)
        expect(yield* states(queue)).toEqual(["blocked", "leased", "blocked"])
        const { id } = yield* onlyLetter(queue)
        expect(yield* queue.deadLetters.requeue({ id })).toMatchObject({ requeued: 1 })
        expect(yield* drain(queue)).toEqual([1, 2, 3])
      })
    )

    it.effect("onDead block: a purge by hand frees the key, in a transaction when it commits (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ onDead: "block" })
        yield* queue.enqueueMany([1, 2, 3, 4], k)
        yield* (yield* claimOne(queue)).fail("no")
        const { id } = yield* onlyLetter(queue)
        yield* Effect.exit(transaction(Effect.zipRight(queue.deadLetters.purge({ id }), Effect.fail("rolled back"))))
        yield* expectNone(queue)
        yield* transaction(queue.deadLetters.purge({ id }))
        const second = yield* claimOne(queue)
        expect(second.payload).toBe(2)
        yield* second.fail("no")
        yield* queue.deadLetters.purge({ reason: "failed" })
        expect(yield* drain(queue)).toEqual([3, 4])
      })
    )

    it.effect("onDead block: a retention leaves alone the letter that holds a key, and no other (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ onDead: "block", retainDead: "1 hour" })
        yield* queue.enqueueMany([1, 2], k)
        yield* queue.enqueue("without")
        const jobs = yield* claimAll(queue)
        yield* Effect.forEach(jobs, (job) => job.fail("no"))
        yield* Testing.advance("2 hours")
        yield* sweep()
        expect((yield* onlyLetter(queue)).payload).toBe("1")
        yield* expectNone(queue)
        yield* queue.deadLetters.requeue({ reason: "failed" })
        expect(yield* drain(queue)).toEqual([1, 2])
      })
    )

    it.effect("onDead block: an expired one that was blocked holds the key when its head has ended (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ onDead: "block" })
        yield* queue.enqueue(1, k)
        yield* queue.enqueue(2, { ...k, expires: "1 second" })
        yield* queue.enqueue(3, k)
        const head = yield* claimOne(queue, { visibilityTimeout: "1 hour" })
        yield* TestClock.adjust("1 second")
        yield* sweep(queue)
        yield* head.retry({ delay: 0, error: "no" })
        const again = yield* claimOne(queue)
        expect(again.payload).toBe(1)
        yield* queue.deadLetters.requeue({ reason: "expired" })
        yield* expectNone(queue)
        yield* again.ack
        // Its duration has begun again
        expect(yield* drain(queue)).toEqual([2, 3])
      })
    )

    it.effect(
      "onDead block: one that expires in the middle holds what is behind it, and nothing before it (G165)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue({ onDead: "block" })
          yield* queue.enqueueMany([1, 2], k)
          yield* queue.enqueue(3, { ...k, expires: "1 second" })
          yield* queue.enqueue(4, k)
          const head = yield* claimOne(queue, { visibilityTimeout: "1 hour" })
          yield* TestClock.adjust("1 second")
          yield* sweep(queue)
          yield* head.ack
          expect(yield* drain(queue)).toEqual([2])
          yield* expectNone(queue)
          yield* queue.deadLetters.requeue({ reason: "expired" })
          expect(yield* drain(queue)).toEqual([3, 4])
        })
    )

    it.effect("onDead block: two letters of a key hold it until both are gone, and come back in order (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ onDead: "block" })
        yield* queue.enqueueMany([1, 2], { ...k, expires: "1 second" })
        yield* queue.enqueue(3, k)
        yield* TestClock.adjust("1 second")
        yield* sweep(queue)
        const [second, first] = yield* deadRows(queue)
        expect([second?.payload, first?.payload]).toEqual(["2", "1"])
        yield* queue.deadLetters.requeue({ id: second?.id ?? 0 })
        yield* expectNone(queue)
        yield* queue.deadLetters.requeue({ id: first?.id ?? 0 })
        expect(yield* drain(queue)).toEqual([1, 2, 3])
      })
    )

    it.effect("onDead block: a cancelled job does not hold its key (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ onDead: "block" })
        yield* queue.enqueueMany([1, 2, 3], k)
        yield* queue.cancelMany({ state: "ready" })
        const job = yield* claimOne(queue)
        expect(job.payload).toBe(2)
        yield* queue.cancel(job.id)
        yield* Effect.either(job.release)
        expect(yield* drain(queue)).toEqual([3])
      })
    )

    it.effect("onDead block: a letter requeued to another queue frees its key, and joins the end there (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ onDead: "block" })
        const other = freshQueue()
        yield* queue.enqueueMany([1, 2], k)
        yield* (yield* claimOne(queue)).fail("no")
        yield* other.enqueueMany(["a", "b"], k)
        const { id } = yield* onlyLetter(queue)
        expect(yield* queue.deadLetters.requeue({ id }, { to: other })).toMatchObject({ requeued: 1 })
        expect(yield* drain(queue)).toEqual([2])
        expect(yield* drain(other)).toEqual(["a", "b", 1])
      })
    )

    it.effect("onDead block: a requeue that is rolled back leaves the key held (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ onDead: "block" })
        yield* queue.enqueueMany([1, 2], k)
        yield* (yield* claimOne(queue)).fail("no")
        const { id } = yield* onlyLetter(queue)
        yield* Effect.exit(transaction(Effect.zipRight(queue.deadLetters.requeue({ id }), Effect.fail("rolled back"))))
        yield* expectNone(queue)
        yield* Effect.all([queue.deadLetters.requeue({ id }), queue.deadLetters.requeue({ id })], { concurrency: 2 })
        expect(yield* drain(queue)).toEqual([1, 2])
      })
    )
  })

  virtual(engine, options, "ordering keys in transactions", (it) => {
    it.effect("what is rolled back takes no place and frees none, nested ones too (G12, G166)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const sql = yield* SqlClient.SqlClient
        yield* Effect.exit(transaction(Effect.zipRight(queue.enqueueMany([0, 0], k), Effect.fail("rolled back"))))
        yield* transaction(
          Effect.gen(function* () {
            yield* queue.enqueue(1, k)
            yield* Effect.exit(sql.withTransaction(Effect.zipRight(queue.enqueue(0, k), Effect.fail("rolled back"))))
            yield* sql.withTransaction(queue.enqueue(2, k))
            yield* queue.enqueue(3, { ...k, delay: 0 })
          })
        )
        const job = yield* claimOne(queue)
        expect(job.payload).toBe(1)
        yield* Effect.exit(transaction(Effect.zipRight(job.ack, Effect.fail("rolled back"))))
        yield* expectNone(queue)
        yield* transaction(job.ack)
        expect(yield* drain(queue)).toEqual([2, 3])
        yield* expectEmpty(queue)
      })
    )

    it.effect("a claim in a transaction that is rolled back leaves its key as it was (G26, G166)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2], k)
        const inside = Effect.gen(function* () {
          const job = yield* claimOne(queue)
          expect(job.payload).toBe(1)
          yield* job.ack
          return yield* Effect.fail("rolled back")
        })
        yield* Effect.exit(transaction(inside))
        expect(yield* states(queue)).toEqual(["ready", "blocked"])
        expect(yield* drain(queue)).toEqual([1, 2])
      })
    )

    it.effect("an enqueue, a cancel and a dead letter in one transaction count together (G166)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { id } = yield* queue.enqueue(1, k)
        yield* transaction(
          Effect.gen(function* () {
            yield* queue.enqueueMany([2, 3], k)
            yield* queue.cancel(id)
          })
        )
        expect(yield* drain(queue)).toEqual([2, 3])
      })
    )
  })

  virtual(engine, options, "ordering keys of two Layers", (it) => {
    it.effect("over one database they see one order (G160)", () =>
      Effect.scoped(
        Effect.gen(function* () {
          const queue = freshQueue()
          const other = yield* Layer.build(engine.beside({ virtual: true, silent: options.silent }))
          const there = <A, E>(self: Effect.Effect<A, E, Queue.Queue>) => Effect.provide(self, other)
          yield* queue.enqueueMany([0, 2], k)
          yield* there(queue.enqueueMany([3, 5], k))
          yield* queue.enqueue(6, k)
          const order: Array<unknown> = []
          for (let turn = 0; turn < 5; turn++) {
            const here = yield* Effect.either(claimOne(queue))
            const both = [...(Either.isRight(here) ? [here.right] : []), ...(yield* there(claimAll(queue)))]
            expect(both).toHaveLength(1)
            for (const job of both) {
              order.push(job.payload)
              yield* turn % 2 === 0 ? job.ack : there(job.ack)
            }
          }
          expect(order).toEqual([0, 2, 3, 5, 6])
          yield* expectEmpty(queue)
        })
      )
    )
  })

  live(engine, options, "ordering keys under load", (it) => {
    it.effect(
      "claims at once never have two jobs of a key (G160)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const keys = 20
          yield* queue.enqueueMany(range(400), (_, n) => ({ orderingKey: String(n % keys) }))
          const running = new Set<string>()
          const seen = new Map<string, Array<unknown>>()
          let left = 400
          const consumer = Effect.gen(function* () {
            while (left > 0) {
              for (const job of yield* queue.claim({ limit: 5 })) {
                const key = String(job.orderingKey)
                expect(running.has(key)).toBe(false)
                running.add(key)
                seen.set(key, [...(seen.get(key) ?? []), job.payload])
                yield* Effect.yieldNow()
                running.delete(key)
                yield* job.ack
                left--
              }
              yield* Effect.sleep(1)
            }
          })
          yield* Effect.all(
            range(4).map(() => consumer),
            { concurrency: "unbounded" }
          )
          for (const [key, order] of seen) expect(order).toEqual(range(20).map((n) => n * keys + Number(key)))
          yield* expectEmpty(queue)
        }),
      30_000
    )
  })
}
