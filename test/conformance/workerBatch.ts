/** One call of a handler for many jobs, each of which ends on its own. */
import { SqlClient } from "@effect/sql"
import { Job, Queue, Worker } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Effect, Either, Exit, Schedule, Schema } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  expectEmpty,
  freshName,
  freshQueue,
  live,
  liveRows,
  onlyRow,
  type Suite,
  virtual
} from "./support.js"
import { makeGate, makeGauge, numbers, observe, passing, stoppable, until, withQueue } from "./workerSupport.js"

type Jobs = ReadonlyArray<Job.Job<unknown>>

const payloads = (jobs: Jobs) => jobs.map(({ payload }) => payload)

export const workerBatchSuite: Suite = (engine, options) => {
  const retry = Schedule.spaced("10 seconds")

  virtual(engine, options, "a batch handler", (it) => {
    it.effect("is given what is there, in order, up to its size; success acks all (G126)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const calls: Array<unknown> = []
        const { of, worker } = yield* observe(queue, {
          concurrency: 1,
          batch: { size: 3 },
          batchHandler: (jobs) => Effect.sync(() => void calls.push(payloads(jobs)))
        })
        yield* queue.enqueueMany(numbers(7))
        yield* Testing.advance("1 second")
        yield* queue.enqueue(7)
        yield* Testing.advance("1 second")
        expect(calls).toEqual([[0, 1, 2], [3, 4, 5], [6], [7]])
        expect(of("Started")).toHaveLength(8)
        expect(yield* worker.status).toMatchObject({ acked: 8, running: 0, buffered: 0, settling: 0 })
        yield* expectEmpty(queue)
      })
    )

    it.effect("may tell the outcome of each, by position (G126)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const outcomes: ReadonlyArray<Worker.Outcome<unknown>> = [
          Either.right("done"),
          Either.left("no"),
          Exit.void,
          Exit.die("thrown"),
          Either.left(new Job.Fatal({ error: "never" })),
          Either.left(new Job.Snooze({ delay: "1 minute" })),
          Either.left(new Job.RetryAfter({ delay: "2 minutes" }))
        ]
        const { of } = yield* observe(queue, { retry, batchHandler: () => Effect.succeed(outcomes) })
        yield* queue.enqueueMany(numbers(outcomes.length))
        yield* Testing.advance("1 second")
        const rows = yield* liveRows(queue)
        expect(
          rows.map(({ attempt, errors, failures, payload }) => [payload, attempt, failures, errors[0]?.message])
        ).toEqual([
          ["1", 1, 1, "no"],
          ["3", 1, 1, "thrown"],
          ["5", 0, 0, undefined],
          ["6", 1, 1, "retry requested"]
        ])
        expect(yield* deadRows(queue)).toMatchObject([
          { payload: "4", reason: "failed", errors: [{ message: "never" }] }
        ])
        expect(of("Acked")).toHaveLength(2)
        expect(of("Retried").map(({ delayMillis }) => delayMillis)).toEqual([10_000, 10_000, 120_000])
      })
    )

    const wholes: ReadonlyArray<readonly [string, () => Effect.Effect<never, unknown>, string]> = [
      ["fails", () => Effect.fail("all of it"), "all of it"],
      ["dies", () => Effect.die("all of it"), "all of it"],
      [
        "throws",
        () => {
          throw new Error("all of it")
        },
        "all of it"
      ]
    ]
    for (const [how, whole, message] of wholes) {
      it.effect(`that ${how} is each job's failure (G127)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const { of } = yield* observe(queue, { retry, batchHandler: whole })
          yield* queue.enqueueMany(numbers(3))
          yield* Testing.advance("1 second")
          expect(yield* liveRows(queue)).toMatchObject(
            numbers(3).map(() => ({ attempt: 1, failures: 1, errors: [{ message }] }))
          )
          yield* queue.enqueueMany(numbers(3))
          expect(of("Retried")).toHaveLength(3)
        })
      )
    }

    const wrongs: ReadonlyArray<readonly [string, unknown]> = [
      ["too few outcomes", [Either.right(1)]],
      ["none", []],
      ["too many", numbers(4).map(() => Exit.void)],
      ["what is no outcome", [Either.right(1), 2, Either.right(3)]]
    ]
    for (const [what, answer] of wrongs) {
      it.effect(`that answers ${what} has failed for all, visibly; none is lost (G127)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          let calls = 0
          const { of } = yield* observe(queue, {
            retry,
            batchHandler: (): Effect.Effect<void> => (calls++ === 0 ? Effect.succeed(answer as undefined) : Effect.void)
          })
          yield* queue.enqueueMany(numbers(3))
          yield* Testing.advance("1 second")
          for (const { errors, failures } of yield* liveRows(queue)) {
            expect(failures).toBe(1)
            expect(errors).toMatchObject([{ kind: "defect" }])
            expect(errors[0]?.message).toMatch(/outcome/)
          }
          expect(of("Retried")).toHaveLength(3)
          yield* Testing.advance("10 seconds")
          expect(of("Acked")).toHaveLength(3)
        })
      )
    }

    it.effect("may settle some itself: those are settled, whatever becomes of the rest (G126)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of } = yield* observe(queue, {
          retry,
          batchHandler: ([first, second, third]) =>
            Effect.all([
              first.ack,
              second?.fail("by hand") ?? Effect.void,
              third?.snooze("1 hour") ?? Effect.void,
              Effect.fail("the rest")
            ]).pipe(Effect.asVoid)
        })
        yield* queue.enqueueMany(numbers(4))
        yield* Testing.advance("1 second")
        expect([of("Acked").length, of("Died").length, of("Released").length, of("Retried").length]).toEqual([
          1, 1, 1, 1
        ])
        expect(of("LeaseLost")).toEqual([])
        expect((yield* liveRows(queue)).map(({ failures, payload }) => [payload, failures])).toEqual([
          ["2", 0],
          ["3", 1]
        ])
      })
    )

    it.effect("does not see what cannot be decoded, which goes its own way (G26, G129)", () =>
      Effect.gen(function* () {
        const name = freshName()
        const producer = Queue.make(name, { payload: Schema.Unknown })
        const calls: Array<unknown> = []
        const { of } = yield* observe(Queue.make(name, { payload: Schema.Number }), {
          batchHandler: (jobs) =>
            Effect.sync(() => {
              calls.push(payloads(jobs))
              return jobs.map(() => Exit.void)
            })
        })
        yield* producer.enqueueMany([1, "no number", 2, "no number"])
        // Without wakes it finds them with its next look
        yield* passing("all have been met", () => of("Undecodable").length === 2 && of("Acked").length === 2)
        expect(calls).toEqual([[1, 2]])
        expect(of("Undecodable")).toHaveLength(2)
        expect(of("Acked")).toHaveLength(2)
        expect((yield* liveRows(producer)).map(({ attempt, payload }) => [payload, attempt])).toEqual([
          ['"no number"', 0],
          ['"no number"', 0]
        ])
      })
    )

    it.effect("has a job that crashed before for itself (G129)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(numbers(6))
        yield* queue.claim({ limit: 2, visibilityTimeout: "1 second" })
        yield* Testing.advance("2 seconds")
        const calls: Array<unknown> = []
        yield* observe(queue, {
          concurrency: 1,
          batchHandler: (jobs) => Effect.sync(() => void calls.push(payloads(jobs)))
        })
        yield* Testing.advance("2 seconds")
        expect(calls).toEqual([[2, 3, 4, 5], [0], [1]])
        yield* expectEmpty(queue)
      })
    )

    it.effect("runs in no more batches at a time than concurrency, and all jobs end once (G72, G130)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gauge = makeGauge()
        const seen: Array<unknown> = []
        yield* observe(queue, {
          concurrency: 3,
          batch: { size: 7 },
          batchHandler: (jobs) =>
            gauge.during(
              Effect.zipRight(
                Effect.sleep("1 second"),
                Effect.sync(() => void seen.push(...payloads(jobs)))
              )
            )
        })
        yield* queue.enqueueMany(numbers(100))
        yield* Testing.advance("30 seconds")
        expect(gauge.most()).toBe(3)
        expect([...seen].sort((a, b) => Number(a) - Number(b))).toEqual(numbers(100))
        yield* expectEmpty(queue)
      })
    )

    it.effect("has one timeout for all, and one slot when it is stuck (G50, G130)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let interrupted = 0
        const { of, worker } = yield* observe(queue, {
          concurrency: 2,
          batch: { size: 3 },
          timeout: "5 seconds",
          stuckAfter: "5 seconds",
          visibilityTimeout: "1 minute",
          batchHandler: (jobs) =>
            jobs[0].id % 2 === 0
              ? Effect.onInterrupt(Effect.never, () => Effect.sync(() => void interrupted++))
              : Effect.uninterruptible(gate.wait)
        })
        yield* queue.enqueueMany([...numbers(3), ...numbers(3)], { maxAttempts: 1 })
        yield* Testing.advance("7 seconds")
        expect(of("TimedOut")).toHaveLength(6)
        expect(interrupted).toBe(1)
        yield* Testing.advance("4 seconds")
        expect(of("Stuck")).toHaveLength(3)
        expect(of("Died")).toHaveLength(6)
        expect((yield* deadRows(queue)).map(({ errors }) => errors[0]?.kind).sort()).toEqual([
          ...numbers(3).map(() => "stuck"),
          ...numbers(3).map(() => "timeout")
        ])
        expect(yield* worker.status).toMatchObject({ running: 0, stuck: 1, dead: 6, state: "running" })
        yield* gate.open
        yield* Testing.settle
        expect(yield* worker.status).toMatchObject({ running: 0, stuck: 0, dead: 6, acked: 0 })
      })
    )

    it.effect("that ends by a failure of a retry Schedule is retried as a batch again (G127)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const calls: Array<unknown> = []
        yield* observe(queue, {
          retry,
          batchHandler: (jobs) => {
            calls.push(jobs.map(({ attempt }) => attempt))
            return Effect.fail("no")
          }
        })
        yield* queue.enqueueMany(numbers(3), { maxAttempts: 3 })
        yield* Testing.advance("1 minute")
        expect(calls).toEqual([
          [1, 1, 1],
          [2, 2, 2],
          [3, 3, 3]
        ])
        expect(yield* deadRows(queue)).toMatchObject(numbers(3).map(() => ({ reason: "exhausted", attempts: 3 })))
      })
    )
  })

  virtual(engine, options, "batches that wait", (it) => {
    const timed = () => {
      const calls: Array<readonly [number, ReadonlyArray<unknown>]> = []
      const batchHandler = (jobs: Jobs) =>
        Effect.map(Clock.currentTimeMillis, (now) => void calls.push([now, payloads(jobs)]))
      return { calls, batchHandler }
    }

    it.effect("start when they are full, or their first job has waited maxWait (G130)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { batchHandler, calls } = timed()
        yield* observe(queue, { batch: { size: 3, maxWait: "5 seconds" }, batchHandler })
        const start = yield* Clock.currentTimeMillis
        yield* queue.enqueue("a")
        yield* Testing.advance("2 seconds")
        yield* queue.enqueue("b")
        yield* Testing.advance("2 seconds")
        expect(calls).toEqual([])
        yield* Testing.advance("3 seconds")
        expect(calls.map(([, jobs]) => jobs)).toEqual([["a", "b"]])
        const waited = (calls[0]?.[0] ?? 0) - start
        expect(waited).toBeGreaterThanOrEqual(5_000)
        expect(waited).toBeLessThanOrEqual(options.silent ? 6_100 : 5_100)
        yield* queue.enqueueMany(["c", "d", "e"])
        yield* Testing.advance(options.silent ? "1100 millis" : "100 millis")
        expect(calls.map(([, jobs]) => jobs)).toEqual([
          ["a", "b"],
          ["c", "d", "e"]
        ])
        yield* expectEmpty(queue)
      })
    )

    it.effect("are handed back when the worker is paused (G130)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { batchHandler, calls } = timed()
        const { of, worker } = yield* observe(queue, { batch: { size: 3, maxWait: "5 seconds" }, batchHandler })
        yield* queue.enqueue("a")
        yield* Testing.advance("2 seconds")
        expect(yield* worker.status).toMatchObject({ buffered: 1 })
        yield* worker.pause
        yield* Testing.advance("10 seconds")
        expect(yield* onlyRow(queue)).toMatchObject({ state: "ready", attempt: 0 })
        expect(of("Released")).toHaveLength(1)
        expect(calls).toEqual([])
      })
    )

    const bad: ReadonlyArray<readonly [string, Worker.BatchOptions]> = [
      ["batch.size", { size: 0 }],
      ["batch.size", { size: 1_001 }],
      ["batch.maxWait", { maxWait: "8 seconds" }],
      ["batch.maxWait", { maxWait: Number.NaN }]
    ]
    it.effect.each(bad)("with options that make no sense are refused: %s %o (G6)", ([argument, batch]) =>
      Effect.gen(function* () {
        const error = yield* Effect.flip(Worker.fork(freshQueue(), { batch, batchHandler: () => Effect.void }))
        expect(error).toMatchObject({ _tag: "InvalidArgument", argument })
      })
    )
  })

  virtual(engine, options, "a job of a batch", (it) => {
    /** Frees a leased row behind its holder's back, as if its lease had ended. */
    const steal = (queue: ReturnType<typeof freshQueue>, id: number) =>
      Effect.flatMap(SqlClient.SqlClient, (sql) =>
        sql.unsafe(`UPDATE ${engine.table("jobs")} SET token = NULL, visible_at = 0 WHERE id = ${id}`)
      ).pipe(Effect.zipRight(claimOne(queue, { visibilityTimeout: "1 hour" })))

    it.effect("keeps its lease for as long as the batch runs (G30, G128)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let calls = 0
        const policy = {
          visibilityTimeout: "10 seconds",
          batchHandler: () =>
            Effect.zipRight(
              Effect.sync(() => void calls++),
              Effect.sleep("1 minute")
            )
        } as const
        const one = yield* observe(queue, policy)
        const two = yield* observe(queue, policy)
        yield* queue.enqueueMany(numbers(5), { maxAttempts: 1 })
        yield* Testing.advance("70 seconds")
        expect(calls).toBe(1)
        expect([...one.of("Acked"), ...two.of("Acked")]).toHaveLength(5)
        yield* expectEmpty(queue)
      })
    )

    it.effect("that is lost does not interrupt the others; its heartbeat says so (G28, G128)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const receipts = yield* queue.enqueueMany(numbers(3))
        const beats: Array<unknown> = []
        const { of, worker } = yield* observe(queue, {
          concurrency: 1,
          prefetch: 0,
          retry,
          batch: { size: 3 },
          visibilityTimeout: "10 seconds",
          batchHandler: (jobs) =>
            Effect.gen(function* () {
              yield* Effect.sleep("8 seconds")
              for (const job of jobs) beats.push((yield* Effect.either(job.heartbeat()))._tag)
              return jobs.map(({ payload }) => (payload === 2 ? Either.left("no") : Either.right(1)))
            })
        })
        yield* Testing.advance("1 second")
        yield* steal(queue, receipts[1]?.id ?? 0)
        yield* Testing.advance("8 seconds")
        expect(beats).toEqual(["Right", "Left", "Right"])
        expect([of("Acked").length, of("Retried").length, of("LeaseLost").length]).toEqual([1, 1, 1])
        expect(yield* worker.status).toMatchObject({ acked: 1, retried: 1, lost: 1, running: 0 })
        expect((yield* liveRows(queue)).map(({ payload, worker }) => [payload, worker])).toContainEqual(["1", "manual"])
      })
    )

    it.effect("the last one that is lost ends the handler (G32, G128)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const receipts = yield* queue.enqueueMany(numbers(2))
        let interrupted = 0
        const { of, worker } = yield* observe(queue, {
          concurrency: 1,
          prefetch: 0,
          batch: { size: 2 },
          visibilityTimeout: "10 seconds",
          batchHandler: () => Effect.onInterrupt(Effect.never, () => Effect.sync(() => void interrupted++))
        })
        yield* Testing.advance("1 second")
        yield* steal(queue, receipts[0]?.id ?? 0)
        yield* Testing.advance("5 seconds")
        expect([of("LeaseLost").length, interrupted]).toEqual([1, 0])
        expect(yield* worker.status).toMatchObject({ running: 2 })
        yield* steal(queue, receipts[1]?.id ?? 0)
        yield* Testing.advance("5 seconds")
        expect([of("LeaseLost").length, interrupted]).toEqual([2, 1])
        expect(yield* worker.status).toMatchObject({ running: 0, lost: 2 })
      })
    )

    it.effect("that is cancelled does not interrupt the others, and is dead at their end (G128)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const receipts = yield* queue.enqueueMany(numbers(3))
        const beats: Array<unknown> = []
        const { of } = yield* withQueue(
          (real) => ({
            renew: (renewals) =>
              Effect.map(real.renew(renewals), (outcomes) =>
                outcomes.map((outcome, index) => (renewals[index]?.id === receipts[1]?.id ? "cancelled" : outcome))
              )
          }),
          observe(queue, {
            visibilityTimeout: "10 seconds",
            batchHandler: (jobs) =>
              Effect.gen(function* () {
                yield* Effect.sleep("8 seconds")
                for (const job of jobs) beats.push((yield* Effect.either(job.heartbeat()))._tag)
              })
          })
        )
        yield* Testing.advance("10 seconds")
        expect(beats).toEqual(["Right", "Left", "Right"])
        expect(of("Acked")).toHaveLength(2)
        expect(of("Died")).toMatchObject([{ reason: "cancelled", job: { jobId: receipts[1]?.id } }])
        expect(yield* deadRows(queue)).toMatchObject([{ payload: "1", reason: "cancelled" }])
      })
    )
  })

  live(engine, options, "a worker of batches that is stopped", (it) => {
    it.effect("lets its batch end within the grace (G82, G130)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        const { of, stop } = yield* stoppable(queue, {
          concurrency: 1,
          batch: { size: 3 },
          batchHandler: () => gate.wait,
          shutdownGrace: "20 seconds"
        })
        yield* queue.enqueueMany(numbers(5))
        yield* until("it runs", () => of("Started").length === 3)
        const stopping = yield* Effect.fork(stop)
        yield* until("it drains", () => of("Draining").length === 1)
        yield* gate.open
        yield* stopping
        expect(of("Acked")).toHaveLength(3)
        expect(yield* liveRows(queue)).toMatchObject(numbers(2).map(() => ({ state: "ready", attempt: 0 })))
      })
    )

    it.effect("interrupts it after the grace and releases all of its jobs, no attempt spent (G81, G130)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let interrupted = 0
        const { of, stop } = yield* stoppable(queue, {
          batchHandler: () => Effect.onInterrupt(Effect.never, () => Effect.sync(() => void interrupted++)),
          shutdownGrace: "100 millis"
        })
        yield* queue.enqueueMany(numbers(3), { maxAttempts: 1 })
        yield* until("it runs", () => of("Started").length === 3)
        yield* stop
        expect(of("Released")).toHaveLength(3)
        expect(interrupted).toBeGreaterThanOrEqual(1)
        expect(yield* liveRows(queue)).toMatchObject(
          numbers(3).map(() => ({ state: "ready", attempt: 0, failures: 0 }))
        )
      })
    )
  })
}
