/** How a worker stops: nothing that has ended runs again, nothing else is lost. */
import { SqlClient } from "@effect/sql"
import { Queue, Worker } from "alkstore"
import { Clock, Effect, Exit, Fiber, Layer, Scope } from "effect"
import { expect } from "vitest"
import type { SettleOutcome } from "../../src/services/Settlement.js"
import { expectEmpty, freshQueue, live, liveRows, type Suite } from "./support.js"
import { eventually, gone, makeGate, numbers, observe, stoppable, until, withQueue } from "./workerSupport.js"

/** How long an effect takes, in real milliseconds. */
const millis = <A, E, R>(self: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const start = yield* Clock.currentTimeMillis
    yield* self
    return (yield* Clock.currentTimeMillis) - start
  })

export const workerShutdownSuite: Suite = (engine, options) => {
  live(engine, options, "a worker that is stopped", (it) => {
    it.effect("while a claim of its is under way ends with that, not with its grace (G81)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let claiming = false
        const { stop, worker } = yield* withQueue(
          (real) => ({
            claim: (request) =>
              Effect.suspend(() => {
                claiming = true
                return Effect.zipRight(gate.wait, real.claim(request))
              })
          }),
          stoppable(queue, { handler: () => Effect.void, shutdownGrace: "1 hour" })
        )
        yield* until("it claims", () => claiming)
        const stopping = yield* Effect.fork(stop)
        yield* eventually("it drains", worker.status, ({ state }) => state === "draining")
        yield* gate.open
        yield* Fiber.join(stopping)
        expect(yield* worker.status).toMatchObject({ state: "stopped" })
      })
    )

    it.effect("does not wait for a handler whose lease is lost, and that does not end (G32, G81)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        const { of, stop } = yield* withQueue(
          () => ({ renew: (renewals) => Effect.succeed(renewals.map(() => "lost" as const)) }),
          stoppable(queue, {
            handler: () => Effect.uninterruptible(gate.wait),
            visibilityTimeout: "1 second",
            shutdownGrace: "1 hour"
          })
        )
        yield* queue.enqueue(1)
        yield* until("its lease is lost", () => of("LeaseLost").length === 1)
        yield* stop
        yield* gate.open
      })
    )

    it.effect("claims no more, and lets its handlers end within the grace (G81, G82)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let ended = 0
        const { of, stop, tags, worker } = yield* stoppable(queue, {
          handler: () =>
            Effect.zipRight(
              Effect.sleep(400),
              Effect.sync(() => void ended++)
            ),
          concurrency: 3,
          shutdownGrace: "20 seconds"
        })
        yield* queue.enqueueMany(numbers(5))
        yield* until("three run", () => of("Started").length === 3)
        yield* stop
        expect(ended).toBe(3)
        expect(yield* liveRows(queue)).toMatchObject([
          { state: "ready", attempt: 0 },
          { state: "ready", attempt: 0 }
        ])
        expect(tags().filter((tag) => tag !== "Started")).toEqual(["Draining", "Acked", "Acked", "Acked", "Stopped"])
        expect(yield* worker.status).toMatchObject({ state: "stopped", running: 0, settling: 0, acked: 3 })
        expect((yield* worker.health).healthy).toBe(false)
      })
    )

    it.effect("interrupts and releases what goes on after the grace, the attempt not spent (G81)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let finalized = 0
        const { of, stop } = yield* stoppable(queue, {
          handler: () => Effect.onInterrupt(Effect.never, () => Effect.sync(() => void finalized++)),
          shutdownGrace: "300 millis"
        })
        yield* queue.enqueueMany(numbers(3), { maxAttempts: 1 })
        yield* until("all run", () => of("Started").length === 3)
        const took = yield* millis(stop)
        expect(took).toBeGreaterThanOrEqual(290)
        expect(took).toBeLessThan(5_000)
        expect(finalized).toBe(3)
        expect(of("Released")).toHaveLength(3)
        expect(yield* liveRows(queue)).toMatchObject(
          numbers(3).map(() => ({ state: "ready", attempt: 0, failures: 0, crashes: 0, errors: [] }))
        )
      })
    )

    it.effect("hands back what it claimed ahead before it waits for its handlers (G81)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let quick = true
        const { of, stop, worker } = yield* stoppable(queue, {
          handler: () => Effect.suspend(() => (quick ? Effect.void : gate.wait)),
          concurrency: 1,
          shutdownGrace: "20 seconds"
        })
        yield* queue.enqueue(0)
        yield* until("it is quick", () => of("Acked").length === 1)
        quick = false
        yield* queue.enqueueMany(numbers(6))
        yield* eventually(
          "five are buffered",
          worker.status,
          ({ buffered, running }) => buffered === 5 && running === 1
        )
        const stopping = yield* Effect.fork(stop)
        yield* eventually(
          "five are back",
          liveRows(queue),
          (rows) => rows.filter(({ state }) => state === "ready").length === 5
        )
        expect((yield* worker.status).state).toBe("draining")
        yield* gate.open
        yield* stopping
        expect((yield* liveRows(queue)).map(({ attempt, state }) => [state, attempt])).toEqual(
          numbers(5).map(() => ["ready", 0])
        )
      })
    )

    it.effect("hands back what a claim that was under way still brings (G81)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(numbers(5), { maxAttempts: 2 })
        let claiming = false
        const { stop } = yield* withQueue(
          (real) => ({
            claim: (request) =>
              Effect.tap(real.claim(request), () => {
                claiming = true
                return Effect.sleep(300)
              })
          }),
          stoppable(queue, { handler: () => Effect.never, shutdownGrace: "20 seconds" })
        )
        yield* until("a claim is under way", () => claiming)
        yield* stop
        expect((yield* liveRows(queue)).map(({ attempt, state }) => [state, attempt])).toEqual(
          numbers(5).map(() => ["ready", 0])
        )
      })
    )

    it.effect("renews the leases of what still runs (G30, G81)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let runs = 0
        const handler = () =>
          Effect.zipRight(
            Effect.sync(() => void runs++),
            Effect.sleep("2500 millis")
          )
        const { of, stop } = yield* stoppable(queue, {
          handler,
          visibilityTimeout: "800 millis",
          shutdownGrace: "20 seconds"
        })
        yield* queue.enqueue(1)
        yield* until("it runs", () => of("Started").length === 1)
        yield* observe(queue, { handler, visibilityTimeout: "800 millis" })
        yield* stop
        yield* expectEmpty(queue)
        expect(runs).toBe(1)
        expect(of("LeaseLost")).toEqual([])
      })
    )

    it.effect("is gone only when what has ended is written (G82)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let settling = false
        const { stop, tags } = yield* withQueue(
          (real) => ({
            settle: (...given) => {
              settling = true
              return Effect.zipRight(gate.wait, real.settle(...given))
            }
          }),
          stoppable(queue, { handler: () => Effect.void, shutdownGrace: "20 seconds" })
        )
        yield* queue.enqueue(1)
        yield* until("its end is to be written", () => settling)
        const stopping = yield* Effect.fork(stop)
        yield* until("it drains", () => tags().includes("Draining"))
        yield* gate.open
        yield* stopping
        yield* expectEmpty(queue)
        expect(tags()).toEqual(["Started", "Draining", "Acked", "Stopped"])
      })
    )

    it.effect("settles all that has ended: none of it runs again (G82)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const ended = new Map<unknown, number>()
        const policy = {
          handler: ({ payload }: { readonly payload: unknown }) =>
            Effect.zipRight(
              Effect.yieldNow(),
              Effect.sync(() => void ended.set(payload, (ended.get(payload) ?? 0) + 1))
            ),
          concurrency: 20,
          shutdownGrace: "20 seconds" as const
        }
        yield* queue.enqueueMany(numbers(300))
        for (let n = 0; n < 3; n++) {
          const { of, stop } = yield* stoppable(queue, policy)
          yield* until("some are done", () => of("Acked").length > 10 || ended.size === 300)
          yield* stop
        }
        yield* observe(queue, policy)
        yield* eventually("all jobs done", liveRows(queue), (rows) => rows.length === 0)
        expect(ended.size).toBe(300)
        expect([...ended.values()].every((times) => times === 1)).toBe(true)
      })
    )

    it.effect("may be used by its handlers to the end: they enqueue and settle while it drains (G81)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const next = freshQueue()
        const gate = yield* makeGate
        const { of, stop } = yield* stoppable(queue, {
          handler: (job) =>
            Effect.zipRight(gate.wait, Queue.transaction(Effect.zipRight(next.enqueue("follow-up"), job.ack))),
          shutdownGrace: "20 seconds"
        })
        yield* queue.enqueue(1)
        yield* until("it runs", () => of("Started").length === 1)
        const stopping = yield* Effect.fork(stop)
        yield* until("it drains", () => of("Draining").length === 1)
        yield* gate.open
        yield* stopping
        yield* expectEmpty(queue)
        expect(yield* liveRows(next)).toMatchObject([{ payload: '"follow-up"', state: "ready" }])
      })
    )

    it.effect("ends in time although a handler ignores its interruption (G83)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        const { of, stop } = yield* stoppable(queue, {
          handler: () => Effect.uninterruptible(gate.wait),
          shutdownGrace: "200 millis"
        })
        yield* queue.enqueue(1)
        yield* until("it runs", () => of("Started").length === 1)
        expect(yield* millis(stop)).toBeLessThan(6_000)
        expect(of("Stopped")).toHaveLength(1)
        // The lease is left to end: the handler may still be at work
        expect(yield* liveRows(queue)).toMatchObject([{ state: "leased", attempt: 1 }])
        yield* gate.open
      })
    )

    it.effect.each([
      ["fails", Effect.fail(gone("settle"))],
      ["hangs", Effect.never]
    ] as const)("ends in time although the database %s (G83)", ([, settle]) =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of, stop } = yield* withQueue(
          () => ({ settle: () => settle, renew: () => Effect.fail(gone("renew")) }),
          stoppable(queue, { handler: () => Effect.sleep(10), shutdownGrace: "200 millis" })
        )
        yield* queue.enqueue(1)
        yield* until("it runs", () => of("Started").length === 1)
        expect(yield* millis(stop)).toBeLessThan(6_000)
        expect(of("Stopped")).toHaveLength(1)
        expect(yield* liveRows(queue)).toMatchObject([{ state: "leased", attempt: 1 }])
      })
    )

    it.effect("while it is paused, stops as well", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { stop, tags, worker } = yield* stoppable(queue, { handler: () => Effect.void })
        yield* worker.pause
        yield* queue.enqueue(1)
        yield* stop
        expect(tags()).toEqual(["Paused", "Draining", "Stopped"])
        yield* worker.resume
        expect(yield* liveRows(queue)).toMatchObject([{ state: "ready", attempt: 0 }])
      })
    )

    it.effect("as a Layer, drains before what it stands on is closed (G81, G82)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        const outcomes: Array<SettleOutcome> = []
        let asked: unknown
        let running = false
        const recording = Layer.effect(
          Queue.Queue,
          Effect.map(Queue.Queue, (real) => ({
            ...real,
            settle: (...settle: Parameters<typeof real.settle>) =>
              Effect.tap(real.settle(...settle), (answer) => Effect.sync(() => outcomes.push(...answer)))
          }))
        )
        const worker = Worker.layer(queue, {
          handler: () =>
            Effect.gen(function* () {
              running = true
              yield* gate.wait
              const sql = yield* SqlClient.SqlClient
              asked = yield* sql.unsafe("SELECT 1 AS one")
            }),
          shutdownGrace: "20 seconds"
        })
        const stack = worker.pipe(Layer.provide(recording), Layer.provideMerge(engine.layer(options)))
        const scope = yield* Scope.make()
        const context = yield* Layer.buildWithScope(stack, scope)
        yield* Effect.provide(queue.enqueue(1), context)
        yield* until("it runs", () => running)
        const closing = yield* Effect.fork(Scope.close(scope, Exit.void))
        yield* Effect.sleep(100)
        yield* gate.open
        yield* closing
        expect(asked).toHaveLength(1)
        expect(outcomes).toEqual(["done"])
      })
    )
  })
}
