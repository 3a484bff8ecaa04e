/**
 * Fibers of one transaction that call at the same moment, at several paces of the runtime: none doubles, undoes or breaks
 * what another does (G209).
 */
import { SqlClient } from "@effect/sql"
import { type Queue, Schedules, transaction } from "alkstore"
import { Effect, Either } from "effect"
import { describe, expect } from "vitest"
import { freshName, freshQueue, liveRows, refuse, virtual } from "../conformance/support.js"
import { postgres, sqliteMemory } from "../support/engines.js"

const numbers = (count: number) => Array.from({ length: count }, (_, n) => n)

/** A fiber gives way after so many steps. Effect's own pace is the last. */
const paces = [11, 13, 16, 19, 23, 29, 37, 53, 2048]

const atEachPace = <A, E, R>(
  scene: (pace: <B, F, Q>(self: Effect.Effect<B, F, Q>) => Effect.Effect<B, F, Q>) => Effect.Effect<A, E, R>
) => Effect.forEach(paces, (steps) => scene(Effect.withMaxOpsBeforeYield(steps)))

/** The same call by two fibers. */
const twice = <A, E, R>(self: Effect.Effect<A, E, R>) => Effect.all([self, self], { concurrency: 2 })

describe.each([sqliteMemory, postgres])("$name", (engine) => {
  const refuseNine = ({ name }: { readonly name: string }) => {
    const jobs = engine.table("jobs")
    const trigger = freshName("refusal").replace("-", "_")
    return refuse(engine.engine, trigger, jobs, `NEW.queue = '${name}' AND NEW.payload = '9'`)
  }

  virtual(engine, { silent: false }, "fibers of one transaction", (it) => {
    it.effect("never claim the same job (G19)", () =>
      Effect.gen(function* () {
        yield* atEachPace((pace) =>
          Effect.gen(function* () {
            const queue = freshQueue()
            yield* queue.enqueueMany(numbers(20))
            const claims = Effect.replicateEffect(queue.claim({ limit: 1 }), 10)
            const ids = (yield* transaction(pace(twice(claims)))).flat(2).map(({ id }) => id)
            expect(new Set(ids).size).toBe(20)
          })
        )
        const queue = freshQueue()
        yield* queue.enqueueMany(numbers(400))
        const claims = Effect.replicateEffect(queue.claim({ limit: 1 }), 200)
        const ids = (yield* transaction(twice(claims))).flat(2).map(({ id }) => id)
        expect(new Set(ids).size).toBe(400)
      })
    )

    it.effect("enqueue one job for each dedupe key (G9)", () =>
      Effect.gen(function* () {
        yield* atEachPace((pace) =>
          Effect.gen(function* () {
            const queue = freshQueue()
            yield* transaction(pace(twice(queue.enqueueMany(numbers(50), (n) => ({ dedupeKey: `${n}` })))))
            expect(yield* liveRows(queue)).toHaveLength(50)
          })
        )
        const queue = freshQueue()
        yield* transaction(twice(queue.enqueueMany(numbers(1_000), (n) => ({ dedupeKey: `${n}` }))))
        expect(yield* liveRows(queue)).toHaveLength(1_000)
      })
    )

    // On PostgreSQL a failed statement ends the transaction
    if (engine.engine === "sqlite")
      it.effect("what one fails at, and catches, undoes nothing of another's (G2, G12, G209)", () =>
        atEachPace((pace) =>
          Effect.gen(function* () {
            const [good, bad] = [freshQueue(), freshQueue()]
            yield* good.enqueue(0)
            yield* bad.enqueue(0)
            yield* refuseNine(bad)
            const keyed = (queue: Queue.Definition<unknown, unknown>) =>
              queue.enqueueMany(numbers(10), (n) => ({ dedupeKey: `${n}` }))
            const both = Effect.all([keyed(good), Effect.either(keyed(bad))], { concurrency: 2 })
            const [, failed] = yield* transaction(pace(both))
            expect(Either.isLeft(failed)).toBe(true)
            expect(yield* liveRows(good)).toHaveLength(11)
            expect(yield* liveRows(bad)).toHaveLength(1)
          })
        )
      )

    if (engine.engine === "sqlite")
      it.effect("nor a statement of the application's (G209)", () =>
        atEachPace((pace) =>
          Effect.gen(function* () {
            const sql = yield* SqlClient.SqlClient
            const bad = freshQueue()
            const table = sql(freshName("notes").replace("-", "_"))
            yield* sql`CREATE TABLE ${table} (n integer)`
            yield* bad.enqueue(0)
            yield* refuseNine(bad)
            const fails = Effect.either(bad.enqueueMany(numbers(10), (n) => ({ dedupeKey: `${n}` })))
            const notes = Effect.forEach(numbers(20), (n) => sql`INSERT INTO ${table} VALUES (${n})`)
            const [failed] = yield* transaction(pace(Effect.all([fails, notes], { concurrency: 2 })))
            expect(Either.isLeft(failed)).toBe(true)
            expect(yield* sql`SELECT n FROM ${table}`).toHaveLength(20)
          })
        )
      )

    it.effect("are told whose job comes first of its ordering key (G161)", () =>
      atEachPace((pace) =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const one = (n: number) => queue.enqueue(n, { orderingKey: "k" })
          const all = Effect.forEach(numbers(6), one, { concurrency: "unbounded" })
          const receipts = yield* transaction(pace(all))
          expect(receipts.filter(({ state }) => state !== "blocked")).toHaveLength(1)
        })
      )
    )

    it.effect("ack a job once (G39)", () =>
      atEachPace((pace) =>
        Effect.gen(function* () {
          const queue = freshQueue({ retainCompleted: "1 hour" })
          yield* queue.enqueueMany(numbers(10), (n) => ({ dedupeKey: `${n}` }))
          const jobs = yield* queue.claim({ limit: 10 })
          const acks = Effect.forEach(jobs, (job) => Effect.either(job.ack))
          const answers = (yield* transaction(pace(twice(acks)))).flat()
          expect(answers.filter(Either.isRight)).toHaveLength(10)
        })
      )
    )

    it.effect("requeue a letter once (G146)", () =>
      atEachPace((pace) =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueueMany(numbers(5))
          yield* Effect.forEach(yield* queue.claim({ limit: 5 }), (job) => job.fail("no"))
          const [a, b] = yield* transaction(pace(twice(queue.deadLetters.requeue({ all: true }))))
          expect(a.requeued + b.requeued).toBe(5)
          expect(yield* liveRows(queue)).toHaveLength(5)
        })
      )
    )

    it.effect("cancel a job once (G156)", () =>
      atEachPace((pace) =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueueMany(numbers(5))
          const [a, b] = yield* transaction(pace(twice(queue.cancelMany({ all: true }))))
          expect(a.cancelled + b.cancelled).toBe(5)
        })
      )
    )

    it.effect("create a schedule once (G100)", () =>
      atEachPace((pace) =>
        Effect.gen(function* () {
          const schedule = Schedules.make(freshName("hourly"), { every: "1 hour", queue: freshQueue(), payload: 1 })
          const answers = yield* transaction(pace(twice(Schedules.put(schedule))))
          expect([...answers].sort()).toEqual(["created", "unchanged"])
        })
      )
    )
  })
})
