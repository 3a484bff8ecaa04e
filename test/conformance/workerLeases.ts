/** Leases in a worker's hands: renewed as long as handlers run, and the end of the handler when one is lost. */
import { SqlClient } from "@effect/sql"
import { Job, Queue } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Effect, Fiber, Schedule } from "effect"
import { expect } from "vitest"
import type { Renewal } from "../../src/services/QueueStore.js"
import { claimOne, deadRows, expectEmpty, freshQueue, live, liveRows, onlyRow, type Suite, virtual } from "./support.js"
import { eventually, gone, makeGate, numbers, observe, passing, stoppable, withQueue } from "./workerSupport.js"

/** A handler that ends by interruption only, and tells when, and that all that hangs on it ended too. */
const endless = () => {
  const seen = { runs: 0, ended: [] as Array<number>, children: 0, aborted: 0, finalizers: 0 }
  const handler = () =>
    Effect.gen(function* () {
      seen.runs++
      yield* Effect.addFinalizer(() => Effect.sync(() => void seen.finalizers++))
      yield* Effect.fork(Effect.onInterrupt(Effect.never, () => Effect.sync(() => void seen.children++)))
      const promise = Effect.tryPromise(
        (signal) =>
          new Promise((_, reject) => {
            signal.addEventListener("abort", () => {
              seen.aborted++
              reject(new Error("aborted"))
            })
          })
      )
      yield* Effect.onInterrupt(promise, () => Effect.map(Clock.currentTimeMillis, (now) => void seen.ended.push(now)))
    })
  return { seen, handler }
}

export const workerLeasesSuite: Suite = (engine, options) => {
  /** Frees a leased row behind its holder's back, as if its lease had ended. */
  const steal = (id: number) =>
    Effect.flatMap(SqlClient.SqlClient, (sql) =>
      sql.unsafe(`UPDATE ${engine.table("jobs")} SET token = NULL, visible_at = 0 WHERE id = ${id}`)
    )

  /** What can take a job out of a worker's hands. */
  const thieves: Readonly<
    Record<
      string,
      (
        job: Queue.LiveRow,
        token: number,
        queue: ReturnType<typeof freshQueue>
      ) => Effect.Effect<unknown, unknown, Queue.Queue | SqlClient.SqlClient>
    >
  > = {
    "claimed by somebody else": (job, _, queue) =>
      Effect.zipRight(steal(job.id), claimOne(queue, { visibilityTimeout: "1 hour" })),
    deleted: (job) =>
      Effect.flatMap(SqlClient.SqlClient, (sql) =>
        sql.unsafe(`DELETE FROM ${engine.table("jobs")} WHERE id = ${job.id}`)
      ),
    "settled by somebody else": (job, token) =>
      Effect.flatMap(Queue.Queue, (store) => store.settle(job.queue, [{ _tag: "Ack", id: job.id, token }]))
  }

  virtual(engine, options, "leases in a worker's hands", (it) => {
    it.effect("are renewed for as long as the handler runs: a long job runs once (G30)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let runs = 0
        const policy = {
          visibilityTimeout: "10 seconds" as const,
          handler: () =>
            Effect.zipRight(
              Effect.sync(() => void runs++),
              Effect.sleep("2 minutes")
            )
        }
        const one = yield* observe(queue, policy)
        const two = yield* observe(queue, policy)
        yield* queue.enqueue(1)
        yield* Testing.advance("1 minute")
        expect(yield* onlyRow(queue)).toMatchObject({ state: "leased", attempt: 1, crashes: 0 })
        yield* Testing.advance("70 seconds")
        yield* expectEmpty(queue)
        expect(runs).toBe(1)
        expect([...one.tags(), ...two.tags()]).toEqual(["Started", "Acked"])
      })
    )

    it.effect("are renewed all in one call per beat, every third of the visibility timeout (G30)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const calls: Array<number> = []
        yield* withQueue(
          (real) => ({
            renew: (renewals) => {
              calls.push(renewals.length)
              return real.renew(renewals)
            }
          }),
          observe(queue, { handler: () => Effect.never, concurrency: 50, visibilityTimeout: "30 seconds" })
        )
        yield* queue.enqueueMany(numbers(50))
        yield* Testing.advance("2 seconds")
        calls.length = 0
        yield* Testing.advance("60 seconds")
        expect(calls).toEqual([50, 50, 50, 50, 50, 50])
      })
    )

    it.effect("more than a thousand are renewed in several calls, none of them twice (G30)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const calls: Array<ReadonlySet<number>> = []
        yield* withQueue(
          (real) => ({
            renew: (renewals) => {
              calls.push(new Set(renewals.map(({ id }) => id)))
              return real.renew(renewals)
            }
          }),
          observe(queue, { batchHandler: () => Effect.never, concurrency: 2, batch: { size: 1_000 } })
        )
        yield* queue.enqueueMany(numbers(1_001))
        yield* Testing.advance("15 seconds")
        expect(calls.map(({ size }) => size)).toEqual([1_000, 1])
        expect(new Set(calls.flatMap((ids) => [...ids])).size).toBe(1_001)
      })
    )

    it.effect("by a heartbeat Schedule without delays they are renewed every millisecond, no more often (G30)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let calls = 0
        yield* withQueue(
          () => ({
            renew: (renewals) => {
              calls++
              return Effect.succeed(renewals.map(() => "renewed" as const))
            }
          }),
          observe(queue, { handler: () => Effect.sleep("50 millis"), heartbeat: Schedule.forever })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("2 seconds")
        yield* expectEmpty(queue)
        expect(calls).toBeGreaterThan(40)
        expect(calls).toBeLessThanOrEqual(50)
      })
    )

    it.effect("a missed beat or two mean nothing (G31)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let calls = 0
        const { of, tags } = yield* withQueue(
          (real) => ({ renew: (renewals) => (calls++ % 3 === 0 ? real.renew(renewals) : Effect.fail(gone("renew"))) }),
          observe(queue, { handler: () => Effect.sleep("2 minutes"), visibilityTimeout: "10 seconds" })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("130 seconds")
        expect(of("LeaseLost")).toEqual([])
        expect(tags()).toEqual(["Started", "Acked"])
        expect(calls).toBeGreaterThan(12)
      })
    )

    for (const [how, take] of Object.entries(thieves)) {
      it.effect(`a job that is ${how}: its handler is interrupted within a beat, and writes nothing (G28, G32)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const { handler, seen } = endless()
          const { of, worker } = yield* observe(queue, { handler, concurrency: 1, visibilityTimeout: "30 seconds" })
          yield* queue.enqueue(1)
          yield* Testing.advance("11 seconds")
          const [started] = of("Started")
          const row = yield* onlyRow(queue)
          yield* take(row, started?.job.token as number, queue)
          const taken = yield* Clock.currentTimeMillis
          const after = yield* liveRows(queue)
          yield* Testing.advance("15 seconds")
          expect(seen).toMatchObject({ runs: 1, children: 1, aborted: 1, finalizers: 1 })
          expect(seen.ended).toHaveLength(1)
          expect((seen.ended[0] as number) - taken).toBeLessThanOrEqual(10_000)
          expect(of("LeaseLost")).toMatchObject([{ job: { jobId: row.id } }])
          expect(yield* liveRows(queue)).toEqual(after)
          expect(yield* deadRows(queue)).toEqual([])
          expect(yield* worker.status).toMatchObject({ running: 0, lost: 1, acked: 0 })
          // The slot is free
          yield* queue.enqueue(2)
          yield* Testing.advance("1 second")
          expect(seen.runs).toBe(2)
        })
      )

      it.effect(`a job that is ${how} just before its handler ends: the end is refused (G28)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const gate = yield* makeGate
          const { of, tags, worker } = yield* observe(queue, { handler: () => gate.wait, concurrency: 1 })
          yield* queue.enqueue(1)
          yield* Testing.advance("1 second")
          yield* take(yield* onlyRow(queue), of("Started")[0]?.job.token as number, queue)
          const after = yield* liveRows(queue)
          yield* gate.open
          yield* Testing.settle
          expect(tags()).toEqual(["Started", "LeaseLost"])
          expect(yield* liveRows(queue)).toEqual(after)
          expect(yield* deadRows(queue)).toEqual([])
          expect(yield* worker.status).toMatchObject({ lost: 1, acked: 0, settling: 0 })
        })
      )
    }

    it.effect(
      "a handler that outlives the loss of its lease writes nothing, not by its own hand either (G28, G32)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const refused: Array<string> = []
          const { of } = yield* observe(queue, {
            handler: (job) =>
              Effect.sleep("1 minute").pipe(
                Effect.zipRight(Effect.flip(job.ack)),
                Effect.zipWith(Effect.flip(job.heartbeat(1)), (a, b) => void refused.push(a._tag, b._tag)),
                Effect.uninterruptible
              ),
            concurrency: 1,
            stuckAfter: "5 minutes"
          })
          yield* queue.enqueue(1)
          yield* Testing.advance("11 seconds")
          const row = yield* onlyRow(queue)
          yield* steal(row.id)
          const mine = yield* claimOne(queue, { visibilityTimeout: "1 hour" })
          yield* Testing.advance("2 minutes")
          expect(refused).toEqual(["LeaseLost", "LeaseLost"])
          expect(of("LeaseLost")).toHaveLength(1)
          expect(yield* onlyRow(queue)).toMatchObject({ state: "leased", worker: "manual", progress: null })
          yield* mine.ack
          yield* expectEmpty(queue)
        })
    )

    it.effect(
      "of a stuck handler that could not be renewed is left to end: the attempt has not failed (G33, G50)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const gate = yield* makeGate
          const { of } = yield* withQueue(
            () => ({ renew: () => Effect.fail(gone("renew")) }),
            observe(queue, {
              handler: () => Effect.uninterruptible(gate.wait),
              concurrency: 1,
              visibilityTimeout: "30 seconds",
              stuckAfter: "1 second"
            })
          )
          yield* queue.enqueue(1)
          // The handler is not wanted any more from three seconds before the lease's end on
          yield* Testing.advance("29 seconds")
          expect(of("Stuck")).toHaveLength(1)
          expect(of("LeaseLost")).toHaveLength(1)
          expect(yield* onlyRow(queue)).toMatchObject({ state: "leased", failures: 0, errors: [] })
          yield* gate.open
        })
    )

    it.effect("whose end nobody else could see, since all others are kept out, is looked at now and then (G33)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let looks = 0
        const { of, worker } = yield* withQueue(
          () => ({
            renew: () => Effect.fail(gone("renew")),
            holdsWriteLock: Effect.sync(() => {
              looks++
              return true
            })
          }),
          observe(queue, { handler: () => gate.wait, concurrency: 1, visibilityTimeout: "30 seconds" })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("2 minutes")
        expect(of("LeaseLost")).toEqual([])
        expect(yield* worker.status).toMatchObject({ running: 1, stuck: 0 })
        // First at 27 s, then every seven
        expect(looks).toBe(14)
        yield* gate.open
      })
    )

    it.effect("that cannot be renewed end their handlers before they end themselves, and go back (G33)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { handler, seen } = endless()
        let down = false
        const { of } = yield* withQueue(
          (real) => ({
            renew: (renewals) => (down ? Effect.fail(gone("renew")) : real.renew(renewals)),
            settle: (name, settlements, how) =>
              down ? Effect.fail(gone("settle")) : real.settle(name, settlements, how),
            claim: (request) => (down ? Effect.fail(gone("claim")) : real.claim(request))
          }),
          observe(queue, { handler, visibilityTimeout: "30 seconds" })
        )
        yield* queue.enqueue(1, { maxAttempts: 1 })
        yield* Testing.advance("1 second")
        const { deadline } = yield* onlyRow(queue)
        down = true
        yield* Testing.advance("60 seconds")
        expect(seen).toMatchObject({ runs: 1, children: 1, aborted: 1, finalizers: 1 })
        const left = (deadline as number) - (seen.ended[0] as number)
        expect(left).toBeGreaterThan(0)
        expect(left).toBeLessThanOrEqual(5_000)
        expect(of("LeaseLost")).toHaveLength(1)
      })
    )

    it.effect("whose claim is answered when they are over begin no handler (G33)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let runs = 0
        let late = true
        const { of, worker } = yield* withQueue(
          (real) => ({
            claim: (request) => {
              const answer = real.claim(request)
              return late ? Effect.zipLeft(answer, Effect.sleep("31 seconds")) : answer
            }
          }),
          observe(queue, { handler: () => Effect.sync(() => void runs++), visibilityTimeout: "30 seconds" })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("32 seconds")
        yield* Testing.advance("29 seconds")
        late = false
        // Between the end of the lease and the answer to its claim, a second later: without wakes both come a poll later
        let mine: Job.Job<unknown> | undefined
        for (let step = 0; step < 12 && mine === undefined; step++) {
          yield* Testing.advance("250 millis")
          mine = (yield* queue.claim({ visibilityTimeout: "1 hour" }))[0]
        }
        yield* Testing.advance("10 seconds")
        expect(of("LeaseLost")[0]).toMatchObject({ job: { attempt: 1 } })
        // Each is told once, whatever its late settle finds
        const lost = of("LeaseLost").map(({ job }) => job.token)
        expect(lost).toEqual([...new Set(lost)])
        expect((yield* worker.status).lost).toBe(lost.length)
        expect(runs).toBe(0)
        yield* mine?.ack ?? Effect.dieMessage("nobody but the worker could claim it")
        yield* expectEmpty(queue)
      })
    )

    it.effect("stand still while this process itself keeps everybody else out (G33)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let holds = true
        const { of } = yield* withQueue(
          () => ({
            renew: () => Effect.fail(gone("renew")),
            holdsWriteLock: Effect.sync(() => holds)
          }),
          observe(queue, { handler: () => Effect.never, visibilityTimeout: "10 seconds" })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("5 seconds")
        yield* Testing.advance("4500 millis")
        expect(of("LeaseLost")).toEqual([])
        holds = false
        yield* Testing.advance("10 seconds")
        expect(of("LeaseLost")).not.toEqual([])
      })
    )

    it.effect("end their handlers at once when the answer to a renewal comes too late for them (G33)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { handler, seen } = endless()
        let holds = true
        let answered = 0
        const late = Effect.gen(function* () {
          yield* Effect.sleep("28 seconds")
          answered = yield* Clock.currentTimeMillis
          holds = false
        })
        const { of } = yield* withQueue(
          (real) => ({
            renew: (renewals) => (holds ? Effect.zipLeft(real.renew(renewals), late) : real.renew(renewals)),
            holdsWriteLock: Effect.sync(() => holds)
          }),
          observe(queue, { handler, visibilityTimeout: "30 seconds" })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("1 minute")
        expect(seen.ended[0]).toBe(answered)
        expect(of("LeaseLost")).not.toEqual([])
      })
    )

    it.effect.each([
      ["ends", Schedule.recurs(2)],
      ["ends at once", Schedule.stop],
      ["is too slow", Schedule.spaced("1 minute")],
      ["slows down", Schedule.exponential("1 second", 2.1)],
      ["dies", Schedule.mapEffect(Schedule.spaced("1 second"), () => Effect.die("no"))]
    ] as const)("with a heartbeat Schedule that %s are renewed all the same (G79)", ([, heartbeat]) =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of, tags } = yield* observe(queue, {
          handler: () => Effect.sleep("1 minute"),
          visibilityTimeout: "10 seconds",
          heartbeat
        })
        yield* queue.enqueue(1)
        yield* Testing.advance("70 seconds")
        yield* expectEmpty(queue)
        expect(of("LeaseLost")).toEqual([])
        expect(tags().filter((tag) => tag === "Started" || tag === "Acked")).toEqual(["Started", "Acked"])
        expect(of("HeartbeatReplaced")).toHaveLength(1)
      })
    )
  })

  virtual(engine, options, "a job that its handler settles itself", (it) => {
    const hands: Readonly<Record<string, (job: Job.Job<unknown>) => Effect.Effect<void, unknown>>> = {
      Acked: (job) => job.ack,
      Died: (job) => job.fail("by hand"),
      Retried: (job) => job.retry({ delay: "1 hour", error: "by hand" }),
      Released: (job) => job.snooze("1 hour")
    }

    for (const [event, settle] of Object.entries(hands)) {
      it.effect(`is no loss: ${event}, and the handler may go on (G42)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          let ended = 0
          const { tags } = yield* observe(queue, {
            visibilityTimeout: "5 seconds",
            handler: (job) =>
              Effect.zipRight(
                settle(job),
                Effect.zipRight(
                  Effect.sleep("20 seconds"),
                  Effect.sync(() => void ended++)
                )
              )
          })
          yield* queue.enqueue(1)
          yield* Testing.advance("30 seconds")
          expect(ended).toBe(1)
          expect(tags()).toEqual(["Started", event])
        })
      )

      it.effect(`in a transaction that commits: ${event} once, with what else was written (G13, G42)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const other = freshQueue()
          const { tags } = yield* observe(queue, {
            visibilityTimeout: "5 seconds",
            handler: (job) =>
              Effect.zipRight(
                Queue.transaction(Effect.zipRight(other.enqueue("written"), settle(job))),
                Effect.sleep("20 seconds")
              )
          })
          yield* queue.enqueue(1)
          yield* Testing.advance("30 seconds")
          expect(tags()).toEqual(["Started", event])
          expect(yield* liveRows(other)).toHaveLength(1)
        })
      )
    }

    // Where the one connection is taken, time stands still with it
    if (engine.besideTransactions) {
      it.effect("in a transaction that stays open for many visibility timeouts is no loss (G13, G34)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const { tags } = yield* observe(queue, {
            visibilityTimeout: "5 seconds",
            handler: (job) => Queue.transaction(Effect.zipRight(job.ack, Effect.sleep("20 seconds")))
          })
          yield* queue.enqueue(1)
          yield* Testing.advance("30 seconds")
          expect(tags()).toEqual(["Started", "Acked"])
          yield* expectEmpty(queue)
        })
      )
    }

    it.effect("in a transaction that rolls back is as if it had not: the handler's end decides (G13, G42)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const other = freshQueue()
        const { of, tags } = yield* observe(queue, {
          visibilityTimeout: "5 seconds",
          handler: (job) =>
            Effect.zipRight(other.enqueue("written"), job.ack).pipe(
              Effect.zipRight(Effect.fail("rolled back")),
              Queue.transaction,
              Effect.catchAll((error) =>
                Effect.zipRight(Effect.sleep("20 seconds"), job.payload === "fails" ? Effect.fail(error) : Effect.void)
              )
            ),
          retry: Schedule.spaced("1 hour")
        })
        yield* queue.enqueueMany(["fails", "succeeds"])
        yield* Testing.advance("30 seconds")
        expect([...tags()].sort()).toEqual(["Acked", "Retried", "Started", "Started"])
        expect(of("Retried")[0]?.error?.message).toBe("rolled back")
        expect(yield* onlyRow(queue)).toMatchObject({ payload: '"fails"', state: "delayed", attempt: 1, failures: 1 })
        yield* expectEmpty(other)
      })
    )

    it.effect("and then fails stays as its hand settled it (G42)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of } = yield* observe(queue, {
          handler: (job) => Effect.zipRight(job.ack, Effect.fail("too late")),
          retry: Schedule.spaced("1 second")
        })
        yield* queue.enqueue(1)
        yield* Testing.advance("10 seconds")
        yield* expectEmpty(queue)
        expect(of("Acked")).toHaveLength(1)
        expect(of("LeaseLost")).toEqual([])
      })
    )
  })

  virtual(engine, options, "progress in a worker", (it) => {
    it.effect("is written at most once a second, is visible, and goes to the next attempt (G36)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const written: Array<Renewal> = []
        const given: Array<unknown> = []
        yield* withQueue(
          (real) => ({
            renew: (renewals) => {
              written.push(...renewals.filter(({ progress }) => progress !== undefined))
              return real.renew(renewals)
            }
          }),
          observe(queue, {
            handler: (job) =>
              Effect.gen(function* () {
                given.push(job.progress)
                if (job.attempt === 2) return
                yield* Effect.forEach(numbers(100), (n) => Effect.zipRight(job.heartbeat({ n }), Effect.sleep(20)))
                yield* Effect.sleep("5 seconds")
                yield* Effect.fail("half way")
              }),
            retry: Schedule.spaced("10 seconds")
          })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("5 seconds")
        expect(JSON.parse((yield* onlyRow(queue)).progress as string)).toEqual({ n: 99 })
        expect(written.length).toBeGreaterThanOrEqual(2)
        expect(written.length).toBeLessThanOrEqual(4)
        yield* Testing.advance("30 seconds")
        expect(given).toEqual([undefined, { n: 99 }])
        yield* expectEmpty(queue)
      })
    )

    for (const end of ["fails", "is snoozed", "is interrupted by a shutdown", "is dead and requeued"] as const)
      it.effect(`said just before the attempt ${end} goes to the next one (G36)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const given: Array<unknown> = []
          let said = false
          const ends = {
            fails: Effect.fail("half way"),
            "is snoozed": Effect.fail(new Job.Snooze({ delay: "1 second" })),
            "is interrupted by a shutdown": Effect.never,
            "is dead and requeued": Effect.fail(new Job.Fatal({ error: "half way" }))
          }
          const handler = (job: Job.Job<unknown>) =>
            Effect.gen(function* () {
              given.push(job.progress)
              if (given.length > 1) return
              yield* Effect.forEach(numbers(5), (n) => Effect.zipRight(job.heartbeat({ n }), Effect.sleep(20)))
              said = true
              yield* ends[end]
            })
          const { of, stop } = yield* stoppable(queue, { handler, shutdownGrace: 0 })
          yield* queue.enqueue(1)
          yield* passing("all is said", () => said)
          if (end === "is interrupted by a shutdown") {
            yield* stop
            yield* observe(queue, { handler })
          }
          if (end === "is dead and requeued") {
            yield* passing("it is dead", () => of("Died").length === 1)
            yield* queue.deadLetters.requeue({ all: true })
          }
          yield* Testing.advance("1 minute")
          expect(given).toEqual([undefined, { n: 4 }])
        })
      )

    it.effect("that is no JSON or too big is refused, and the old one stays (G36)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const refused: Array<unknown> = []
        yield* observe(queue, {
          handler: (job) =>
            Effect.gen(function* () {
              yield* job.heartbeat("fine")
              for (const bad of [1n, Number.NaN, new Map(), "x".repeat(9_000)]) {
                refused.push(yield* Effect.flip(job.heartbeat(bad)))
              }
              yield* Effect.never
            })
        })
        yield* queue.enqueue(1)
        yield* Testing.advance("5 seconds")
        expect(refused).toHaveLength(4)
        for (const error of refused) expect(error).toMatchObject({ _tag: "InvalidArgument", argument: "progress" })
        expect((yield* onlyRow(queue)).progress).toBe('"fine"')
      })
    )

    it.effect("survives a renewal that failed (G36)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let failures = 3
        yield* withQueue(
          (real) => ({ renew: (renewals) => (failures-- > 0 ? Effect.fail(gone("renew")) : real.renew(renewals)) }),
          observe(queue, { handler: (job) => Effect.zipRight(job.heartbeat(7), Effect.never) })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("8 seconds")
        expect((yield* onlyRow(queue)).progress).toBe("7")
      })
    )

    it.effect("survives a renewal that somebody's lock on the row has skipped (G34, G36)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let skipped = 0
        yield* withQueue(
          (real) => ({
            renew: (renewals) =>
              skipped++ === 0 ? Effect.succeed(renewals.map(() => "busy" as const)) : real.renew(renewals)
          }),
          observe(queue, { handler: (job) => Effect.zipRight(job.heartbeat(7), Effect.never) })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("25 seconds")
        expect(skipped).toBeGreaterThan(1)
        expect((yield* onlyRow(queue)).progress).toBe("7")
      })
    )
  })

  live(engine, options, "leases in real time", (it) => {
    it.effect("a job of many visibility timeouts runs once, whoever else wants it (G19, G30)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let runs = 0
        const policy = {
          visibilityTimeout: "800 millis" as const,
          handler: () =>
            Effect.zipRight(
              Effect.sync(() => void runs++),
              Effect.sleep("3 seconds")
            )
        }
        const one = yield* observe(queue, policy)
        const two = yield* observe(queue, policy)
        yield* queue.enqueueMany([1, 2, 3])
        const sweeping = yield* Effect.fork(
          Effect.forever(
            Effect.zipRight(
              Effect.sleep(50),
              Effect.flatMap(Queue.Queue, (store) => store.sweepExpired())
            )
          )
        )
        yield* eventually("all jobs done", liveRows(queue), (rows) => rows.length === 0)
        yield* Fiber.interrupt(sweeping)
        expect(runs).toBe(3)
        expect([...one.of("LeaseLost"), ...two.of("LeaseLost")]).toEqual([])
      })
    )

    it.effect("a stolen job ends its handler within a beat, and belongs to the thief (G32)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { handler, seen } = endless()
        const { of } = yield* observe(queue, { handler, concurrency: 1, visibilityTimeout: "3 seconds" })
        yield* queue.enqueue(1)
        yield* eventually(
          "it runs",
          Effect.sync(() => seen.runs),
          (runs) => runs === 1
        )
        const { id } = yield* onlyRow(queue)
        yield* Queue.transaction(Effect.zipRight(steal(id), claimOne(queue, { visibilityTimeout: "1 hour" })))
        yield* eventually(
          "it is interrupted",
          Effect.sync(() => seen.ended.length),
          (ended) => ended === 1,
          250
        )
        expect(seen).toMatchObject({ runs: 1, children: 1, aborted: 1, finalizers: 1 })
        expect(of("LeaseLost")).toHaveLength(1)
        expect(yield* onlyRow(queue)).toMatchObject({ state: "leased", worker: "manual" })
      })
    )
  })
}
