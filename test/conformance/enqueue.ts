/** enqueue: what is stored, in which order, and what the receipt says. */
import { Queue } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, DateTime, Effect, Schema, Stream } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  expectEmpty,
  failsWith,
  freshQueue,
  liveRows,
  onlyRow,
  type Suite,
  virtual
} from "./support.js"

export const enqueueSuite: Suite = (engine, options) => {
  virtual(engine, options, "enqueue of one", (it) => {
    it.effect("answers a receipt and stores the defaults (G1)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const now = yield* Clock.currentTimeMillis
        const receipt = yield* queue.enqueue({ n: 1 })
        expect(receipt).toEqual({ id: expect.any(Number), state: "ready", deduplicated: false, replaced: false })
        expect(yield* onlyRow(queue)).toEqual({
          id: receipt.id,
          queue: queue.name,
          state: "ready",
          payload: '{"n":1}',
          priority: 0,
          attempt: 0,
          maxAttempts: 20,
          crashes: 0,
          failures: 0,
          enqueuedAt: now,
          dueAt: now,
          expiresAt: null,
          dedupeKey: null,
          orderingKey: null,
          headers: null,
          worker: null,
          claimedAt: null,
          deadline: null,
          cancelRequested: false,
          progress: null,
          errors: [],
          history: []
        })
      })
    )

    it.effect("stores every option and hands it to whoever claims the job", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const now = yield* Clock.currentTimeMillis
        const receipt = yield* queue.enqueue("all", {
          delay: "10 seconds",
          priority: -7,
          maxAttempts: 3,
          expires: "1 minute",
          dedupeKey: "key",
          headers: { a: "1", b: "two" }
        })
        expect(receipt.state).toBe("delayed")
        yield* Testing.advance("10 seconds")
        const job = yield* claimOne(queue)
        expect(job).toMatchObject({
          id: receipt.id,
          queue: queue.name,
          payload: "all",
          priority: -7,
          attempt: 1,
          maxAttempts: 3,
          crashes: 0,
          failures: 0,
          enqueuedAt: new Date(now),
          dueAt: new Date(now + 10_000),
          expiresAt: new Date(now + 70_000),
          dedupeKey: "key",
          orderingKey: undefined,
          headers: { a: "1", b: "two" },
          progress: undefined,
          errors: []
        })
        expect(job.lease).toMatchObject({ queue: queue.name, jobId: receipt.id, attempt: 1, visibilityMillis: 30_000 })
        expect(job.lease.deadline).toBe(now + 40_000)
      })
    )

    it.effect("takes runAt as a Date or a DateTime; one that has passed means now (G8)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* Testing.advance("1 hour")
        const now = yield* Clock.currentTimeMillis
        const receipts = [
          yield* queue.enqueue(0, { runAt: new Date(now + 5_000) }),
          yield* queue.enqueue(1, { runAt: DateTime.unsafeMake(now + 6_000) }),
          yield* queue.enqueue(2, { runAt: new Date(now - 60_000) }),
          yield* queue.enqueue(3, { runAt: new Date(now) })
        ]
        expect(receipts.map(({ state }) => state)).toEqual(["delayed", "delayed", "ready", "ready"])
        expect((yield* liveRows(queue)).map(({ dueAt }) => dueAt - now)).toEqual([5_000, 6_000, 0, 0])
      })
    )

    it.effect("counts an expiry's duration from the due time and takes an instant as it is", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const now = yield* Clock.currentTimeMillis
        yield* queue.enqueue(0, { expires: "5 seconds" })
        yield* queue.enqueue(1, { delay: "1 minute", expires: "5 seconds" })
        yield* queue.enqueue(2, { runAt: new Date(now + 120_000), expires: "5 seconds" })
        yield* queue.enqueue(3, { delay: "1 minute", expires: new Date(now + 60_001) })
        yield* queue.enqueue(4, { expires: DateTime.unsafeMake(now + 1) })
        expect((yield* liveRows(queue)).map(({ expiresAt }) => Number(expiresAt) - now)).toEqual([
          5_000, 65_000, 125_000, 60_001, 1
        ])
      })
    )

    it.effect("takes the ends of every range", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const now = yield* Clock.currentTimeMillis
        yield* queue.enqueue(0, { priority: 32_767, maxAttempts: 1, dedupeKey: "x" })
        yield* queue.enqueue(1, { priority: -32_768, maxAttempts: 100_000, dedupeKey: "é".repeat(256) })
        yield* queue.enqueue(2, { delay: "36000 days" })
        yield* queue.enqueue(3, { runAt: new Date(253_402_300_799_999) })
        const rows = yield* liveRows(queue)
        expect(rows.map(({ priority }) => priority)).toEqual([32_767, -32_768, 0, 0])
        expect(rows.map(({ maxAttempts }) => maxAttempts)).toEqual([1, 100_000, 20, 20])
        expect(rows[2]?.dueAt).toBe(now + 36_000 * 86_400_000)
        expect(rows[3]?.dueAt).toBe(253_402_300_799_999)
      })
    )

    it.effect("fixes the queue's defaults on the job: later ones change later jobs only (G7)", () =>
      Effect.gen(function* () {
        const before = freshQueue({ maxAttempts: 3, priority: 5, expires: "1 hour" })
        const after = Queue.make(before.name, { payload: Schema.Unknown, maxAttempts: 7 })
        const now = yield* Clock.currentTimeMillis
        yield* before.enqueue(1)
        yield* after.enqueue(2)
        yield* before.enqueue(3, { maxAttempts: 4, priority: 0 })
        const rows = yield* liveRows(before)
        expect(rows.map(({ maxAttempts, priority }) => [maxAttempts, priority])).toEqual([
          [3, 5],
          [7, 0],
          [4, 0]
        ])
        expect(rows.map(({ expiresAt }) => expiresAt)).toEqual([now + 3_600_000, null, now + 3_600_000])
      })
    )
  })

  virtual(engine, options, "enqueueMany", (it) => {
    it.effect("closes the iterator that it stops at (G5)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let closed = false
        const payloads = function* () {
          try {
            yield "a"
            yield Number.NaN
            yield "c"
          } finally {
            closed = true
          }
        }
        expect((yield* Effect.flip(queue.enqueueMany(payloads())))._tag).toBe("InvalidPayload")
        expect(closed).toBe(true)
      })
    )

    it.effect("answers [] for [] and writes nothing (G2)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        expect(yield* queue.enqueueMany([])).toEqual([])
        yield* expectEmpty(queue)
      })
    )

    it.effect("answers receipts in the order of the payloads, from any iterable, with options for each (G2)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const payloads = function* () {
          for (let n = 0; n < 20; n++) yield { n }
        }
        const receipts = yield* queue.enqueueMany(payloads(), (_, index) => ({
          priority: index,
          ...(index % 2 === 0 ? { delay: index + 1 } : { dedupeKey: `k${index}` })
        }))
        const rows = new Map((yield* liveRows(queue)).map((row) => [row.id, row]))
        expect(rows.size).toBe(20)
        expect(receipts.map(({ id }) => rows.get(id)?.payload)).toEqual(
          Array.from({ length: 20 }, (_, n) => JSON.stringify({ n }))
        )
        expect(receipts.map(({ id }) => rows.get(id)?.priority)).toEqual(Array.from({ length: 20 }, (_, n) => n))
        expect(receipts.map(({ state }) => state === "delayed")).toEqual(
          Array.from({ length: 20 }, (_, n) => n % 2 === 0)
        )
      })
    )

    it.effect("takes 10,000 at once, in order (G2)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const receipts = yield* queue.enqueueMany(Array.from({ length: 10_000 }, (_, n) => n))
        const ids = receipts.map(({ id }) => id)
        expect(ids).toHaveLength(10_000)
        expect(ids.every((id, index) => index === 0 || id > Number(ids[index - 1]))).toBe(true)
        const rows = yield* liveRows(queue)
        expect(rows.map(({ payload }) => Number(payload))).toEqual(Array.from({ length: 10_000 }, (_, n) => n))
        expect((yield* queue.claim({ limit: 3 })).map(({ payload }) => payload)).toEqual([0, 1, 2])
      })
    )

    it.effect("takes 6,000 with and without keys, duplicates among them (G2, G9)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const keyOf = (n: number) => (n % 3 === 0 ? undefined : `key-${n % 100}`)
        const receipts = yield* queue.enqueueMany(
          Array.from({ length: 6_000 }, (_, n) => n),
          (_, n) => ({ dedupeKey: keyOf(n) })
        )
        const first = new Map<string, number>()
        for (const [n, receipt] of receipts.entries()) {
          const key = keyOf(n)
          if (key === undefined) expect(receipt.deduplicated).toBe(false)
          else if (!first.has(key)) {
            expect(receipt.deduplicated).toBe(false)
            first.set(key, receipt.id)
          } else expect(receipt).toMatchObject({ id: first.get(key), deduplicated: true })
        }
        expect(yield* liveRows(queue)).toHaveLength(2_000 + first.size)
      })
    )
  })

  virtual(engine, options, "enqueueStream", (it) => {
    it.effect("commits chunk by chunk and counts what was added and what was there (G3)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const seen: Array<number> = []
        const committed: Array<number> = []
        const payloads = Stream.range(1, 25).pipe(
          Stream.rechunk(1),
          Stream.tap((n) =>
            n === 21 ? Effect.map(liveRows(queue), (rows) => void committed.push(rows.length)) : Effect.void
          )
        )
        const result = yield* queue.enqueueStream(payloads, {
          chunkSize: 10,
          job: (payload, index) => {
            seen.push(index)
            return { dedupeKey: `k${Number(payload) % 20}` }
          }
        })
        expect(result).toEqual({ enqueued: 20, deduplicated: 5 })
        expect(seen).toEqual(Array.from({ length: 25 }, (_, index) => index))
        expect(committed).toEqual([20])
        expect((yield* liveRows(queue)).map(({ payload }) => Number(payload))).toEqual(
          Array.from({ length: 20 }, (_, n) => n + 1)
        )
      })
    )

    it.effect("keeps the chunks before a failure, of the stream or of a payload, and fails with it (G3)", () =>
      Effect.gen(function* () {
        const broken = freshQueue()
        const stream = Stream.concat(Stream.range(1, 20), Stream.fail("broken" as const))
        expect(yield* Effect.flip(broken.enqueueStream(stream, { chunkSize: 10 }))).toBe("broken")
        expect(yield* liveRows(broken)).toHaveLength(20)

        const refused = freshQueue()
        const payloads = Stream.range(1, 20).pipe(Stream.map((n) => (n === 15 ? Number.NaN : n)))
        const flaw = yield* failsWith(refused.enqueueStream(payloads, { chunkSize: 10 }), "InvalidPayload")
        // Where it is in the stream, which knows nothing of chunks
        expect(flaw.index).toBe(14)
        expect(yield* liveRows(refused)).toHaveLength(10)
      })
    )

    it.effect("answers zeroes for an empty stream and refuses a chunk size that is none (G6)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        expect(yield* queue.enqueueStream(Stream.empty)).toEqual({ enqueued: 0, deduplicated: 0 })
        for (const chunkSize of [0, -1, 1.5, Number.NaN]) {
          const error = yield* failsWith(queue.enqueueStream(Stream.make(1), { chunkSize }), "InvalidArgument")
          expect(error.argument).toBe("chunkSize")
        }
        yield* expectEmpty(queue)
        expect(yield* deadRows(queue)).toEqual([])
      })
    )
  })
}
