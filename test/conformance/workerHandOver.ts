/** What is enqueued while a worker of the same process waits for jobs is handed to it in the same statement. */
import { Queue, transaction } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, Fiber } from "effect"
import { expect } from "vitest"
import { claimOne, expectEmpty, freshQueue, liveRows, onlyRow, type Suite, sweep, virtual } from "./support.js"
import { makeGate, numbers, observe, passing, stoppable, withQueue } from "./workerSupport.js"

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

    it.effect("comes after what a transaction committed just before, and what has a higher priority (G20, G196)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const order: Array<unknown> = []
        yield* waiting(queue, {
          concurrency: 1,
          handler: ({ payload }: { readonly payload: unknown }) =>
            Effect.zipRight(
              Effect.sync(() => void order.push(payload)),
              Effect.sleep("1 second")
            )
        })
        yield* transaction(Effect.zipRight(queue.enqueue("b"), queue.enqueue("a", { priority: 5 })))
        yield* queue.enqueue("c")
        yield* Testing.advance("10 seconds")
        expect(order).toEqual(["a", "b", "c"])
      })
    )

    it.effect("comes after a job whose lease has ended unseen (G31, G196)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const order: Array<unknown> = []
        yield* queue.enqueue("lapsed")
        const lapsing = yield* claimOne(queue, { visibilityTimeout: "1 hour" })
        yield* waiting(queue, {
          concurrency: 1,
          handler: ({ payload }: { readonly payload: unknown }) =>
            Effect.zipRight(
              Effect.sync(() => void order.push(payload)),
              Effect.sleep("1 second")
            )
        })
        yield* Testing.advance("59 minutes")
        // Cut short: no alarm of the worker's is set for that
        yield* Effect.flatMap(Queue.Queue, ({ renew }) =>
          renew([{ id: lapsing.id, token: lapsing.lease.token, visibilityMillis: 100, progress: undefined }])
        )
        yield* Effect.sleep("100 millis").pipe(Effect.fork, Effect.zipRight(Testing.advance("100 millis")))
        yield* queue.enqueue("new")
        yield* Testing.advance("10 seconds")
        expect(order).toEqual(["lapsed", "new"])
      })
    )

    it.effect("goes back, attempt not spent, when the worker is stopped meanwhile (G81, G196)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        for (let round = 0; round < 10; round++) {
          const { stop } = yield* stoppable(queue, { handler: () => Effect.never, shutdownGrace: 0 })
          yield* Testing.advance("2 seconds")
          const enqueued = yield* Effect.fork(
            Effect.forEach(numbers(5), (n) => queue.enqueue(n), { concurrency: "unbounded" })
          )
          yield* Effect.repeatN(Effect.yieldNow(), round)
          yield* stop
          yield* Fiber.join(enqueued)
        }
        yield* Testing.advance("1 second")
        const rows = yield* liveRows(queue)
        expect(rows).toHaveLength(50)
        expect(rows.filter(({ attempt, state }) => state !== "ready" || attempt !== 0)).toEqual([])
      })
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
        yield* Effect.fork(Effect.sleep("5 seconds"))
        yield* Testing.advance("5 seconds")
        yield* sweep(queue)
        expect(yield* onlyRow(queue)).toMatchObject({ id: lost.id, state: "ready", attempt: 1, crashes: 1 })
      })
    )
  })
}
