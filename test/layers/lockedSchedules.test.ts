/**
 * Schedules of which one waits for what an open transaction of the application has locked, on a real PostgreSQL whose statements
 * may take an hour.
 */

import { SqlClient } from "@effect/sql"
import { Queue, Schedules, transaction } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Deferred, Effect, Fiber, Option, Redacted, Schema } from "effect"
import { expect, inject, test } from "vitest"
import { eventually } from "../conformance/workerSupport.js"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.String })

const info = (name: string) => Effect.map(Schedules.get(name), Option.getOrThrow)

type Held = { readonly end: Effect.Effect<void, unknown> }

/** Beside an open transaction that has enqueued with these dedupe keys. */
const beside = <A, E>(
  keys: ReadonlyArray<string>,
  options: Pg.Options,
  use: (held: Held) => Effect.Effect<A, E, Pg.Services | SqlClient.SqlClient>
): Promise<A> => {
  const program = Effect.gen(function* () {
    const open = yield* Deferred.make<void>()
    const close = yield* Deferred.make<void>()
    const enqueues = Letters.enqueueMany(keys, (dedupeKey) => ({ dedupeKey }))
    const inside = Effect.zipRight(Deferred.succeed(open, undefined), Deferred.await(close))
    const held = yield* Effect.fork(transaction(Effect.zipRight(enqueues, inside)))
    yield* Deferred.await(open)
    return yield* use({ end: Effect.zipRight(Deferred.succeed(close, undefined), Fiber.join(held)) })
  })
  const database = Effect.promise(() => createDatabase(inject("pgUrl")))
  const layer = (url: string) => Pg.layerUrl(Redacted.make(url), { statementTimeout: "1 hour", ...options })
  return Effect.runPromise(Effect.flatMap(database, (url) => Effect.provide(Effect.scoped(program), layer(url))))
}

test(
  "a schedule whose dedupe key an open transaction holds keeps no other from its boundaries, and owes its own (G107)",
  () =>
    beside(["k"], {}, ({ end }) =>
      Effect.gen(function* () {
        const rule = { every: "1 second", queue: Letters } as const
        for (const name of ["a", "b", "c"])
          yield* Schedules.put(
            Schedules.make(name, { ...rule, payload: name, ...(name === "b" && { dedupeKey: "k" }) })
          )
        for (const name of ["a", "c"]) yield* eventually(`${name} fires`, info(name), ({ fired }) => fired >= 3)
        const waiting = yield* info("b")
        expect(waiting).toMatchObject({ fired: 0, lastError: { message: expect.stringContaining("holds the lock") } })
        yield* end
        yield* Letters.cancelMany({ dedupeKey: "k" })
        yield* eventually("b fires", info("b"), ({ fired, lastError }) => fired >= 1 && lastError === undefined)
      })
    ),
  60_000
)

test("sixty that wait for locks make no other late: under skip it fires (G103, G107)", () => {
  const keys = Array.from({ length: 60 }, (_, index) => `k${index}`)
  return beside(keys, {}, ({ end }) =>
    Effect.gen(function* () {
      // One boundary, soon, and none for an hour after it
      const rule = { every: "1 hour", anchor: new Date(Date.now() + 5_000), queue: Letters, payload: "a" } as const
      for (const dedupeKey of keys) yield* Schedules.put(Schedules.make(dedupeKey, { ...rule, dedupeKey }))
      yield* Schedules.put(Schedules.make("the last by name", { ...rule, catchUp: "skip" }))
      yield* eventually("it fires", info("the last by name"), ({ fired }) => fired === 1)
      expect(yield* info("k59")).toMatchObject({ fired: 0 })
      yield* end
    })
  )
}, 60_000)

test(
  "a schedule whose owed boundary waits for an open transaction can be changed, paused and resumed, and owes it (G104, G107, G108)",
  () =>
    beside(["k"], { scheduler: false }, ({ end }) =>
      Effect.gen(function* () {
        const schedules = yield* Schedules.Schedules
        const rule = { every: "1 hour", anchor: new Date(Date.now() + 1_000), queue: Letters, dedupeKey: "k" } as const
        const put = (payload: string) => Schedules.put(Schedules.make("a", { ...rule, payload }))
        yield* put("before")
        yield* eventually("it is due", schedules.nextInMillis, (millis) => (millis ?? 1) <= 0)
        const { nextAt } = yield* info("a")
        expect(yield* put("after")).toBe("changed")
        yield* Schedules.pause("a")
        yield* Schedules.resume("a")
        expect(yield* info("a")).toMatchObject({ fired: 0, nextAt, payload: "after" })
        // In a transaction of the application, what it has set stays as it was
        const patience = Effect.flatMap(SqlClient.SqlClient, (sql) => sql`SHOW lock_timeout`)
        const set = Effect.flatMap(SqlClient.SqlClient, (sql) => sql`SET LOCAL lock_timeout = '17s'`)
        const pausing = transaction(Effect.all([set, Schedules.pause("a"), patience]))
        expect((yield* pausing)[2]).toEqual([{ lock_timeout: "17s" }])
        yield* Schedules.resume("a")
        yield* end
        yield* Letters.cancelMany({ dedupeKey: "k" })
        expect((yield* pausing)[2]).toEqual([{ lock_timeout: "17s" }])
        expect(yield* info("a")).toMatchObject({ fired: 1 })
      })
    ),
  60_000
)
