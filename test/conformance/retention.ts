/** Retention: dead letters and completed jobs are kept as long as their queue says, and nothing else is touched. */
import { SqlClient } from "@effect/sql"
import { Queue, transaction } from "alkstore"
import { Effect, Schema, TestClock } from "effect"
import { expect } from "vitest"
import { plant } from "./deadLetters.js"
import {
  claimOne,
  deadRows,
  failsWith,
  freshName,
  freshQueue,
  liveRows,
  onlyLetter,
  onlyRow,
  type Suite,
  sweep,
  virtual
} from "./support.js"

export const retentionSuite: Suite = (engine, options) => {
  const letters = engine.table("dead_letters")
  virtual(engine, options, "completed jobs", (it) => {
    it.effect("are gone, unless the queue retains them: then with all they had (G39, G152)", () =>
      Effect.gen(function* () {
        const plain = freshQueue()
        yield* plain.enqueue(1)
        yield* (yield* claimOne(plain)).ack
        expect(yield* plain.completed()).toEqual([])
        const queue = freshQueue({ retainCompleted: "1 hour" })
        const given = { priority: 4, dedupeKey: "clé", headers: { a: "😀\u0000" }, orderingKey: "o" }
        const { id } = yield* queue.enqueue({ text: "\ud800 'x'" }, given)
        yield* (yield* claimOne(queue)).retry({ delay: 0, error: "first" })
        const job = yield* claimOne(queue)
        yield* job.heartbeat({ done: 3 })
        yield* TestClock.adjust("1 second")
        yield* job.ack
        expect(yield* liveRows(queue)).toEqual([])
        const [row, ...more] = yield* queue.completed()
        expect(more).toEqual([])
        expect(row).toMatchObject({
          id,
          queue: queue.name,
          payload: JSON.stringify({ text: "\ud800 'x'" }),
          priority: 4,
          dedupeKey: "clé",
          orderingKey: "o",
          headers: JSON.stringify(given.headers),
          progress: '{"done":3}',
          attempts: 2,
          failures: 1,
          errors: [{ message: "first" }],
          completedAt: yield* Effect.clockWith((clock) => clock.currentTimeMillis)
        })
        // Its keys are free
        expect(yield* queue.enqueue(2, given)).toMatchObject({ deduplicated: false, state: "ready" })
        // And its end is an end
        yield* failsWith(job.ack, "LeaseLost")
      })
    )

    it.effect(
      "acks of many at once, by hand and in a transaction, are all kept; rolled back none is (G152, G159)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue({ retainCompleted: "1 hour" })
          const store = yield* Queue.Queue
          yield* queue.enqueueMany(Array.from({ length: 250 }, (_, n) => n))
          const jobs = yield* queue.claim({ limit: 250 })
          const acks = jobs.map(({ id, lease }) => ({ _tag: "Ack", id, token: lease.token }) as const)
          yield* Effect.either(transaction(Effect.zipRight(store.settle(queue.name, acks), Effect.fail("mine"))))
          expect(yield* queue.completed()).toEqual([])
          expect(yield* liveRows(queue)).toHaveLength(250)
          yield* transaction(store.settle(queue.name, acks))
          const pages: Array<number> = []
          let after: Queue.CompletedRow | undefined
          for (;;) {
            const page: ReadonlyArray<Queue.CompletedRow> = yield* queue.completed({ limit: 60, after })
            pages.push(...page.map(({ id }) => id))
            after = page.at(-1)
            if (page.length < 60) break
          }
          expect(pages).toEqual(jobs.map(({ id }) => id).sort((a, b) => b - a))
          expect(yield* queue.completed()).toHaveLength(100)
          yield* failsWith(queue.completed({ limit: 1_001 }), "InvalidArgument")
        })
    )
  })

  virtual(engine, options, "retention", (it) => {
    it.effect("deletes completed jobs and dead letters after their time, not before (G151)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ retainCompleted: "1 hour", retainDead: "2 hours" })
        yield* queue.enqueueMany([1, 2, 3])
        const [first, second, third] = yield* queue.claim({ limit: 3, visibilityTimeout: "10 hours" })
        yield* first?.ack ?? Effect.void
        yield* second?.fail() ?? Effect.void
        yield* TestClock.adjust("30 minutes")
        yield* third?.ack ?? Effect.void
        yield* TestClock.adjust(1_799_999)
        yield* sweep()
        expect(yield* queue.completed()).toHaveLength(2)
        yield* TestClock.adjust(1)
        expect((yield* sweep(queue)).purged).toBe(1)
        expect((yield* queue.completed()).map(({ payload }) => payload)).toEqual(["3"])
        yield* onlyLetter(queue)
        yield* TestClock.adjust("1 hour")
        expect((yield* sweep(queue)).purged).toBe(2)
        expect(yield* queue.completed()).toEqual([])
        expect(yield* deadRows(queue)).toEqual([])
        expect((yield* sweep(queue)).purged).toBe(0)
      })
    )

    it.effect("touches nothing else: no live job in any state, no other queue, no key (G151)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ retainCompleted: "1 second", retainDead: "1 second" })
        const beside = freshQueue()
        yield* beside.enqueue(1)
        yield* (yield* claimOne(beside)).fail()
        yield* plant(letters, queue, 5)
        yield* queue.enqueue("leased", { priority: 9 })
        yield* claimOne(queue, { visibilityTimeout: "10 hours" })
        yield* queue.enqueueMany(["head", "blocked"], { orderingKey: "o" })
        yield* queue.enqueue("ready", { dedupeKey: "k" })
        yield* queue.enqueue("delayed", { delay: "5 hours" })
        const before = yield* liveRows(queue)
        yield* TestClock.adjust("1 hour")
        expect((yield* sweep(queue)).purged).toBe(5)
        expect(yield* liveRows(queue)).toEqual(before)
        expect(yield* queue.enqueue(0, { dedupeKey: "k" })).toMatchObject({ deduplicated: true })
        yield* onlyLetter(beside)
        expect(yield* deadRows(queue)).toEqual([])
      })
    )

    it.effect("goes by the stored settings, of any number of letters, and by a change of them (G151)", () =>
      Effect.gen(function* () {
        const name = freshName()
        const forever = Queue.make(name, { payload: Schema.Unknown })
        yield* forever.enqueue("waits")
        yield* plant(letters, forever, 1_300, { died_at: "0" })
        yield* TestClock.adjust("1000 hours")
        yield* sweep()
        expect(yield* deadRows(forever)).toHaveLength(1_300)
        yield* Queue.make(name, { payload: Schema.Unknown, retainDead: "10 hours" }).enqueue("waits too")
        expect((yield* sweep()).purged).toBeGreaterThanOrEqual(1_300)
        expect(yield* deadRows(forever)).toEqual([])
        expect(yield* liveRows(forever)).toHaveLength(2)
      })
    )

    it.effect("of a queue by name, too (G151)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ retainDead: "1 second" })
        const other = freshQueue({ retainDead: "1 second" })
        for (const each of [queue, other]) {
          yield* each.enqueue("waits")
          yield* plant(letters, each, 2, { died_at: "0" })
        }
        yield* TestClock.adjust("1 hour")
        expect((yield* queue.sweepExpired).purged).toBe(2)
        expect(yield* deadRows(queue)).toEqual([])
        expect(yield* deadRows(other)).toHaveLength(2)
      })
    )

    it.effect("a letter that holds its ordering key stays until it is requeued or purged (G151)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ retainDead: "1 second", onDead: "block" })
        yield* queue.enqueueMany(["dead", "behind"], { orderingKey: "o" })
        yield* (yield* claimOne(queue)).fail()
        yield* plant(letters, queue, 3, { died_at: "0" })
        yield* TestClock.adjust("1 hour")
        expect((yield* sweep(queue)).purged).toBe(3)
        expect(yield* onlyLetter(queue)).toMatchObject({ payload: '"dead"' })
        expect(yield* queue.claim()).toEqual([])
        expect(yield* queue.deadLetters.purge({ all: true })).toBe(1)
        expect((yield* claimOne(queue)).payload).toBe("behind")
      })
    )

    it.effect("a requeued letter is a live job, and kept as one (G151)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ retainDead: "1 hour", retainCompleted: "1 hour" })
        yield* queue.enqueue(1)
        yield* (yield* claimOne(queue)).fail()
        yield* queue.deadLetters.requeue({ all: true })
        yield* TestClock.adjust("2 hours")
        yield* sweep()
        yield* onlyRow(queue)
        yield* (yield* claimOne(queue)).ack
        expect((yield* queue.completed())[0]?.history).toHaveLength(1)
      })
    )

    it.effect("a retention that is no duration, or none at all, is refused (G6, G151)", () =>
      Effect.gen(function* () {
        for (const wrong of [0, -1, "soon" as "1 second", Number.NaN]) {
          expect((yield* failsWith(freshQueue({ retainDead: wrong }).enqueue(1), "InvalidArgument")).argument).toBe(
            "retainDead"
          )
          yield* failsWith(freshQueue({ retainCompleted: wrong }).claim(), "InvalidArgument")
        }
      })
    )

    it.effect("one row that cannot be deleted keeps no job from its work (G54, G151)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ retainDead: "1 second" })
        const sql = yield* SqlClient.SqlClient
        yield* queue.enqueue("waits")
        yield* plant(letters, queue, 1, { died_at: "0" })
        yield* sql.unsafe(
          `UPDATE ${letters} SET errors = '{torn', headers = 'torn', history = 'torn' WHERE queue = '${queue.name}'`
        )
        expect(yield* onlyLetter(queue)).toMatchObject({ errors: [], history: [] })
        yield* TestClock.adjust("1 hour")
        expect((yield* sweep(queue)).purged).toBe(1)
      })
    )
  })
}
