/**
 * Schedules of which one waits for what an open transaction of the application has locked, on a real PostgreSQL whose statements
 * may take an hour.
 */
import { Queue, Schedules, transaction } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Deferred, Effect, Fiber, Option, Redacted, Schema } from "effect"
import { expect, inject, test } from "vitest"
import { eventually } from "../conformance/workerSupport.js"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.String })

const info = (name: string) => Effect.map(Schedules.get(name), Option.getOrThrow)

test("a schedule whose dedupe key an open transaction holds keeps no other from its boundaries, and owes its own (G107)", async () => {
  const layer = Pg.layerUrl(Redacted.make(await createDatabase(inject("pgUrl"))), { statementTimeout: "1 hour" })
  const program = Effect.gen(function* () {
    const open = yield* Deferred.make<void>()
    const close = yield* Deferred.make<void>()
    const inside = Effect.zipRight(Deferred.succeed(open, undefined), Deferred.await(close))
    const held = yield* Effect.fork(transaction(Effect.zipRight(Letters.enqueue("mine", { dedupeKey: "k" }), inside)))
    yield* Deferred.await(open)
    const rule = { every: "1 second", queue: Letters } as const
    for (const name of ["a", "b", "c"])
      yield* Schedules.put(Schedules.make(name, { ...rule, payload: name, ...(name === "b" && { dedupeKey: "k" }) }))
    for (const name of ["a", "c"]) yield* eventually(`${name} fires`, info(name), ({ fired }) => fired >= 3)
    const waiting = yield* info("b")
    expect(waiting).toMatchObject({ fired: 0, lastError: { message: expect.stringContaining("holds the lock") } })
    yield* Deferred.succeed(close, undefined)
    yield* Fiber.join(held)
    yield* Letters.cancelMany({ dedupeKey: "k" })
    yield* eventually("b fires", info("b"), ({ fired, lastError }) => fired >= 1 && lastError === undefined)
  }).pipe(Effect.scoped, Effect.provide(layer))
  await Effect.runPromise(program)
}, 60_000)
