/** Bad days: a database that is gone for a while, answers that are lost, fibers of the worker that die. */
import { SqlClient } from "@effect/sql"
import { Errors, Queue, Wake, Worker } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Duration, Effect, Schedule } from "effect"
import { expect } from "vitest"
import {
  deadRows,
  expectEmpty,
  freshQueue,
  live,
  liveRows,
  onlyLetter,
  onlyRow,
  type Suite,
  virtual
} from "./support.js"
import { eventually, gone, numbers, observe, passing, withQueue } from "./workerSupport.js"

type Verb = "claim" | "renew" | "settle" | "define"

/** Before each call of a verb, its number from 0 on decides whether something else happens instead. */
const before =
  (plan: Partial<Record<Verb, (call: number) => Effect.Effect<unknown, Errors.StoreError>>>) =>
  (real: Queue.Service): Partial<Queue.Service> => {
    const calls = { claim: 0, renew: 0, settle: 0, define: 0 }
    const first = (verb: Verb) => Effect.suspend(() => plan[verb]?.(calls[verb]++) ?? Effect.void)
    return {
      define: (settings, by) => Effect.zipRight(first("define"), real.define(settings, by)),
      claim: (request) => Effect.zipRight(first("claim"), real.claim(request)),
      renew: (renewals) => Effect.zipRight(first("renew"), real.renew(renewals)),
      settle: (queue, settlements, how) => Effect.zipRight(first("settle"), real.settle(queue, settlements, how))
    }
  }

/** A call of a verb, by its number, throws instead of answering an effect. */
const throwing =
  (verb: Verb, at: number) =>
  (real: Queue.Service): Partial<Queue.Service> => {
    let calls = 0
    const call = real[verb] as (...given: ReadonlyArray<unknown>) => unknown
    return {
      [verb]: (...given: ReadonlyArray<unknown>) => {
        if (calls++ === at) throw new Error("thrown")
        return call(...given)
      }
    }
  }

const refusal = (operation: string) =>
  new Errors.StoreError({ reason: "other", operation, message: `${operation}: refused`, cause: undefined })

export const workerFaultsSuite: Suite = (engine, options) => {
  virtual(engine, options, "a worker on a bad day", (it) => {
    for (const verb of ["claim", "renew", "settle"] as const) {
      const second = (bad: Effect.Effect<never>) =>
        before({ [verb]: (call: number) => (call === 1 ? bad : Effect.void) })
      for (const [how, replace] of [
        ["a defect", second(Effect.die("boom"))],
        ["a hostile defect", second(Effect.die(hostile()))],
        ["an interrupt of its own", second(Effect.interrupt)],
        ["a throw", throwing(verb, 1)]
      ] as const) {
        it.effect(`${how} in ${verb}: the fiber is started again, no job is lost or run twice (G74)`, () =>
          Effect.gen(function* () {
            const queue = freshQueue()
            let runs = 0
            const { of, worker } = yield* withQueue(
              replace,
              observe(queue, {
                handler: () =>
                  Effect.zipRight(
                    Effect.sync(() => void runs++),
                    Effect.sleep("20 seconds")
                  ),
                concurrency: 1,
                visibilityTimeout: "6 seconds"
              })
            )
            yield* queue.enqueueMany(numbers(3), { maxAttempts: 2 })
            yield* Testing.advance("90 seconds")
            yield* expectEmpty(queue)
            expect(runs).toBe(3)
            expect(of("Acked")).toHaveLength(3)
            expect(of("LeaseLost")).toEqual([])
            expect(of("Restarted")).toHaveLength(1)
            expect(yield* worker.health).toMatchObject({ healthy: true })
          })
        )
      }
    }

    for (const [how, replace] of [
      ["an interrupt of its own", before({ define: (call) => (call === 0 ? Effect.interrupt : Effect.void) })],
      ["a throw", throwing("define", 0)]
    ] as const) {
      it.effect(`${how} where it gives its word on the queue: it is started again, and works (G74)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const { of, worker } = yield* withQueue(replace, observe(queue, { handler: () => Effect.void }))
          yield* queue.enqueue(1)
          yield* Testing.advance("20 seconds")
          yield* expectEmpty(queue)
          expect(of("Acked")).toHaveLength(1)
          expect(yield* worker.health).toMatchObject({ healthy: true })
        })
      )
    }

    for (const [how, limit] of [
      ["an answer to a retry by hand that comes after a look at the lease", "1 hour"],
      ["a retry by hand that is interrupted when it has been done", "2 seconds"]
    ] as const) {
      it.effect(`${how}: the lease is not told to be lost (G43, G77)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          let slow = true
          const { of, tags, worker } = yield* withQueue(
            (real) => ({
              settle: (name, settlements, options) =>
                Effect.zipLeft(real.settle(name, settlements, options), Effect.sleep(slow ? "5 seconds" : 0))
            }),
            observe(queue, {
              handler: (job) =>
                Effect.ensuring(
                  job.retry({ delay: "1 hour" }),
                  Effect.sync(() => (slow = false))
                ),
              timeout: limit,
              visibilityTimeout: "9 seconds"
            })
          )
          yield* queue.enqueue(1)
          yield* Testing.advance("20 seconds")
          expect(tags()).toEqual(["Started", ...(limit === "1 hour" ? [] : ["TimedOut"]), "Retried"])
          expect(of("LeaseLost")).toEqual([])
          expect(yield* worker.status).toMatchObject({ retried: 1, lost: 0, running: 0 })
          expect(yield* onlyRow(queue)).toMatchObject({ state: "delayed", attempt: 1 })
        })
      )
    }

    it.effect("one that has never claimed, and should have, says so (G77)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const wake = yield* Wake.Wake
        const polls = { ...wake, pollInterval: Duration.seconds(1), liveInterval: undefined }
        const { worker } = yield* withQueue(
          () => ({ claim: () => Effect.never }),
          Effect.provideService(observe(queue, { handler: () => Effect.void }), Wake.Wake, polls)
        )
        yield* Testing.advance("10 minutes")
        const { healthy, lastClaimMillisAgo, problems } = yield* worker.health
        expect({ healthy, lastClaimMillisAgo }).toEqual({ healthy: false, lastClaimMillisAgo: undefined })
        expect(problems.join()).toContain("has not claimed")
      })
    )

    // Without wakes it looks every second anyway
    if (!options.silent)
      it.effect("a defect in a claim while a later job is known: that starts when it is due (G58, G74)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          let bad = false
          const ran: Array<number> = []
          const { of } = yield* withQueue(
            before({
              claim: () =>
                bad
                  ? Effect.zipRight(
                      Effect.sync(() => (bad = false)),
                      Effect.die("boom")
                    )
                  : Effect.void
            }),
            observe(queue, {
              handler: () => Effect.map(Clock.currentTimeMillis, (now) => void ran.push(Math.floor(now)))
            })
          )
          const start = yield* Clock.currentTimeMillis
          yield* queue.enqueue("later", { delay: "2 minutes" })
          // The one that it waits for
          const { id } = yield* queue.enqueue("sooner", { delay: "1 minute" })
          yield* Testing.advance("5 seconds")
          bad = true
          yield* queue.cancel(id)
          yield* Testing.advance("3 minutes")
          expect(of("Restarted")).toHaveLength(1)
          expect(ran).toEqual([start + 120_000])
        })
      )

    it.effect("a defect while it is decided what becomes of a failed job: the job goes back (G74)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let broken = 0
        const { tags, worker } = yield* withQueue(
          (real) => ({
            claim: (request) =>
              Effect.map(real.claim(request), (result) => ({
                ...result,
                jobs: result.jobs.map((job) =>
                  Object.defineProperty({ ...job }, "failureTimes", {
                    get: () => {
                      if (broken++ === 0) throw new Error("boom")
                      return job.failureTimes
                    }
                  })
                )
              }))
          }),
          observe(queue, {
            handler: ({ attempt }) => (broken === 0 ? Effect.fail("no") : Effect.sync(() => expect(attempt).toBe(1)))
          })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("10 seconds")
        yield* expectEmpty(queue)
        expect(tags()).toEqual(["Started", "Released", "Started", "Acked"])
        expect(yield* worker.status).toMatchObject({ running: 0, settling: 0 })
      })
    )

    it.effect("the database gone: it says so, waits, comes back; what ended meanwhile is acked once (G43, G75)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let down = false
        let runs = 0
        const failing = (verb: string) => () => (down ? Effect.fail(gone(verb)) : Effect.void)
        const { of, tags, worker } = yield* withQueue(
          before({ claim: failing("claim"), renew: failing("renew"), settle: failing("settle") }),
          observe(queue, {
            handler: () =>
              Effect.zipRight(
                Effect.sync(() => void runs++),
                Effect.sleep("5 seconds")
              ),
            visibilityTimeout: "1 minute"
          })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("2 seconds")
        down = true
        // A look for more, so that it is seen at once
        yield* queue.enqueue(2)
        yield* Testing.advance("25 seconds")
        expect(of("Outage")).toHaveLength(1)
        expect(of("Acked")).toEqual([])
        const sick = yield* worker.health
        expect(sick.healthy).toBe(false)
        expect(sick.problems.join()).toContain("the connection is gone")
        expect(yield* onlyRowOf(queue, 1)).toMatchObject({ state: "leased", attempt: 1 })
        down = false
        yield* Testing.advance("20 seconds")
        yield* expectEmpty(queue)
        expect(runs).toBe(2)
        expect(of("Recovered")).toHaveLength(1)
        expect(of("Acked")).toHaveLength(2)
        expect(tags()).not.toContain("LeaseLost")
        expect(yield* worker.health).toMatchObject({ healthy: true, problems: [] })
      })
    )

    it.effect(
      "gone for longer than the lease: the end of the first run is refused if another has taken it (G28, G43)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          let down = false
          const failing = (verb: string) => () => (down ? Effect.fail(gone(verb)) : Effect.void)
          const { of } = yield* withQueue(
            before({ claim: failing("claim"), renew: failing("renew"), settle: failing("settle") }),
            observe(queue, { handler: () => Effect.sleep("3 seconds"), visibilityTimeout: "10 seconds" })
          )
          yield* queue.enqueue(1)
          yield* Testing.advance("2 seconds")
          down = true
          yield* Testing.advance("30 seconds")
          const [mine] = yield* queue.claim({ visibilityTimeout: "1 hour" })
          expect(mine).toMatchObject({ attempt: 2, crashes: 1 })
          down = false
          yield* Testing.advance("30 seconds")
          expect(of("Acked")).toEqual([])
          expect(of("LeaseLost")).toHaveLength(1)
          expect(yield* onlyRow(queue)).toMatchObject({ state: "leased", worker: "manual" })
          yield* mine?.ack ?? Effect.void
        })
    )

    const endings = {
      Acked: Effect.void,
      Retried: Effect.fail("again"),
      Died: Effect.fail("no more")
    }
    for (const [event, end] of Object.entries(endings)) {
      it.effect(`the answer to a settle is lost: found done, it counts as done (${event}; G42)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          let lost = 0
          const { of, tags } = yield* withQueue(
            (real) => ({
              settle: (...call) =>
                Effect.flatMap(real.settle(...call), (answer) =>
                  lost++ === 0 ? Effect.fail(gone("settle")) : Effect.succeed(answer)
                )
            }),
            observe(queue, { handler: () => end, retry: Schedule.spaced("1 hour") })
          )
          yield* queue.enqueue(1, { maxAttempts: event === "Died" ? 1 : 5 })
          yield* Testing.advance("10 seconds")
          expect(tags()).toEqual(["Started", event])
          expect(of("LeaseLost")).toEqual([])
          expect(yield* liveRows(queue)).toHaveLength(event === "Retried" ? 1 : 0)
          expect(yield* deadRows(queue)).toHaveLength(event === "Died" ? 1 : 0)
        })
      )
    }

    it.effect("a job that the database will not take keeps no other from moving on (G41, G49)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of } = yield* withQueue(
          (real) => ({
            settle: (name, settlements, how) =>
              settlements.some((one) => one._tag !== "Ack" && one.history.errors?.includes("poison") === true)
                ? Effect.fail(refusal("settle"))
                : real.settle(name, settlements, how)
          }),
          observe(queue, {
            handler: ({ payload }) => (payload === 3 ? Effect.fail("poison") : Effect.void),
            retry: Schedule.spaced("1 hour")
          })
        )
        yield* queue.enqueueMany(numbers(8))
        yield* Testing.advance("10 seconds")
        const row = yield* onlyRow(queue)
        expect(row).toMatchObject({ payload: "3", state: "delayed", failures: 1 })
        expect(row.errors[0]?.message).toContain("could not be stored")
        expect(of("Acked")).toHaveLength(7)
        expect(of("Retried")).toHaveLength(1)
      })
    )

    it.effect("a defect between two settles of a batch: what is settled is not settled again (G74)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const refused = new Errors.StoreError({
          reason: "constraint",
          operation: "settle",
          message: "no",
          cause: undefined
        })
        const calls: Array<ReadonlyArray<number>> = []
        const { of } = yield* withQueue(
          (real) => ({
            settle: (name, settlements, options) => {
              calls.push(settlements.map(({ id }) => id))
              if (settlements.length > 1) return Effect.fail(refused)
              return calls.length === 3 ? Effect.die("defect") : real.settle(name, settlements, options)
            }
          }),
          observe(queue, { handler: () => Effect.void, concurrency: 2 })
        )
        const ids = (yield* queue.enqueueMany([1, 2])).map(({ id }) => id)
        yield* passing("both are settled", () => calls.length > 3 && of("Acked").length > 1)
        expect(calls.slice(0, 4)).toEqual([ids, ids.slice(0, 1), ids.slice(1), ids.slice(1)])
        expect(of("Acked").map(({ job }) => job.jobId)).toEqual(ids)
      })
    )

    it.effect("a job that the database will not take at all is left to its lease, and told (G41)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let refusing = true
        const { of, worker } = yield* withQueue(
          (real) => ({
            settle: (name, settlements, how) =>
              refusing ? Effect.fail(refusal("settle")) : real.settle(name, settlements, how)
          }),
          observe(queue, { handler: () => Effect.void, visibilityTimeout: "10 seconds" })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("3 seconds")
        expect(of("LeaseLost")).toHaveLength(1)
        expect(yield* worker.status).toMatchObject({ settling: 0, running: 0 })
        refusing = false
        yield* Testing.advance("20 seconds")
        yield* expectEmpty(queue)
      })
    )

    it.effect("a row that somebody has locked is settled when it is free", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let locked = 3
        const { of } = yield* withQueue(
          (real) => ({
            settle: (name, settlements, how) =>
              locked-- > 0
                ? Effect.succeed(settlements.map(() => "busy" as const))
                : real.settle(name, settlements, how)
          }),
          observe(queue, { handler: () => Effect.void })
        )
        yield* queue.enqueueMany(numbers(3))
        yield* Testing.advance("3 seconds")
        yield* expectEmpty(queue)
        expect(of("Acked")).toHaveLength(3)
      })
    )

    it.effect("a row that stays locked is tried again now and then, not all the time", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let locked = true
        const tries: Array<number> = []
        const { of } = yield* withQueue(
          (real) => ({
            settle: (...given) =>
              Effect.flatMap(Clock.currentTimeMillis, (now) => {
                // Whoever tries again and again at the same instant would let no time pass
                if (tries.push(now) > 200) return Effect.never
                return locked ? Effect.succeed(given[1].map(() => "busy" as const)) : real.settle(...given)
              })
          }),
          observe(queue, { handler: () => Effect.void })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("2 seconds")
        expect(tries.length).toBeGreaterThan(3)
        expect(new Set(tries).size).toBe(tries.length)
        locked = false
        yield* Testing.advance("1 second")
        yield* expectEmpty(queue)
        expect(of("Acked")).toHaveLength(1)
      })
    )

    it.effect("a handler's failure in a transaction rolls it back, and no more", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const other = freshQueue()
        const { of } = yield* observe(queue, {
          handler: () => Queue.transaction(Effect.zipRight(other.enqueue(1), Effect.fail("no")))
        })
        yield* queue.enqueue(1, { maxAttempts: 1 })
        yield* passing("it is dead", () => of("Died").length === 1)
        expect(yield* onlyLetter(queue)).toMatchObject({ reason: "exhausted", errors: [{ message: "no" }] })
        yield* expectEmpty(other)
      })
    )
  })

  live(engine, options, "a worker that is started inside a transaction", (it) => {
    it.effect("does not keep it, nor do its handlers (G12)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const other = freshQueue()
        const sql = yield* SqlClient.SqlClient
        const worker = yield* sql.withTransaction(
          Effect.zipRight(
            queue.enqueue("inside"),
            Worker.fork(queue, {
              shutdownGrace: 0,
              // Independent of everything: it stays although the job fails
              handler: () => Effect.zipRight(other.enqueue(1), Effect.fail("no")),
              retry: Schedule.stop
            })
          )
        )
        yield* queue.enqueue("after")
        yield* eventually("both ran", deadRows(queue), (rows) => rows.length === 2)
        expect(yield* liveRows(other)).toHaveLength(2)
        expect(yield* worker.status).toMatchObject({ state: "running", lost: 0 })
      })
    )

    it.effect("that rolls back, works all the same", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const sql = yield* SqlClient.SqlClient
        let worker: Worker.Worker | undefined
        yield* Effect.flip(
          sql.withTransaction(
            Effect.gen(function* () {
              yield* queue.enqueue("rolled back")
              worker = yield* Worker.fork(queue, { shutdownGrace: 0, handler: () => Effect.void })
              yield* Effect.fail("rollback")
            })
          )
        )
        yield* queue.enqueue("after")
        yield* eventually(
          "it ran",
          Effect.suspend(() => (worker as Worker.Worker).status),
          ({ acked }) => acked === 1
        )
        yield* expectEmpty(queue)
      })
    )
  })
}

const hostile = (): object =>
  new Proxy(
    {},
    {
      get: () => {
        throw new Error("get")
      }
    }
  )

const onlyRowOf = (queue: { readonly name: string }, payload: number) =>
  Effect.map(liveRows(queue), (rows) => rows.find((row) => row.payload === String(payload)))
