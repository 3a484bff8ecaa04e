/** What is asked of workers from outside: cancellations and pauses for the whole fleet. */
import { Job, Lock, Queue, Telemetry } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, Exit, Fiber, Metric, Schedule, Schema } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  failsWith,
  freshName,
  freshQueue,
  live,
  liveRows,
  onlyLetter,
  type Suite,
  virtual
} from "./support.js"
import {
  eventually,
  gone,
  makeGate,
  makeGauge,
  numbers,
  observe,
  stoppable,
  until,
  withQueue
} from "./workerSupport.js"

/** A handler that says when it runs and when it was interrupted. */
const endless = () => {
  const started: Array<number> = []
  const interrupted: Array<number> = []
  const handler = ({ id }: Job.Job<unknown>) =>
    Effect.zipRight(
      Effect.sync(() => void started.push(id)),
      Effect.onInterrupt(Effect.never, () => Effect.sync(() => void interrupted.push(id)))
    )
  return { started, interrupted, handler }
}

export const workerControlSuite: Suite = (engine, options) => {
  live(engine, options, "cancelling a running job", (it) => {
    it.effect("interrupts its handler, from another Layer, within a wake or a heartbeat (G185)", () =>
      Effect.scoped(
        Effect.gen(function* () {
          const queue = freshQueue()
          const { handler, interrupted, started } = endless()
          const { of } = yield* observe(queue, { handler, visibilityTimeout: "3 seconds", concurrency: 2 })
          const first = yield* queue.enqueue(1, { dedupeKey: "key" })
          const second = yield* queue.enqueue(2)
          yield* until("both run", () => started.length === 2)
          const there = engine.beside(options)
          expect(yield* Effect.provide(queue.cancel(first.id), there)).toBe("requested")
          yield* until("the handler was interrupted", () => interrupted.length === 1)
          yield* until("it is told", () => of("Died").length === 1)
          expect(interrupted).toEqual([first.id])
          expect(yield* onlyLetter(queue)).toMatchObject({ id: first.id, reason: "cancelled" })
          expect((yield* liveRows(queue)).map(({ id }) => id)).toEqual([second.id])
          expect(yield* queue.cancel(first.id)).toBe("tooLate")
          // Its key is free at once
          expect((yield* queue.enqueue(3, { dedupeKey: "key" })).deduplicated).toBe(false)
        })
      )
    )

    it.effect("an ack that comes first wins (G185)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { id } = yield* queue.enqueue(1)
        const job = yield* claimOne(queue)
        expect(yield* queue.cancel(id)).toBe("requested")
        yield* job.ack
        expect(yield* deadRows(queue)).toEqual([])
        expect(yield* queue.cancel(id)).toBe("tooLate")
      })
    )
  })

  virtual(engine, options, "cancellation without a wake", (it) => {
    it.effect("arrives with the heartbeat; one that waits is dead at once (G185)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const job = yield* Effect.zipRight(queue.enqueue(1), claimOne(queue, { visibilityTimeout: "30 seconds" }))
        const waiting = yield* queue.enqueue(2, { delay: "1 hour" })
        expect(yield* queue.cancel(waiting.id)).toBe("cancelled")
        expect(yield* onlyLetter(queue)).toMatchObject({ id: waiting.id, reason: "cancelled" })
        expect(yield* queue.cancel(job.id)).toBe("requested")
        expect(yield* queue.running()).toMatchObject([{ id: job.id, cancelRequested: true }])
        // Given back, by whichever word, it is cancelled
        yield* job.retry({ delay: "1 minute", error: "no" })
        const letters = yield* deadRows(queue)
        expect(letters.map(({ id, reason }) => [id, reason])).toContainEqual([job.id, "cancelled"])
        yield* failsWith(job.ack, "LeaseLost")
      })
    )

    const endings: Readonly<Record<string, (job: Job.Job<unknown>) => Effect.Effect<unknown, unknown>>> = {
      fails: () => Effect.fail("no"),
      snoozes: () => Job.snooze("1 minute"),
      "releases it": ({ release }) => release,
      "retries it": ({ retry }) => retry({ delay: "1 minute" })
    }
    for (const [how, end] of Object.entries(endings)) {
      it.effect(
        `that is not heard of before the handler ${how}: it died, and is told and counted so (G77, G140, G185)`,
        () =>
          Effect.gen(function* () {
            const queue = freshQueue()
            const deaf = Effect.succeed({ cancelled: [], paused: false })
            const { of, tags, worker } = yield* withQueue(
              () => ({ signals: () => deaf }),
              observe(queue, {
                handler: (job): Effect.Effect<unknown, unknown> => Effect.zipRight(Effect.sleep("2 seconds"), end(job)),
                retry: Schedule.spaced("1 minute")
              })
            )
            const { id } = yield* queue.enqueue(1)
            yield* Testing.advance("1 second")
            expect(yield* queue.cancel(id)).toBe("requested")
            yield* Testing.advance("2 seconds")
            expect(yield* onlyLetter(queue)).toMatchObject({ id, reason: "cancelled" })
            expect(of("Died")).toMatchObject([{ reason: "cancelled" }])
            expect(tags().filter((tag) => tag === "Retried" || tag === "Released")).toEqual([])
            expect(yield* worker.status).toMatchObject({ dead: 1, retried: 0, released: 0, lost: 0 })
            const counters = Telemetry.metrics(queue.name)
            const counts = [counters.dead("cancelled"), counters.retried, counters.released]
            expect((yield* Effect.forEach(counts, Metric.value)).map(({ count }) => count)).toEqual([1, 0, 0])
          })
      )
    }

    it.effect("of a job whose worker died: dead when the lease has ended (G185)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, { orderingKey: "a" })
        const next = yield* queue.enqueue(2, { orderingKey: "a" })
        const job = yield* claimOne(queue, { visibilityTimeout: "10 seconds" })
        expect(yield* queue.cancel(job.id)).toBe("requested")
        expect(yield* queue.claim()).toEqual([])
        yield* Testing.advance("10 seconds")
        expect((yield* queue.claim()).map(({ id }) => id)).toEqual([next.id])
        expect(yield* onlyLetter(queue)).toMatchObject({ id: job.id, reason: "cancelled" })
      })
    )
  })

  live(engine, options, "a queue paused for the fleet", (it) => {
    it.effect("is not claimed from, its handlers go on, and prefetched jobs go back (G186)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let quick = true
        const { of, worker } = yield* observe(queue, {
          handler: () => Effect.suspend(() => (quick ? Effect.void : gate.wait)),
          concurrency: 1,
          prefetch: 10,
          // After a third of it they would go back by themselves; without wakes that is when it is heard of
          visibilityTimeout: options.silent ? "6 seconds" : "5 minutes"
        })
        yield* queue.enqueueMany(numbers(50))
        yield* until("the handlers have been measured", () => of("Acked").length === 50)
        quick = false
        yield* queue.enqueueMany(numbers(20))
        yield* eventually(
          "jobs are claimed ahead",
          worker.status,
          ({ buffered, running }) => running === 1 && buffered > 0
        )
        expect(yield* queue.pause).toBe(true)
        expect(yield* queue.pause).toBe(false)
        yield* eventually(
          "what was claimed ahead is back",
          queue.counts,
          ({ leased, ready }) => leased.count === 1 && ready.count === 19
        )
        expect(yield* worker.status).toMatchObject({ queuePaused: true, running: 1, state: "running" })
        yield* gate.open
        yield* until("the running one ends", () => of("Acked").length === 51)
        // Enqueues go on, claims don't
        yield* queue.enqueue("more")
        expect(yield* queue.claim({ limit: 5 })).toEqual([])
        expect((yield* queue.counts).ready.count).toBe(20)
        expect(yield* queue.counts).toMatchObject({ paused: true })
        expect(yield* queue.resume).toBe(true)
        yield* until("all is done", () => of("Acked").length === 71)
        yield* until("it is told", () => of("QueueResumed").length === 1)
        expect(of("QueuePaused")).toHaveLength(1)
      })
    )

    it.effect("by another Layer, and a worker that starts meanwhile, during a drain too (G186)", () =>
      Effect.scoped(
        Effect.gen(function* () {
          const queue = freshQueue()
          const there = engine.beside(options)
          yield* queue.enqueueMany(numbers(5))
          yield* Effect.provide(queue.pause, there)
          const first = yield* stoppable(queue, { handler: () => Effect.void })
          yield* eventually("it knows", first.worker.status, ({ queuePaused }) => queuePaused)
          yield* first.stop
          expect((yield* liveRows(queue)).map(({ state }) => state)).toEqual(numbers(5).map(() => "ready"))
          const second = yield* observe(queue, { handler: () => Effect.void })
          yield* Effect.provide(queue.resume, there)
          yield* until("all is done", () => second.of("Acked").length === 5)
        })
      )
    )

    it.effect("inside a transaction that is rolled back, it was never paused (G186)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const exit = yield* Effect.exit(Queue.transaction(Effect.zipRight(queue.pause, Effect.fail("rolled back"))))
        expect(Exit.isFailure(exit)).toBe(true)
        expect(yield* queue.counts).toMatchObject({ paused: false })
        expect(yield* queue.claim()).toHaveLength(1)
      })
    )
  })

  virtual(engine, options, "a paused queue", (it) => {
    it.effect("expires and frees leases as ever (G186)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue("expires", { expires: "1 minute" })
        yield* queue.enqueue("lapses", { priority: 1 })
        yield* claimOne(queue, { visibilityTimeout: "10 seconds" })
        yield* queue.pause
        const worker = yield* Effect.fork(
          Effect.scoped(
            Effect.zipRight(observe(queue, { handler: () => Effect.void, retry: Schedule.spaced(1_000) }), Effect.never)
          )
        )
        yield* Testing.advance("2 minutes")
        expect(yield* deadRows(queue)).toMatchObject([{ payload: '"expires"', reason: "expired" }])
        expect(yield* liveRows(queue)).toMatchObject([{ state: "ready", crashes: 1 }])
        yield* queue.resume
        yield* Testing.advance("1 minute")
        expect(yield* liveRows(queue)).toEqual([])
        yield* Fiber.interrupt(worker)
      })
    )
  })

  live(engine, options, "a worker and itself", (it) => {
    it.effect("does not run a job again before its own earlier run of it has ended (G32)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gauge = makeGauge()
        let runs = 0
        // No heartbeat gets through, and the handler does not heed its interruption
        const { worker } = yield* withQueue(
          () => ({ renew: () => Effect.fail(gone("renew")) }),
          observe(queue, {
            handler: () =>
              Effect.suspend(() =>
                ++runs === 1
                  ? gauge.during(Effect.uninterruptible(Effect.sleep("2500 millis")))
                  : gauge.during(Effect.void)
              ),
            concurrency: 3,
            visibilityTimeout: "500 millis"
          })
        )
        yield* queue.enqueue(1)
        yield* eventually("it is done at last", liveRows(queue), (rows) => rows.length === 0 && runs > 1)
        expect(gauge.most()).toBe(1)
        expect(yield* worker.status).toMatchObject({ acked: 1 })
      })
    )

    it.effect("fails visibly when its queue's dead letters would come back to it (G150)", () =>
      Effect.gen(function* () {
        const names = [freshName(), freshName()] as const
        const [from, to] = names
        const payload = Schema.Unknown
        yield* Queue.make(to, { payload, deadLetterQueue: from }).enqueue(1)
        const { worker } = yield* observe(Queue.make(from, { payload, deadLetterQueue: to }), {
          handler: () => Effect.void
        })
        expect(yield* Effect.flip(worker.failure)).toMatchObject({ _tag: "WorkerFailed" })
        expect(yield* worker.health).toMatchObject({ healthy: false })
      })
    )

    it.effect("locks of the library's own cannot be taken (G71)", () =>
      Effect.gen(function* () {
        const error = yield* failsWith(Lock.withLock("__alkstore_scheduler")(Effect.void), "InvalidArgument")
        expect(error.message).toContain("reserved")
      })
    )
  })
}
