/** Settling: what becomes of a claimed job, and that only its lease can say so. */
import { type Job, Queue } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Effect, TestClock } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  expectEmpty,
  failsWith,
  freshQueue,
  liveRows,
  onlyLetter,
  onlyRow,
  type Suite,
  sweep,
  virtual
} from "./support.js"

type AnyJob = Job.Job<unknown>
type Operation = (job: AnyJob) => ReturnType<AnyJob["retry"]>

/** Everything that a lease allows. */
const operations: ReadonlyArray<readonly [string, Operation]> = [
  ["ack", (job) => job.ack],
  ["retry", (job) => job.retry({ delay: 0, error: "stale" })],
  ["a delayed retry", (job) => job.retry({ delay: "1 hour" })],
  ["fail", (job) => job.fail("stale")],
  ["release", (job) => job.release],
  ["snooze", (job) => job.snooze("1 hour")],
  ["heartbeat", (job) => job.heartbeat()],
  ["a heartbeat with progress", (job) => job.heartbeat({ stale: true })]
]

const full = {
  priority: 3,
  maxAttempts: 4,
  dedupeKey: "k",
  headers: { h: "1" },
  expires: "10 days"
} satisfies Queue.EnqueueOptions

export const settleSuite: Suite = (engine, options) => {
  virtual(engine, options, "settle", (it) => {
    it.effect("ack: the job is gone, and not dead (G39)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2])
        const [one] = yield* queue.claim({ limit: 2 })
        yield* one?.ack ?? Effect.void
        expect((yield* liveRows(queue)).map(({ payload }) => payload)).toEqual(["2"])
        expect(yield* deadRows(queue)).toEqual([])
        yield* TestClock.adjust("1 hour")
        expect((yield* queue.claim({ limit: 10 })).map(({ payload }) => payload)).toEqual([2])
      })
    )

    for (const [first, settle] of operations.slice(0, 6)) {
      it.effect(`whatever comes after ${first} under the same lease is LeaseLost and changes nothing (G28, G39)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue(1, full)
          const job = yield* claimOne(queue)
          yield* settle(job)
          const before = [yield* liveRows(queue), yield* deadRows(queue)]
          for (const [, again] of operations) {
            expect(yield* failsWith(again(job), "LeaseLost")).toMatchObject({
              queue: queue.name,
              jobId: job.id,
              token: job.lease.token,
              retryable: false
            })
          }
          expect([yield* liveRows(queue), yield* deadRows(queue)]).toEqual(before)
        })
      )
    }

    it.effect("retry: back after the delay, the attempt spent, the failure counted and kept (G40)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const now = yield* Clock.currentTimeMillis
        const job = yield* claimOne(queue)
        yield* job.retry({ delay: "1 minute", error: new Error("try later") })
        const row = yield* onlyRow(queue)
        expect(row).toMatchObject({
          state: "delayed",
          attempt: 1,
          failures: 1,
          crashes: 0,
          dueAt: now + 60_000,
          worker: null,
          deadline: null
        })
        expect(row.errors).toEqual([{ at: now, attempt: 1, kind: "failure", message: "try later", tag: "Error" }])
        yield* TestClock.adjust(59_999)
        expect(yield* queue.claim()).toEqual([])
        yield* TestClock.adjust(1)
        const again = yield* claimOne(queue)
        expect(again).toMatchObject({ attempt: 2, failures: 1, crashes: 0, errors: row.errors })
      })
    )

    it.effect("retry waits 1 s at first and doubles with each failure (G40)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        for (const seconds of [1, 2, 4, 8]) {
          const job = yield* claimOne(queue)
          yield* job.retry()
          expect((yield* onlyRow(queue)).dueAt).toBe((yield* Clock.currentTimeMillis) + seconds * 1_000)
          yield* TestClock.adjust(seconds * 1_000)
        }
      })
    )

    it.effect("retry on the last attempt: dead (exhausted), with every failure (G40)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, { maxAttempts: 3 })
        for (const attempt of [1, 2, 3]) {
          expect(yield* deadRows(queue)).toEqual([])
          yield* (yield* claimOne(queue)).retry({ delay: 0, error: `failure ${attempt}` })
        }
        expect(yield* liveRows(queue)).toEqual([])
        const letter = yield* onlyLetter(queue)
        expect(letter).toMatchObject({ reason: "exhausted", attempts: 3, failures: 3, crashes: 0 })
        expect(letter.errors.map(({ message }) => message)).toEqual(["failure 1", "failure 2", "failure 3"])
      })
    )

    it.effect("fail: dead (failed) now, whatever attempts are left (G40)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        yield* (yield* claimOne(queue)).fail("bad address")
        expect(yield* liveRows(queue)).toEqual([])
        const letter = yield* onlyLetter(queue)
        expect(letter).toMatchObject({ reason: "failed", attempts: 1, maxAttempts: 20, failures: 1 })
        expect(letter.errors.map(({ message }) => message)).toEqual(["bad address"])
      })
    )

    it.effect("release: ready now, the attempt not spent, however often (G40)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, { maxAttempts: 1 })
        for (let n = 0; n < 5; n++) {
          const job = yield* claimOne(queue)
          expect(job).toMatchObject({ attempt: 1, failures: 0, crashes: 0, errors: [] })
          yield* job.release
          expect(yield* onlyRow(queue)).toMatchObject({ state: "ready", attempt: 0, failures: 0, worker: null })
        }
      })
    )

    it.effect("snooze: back after the delay, the attempt not spent (G40)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, { maxAttempts: 1 })
        for (let n = 0; n < 3; n++) {
          yield* (yield* claimOne(queue)).snooze("1 hour")
          expect(yield* onlyRow(queue)).toMatchObject({ state: "delayed", attempt: 0, failures: 0 })
          yield* TestClock.adjust(3_599_999)
          expect(yield* queue.claim()).toEqual([])
          yield* TestClock.adjust(1)
        }
        expect((yield* claimOne(queue)).attempt).toBe(1)
      })
    )

    it.effect("a delay that is none is refused, and the job stays leased (G6)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const job = yield* claimOne(queue)
        for (const delay of [-1, Number.NaN, Number.POSITIVE_INFINITY, "later" as never, {} as never]) {
          yield* failsWith(job.retry({ delay }), "InvalidArgument")
          yield* failsWith(job.snooze(delay), "InvalidArgument")
        }
        expect(yield* onlyRow(queue)).toMatchObject({ state: "leased", attempt: 1, failures: 0 })
        yield* job.ack
      })
    )

    it.effect("two claims of one job, settled or renewed at once: only the one that holds it counts (G28, G41)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const store = yield* Queue.Queue
        const history = { crashes: 0, failures: 0, errors: null, failureTimes: null }
        const wrong = { ...history, crashes: 7 }
        const back = { attempt: 0, delayMillis: 0, undecodableSince: null }
        const settlements = (id: number, stale: number, held: number) => [
          [
            { _tag: "Return" as const, id, token: stale, ...back, delayMillis: 3_600_000, history: wrong },
            { _tag: "Return" as const, id, token: held, ...back, history }
          ],
          [
            { _tag: "Bury" as const, id, token: stale, reason: "failed" as const, history: wrong },
            { _tag: "Bury" as const, id, token: held, reason: "exhausted" as const, history }
          ],
          [
            { _tag: "Ack" as const, id, token: stale },
            { _tag: "Ack" as const, id, token: held }
          ]
        ]
        for (const [kind, outcome] of (["lost", "gone", "gone"] as const).entries()) {
          yield* queue.enqueue(kind)
          const stale = yield* claimOne(queue, { visibilityTimeout: "1 second" })
          yield* TestClock.adjust("1 second")
          const held = yield* claimOne(queue)
          const leases = [stale, held].map(({ id, lease: { token } }) => ({ id, token, visibilityMillis: 30_000 }))
          const beats = leases.map((lease, index) => ({ ...lease, progress: `${index}` }))
          expect(yield* store.renew(beats)).toEqual(["lost", "renewed"])
          expect(yield* onlyRow(queue)).toMatchObject({ progress: "1" })
          const both = settlements(held.id, stale.lease.token, held.lease.token)[kind] ?? []
          expect(yield* store.settle(queue.name, both)).toEqual([outcome, "done"])
          if (kind === 0) expect(yield* onlyRow(queue)).toMatchObject({ state: "ready", crashes: 0 })
          if (kind === 1) expect(yield* onlyLetter(queue)).toMatchObject({ reason: "exhausted", crashes: 0 })
          yield* queue.clear
        }
        expect(yield* liveRows(queue)).toEqual([])
      })
    )

    it.effect("many settled at once are each settled on their own (G41)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([0, 1, 2, 3, 4, 5, 6])
        const store = yield* Queue.Queue
        const jobs = yield* queue.claim({ limit: 7 })
        const lease = (index: number, off = 0) => {
          const { id, lease } = jobs[index] as (typeof jobs)[number]
          return { id, token: lease.token + off }
        }
        const history = { crashes: 0, failures: 1, errors: null, failureTimes: null }
        yield* (jobs[5] as (typeof jobs)[number]).ack
        const outcomes = yield* store.settle(queue.name, [
          { _tag: "Bury", ...lease(6), reason: "failed", history },
          { _tag: "Ack", ...lease(0) },
          { _tag: "Ack", ...lease(1, 1) },
          { _tag: "Return", ...lease(2), attempt: 1, delayMillis: 0, undecodableSince: null, history },
          { _tag: "Return", ...lease(3, -1), attempt: 1, delayMillis: 0, undecodableSince: null, history },
          { _tag: "Bury", ...lease(4, 1_000_000), reason: "failed", history },
          { _tag: "Ack", ...lease(5) },
          { _tag: "Ack", id: 1_000_000_000, token: 1 }
        ])
        expect(outcomes).toEqual(["done", "done", "lost", "done", "lost", "lost", "gone", "gone"])
        const rows = yield* liveRows(queue)
        expect(rows.map(({ payload, state }) => [payload, state])).toEqual([
          ["1", "leased"],
          ["2", "ready"],
          ["3", "leased"],
          ["4", "leased"]
        ])
        expect((yield* deadRows(queue)).map(({ payload }) => payload)).toEqual(["6"])
        expect(yield* store.settle(queue.name, [])).toEqual([])
      })
    )
  })

  virtual(engine, options, "a lost lease", (it) => {
    for (const [name, operation] of operations) {
      it.effect(`${name} under an old token: LeaseLost, and nothing changed (G28)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue(1, full)
          const stale = yield* claimOne(queue, { visibilityTimeout: "1 second" })
          yield* TestClock.adjust("2 seconds")
          const holder = yield* claimOne(queue)
          expect(holder.id).toBe(stale.id)
          expect(holder.lease.token).toBeGreaterThan(stale.lease.token)
          const before = yield* onlyRow(queue)
          const error = yield* failsWith(operation(stale), "LeaseLost")
          expect(error).toMatchObject({ jobId: stale.id, token: stale.lease.token })
          expect(yield* onlyRow(queue)).toEqual(before)
          expect(yield* deadRows(queue)).toEqual([])
          expect(yield* queue.enqueue(2, full)).toMatchObject({ id: stale.id, deduplicated: true })
          yield* holder.heartbeat({ mine: true })
          yield* holder.ack
          yield* expectEmpty(queue)
        })
      )

      it.effect(`${name} after a sweep took the lease: LeaseLost, and nothing changed (G28)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue(1, full)
          const stale = yield* claimOne(queue, { visibilityTimeout: "1 second" })
          yield* TestClock.adjust("2 seconds")
          yield* sweep(queue)
          const before = yield* onlyRow(queue)
          expect(before).toMatchObject({ state: "ready", crashes: 1 })
          yield* failsWith(operation(stale), "LeaseLost")
          expect(yield* onlyRow(queue)).toEqual(before)
          expect(yield* deadRows(queue)).toEqual([])
        })
      )

      it.effect(`${name} after the lease's end, before anybody took the job, is accepted (G29)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue(1, full)
          const job = yield* claimOne(queue, { visibilityTimeout: "1 second" })
          yield* TestClock.adjust("1 hour")
          yield* operation(job)
          const rows = yield* liveRows(queue)
          for (const row of rows) expect(row.crashes).toBe(0)
          if (name.includes("heartbeat")) {
            expect(rows[0]).toMatchObject({ state: "leased", deadline: (yield* Clock.currentTimeMillis) + 1_000 })
          } else expect(rows.filter(({ state }) => state === "leased")).toEqual([])
        })
      )
    }
  })

  virtual(engine, options, "dead letters", (it) => {
    const deaths: ReadonlyArray<readonly [string, Effect.Effect<void>, Operation]> = [
      ["failed", Effect.void, (job) => job.fail("last words")],
      ["exhausted", Effect.void, (job) => job.retry({ error: "last words" })],
      ["crashed", TestClock.adjust("1 hour"), () => Effect.void],
      ["expired", TestClock.adjust("11 days"), (job) => job.release]
    ]
    for (const [reason, wait, die] of deaths) {
      it.effect(`${reason}: moved with all that the job had (G51)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const { id } = yield* queue.enqueue({ text: "\u0000 \ud800 é" }, { ...full, delay: "1 second" })
          yield* TestClock.adjust("1 second")
          for (const attempt of [1, 2, 3]) {
            const job = yield* claimOne(queue, { visibilityTimeout: "1 day" })
            yield* job.heartbeat({ attempt })
            yield* job.retry({ delay: 0, error: `failure ${attempt}` })
          }
          const last = yield* claimOne(queue, { visibilityTimeout: "1 minute" })
          const before = yield* onlyRow(queue)
          yield* wait
          yield* die(last)
          yield* sweep(queue)
          expect(yield* liveRows(queue)).toEqual([])
          const letter = yield* onlyLetter(queue)
          const counts = {
            failed: { failures: 4, crashes: 0, attempts: 4 },
            exhausted: { failures: 4, crashes: 0, attempts: 4 },
            crashed: { failures: 3, crashes: 1, attempts: 4 },
            expired: { failures: 3, crashes: 0, attempts: 3 }
          }[reason]
          expect(letter).toMatchObject({
            id,
            queue: queue.name,
            reason,
            payload: before.payload,
            priority: 3,
            maxAttempts: 4,
            enqueuedAt: before.enqueuedAt,
            dedupeKey: "k",
            headers: '{"h":"1"}',
            progress: '{"attempt":3}',
            diedAt: yield* Clock.currentTimeMillis,
            ...counts
          })
          expect(letter.errors.slice(0, 3)).toEqual(before.errors)
          expect(letter.errors).toHaveLength(reason === "expired" ? 3 : 4)
        })
      )
    }

    it.effect("are listed newest first, as many as asked for (G56)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2, 3, 4, 5])
        for (const job of yield* queue.claim({ limit: 5 })) {
          yield* job.fail()
          yield* Testing.advance("1 second")
        }
        const payloads = (limit?: number) =>
          Effect.map(queue.deadLetters.list(limit === undefined ? {} : { limit }), (rows) =>
            rows.map(({ payload }) => Number(payload))
          )
        expect(yield* payloads()).toEqual([5, 4, 3, 2, 1])
        expect(yield* payloads(2)).toEqual([5, 4])
        expect(yield* payloads(0)).toEqual([])
        for (const limit of [-1, 1.5, 1_001, Number.NaN]) yield* failsWith(payloads(limit), "InvalidArgument")
      })
    )
  })
}
