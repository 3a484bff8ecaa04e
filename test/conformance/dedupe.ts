/** Dedupe keys: one live job each, free as soon as it is gone. */
import { SqlClient } from "@effect/sql"
import { type Queue, transaction } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, TestClock } from "effect"
import { expect } from "vitest"
import { claimOne, deadRows, freshQueue, live, liveRows, onlyRow, type Suite, sweep, virtual } from "./support.js"

const key = { dedupeKey: "k" } satisfies Queue.EnqueueOptions

export const dedupeSuite: Suite = (engine, options) => {
  virtual(engine, options, "dedupe keys", (it) => {
    it.effect("a second enqueue answers the first job's receipt and adds nothing, whatever its state (G9)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const first = yield* queue.enqueue("first", { ...key, delay: "1 minute" })
        expect(first).toMatchObject({ state: "delayed", deduplicated: false })
        const again = queue.enqueue("second", { ...key, priority: 9, onDuplicate: "keep", dedupeScope: "live" })
        expect(yield* again).toEqual({ id: first.id, state: "delayed", deduplicated: true, replaced: false })
        yield* Testing.advance("1 minute")
        expect(yield* again).toMatchObject({ id: first.id, state: "ready", deduplicated: true })
        yield* claimOne(queue)
        expect(yield* again).toMatchObject({ id: first.id, state: "leased", deduplicated: true })
        expect(yield* onlyRow(queue)).toMatchObject({ payload: '"first"', priority: 0, dedupeKey: "k" })
      })
    )

    it.effect("a key is its queue's own (G9)", () =>
      Effect.gen(function* () {
        const one = freshQueue()
        const two = freshQueue()
        expect((yield* one.enqueue(1, key)).deduplicated).toBe(false)
        expect((yield* two.enqueue(1, key)).deduplicated).toBe(false)
        yield* (yield* claimOne(one)).ack
        expect((yield* two.enqueue(2, key)).deduplicated).toBe(true)
        expect((yield* one.enqueue(2, key)).deduplicated).toBe(false)
      })
    )

    it.effect("duplicates within a batch collapse onto its first, or onto the job that was there (G9)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const old = yield* queue.enqueue("old", { dedupeKey: "b" })
        const keys = ["b", "a", undefined, "a", "c", "b", undefined, "c", "a"]
        const receipts = yield* queue.enqueueMany(keys.keys(), (_, index) => ({ dedupeKey: keys[index] }))
        expect(receipts.map(({ deduplicated }) => deduplicated)).toEqual([
          true,
          false,
          false,
          true,
          false,
          true,
          false,
          true,
          true
        ])
        const [b, a, , a2, c, b2, , c2, a3] = receipts.map(({ id }) => id)
        expect([b, b2]).toEqual([old.id, old.id])
        expect([a2, a3]).toEqual([a, a])
        expect(c2).toBe(c)
        expect((yield* liveRows(queue)).map((row) => row.dedupeKey)).toEqual(["b", "a", null, "c", null])
      })
    )

    it.effect("it is held through retry, release, snooze and a crash (G10)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { id } = yield* queue.enqueue(1, key)
        const held = Effect.map(queue.enqueue(2, key), (receipt) => {
          expect(receipt).toMatchObject({ id, deduplicated: true })
        })
        yield* (yield* claimOne(queue)).retry({ delay: 0 })
        yield* held
        yield* (yield* claimOne(queue)).release
        yield* held
        yield* (yield* claimOne(queue)).snooze(0)
        yield* held
        yield* claimOne(queue, { visibilityTimeout: "1 second" })
        yield* TestClock.adjust("2 seconds")
        yield* held
        yield* claimOne(queue)
        yield* held
        yield* Testing.advance("1 minute")
        yield* held
      })
    )

    const ends: ReadonlyArray<
      readonly [string, (queue: ReturnType<typeof freshQueue>) => Effect.Effect<unknown, unknown, Queue.Queue>]
    > = [
      ["ack", (queue) => Effect.flatMap(claimOne(queue), (job) => job.ack)],
      ["fail", (queue) => Effect.flatMap(claimOne(queue), (job) => job.fail("no"))],
      ["its last retry", (queue) => Effect.flatMap(claimOne(queue), (job) => job.retry())],
      ["expiry, met by a sweep", (queue) => Effect.zipRight(TestClock.adjust("1 hour"), sweep(queue))],
      ["expiry, met by a claim", (queue) => Effect.zipRight(TestClock.adjust("1 hour"), queue.claim())],
      [
        "death by crash, met by a sweep",
        (queue) => claimOne(queue).pipe(Effect.zipRight(TestClock.adjust("1 minute")), Effect.zipRight(sweep(queue)))
      ],
      [
        "death by crash, met by a claim",
        (queue) => claimOne(queue).pipe(Effect.zipRight(TestClock.adjust("1 minute")), Effect.zipRight(queue.claim()))
      ]
    ]
    for (const [label, end] of ends) {
      it.effect(`it is free after ${label} (G10)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue({ maxAttempts: 1, expires: "1 hour" })
          const first = yield* queue.enqueue(1, key)
          const sql = yield* SqlClient.SqlClient
          yield* end(queue)
          expect(yield* liveRows(queue)).toEqual([])
          // Free, and not just seen to be an orphan by the next enqueue
          expect(
            yield* sql.unsafe(`SELECT * FROM ${engine.table("dedupe_keys")} WHERE queue = '${queue.name}'`)
          ).toEqual([])
          const second = yield* queue.enqueue(2, key)
          expect(second.deduplicated).toBe(false)
          expect(second.id).not.toBe(first.id)
          expect((yield* queue.enqueue(3, key)).id).toBe(second.id)
          for (const letter of yield* deadRows(queue)) expect(letter.dedupeKey).toBe("k")
        })
      )
    }

    it.effect("the key of a job that was deleted by hand holds nobody off (G9)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const sql = yield* SqlClient.SqlClient
        const first = yield* queue.enqueue(1, key)
        yield* sql.unsafe(`DELETE FROM ${engine.table("jobs")} WHERE id = ${first.id}`)
        const [second, third] = yield* queue.enqueueMany([2, 3], key)
        expect(second).toMatchObject({ deduplicated: false })
        expect(third).toMatchObject({ id: second?.id, deduplicated: true })
        expect(yield* onlyRow(queue)).toMatchObject({ id: second?.id, payload: "2" })
      })
    )
  })

  live(engine, options, "dedupe keys, many at once", (it) => {
    it.effect("concurrent enqueues of one key give one job (G9)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const receipts = yield* Effect.all(
          Array.from({ length: 50 }, (_, n) => queue.enqueue(n, key)),
          { concurrency: "unbounded" }
        )
        expect(new Set(receipts.map(({ id }) => id)).size).toBe(1)
        expect(receipts.filter(({ deduplicated }) => !deduplicated)).toHaveLength(1)
        yield* onlyRow(queue)
      })
    )

    it.effect("concurrent batches with the same keys in other orders all end, with one job a key (G9)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const keys = Array.from({ length: 2_000 }, (_, n) => `k${n}`)
        // In transactions that are all open before the first enqueue, so that they meet in the database and not before
        const start = yield* Effect.makeLatch(!engine.besideTransactions)
        let open = 0
        const allOpen = Effect.suspend(() => (++open === 6 ? Effect.zipRight(start.open, start.await) : start.await))
        const batches = Array.from({ length: 6 }, (_, n) =>
          transaction(
            Effect.zipRight(
              allOpen,
              queue.enqueueMany(n % 2 === 0 ? keys : [...keys].reverse(), (text) => ({ dedupeKey: String(text) }))
            )
          )
        )
        const receipts = yield* Effect.all(batches, { concurrency: "unbounded" })
        expect(receipts.flat().filter(({ deduplicated }) => !deduplicated)).toHaveLength(2_000)
        const rows = yield* liveRows(queue)
        expect(rows.map((row) => row.dedupeKey).sort()).toEqual([...keys].sort())
        for (const batch of receipts)
          expect(new Set(batch.map(({ id }) => id))).toEqual(new Set(rows.map(({ id }) => id)))
      })
    )

    it.effect(
      "enqueues that meet the ack of the key's job lose nothing: it is held or free, never in between (G9, G10)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue(0, key)
          // Both go on until they have met often enough, in whatever order they have their turns
          let acked = 0
          let producing = 2
          const consume = Effect.gen(function* () {
            for (const job of yield* queue.claim()) {
              yield* job.ack
              acked++
            }
          }).pipe(Effect.repeat({ while: () => producing > 0 }))
          let produced = 1
          let calls = 0
          const produce = Effect.gen(function* () {
            calls++
            if (!(yield* queue.enqueue(1, key)).deduplicated) produced++
          }).pipe(
            Effect.repeat({ until: () => calls >= 120 && produced > 10 }),
            Effect.zipRight(Effect.sync(() => producing--))
          )
          yield* Effect.all([consume, produce, produce], { concurrency: "unbounded" })
          const left = yield* liveRows(queue)
          expect(left.length).toBeLessThanOrEqual(1)
          expect(acked + left.length).toBe(produced)
        })
    )
  })
}
