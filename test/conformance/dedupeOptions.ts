/** What dedupe keys can do besides: replace what waits, be free at the first claim, be held on after the end. */
import { SqlClient } from "@effect/sql"
import { type Queue, transaction, Worker } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, TestClock } from "effect"
import { expect } from "vitest"
import { claimOne, failsWith, freshQueue, live, liveRows, onlyRow, type Suite, sweep, virtual } from "./support.js"

const replace = { dedupeKey: "k", onDuplicate: "replace" } satisfies Queue.EnqueueOptions
const waiting = { dedupeKey: "k", dedupeScope: "waiting" } satisfies Queue.EnqueueOptions
const window = { dedupeKey: "k", dedupeWindow: "1 hour" } satisfies Queue.EnqueueOptions

export const dedupeOptionsSuite: Suite = (engine, options) => {
  const keys = (queue: { readonly name: string }) =>
    Effect.flatMap(SqlClient.SqlClient, (sql) =>
      sql.unsafe(`SELECT dedupe_key FROM ${engine.table("dedupe_keys")} WHERE queue = '${queue.name}'`)
    )

  live(engine, options, "onDuplicate: replace, by the database's clock", (it) => {
    it.effect("what is replaced without a delay is ready, however long the statements took (G153)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const receipts = yield* Effect.replicateEffect(queue.enqueue("again", replace), 50)
        expect(new Set(receipts.map(({ state }) => state))).toEqual(new Set(["ready"]))
      })
    )
  })

  virtual(engine, options, "onDuplicate: replace", (it) => {
    it.effect("adds the first, then replaces what waits: payload, headers, priority, times; the id stays (G153)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const first = yield* queue.enqueue("first", {
          ...replace,
          delay: "1 hour",
          expires: "1 minute",
          headers: { a: "1" }
        })
        expect(first).toMatchObject({ state: "delayed", deduplicated: false, replaced: false })
        const now = yield* Effect.clockWith((clock) => clock.currentTimeMillis)
        const second = yield* queue.enqueue("second", {
          ...replace,
          priority: 7,
          delay: "10 seconds",
          expires: "2 minutes"
        })
        expect(second).toEqual({ id: first.id, state: "delayed", deduplicated: true, replaced: true })
        expect(yield* onlyRow(queue)).toMatchObject({
          id: first.id,
          payload: '"second"',
          priority: 7,
          headers: null,
          dueAt: now + 10_000,
          expiresAt: now + 130_000
        })
        const third = yield* queue.enqueue("third", { ...replace, headers: { b: "2" } })
        expect(third).toEqual({ id: first.id, state: "ready", deduplicated: true, replaced: true })
        expect(yield* onlyRow(queue)).toMatchObject({
          priority: 0,
          expiresAt: null,
          headers: '{"b":"2"}',
          state: "ready"
        })
        // Ready again later
        expect(
          yield* queue.enqueue("fourth", { ...replace, runAt: new Date(now + 60_000), expires: new Date(now + 90_000) })
        ).toMatchObject({
          state: "delayed",
          replaced: true
        })
        expect(yield* onlyRow(queue)).toMatchObject({ dueAt: now + 60_000, expiresAt: now + 90_000 })
        expect(yield* queue.claim()).toEqual([])
        yield* TestClock.adjust("1 minute")
        expect(yield* claimOne(queue)).toMatchObject({ id: first.id, payload: "fourth", attempt: 1 })
      })
    )

    it.effect("starts attempts and errors afresh (G153)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ maxAttempts: 3 })
        yield* queue.enqueue("first", replace)
        const job = yield* claimOne(queue)
        yield* job.heartbeat({ done: 1 })
        yield* job.retry({ delay: "1 hour", error: "no" })
        yield* queue.enqueue("second", replace)
        expect(yield* onlyRow(queue)).toMatchObject({
          attempt: 0,
          failures: 0,
          crashes: 0,
          errors: [],
          progress: null,
          state: "ready"
        })
        for (const attempt of [1, 2, 3]) {
          const next = yield* claimOne(queue)
          expect(next).toMatchObject({ attempt, payload: "second", maxAttempts: 3 })
          yield* next.retry({ delay: 0 })
        }
        expect(yield* liveRows(queue)).toEqual([])
      })
    )

    it.effect("leaves a leased job alone, and says so; once it is back it is replaced (G153)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { id } = yield* queue.enqueue("first", replace)
        const job = yield* claimOne(queue)
        expect(yield* queue.enqueue("second", replace)).toEqual({
          id,
          state: "leased",
          deduplicated: true,
          replaced: false
        })
        expect(yield* onlyRow(queue)).toMatchObject({ payload: '"first"', attempt: 1 })
        yield* job.retry({ delay: 0 })
        expect(yield* queue.enqueue("third", replace)).toMatchObject({ id, state: "ready", replaced: true })
        yield* failsWith(job.ack, "LeaseLost")
        expect(yield* claimOne(queue)).toMatchObject({ payload: "third", attempt: 1 })
      })
    )

    it.effect("within a batch the last of a key stands, in the place of the first (G153)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const old = yield* queue.enqueue("old", { dedupeKey: "b" })
        const names = ["a1", "b1", "a2", "c1", "a3", "b2"]
        const receipts = yield* queue.enqueueMany(names, (name) => ({
          dedupeKey: String(name).slice(0, 1),
          onDuplicate: "replace"
        }))
        expect(receipts.map(({ replaced }) => replaced)).toEqual([false, true, true, false, true, true])
        expect(receipts.map(({ deduplicated }) => deduplicated)).toEqual([false, true, true, false, true, true])
        const [a1, b1, a2, , a3, b2] = receipts.map(({ id }) => id)
        expect([a2, a3]).toEqual([a1, a1])
        expect([b1, b2]).toEqual([old.id, old.id])
        expect((yield* liveRows(queue)).map(({ payload }) => JSON.parse(payload))).toEqual(["b2", "a3", "c1"])
      })
    )

    it.effect("within a batch each receipt tells what those before it have made of the job (G153)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { id } = yield* queue.enqueue("first", { dedupeKey: "k", delay: "1 hour" })
        const batch = [
          { dedupeKey: "k" },
          replace,
          { dedupeKey: "k" },
          { ...replace, delay: "1 hour" },
          { dedupeKey: "k" }
        ]
        const receipts = yield* queue.enqueueMany([0, 1, 2, 3, 4], (_, index) => batch[index] ?? {})
        expect(receipts.map((receipt) => receipt.id)).toEqual([id, id, id, id, id])
        expect(receipts.map(({ state }) => state)).toEqual(["delayed", "ready", "ready", "delayed", "delayed"])
        expect(receipts.map(({ replaced }) => replaced)).toEqual([false, true, false, true, false])
      })
    )

    it.effect("keep and replace in one batch, each as it says (G153)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const receipts = yield* queue.enqueueMany(["one", "keep", "two", "keep"], (name) => ({
          dedupeKey: "k",
          onDuplicate: name === "keep" ? "keep" : "replace"
        }))
        expect(receipts.map(({ replaced }) => replaced)).toEqual([false, false, true, false])
        expect(yield* onlyRow(queue)).toMatchObject({ payload: '"two"' })
      })
    )

    it.effect("a blocked job is replaced where it stands: its ordering key's turn is still to come (G153)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const order = { orderingKey: "o" }
        yield* queue.enqueue("head", order)
        yield* queue.enqueue("first", { ...replace, ...order })
        yield* queue.enqueue("last", order)
        expect(yield* queue.enqueue("second", { ...replace, ...order })).toMatchObject({
          state: "blocked",
          replaced: true
        })
        for (const payload of ["head", "second", "last"]) {
          const job = yield* claimOne(queue)
          expect(job.payload).toBe(payload)
          expect(yield* queue.claim()).toEqual([])
          yield* job.ack
        }
      })
    )

    it.effect("commits or rolls back with the caller's transaction (G153, G159)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue("first", replace)
        const before = yield* onlyRow(queue)
        yield* Effect.either(
          transaction(Effect.zipRight(queue.enqueue("second", { ...replace, priority: 3 }), Effect.fail("mine")))
        )
        expect(yield* onlyRow(queue)).toEqual(before)
        yield* transaction(queue.enqueue("third", replace))
        expect(yield* onlyRow(queue)).toMatchObject({ payload: '"third"' })
      })
    )

    it.effect("what is about the key needs one (G6)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const bad: ReadonlyArray<Queue.EnqueueOptions> = [
          { onDuplicate: "replace" },
          { dedupeScope: "waiting" },
          { dedupeWindow: "1 hour" },
          { dedupeKey: "k", onDuplicate: "overwrite" as "replace" },
          { dedupeKey: "k", dedupeScope: "dead" as "live" },
          { dedupeKey: "k", dedupeWindow: 0 },
          { dedupeKey: "k", dedupeWindow: "-1 hour" as "1 hour" },
          { dedupeKey: "k", dedupeWindow: Number.POSITIVE_INFINITY }
        ]
        for (const wrong of bad) yield* failsWith(queue.enqueue(1, wrong), "InvalidArgument")
        expect(yield* liveRows(queue)).toEqual([])
      })
    )

    it.scoped(
      "a worker that sleeps until the delayed job is due is woken when it is replaced by one that is due now (G153)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const seen: Array<unknown> = []
          yield* queue.enqueue("later", { ...replace, delay: "1 hour" })
          yield* Worker.fork(queue, {
            shutdownGrace: 0,
            handler: (job) => Effect.sync(() => void seen.push(job.payload))
          })
          yield* Testing.settle
          yield* queue.enqueue("now", replace)
          if (options.silent) yield* Testing.advance("1 minute")
          yield* Testing.settle
          expect(seen).toEqual(["now"])
        })
    )
  })

  virtual(engine, options, "dedupeScope: waiting", (it) => {
    it.effect("the key is free at the first claim, not before; one more job may wait with it (G154)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const first = yield* queue.enqueue("first", waiting)
        expect(yield* queue.enqueue("dropped", waiting)).toMatchObject({ id: first.id, deduplicated: true })
        const running = yield* claimOne(queue)
        const second = yield* queue.enqueue("second", waiting)
        expect(second).toMatchObject({ deduplicated: false, state: "ready" })
        expect(second.id).not.toBe(first.id)
        expect(yield* queue.enqueue("dropped", waiting)).toMatchObject({ id: second.id, deduplicated: true })
        yield* running.ack
        expect(yield* queue.enqueue("dropped", waiting)).toMatchObject({ id: second.id, deduplicated: true })
      })
    )

    const ends: ReadonlyArray<
      readonly [
        string,
        (
          queue: ReturnType<typeof freshQueue>,
          job: Effect.Effect.Success<ReturnType<typeof claimOne<unknown, unknown>>>
        ) => Effect.Effect<unknown, unknown, Queue.Queue>
      ]
    > = [
      ["ack", (_, job) => job.ack],
      ["death", (_, job) => job.fail()],
      ["crash", (queue) => Effect.zipRight(TestClock.adjust("1 minute"), sweep(queue))],
      ["cancellation", (queue, job) => Effect.zipRight(queue.cancel(job.id), job.release)],
      [
        "retry and its ack",
        (queue, job) =>
          Effect.zipRight(
            job.retry({ delay: 0 }),
            Effect.flatMap(claimOne(queue), (again) => again.ack)
          )
      ],
      [
        "retry and its cancellation",
        (queue, job) => Effect.zipRight(job.retry({ delay: "1 minute" }), queue.cancel(job.id))
      ],
      [
        "release and its death",
        (queue, job) =>
          Effect.zipRight(
            job.release,
            Effect.flatMap(claimOne(queue), (again) => again.fail())
          )
      ]
    ]
    for (const [label, end] of ends) {
      it.effect(`the ${label} of the first does not free the second's key (G154)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue("first", { ...waiting, priority: 1, dedupeWindow: "1 hour" })
          const job = yield* claimOne(queue)
          expect(yield* keys(queue)).toEqual([])
          const second = yield* queue.enqueue("second", waiting)
          yield* end(queue, job)
          expect(yield* queue.enqueue("dropped", waiting)).toMatchObject({ id: second.id, deduplicated: true })
          expect(yield* keys(queue)).toHaveLength(1)
        })
      )
    }

    it.effect(
      "claimed beside a job that has the key for as long as it lives, it does not free that one's (G9, G154)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue("first", waiting)
          yield* (yield* claimOne(queue)).release
          const { id } = yield* queue.enqueue("second", { dedupeKey: "k" })
          expect(yield* queue.claim({ limit: 2 })).toHaveLength(2)
          expect(yield* queue.enqueue("dropped", waiting)).toMatchObject({ id, state: "leased", deduplicated: true })
        })
    )

    it.effect("a claim that is rolled back has freed no key (G154, G159)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { id } = yield* queue.enqueue("first", waiting)
        yield* Effect.either(transaction(Effect.zipRight(queue.claim(), Effect.fail("mine"))))
        expect(yield* queue.enqueue("dropped", waiting)).toMatchObject({ id, deduplicated: true })
      })
    )

    it.effect("one that was requeued from the dead waits with its key again (G146, G154)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { id } = yield* queue.enqueue("first", waiting)
        yield* (yield* claimOne(queue)).fail()
        yield* queue.deadLetters.requeue({ id })
        expect(yield* queue.enqueue("dropped", waiting)).toMatchObject({ id, deduplicated: true })
        yield* claimOne(queue)
        expect(yield* queue.enqueue("second", waiting)).toMatchObject({ deduplicated: false })
      })
    )

    it.effect("cleared, cancelled or expired before any claim, it frees its key (G154)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gone = [
          (id: number) => queue.cancel(id),
          () => queue.clear,
          () => Effect.zipRight(TestClock.adjust("1 hour"), sweep(queue))
        ]
        for (const end of gone) {
          const { deduplicated, id } = yield* queue.enqueue(1, { ...waiting, expires: "1 minute" })
          expect(deduplicated).toBe(false)
          yield* end(id)
          expect(yield* keys(queue)).toEqual([])
        }
      })
    )
  })

  virtual(engine, options, "dedupeWindow", (it) => {
    const held = (queue: ReturnType<typeof freshQueue>, id: number) =>
      Effect.map(queue.enqueue("dropped", window), (receipt) =>
        expect(receipt).toEqual({ id, state: "ended", deduplicated: true, replaced: false })
      )
    const ends: ReadonlyArray<
      readonly [string, (queue: ReturnType<typeof freshQueue>) => Effect.Effect<unknown, unknown, Queue.Queue>]
    > = [
      ["an ack", (queue) => Effect.flatMap(claimOne(queue), (job) => job.ack)],
      ["a death", (queue) => Effect.flatMap(claimOne(queue), (job) => job.fail())],
      ["its last retry", (queue) => Effect.flatMap(claimOne(queue), (job) => job.retry())],
      ["expiry", (queue) => Effect.zipRight(TestClock.adjust("10 hours"), sweep(queue))],
      [
        "a crash",
        (queue) => claimOne(queue).pipe(Effect.zipRight(TestClock.adjust("1 minute")), Effect.zipRight(sweep(queue)))
      ]
    ]
    for (const retained of [false, true])
      for (const [label, end] of ends) {
        it.effect(
          `holds the key on after ${label}${retained ? ", where completed jobs are kept" : ""}, for its time (G155)`,
          () =>
            Effect.gen(function* () {
              const queue = freshQueue({
                maxAttempts: 1,
                expires: "10 hours",
                ...(retained ? { retainCompleted: "1 day" } : {})
              })
              const { id } = yield* queue.enqueue("first", window)
              expect(yield* queue.enqueue("dropped", window)).toMatchObject({ id, deduplicated: true, state: "ready" })
              yield* end(queue)
              yield* held(queue, id)
              // Nothing is replaced either: there is nothing to replace
              expect(yield* queue.enqueue("dropped", { ...window, onDuplicate: "replace" })).toMatchObject({
                id,
                state: "ended",
                replaced: false
              })
              yield* TestClock.adjust(3_599_999)
              yield* sweep()
              yield* held(queue, id)
              expect(yield* liveRows(queue)).toEqual([])
              yield* TestClock.adjust(1)
              // Free by the clock, with or without a sweep
              if (retained) yield* sweep()
              const next = yield* queue.enqueue("second", window)
              expect(next).toMatchObject({ deduplicated: false, state: "ready" })
              expect(next.id).not.toBe(id)
            })
        )
      }

    it.effect("ends when it has passed, though the letter lives on in another queue, which stays as it is (G155)", () =>
      Effect.gen(function* () {
        const [queue, other] = [freshQueue(), freshQueue()]
        const { id } = yield* queue.enqueue("first", { ...window, priority: 3 })
        yield* Effect.flatMap(claimOne(queue), (job) => job.fail("no"))
        yield* queue.deadLetters.requeue({ id }, { to: other })
        const held = { id, state: "ended", deduplicated: true, replaced: false }
        expect(yield* queue.enqueue("dropped", window)).toEqual(held)
        expect(yield* queue.enqueue("dropped", { ...window, ...replace })).toEqual(held)
        expect(yield* onlyRow(other)).toMatchObject({ payload: '"first"', priority: 3 })
        yield* TestClock.adjust("1 hour")
        expect(yield* queue.enqueue("second", window)).toMatchObject({ deduplicated: false })
        expect(yield* onlyRow(other)).toMatchObject({ id, dedupeKey: "k" })
      })
    )

    it.effect("is swept away when it has passed (G155)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, window)
        yield* (yield* claimOne(queue)).ack
        expect(yield* keys(queue)).toHaveLength(1)
        yield* TestClock.adjust("1 hour")
        yield* sweep()
        expect(yield* keys(queue)).toEqual([])
      })
    )

    it.effect("cancelling frees the key at once, of a waiting and of a leased job (G155)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const first = yield* queue.enqueue("first", window)
        expect(yield* queue.cancel(first.id)).toBe("cancelled")
        const second = yield* queue.enqueue("second", window)
        expect(second.deduplicated).toBe(false)
        const job = yield* claimOne(queue)
        expect(yield* queue.cancel(second.id)).toBe("requested")
        expect(yield* queue.enqueue("dropped", window)).toMatchObject({ id: second.id, deduplicated: true })
        yield* job.retry()
        expect(yield* queue.enqueue("third", window)).toMatchObject({ deduplicated: false })
        yield* queue.clear
        expect(yield* queue.enqueue("fourth", window)).toMatchObject({ deduplicated: false })
      })
    )

    it.effect("of jobs settled together each has its own: with a window, without, cancelled (G155)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(["a", "b", "c"], (name) => ({
          dedupeKey: String(name),
          ...(name === "b" ? {} : { dedupeWindow: "1 hour" as const })
        }))
        const jobs = yield* queue.claim({ limit: 3 })
        yield* queue.cancel(jobs[2]?.id ?? 0)
        yield* Effect.forEach(jobs, (job) => job.fail(), { concurrency: "unbounded" })
        const receipts = yield* queue.enqueueMany(["a", "b", "c"], (name) => ({ dedupeKey: String(name) }))
        // A death of its own that comes before the cancellation is no cancellation
        expect(receipts.map(({ deduplicated }) => deduplicated)).toEqual([true, false, true])
      })
    )

    it.effect("a window that has passed is another's to take, whoever comes first, within a batch too (G155)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(0, window)
        yield* (yield* claimOne(queue)).ack
        yield* TestClock.adjust("2 hours")
        const receipts = yield* queue.enqueueMany([1, 2, 3], window)
        expect(receipts.map(({ deduplicated }) => deduplicated)).toEqual([false, true, true])
        yield* onlyRow(queue)
      })
    )
  })

  live(engine, options, "dedupe options, many at once", (it) => {
    it.effect("replacements and claims: each payload is run or replaced, and the last is run (G153)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const run: Array<unknown> = []
        let replaced = 0
        let added = 0
        let kept = 0
        const consume = Effect.gen(function* () {
          for (const job of yield* queue.claim()) {
            run.push(job.payload)
            yield* job.ack
          }
        })
        const produce = (from: number) =>
          Effect.forEach(
            Array.from({ length: 60 }, (_, n) => from + n),
            (n) =>
              Effect.map(queue.enqueue(n, replace), (receipt) => {
                if (receipt.replaced) replaced++
                else if (receipt.deduplicated) {
                  kept++
                  // Only a leased job is not replaced
                  expect(receipt.state).toBe("leased")
                } else added++
              }),
            { discard: true }
          )
        yield* Effect.all([Effect.repeatN(consume, 80), produce(0), produce(1_000)], { concurrency: "unbounded" })
        for (let left = yield* queue.claim(); left.length > 0; left = yield* queue.claim())
          for (const job of left) {
            run.push(job.payload)
            yield* job.ack
          }
        expect(run).toHaveLength(added)
        expect(new Set(run).size).toBe(run.length)
        expect(added + replaced + kept).toBe(120)
        expect(yield* keys(queue)).toEqual([])
      })
    )

    it.effect("windows of a millisecond: at most one live job of the key at any time (G9, G155)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const brief = { dedupeKey: "k", dedupeWindow: 1 }
        const produce = Effect.repeatN(queue.enqueue(1, brief), 60)
        const consume = Effect.repeatN(
          Effect.flatMap(queue.claim({ limit: 5 }), (jobs) => {
            expect(jobs.length).toBeLessThanOrEqual(1)
            return Effect.forEach(jobs, (job) => job.ack)
          }),
          80
        )
        const die = Effect.repeatN(queue.deadLetters.requeue({ all: true }), 20)
        yield* Effect.all([produce, produce, consume, die, produce], { concurrency: "unbounded" })
        expect((yield* liveRows(queue)).length).toBeLessThanOrEqual(1)
      })
    )
  })
}
