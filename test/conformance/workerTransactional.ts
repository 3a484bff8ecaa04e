/** Handlers whose writes and whose ack are one transaction. */
import { SqlClient } from "@effect/sql"
import { Errors, Job, Queue, Worker } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, Schedule } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  expectEmpty,
  freshName,
  freshQueue,
  live,
  liveRows,
  onlyLetter,
  onlyRow,
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
  passing,
  stoppable,
  until,
  withQueue
} from "./workerSupport.js"

/** A table of the application's own, whose rows may refer to another row that must be there at COMMIT. */
const makeTable = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  const name = freshName("effects").replace("-", "_")
  yield* sql.unsafe(
    `CREATE TABLE ${name} (n INTEGER PRIMARY KEY, needs INTEGER REFERENCES ${name} (n) DEFERRABLE INITIALLY DEFERRED)`
  )
  return {
    write: (n: unknown, needs?: number) => sql.unsafe(`INSERT INTO ${name} VALUES (${n}, ${needs ?? "NULL"})`),
    rows: Effect.map(sql.unsafe<{ n: number }>(`SELECT n FROM ${name} ORDER BY n`), (rows) => rows.map(({ n }) => n))
  }
})

const uncertain = new Errors.StoreError({
  reason: "uncertain",
  operation: "transaction",
  message: "the connection broke during COMMIT",
  cause: undefined
})

export const workerTransactionalSuite: Suite = (engine, options) => {
  const transactional = { transactional: true, retry: Schedule.spaced("10 seconds") } as const

  /** Frees a leased row behind its holder's back, as if its lease had ended. */
  const steal = (id: number) =>
    Effect.flatMap(SqlClient.SqlClient, (sql) =>
      sql.unsafe(`UPDATE ${engine.table("jobs")} SET token = NULL, visible_at = 0 WHERE id = ${id}`)
    )

  virtual(engine, options, "a transactional handler", (it) => {
    it.effect("commits what it wrote, enqueued and nested together with its ack (G120, G124)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const next = freshQueue()
        const table = yield* makeTable
        const sql = yield* SqlClient.SqlClient
        const settled: Array<unknown> = []
        const { of, tags, worker } = yield* withQueue(
          (real) => ({
            settle: (of, settlements, how) =>
              Effect.tap(Effect.serviceOption(SqlClient.TransactionConnection), (open) => {
                settled.push([settlements[0]?._tag, open._tag])
                return Effect.void
              }).pipe(Effect.zipRight(real.settle(of, settlements, how)))
          }),
          observe(queue, {
            ...transactional,
            handler: (job) =>
              Effect.gen(function* () {
                yield* table.write(job.payload)
                yield* sql.withTransaction(table.write(10))
                yield* Effect.either(Queue.transaction(Effect.zipRight(table.write(11), Effect.fail("undone"))))
                yield* next.enqueue("follow-up")
                expect(yield* liveRows(next)).toHaveLength(1)
              })
          })
        )
        yield* queue.enqueue(1)
        yield* passing("acked", () => of("Acked").length === 1)
        yield* expectEmpty(queue)
        expect(yield* table.rows).toEqual([1, 10])
        expect(yield* liveRows(next)).toMatchObject([{ payload: '"follow-up"' }])
        expect(tags()).toEqual(["Started", "Acked"])
        // One settle, in the transaction, and none after it
        expect(settled).toEqual([["Ack", "Some"]])
        expect(yield* worker.status).toMatchObject({ acked: 1, settling: 0, running: 0 })
      })
    )

    it.effect("keeps what was said of its progress last in the completed job (G36, G120)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ retainCompleted: "1 hour" })
        const { of } = yield* observe(queue, {
          ...transactional,
          handler: (job) => Effect.forEach([1, 2, 3], (done) => job.heartbeat({ done }))
        })
        yield* queue.enqueue(1)
        yield* passing("acked", () => of("Acked").length === 1)
        expect(yield* queue.completed()).toMatchObject([{ progress: '{"done":3}' }])
      })
    )

    const endings: ReadonlyArray<readonly [string, Effect.Effect<unknown, unknown>, unknown]> = [
      ["a failure", Effect.fail("no"), { state: "delayed", attempt: 1, failures: 1 }],
      ["a defect", Effect.die("no"), { state: "delayed", attempt: 1, failures: 1 }],
      ["Snooze", Job.snooze("1 minute"), { state: "delayed", attempt: 0, failures: 0 }],
      ["RetryAfter", Job.retryAfter("1 minute"), { state: "delayed", attempt: 1, failures: 1 }],
      ["a timeout", Effect.never, { state: "delayed", attempt: 1, failures: 1, errors: [{ kind: "timeout" }] }]
    ]
    for (const [how, end, row] of endings) {
      it.effect(`rolls back what it wrote and enqueued on ${how}, and settles as usual (G120)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const next = freshQueue()
          const table = yield* makeTable
          const { of } = yield* observe(queue, {
            ...transactional,
            timeout: "5 seconds",
            handler: (job) => Effect.zipRight(Effect.zipRight(table.write(job.attempt), next.enqueue(1)), end)
          })
          yield* queue.enqueue(1, { maxAttempts: 3 })
          yield* passing("settled", () => of("Retried").length + of("Released").length === 1)
          expect(yield* onlyRow(queue)).toMatchObject(row as object)
          expect(yield* table.rows).toEqual([])
          expect(yield* liveRows(next)).toEqual([])
          expect(of("Acked")).toEqual([])
        })
      )
    }

    it.effect("rolls back on Fatal; its job is dead (G120)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const { of } = yield* observe(queue, {
          ...transactional,
          handler: () => Effect.zipRight(table.write(1), Job.fatal("never"))
        })
        yield* queue.enqueue(1)
        yield* passing("dead", () => of("Died").length === 1)
        expect(yield* table.rows).toEqual([])
        expect(yield* onlyLetter(queue)).toMatchObject({ reason: "failed", errors: [{ message: "never" }] })
      })
    )

    it.effect("what its finalizers write belongs to it, and one that fails rolls all back (G120)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const { of, tags } = yield* observe(queue, {
          ...transactional,
          handler: (job) =>
            Effect.zipRight(
              Effect.addFinalizer(() =>
                Effect.zipRight(
                  Effect.ignore(table.write(100 + job.attempt)),
                  job.attempt === 1 ? Effect.die("in the finalizer") : Effect.void
                )
              ),
              table.write(job.attempt)
            )
        })
        yield* queue.enqueue(1)
        yield* passing("failed", () => of("Retried").length === 1)
        expect(yield* table.rows).toEqual([])
        yield* passing("acked", () => of("Acked").length === 1)
        expect(yield* table.rows).toEqual([2, 102])
        expect(tags()).toEqual(["Started", "Retried", "Started", "Acked"])
      })
    )

    it.effect("whose COMMIT fails has failed: nothing is written, the job is not acked (G120, G122)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const sql = yield* SqlClient.SqlClient
        if (engine.engine === "sqlite") yield* sql.unsafe("PRAGMA foreign_keys = ON")
        const { of } = yield* observe(queue, {
          ...transactional,
          handler: (job) => table.write(job.attempt, job.attempt === 1 ? 99 : undefined)
        })
        yield* queue.enqueue(1)
        yield* passing("failed", () => of("Retried").length === 1)
        expect(yield* table.rows).toEqual([])
        expect(yield* onlyRow(queue)).toMatchObject({ attempt: 1, failures: 1 })
        yield* passing("acked", () => of("Acked").length === 1)
        expect(yield* table.rows).toEqual([2])
        yield* expectEmpty(queue)
        expect([of("Retried").length, of("Acked").length, of("LeaseLost").length]).toEqual([1, 1, 0])
      })
    )

    it.effect("whose lease is gone writes nothing (G121)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const { of, tags, worker } = yield* observe(queue, {
          ...transactional,
          visibilityTimeout: "30 seconds",
          handler: (job) => Effect.zipRight(table.write(job.attempt), job.attempt === 1 ? steal(job.id) : Effect.void)
        })
        yield* queue.enqueue(1)
        yield* passing("lost", () => of("LeaseLost").length === 1)
        expect(yield* table.rows).toEqual([])
        expect(tags()).toEqual(["Started", "LeaseLost"])
        expect(yield* worker.status).toMatchObject({ lost: 1, running: 0 })
        // It was stolen in the transaction only: the lease is there until it ends
        yield* passing("done by the next", () => of("Acked").length === 1)
        expect(yield* table.rows).toEqual([2])
        yield* expectEmpty(queue)
      })
    )

    it.effect("may settle its job itself, which commits with the rest; no second settle (G124)", () =>
      Effect.gen(function* () {
        const hands: Readonly<Record<string, (job: Job.Job<unknown>) => Effect.Effect<void, unknown>>> = {
          Acked: (job) => job.ack,
          Died: (job) => job.fail("by hand"),
          Retried: (job) => job.retry({ delay: "1 hour" }),
          Released: (job) => job.snooze("1 hour")
        }
        for (const [event, hand] of Object.entries(hands)) {
          const queue = freshQueue()
          const table = yield* makeTable
          const { tags, worker } = yield* observe(queue, {
            ...transactional,
            handler: (job) => Effect.zipRight(table.write(1), hand(job))
          })
          yield* queue.enqueue(1)
          yield* passing(event, () => tags().length === 2)
          expect(tags()).toEqual(["Started", event])
          expect(yield* table.rows).toEqual([1])
          expect(yield* worker.status).toMatchObject({ lost: 0, running: 0 })
          expect([(yield* liveRows(queue)).length, (yield* deadRows(queue)).length]).toEqual(
            { Acked: [0, 0], Died: [0, 1], Retried: [1, 0], Released: [1, 0] }[event]
          )
        }
      })
    )

    it.effect("that settles its job itself and then fails has settled nothing (G120, G124)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const { tags } = yield* observe(queue, {
          ...transactional,
          handler: (job) => Effect.all([table.write(1), job.ack, Effect.fail("after all")])
        })
        yield* queue.enqueue(1)
        yield* passing("failed", () => tags().length === 2)
        expect(yield* onlyRow(queue)).toMatchObject({ attempt: 1, failures: 1 })
        expect(yield* table.rows).toEqual([])
        expect(tags()).toEqual(["Started", "Retried"])
      })
    )

    it.effect("that settles its job in a part that is rolled back is acked at its end (G124)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const { tags } = yield* observe(queue, {
          ...transactional,
          handler: (job) =>
            Effect.zipRight(
              Effect.either(Queue.transaction(Effect.zipRight(job.fail("in part"), Effect.fail("undone")))),
              table.write(1)
            )
        })
        yield* queue.enqueue(1)
        yield* passing("acked", () => tags().length === 2)
        yield* expectEmpty(queue)
        expect(yield* table.rows).toEqual([1])
        expect(tags()).toEqual(["Started", "Acked"])
      })
    )

    it.effect("that could not begin has not run: its attempt is not spent (G120)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        let refusals = 3
        const attempts: Array<number> = []
        const { tags } = yield* withQueue(
          (real) => ({
            transaction: (self) =>
              Effect.suspend(() => (refusals-- > 0 ? Effect.fail(gone("transaction")) : real.transaction(self)))
          }),
          observe(queue, {
            ...transactional,
            handler: (job) =>
              Effect.zipRight(
                Effect.sync(() => attempts.push(job.attempt)),
                table.write(1)
              )
          })
        )
        yield* queue.enqueue(1, { maxAttempts: 1 })
        yield* passing("acked", () => tags().includes("Acked"))
        expect(attempts).toEqual([1])
        expect(tags().filter((tag) => tag !== "Started")).toEqual(["Released", "Released", "Released", "Acked"])
      })
    )

    it.effect("that has begun and finds no database has failed: its attempt is spent (G120)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const { tags } = yield* observe(queue, {
          ...transactional,
          handler: () => Effect.zipRight(table.write(1), Effect.fail(gone("another database")))
        })
        yield* queue.enqueue(1, { maxAttempts: 1 })
        yield* passing("it has ended", () => tags().length === 2)
        expect(tags()).toEqual(["Started", "Died"])
        expect(yield* table.rows).toEqual([])
      })
    )
  })

  virtual(engine, options, "a COMMIT whose answer was lost", (it) => {
    it.effect("and that took place: the job is done, once (G122)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const { tags } = yield* withQueue(
          (real) => ({ transaction: (self) => Effect.zipRight(real.transaction(self), Effect.fail(uncertain)) }),
          observe(queue, { ...transactional, handler: (job) => table.write(job.attempt) })
        )
        yield* queue.enqueue(1)
        yield* passing("acked", () => tags().includes("Acked"))
        yield* Testing.advance("1 minute")
        expect(tags()).toEqual(["Started", "Acked"])
        expect(yield* table.rows).toEqual([1])
        yield* expectEmpty(queue)
      })
    )

    it.effect("and that did not: the job runs again (G122)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        let lost = false
        const { tags } = yield* withQueue(
          (real) => ({
            transaction: (self) =>
              Effect.suspend(() => {
                if (lost) return real.transaction(self)
                lost = true
                return Effect.catchAll(real.transaction(Effect.zipRight(self, Effect.fail(uncertain))), () =>
                  Effect.fail(uncertain)
                )
              })
          }),
          observe(queue, { ...transactional, handler: (job) => table.write(job.attempt) })
        )
        yield* queue.enqueue(1)
        yield* passing("acked", () => tags().includes("Acked"))
        expect(tags()).toEqual(["Started", "Retried", "Started", "Acked"])
        expect(yield* table.rows).toEqual([2])
        yield* expectEmpty(queue)
      })
    )

    it.effect("interrupted after it: the job is done, once (G122)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const { tags } = yield* withQueue(
          (real) => ({ transaction: (self) => Effect.zipLeft(real.transaction(self), Effect.never) }),
          observe(queue, { ...transactional, timeout: "3 seconds", handler: (job) => table.write(job.attempt) })
        )
        yield* queue.enqueue(1)
        yield* passing("acked", () => tags().includes("Acked"))
        yield* Testing.advance("1 minute")
        expect(tags()).toEqual(["Started", "TimedOut", "Acked"])
        expect(yield* table.rows).toEqual([1])
        yield* expectEmpty(queue)
      })
    )

    it.effect("a beat in that moment takes the job for no loss (G122)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const { tags } = yield* withQueue(
          (real) => ({
            transaction: (self) =>
              Effect.zipLeft(real.transaction(self), Effect.uninterruptible(Effect.sleep("25 seconds")))
          }),
          observe(queue, {
            ...transactional,
            visibilityTimeout: "90 seconds",
            heartbeat: Schedule.spaced("5 seconds"),
            handler: (job) => table.write(job.attempt)
          })
        )
        yield* queue.enqueue(1)
        yield* passing("acked", () => tags().includes("Acked"))
        expect(tags()).toEqual(["Started", "Acked"])
        expect(yield* table.rows).toEqual([1])
      })
    )
  })

  virtual(engine, options, "the options of a transactional worker", (it) => {
    it.effect("one writer: one handler at a time, for a third of the visibility timeout at most (G123)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const alone = engine.engine === "sqlite"
        const { singleWriter } = yield* Queue.Queue
        expect(singleWriter).toBe(alone)
        const long = Worker.fork(queue, {
          ...transactional,
          handler: () => Effect.void,
          visibilityTimeout: "30 seconds",
          timeout: "11 seconds"
        })
        const answer = yield* Effect.either(long)
        if (alone) expect(answer).toMatchObject({ left: { _tag: "InvalidArgument", argument: "timeout" } })
        else expect(answer._tag).toBe("Right")
        const other = freshQueue()
        const gauge = makeGauge()
        const { of } = yield* observe(other, {
          ...transactional,
          concurrency: 4,
          visibilityTimeout: "30 seconds",
          handler: ({ payload }) => gauge.during(payload === "hangs" ? Effect.never : Effect.sleep("100 millis"))
        })
        yield* other.enqueueMany([...numbers(8), "hangs"])
        yield* passing("done", () => of("Acked").length === 8 && (!alone || of("TimedOut").length === 1))
        expect(gauge.most()).toBeLessThanOrEqual(alone ? 1 : 4)
        if (!alone) expect(gauge.most()).toBeGreaterThan(1)
        expect(of("Acked")).toHaveLength(8)
        // By default a third of 30 s, or an hour
        expect(of("TimedOut")).toHaveLength(alone ? 1 : 0)
      })
    )

    it.effect("a batch handler cannot be transactional (G6)", () =>
      Effect.gen(function* () {
        const wrong = { ...transactional, batchHandler: () => Effect.void } as never as {
          handler: () => Effect.Effect<void>
        }
        const error = yield* Effect.flip(Worker.fork(freshQueue(), wrong))
        expect(error).toMatchObject({ _tag: "InvalidArgument", argument: "transactional" })
      })
    )
  })

  live(engine, options, "a transactional worker, in real time", (it) => {
    it.effect("that is stopped rolls back what it must interrupt, and releases it (G120, G81)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        let wrote = false
        const { of, stop } = yield* stoppable(queue, {
          ...transactional,
          shutdownGrace: "100 millis",
          handler: () =>
            Effect.zipRight(
              Effect.tap(table.write(1), () => {
                wrote = true
              }),
              Effect.never
            )
        })
        yield* queue.enqueue(1, { maxAttempts: 1 })
        yield* until("it has written", () => wrote)
        yield* stop
        expect(of("Released")).toHaveLength(1)
        expect(yield* onlyRow(queue)).toMatchObject({ state: "ready", attempt: 0, failures: 0, crashes: 0 })
        expect(yield* table.rows).toEqual([])
      })
    )

    it.effect("hands over what other writers of the process wait for; each job is done once (G120, G123)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const other = freshQueue()
        const table = yield* makeTable
        const worker = { ...transactional, concurrency: 4 }
        const first = yield* observe(queue, { ...worker, handler: (job) => table.write(job.payload) })
        const second = yield* observe(queue, { ...worker, handler: (job) => table.write(job.payload) })
        const third = yield* observe(other, { handler: () => Effect.void })
        yield* queue.enqueueMany(numbers(60))
        yield* other.enqueueMany(numbers(60))
        yield* eventually(
          "all jobs done",
          Effect.zip(liveRows(queue), liveRows(other)),
          (rows) => rows.flat().length === 0
        )
        expect(yield* table.rows).toEqual(numbers(60))
        yield* until("all are counted", () => first.of("Acked").length + second.of("Acked").length === 60)
        expect(third.of("Acked").length).toBeLessThanOrEqual(60)
        expect([
          ...first.of("LeaseLost"),
          ...second.of("LeaseLost"),
          ...first.of("Retried"),
          ...second.of("Retried")
        ]).toEqual([])
      })
    )

    if (engine.besideTransactions) {
      it.effect("whose job is taken by somebody else while it runs writes nothing, the other's end counts (G121)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const table = yield* makeTable
          const gate = yield* makeGate
          let wrote = false
          const { of } = yield* observe(queue, {
            ...transactional,
            visibilityTimeout: "1 minute",
            handler: () =>
              Effect.gen(function* () {
                yield* table.write(1)
                wrote = true
                yield* gate.wait
              })
          })
          const { id } = yield* queue.enqueue(1)
          yield* until("it has written", () => wrote)
          const thief = yield* Queue.transaction(Effect.zipRight(steal(id), claimOne(queue)))
          yield* gate.open
          yield* until("the loss is seen", () => of("LeaseLost").length === 1)
          expect(yield* table.rows).toEqual([])
          yield* thief.ack
          yield* expectEmpty(queue)
        })
      )

      it.effect("is not taken in by a settle of its own that was rolled back (G121, G124)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const table = yield* makeTable
          const gate = yield* makeGate
          let wrote = false
          const { of } = yield* observe(queue, {
            ...transactional,
            visibilityTimeout: "1 minute",
            handler: (job) =>
              Effect.gen(function* () {
                yield* table.write(1)
                yield* Effect.either(Queue.transaction(Effect.zipRight(job.ack, Effect.fail("undone"))))
                wrote = true
                yield* gate.wait
              })
          })
          const { id } = yield* queue.enqueue(1)
          yield* until("it has written", () => wrote)
          const thief = yield* Queue.transaction(Effect.zipRight(steal(id), claimOne(queue)))
          yield* thief.ack
          yield* gate.open
          yield* until("the loss is seen", () => of("LeaseLost").length === 1)
          expect(yield* table.rows).toEqual([])
          expect(of("Acked")).toEqual([])
        })
      )
    }

    it.effect("completion by hand in a transaction of its own: without the lease, nothing is written (G125)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const answers: Array<unknown> = []
        const { of } = yield* observe(queue, {
          visibilityTimeout: "1 minute",
          handler: (job) =>
            Effect.gen(function* () {
              if (job.attempt === 1) yield* steal(job.id)
              const answer = yield* Effect.either(Queue.transaction(Effect.zipRight(table.write(job.attempt), job.ack)))
              answers.push(answer._tag === "Left" ? (answer.left as { _tag: string })._tag : "done")
              yield* job.attempt === 1 ? Effect.fail("lost") : Effect.void
            })
        })
        yield* queue.enqueue(1)
        yield* until("the other run is done", () => of("Acked").length === 1)
        expect(answers).toEqual(["LeaseLost", "done"])
        expect(yield* table.rows).toEqual([2])
        expect(of("LeaseLost")).toHaveLength(1)
        expect(of("Retried")).toEqual([])
        yield* expectEmpty(queue)
      })
    )
  })
}
