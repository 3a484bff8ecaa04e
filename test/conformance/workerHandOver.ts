/** What is enqueued while a worker of the same process waits for jobs is handed to it in the same statement. */
import { SqlClient } from "@effect/sql"
import { Queue, transaction, type Worker } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, Fiber } from "effect"
import { expect } from "vitest"
import type { Receiver } from "../../src/services/QueueStore.js"
import { expectEmpty, freshQueue, live, onlyRow, type Suite, sweep, virtual } from "./support.js"
import { eventually, makeGate, numbers, observe, passing, stoppable, until, withQueue } from "./workerSupport.js"

type AnyQueue = ReturnType<typeof freshQueue>

/** Runs an effect with a Queue service that keeps the ids of what is claimed by calls of `claim`. */
const withClaims = <A, E, R>(self: (claimed: ReadonlyArray<number>) => Effect.Effect<A, E, R>) => {
  const claimed: Array<number> = []
  return withQueue(
    ({ claim, receive }) => ({
      receive,
      claim: (request) => Effect.tap(claim(request), ({ jobs }) => void claimed.push(...jobs.map(({ id }) => id)))
    }),
    self(claimed)
  )
}

/** A worker that waits for jobs, having found none. */
const waiting = (queue: AnyQueue, options: object = {}) =>
  Effect.tap(observe(queue, { handler: () => Effect.void, ...options }), () => Testing.advance("2 seconds"))

/** One that handles a job a second; answers what it has begun. */
const oneByOne = (queue: AnyQueue) => {
  const begun: Array<unknown> = []
  const handler = ({ payload }: { readonly payload: unknown }) =>
    Effect.zipRight(
      Effect.sync(() => void begun.push(payload)),
      Effect.sleep("1 second")
    )
  return Effect.as(waiting(queue, { concurrency: 1, handler }), begun)
}

/** One that waits for jobs, with room that is kept for one that is being enqueued. */
const reserving = (queue: AnyQueue, policy: Worker.PolicyOptions<never>) =>
  Effect.gen(function* () {
    const receivers: Array<Receiver> = []
    const observed = yield* withQueue(
      (real) => ({
        receive: (receiver) => {
          receivers.push(receiver)
          return real.receive(receiver)
        }
      }),
      stoppable(queue, { handler: () => Effect.void, ...policy })
    )
    yield* until("it waits", () => receivers[0]?.reserve(1) === true)
    return { ...observed, receiver: receivers[0] as Receiver }
  })

export const workerHandOverSuite: Suite = (engine, options) => {
  virtual(engine, options, "a job that is enqueued while a worker of the same process waits", (it) => {
    it.effect("is that worker's, under a lease, when the enqueue is answered: nobody claims it (G196)", () =>
      withClaims((claimed) =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const gate = yield* makeGate
          const { of, worker } = yield* waiting(queue, { handler: () => gate.wait, visibilityTimeout: "9 seconds" })
          const { id, state } = yield* queue.enqueue("a", { headers: { from: "here" }, priority: 7 })
          const row = yield* onlyRow(queue)
          expect(state).toBe("ready")
          expect(row).toMatchObject({ id, state: "leased", attempt: 1, priority: 7, worker: worker.id })
          expect(row).toMatchObject({ dueAt: row.enqueuedAt, claimedAt: row.enqueuedAt })
          expect(row.deadline).toBe(row.enqueuedAt + 9_000)
          yield* gate.open
          yield* Testing.advance("1 second")
          expect(of("Started")).toMatchObject([{ job: { jobId: id, attempt: 1 } }])
          expect(claimed).toEqual([])
          yield* expectEmpty(queue)
        })
      )
    )

    it.effect("is handled with what it was given: payload, headers, its first attempt (G196)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const seen: Array<object> = []
        yield* waiting(queue, {
          handler: (job: { readonly payload: unknown; readonly headers: object; readonly attempt: number }) =>
            Effect.sync(() => void seen.push({ payload: job.payload, headers: job.headers, attempt: job.attempt }))
        })
        yield* queue.enqueue({ text: "ü\u2028'\"\\" }, { headers: { a: "b" } })
        yield* queue.enqueueMany(["one", "two"])
        yield* Testing.advance("1 second")
        expect(seen).toEqual([
          { payload: { text: "ü\u2028'\"\\" }, headers: { a: "b" }, attempt: 1 },
          { payload: "one", headers: {}, attempt: 1 },
          { payload: "two", headers: {}, attempt: 1 }
        ])
      })
    )

    it.effect("is retried, and crashes, as any other (G196)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const attempts: Array<number> = []
        const { of } = yield* waiting(queue, {
          handler: ({ attempt }: { readonly attempt: number }) => {
            attempts.push(attempt)
            return attempt === 1 ? Effect.fail("no") : Effect.void
          }
        })
        yield* queue.enqueue(1)
        yield* Testing.advance("10 seconds")
        expect(attempts).toEqual([1, 2])
        expect(of("Retried")).toHaveLength(1)
        yield* expectEmpty(queue)
      })
    )

    const others: Readonly<Record<string, (queue: AnyQueue) => Effect.Effect<unknown, unknown, Queue.Queue>>> = {
      "with a dedupe key": (queue) => queue.enqueue(1, { dedupeKey: "k" }),
      "with an ordering key": (queue) => queue.enqueue(1, { orderingKey: "k" }),
      "that expires": (queue) => queue.enqueue(1, { expires: "1 hour" }),
      "that is delayed": (queue) => queue.enqueue(1, { delay: "1 second" }),
      "with one attempt, which nobody may lose": (queue) => queue.enqueue(1, { maxAttempts: 1 }),
      "in a transaction, and the next one, which it stands before": (queue) =>
        Effect.zipRight(transaction(queue.enqueue(1)), queue.enqueue(2)),
      "with more than there are free handlers": (queue) => queue.enqueueMany(numbers(3))
    }
    it.effect.each(Object.entries(others))("is claimed as ever: %s (G196)", ([, enqueue]) =>
      withClaims((claimed) =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const { of } = yield* waiting(queue, { concurrency: 2 })
          yield* enqueue(queue)
          yield* passing("it is done", () => of("Acked").length > 0)
          yield* Testing.advance("2 seconds")
          yield* expectEmpty(queue)
          expect(claimed).toHaveLength(of("Acked").length)
        })
      )
    )

    it.effect("waits when the queue is paused, or the worker is; both go on with it (G186, G196)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of, worker } = yield* waiting(queue)
        // Paused by somebody of whom the worker has not heard yet
        yield* Effect.zipRight(queue.pause, queue.enqueue("paused"))
        expect(yield* onlyRow(queue)).toMatchObject({ state: "ready", attempt: 0 })
        yield* Testing.advance("1 minute")
        expect(of("Started")).toEqual([])
        yield* queue.resume
        yield* passing("it is done", () => of("Acked").length === 1)
        yield* Testing.advance("2 seconds")
        yield* worker.pause
        yield* queue.enqueue("here")
        expect(yield* onlyRow(queue)).toMatchObject({ state: "ready", attempt: 0 })
        yield* worker.resume
        yield* passing("it is done", () => of("Acked").length === 2)
      })
    )

    it.effect("comes after what a transaction committed just before (G20, G196)", () =>
      Effect.gen(function* () {
        for (const priority of [0, 5]) {
          const queue = freshQueue()
          const order = yield* oneByOne(queue)
          yield* transaction(queue.enqueue("first", { priority }))
          yield* queue.enqueue("second")
          yield* Testing.advance("10 seconds")
          expect(order).toEqual(["first", "second"])
        }
      })
    )

    it.effect("is claimed as ever where a lease has ended unnoticed: whose it was is found with it (G31, G196)", () =>
      Effect.scoped(
        Effect.gen(function* () {
          const queue = freshQueue()
          // Of a process that dies with the first job it is given
          let dies = false
          const reserve = () => dies
          const { receive } = yield* Queue.Queue
          yield* receive({ queue: queue.name, worker: "gone", visibilityMillis: 3_600_000, reserve, take: () => {} })
          const order = yield* oneByOne(queue)
          dies = true
          const { id } = yield* queue.enqueue("first", { priority: 5 })
          dies = false
          const sql = yield* SqlClient.SqlClient
          yield* sql.unsafe(`UPDATE ${engine.table("jobs")} SET visible_at = visible_at - 3600000 WHERE id = ${id}`)
          expect(order).toEqual([])
          yield* queue.enqueue("second")
          yield* Testing.settle
          expect(yield* queue.counts).toMatchObject({ ready: { count: 1 }, leased: { count: 1 } })
          yield* Testing.advance("5 seconds")
          expect(order).toEqual(["second", "first"])
        })
      )
    )

    it.effect("waits for none that is delayed, whatever its priority (G196)", () =>
      withClaims((claimed) =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue("later", { delay: "1 hour", priority: 9 })
          yield* queue.enqueue("later", { delay: "1 hour" })
          const { of } = yield* waiting(queue)
          yield* queue.enqueue("now")
          yield* Testing.advance("1 second")
          expect(of("Acked")).toHaveLength(1)
          expect(claimed).toEqual([])
        })
      )
    )

    it.effect("is taken over when its process is gone, after its lease (G29, G196)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const lost = yield* Effect.scoped(
          Effect.gen(function* () {
            const { receive } = yield* Queue.Queue
            yield* receive({
              queue: queue.name,
              worker: "gone",
              visibilityMillis: 5_000,
              reserve: () => true,
              take: () => {}
            })
            return yield* queue.enqueue(1)
          })
        )
        expect(yield* queue.claim()).toEqual([])
        yield* Testing.advance("5 seconds")
        yield* sweep(queue)
        expect(yield* onlyRow(queue)).toMatchObject({ id: lost.id, state: "ready", attempt: 1, crashes: 1 })
      })
    )
  })

  live(engine, options, "room that is kept for jobs while they are enqueued", (it) => {
    it.effect("is waited for by a worker that is stopped; what comes goes back, attempt not spent (G81, G196)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { receiver, stop, worker } = yield* reserving(queue, { shutdownGrace: "1 hour" })
        const stopping = yield* Effect.fork(stop)
        yield* eventually("it drains", worker.status, ({ state }) => state === "draining")
        yield* Effect.repeatN(Effect.yieldNow(), 100)
        expect(yield* worker.status).toMatchObject({ state: "draining" })
        yield* queue.enqueue(1)
        const request = { queue: queue.name, limit: 1, prefetch: 0, visibilityMillis: 60_000, probe: false }
        const { jobs } = yield* Effect.flatMap(Queue.Queue, ({ claim }) => claim({ ...request, worker: worker.id }))
        receiver.take(1, jobs)
        yield* Fiber.join(stopping)
        expect(yield* onlyRow(queue)).toMatchObject({ state: "ready", attempt: 0 })
      })
    )

    it.effect("is not claimed for at once, but no enqueue without an answer keeps it for long (G193, G196)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { receiver, stop, worker } = yield* reserving(queue, { concurrency: 1, shutdownGrace: 0 })
        expect(receiver.reserve(1)).toBe(false)
        yield* queue.enqueue(1)
        // Woken, it has no room
        yield* Effect.repeatN(Effect.yieldNow(), 100)
        expect(yield* onlyRow(queue)).toMatchObject({ state: "ready" })
        yield* eventually("it is done", worker.status, ({ acked }) => acked === 1)
        receiver.take(1, [])
        yield* stop
      })
    )
  })
}
