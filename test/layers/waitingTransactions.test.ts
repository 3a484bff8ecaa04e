/** Who waits for a connection to begin a transaction with: it can be interrupted, and no handler has run yet. */
import type { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Queue, transaction, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Deferred, Effect, Fiber, Layer, Redacted, Schedule, Schema } from "effect"
import { describe, expect, inject, test } from "vitest"
import { liveRows } from "../conformance/support.js"
import { eventually } from "../conformance/workerSupport.js"
import { temporaryFile } from "../support/engines.js"
import { createDatabase } from "../support/postgres.js"

const Numbers = Queue.make("numbers", { payload: Schema.Number })

type Services = Pg.Services | SqlClient.SqlClient

/** Whose application has one connection. */
const engines: Readonly<Record<string, Layer.Layer<Services, unknown>>> = {
  PostgreSQL: Layer.unwrapEffect(
    Effect.map(
      Effect.promise(() => createDatabase(inject("pgUrl"))),
      (url) => Layer.provideMerge(Pg.layer(), PgClient.layer({ url: Redacted.make(url), maxConnections: 1 }))
    )
  ),
  SQLite: Layer.unwrapScoped(
    Effect.map(temporaryFile, (filename) => Layer.provideMerge(Sqlite.layer(), SqliteClient.layer({ filename })))
  )
}

/** When the lease of the one job ends, as the database has it. */
const deadline = Effect.map(Numbers.running(), ([job]) => job?.deadline ?? 0)

/** Somebody has the connection until the gate is opened. */
const taken = Effect.gen(function* () {
  const gate = yield* Deferred.make<void>()
  const has = yield* Deferred.make<void>()
  const fiber = yield* Effect.fork(transaction(Effect.zipRight(Deferred.succeed(has, undefined), Deferred.await(gate))))
  yield* Deferred.await(has)
  return { open: Effect.zipRight(Deferred.succeed(gate, undefined), Fiber.join(fiber)), over: Fiber.poll(fiber) }
})

describe.each(Object.entries(engines))("%s", (name, layer) => {
  const run = (self: Effect.Effect<unknown, unknown, Services>) =>
    Effect.runPromise(Effect.asVoid(Effect.provide(self, layer)))

  test("a transaction that waits ends with its timeout, and keeps no connection (G16)", () =>
    run(
      Effect.gen(function* () {
        const { open, over } = yield* taken
        let ran = 0
        const body = Effect.sync(() => ran++)
        const result = yield* Effect.either(Effect.timeout(transaction(body), "100 millis"))
        expect(result).toMatchObject({ _tag: "Left", left: { _tag: "TimeoutException" } })
        expect((yield* over)._tag).toBe("None")
        const next = yield* Effect.fork(transaction(body))
        yield* open
        yield* Fiber.join(next)
        expect(ran).toBe(1)
      })
    ))

  test("where it cannot be interrupted, it waits (G16)", () =>
    run(
      Effect.gen(function* () {
        const { open } = yield* taken
        let ran = 0
        const fiber = yield* Effect.fork(Effect.uninterruptible(transaction(Effect.sync(() => ran++))))
        yield* Effect.yieldNow()
        yield* Fiber.interruptFork(fiber)
        yield* Effect.repeatN(Effect.yieldNow(), 100)
        yield* open
        yield* Fiber.await(fiber)
        expect(ran).toBe(1)
      })
    ))

  // On SQLite nothing is renewed while somebody else has the one connection
  if (name === "PostgreSQL") {
    test("a handler that waits for its transaction does not run out of time (G50, G120)", () =>
      run(
        Effect.scoped(
          Effect.gen(function* () {
            const { open } = yield* taken
            let ran = 0
            const worker = yield* Worker.make(Numbers, {
              transactional: true,
              concurrency: 1,
              timeout: "100 millis",
              stuckAfter: "100 millis",
              visibilityTimeout: "1 second",
              handler: () => Effect.sync(() => ran++),
              shutdownGrace: 0
            })
            yield* Queue.outsideTransaction(Numbers.enqueue(1, { maxAttempts: 2 }))
            const first = yield* eventually("it is claimed", deadline, (at) => at > 0)
            yield* eventually("its lease is renewed", deadline, (at) => at > first + 1_500)
            expect(ran).toBe(0)
            yield* open
            yield* eventually("it is done", liveRows(Numbers), ({ length }) => length === 0)
            expect(ran).toBe(1)
            expect(yield* worker.status).toMatchObject({ state: "running", acked: 1, stuck: 0 })
          })
        )
      ))

    test("its time runs from then on (G120)", () =>
      run(
        Effect.scoped(
          Effect.gen(function* () {
            const { open } = yield* taken
            yield* Worker.make(Numbers, {
              transactional: true,
              timeout: "300 millis",
              visibilityTimeout: "1 hour",
              // One soon, and then none for long
              heartbeat: Schedule.union(Schedule.exponential("400 millis", 100), Schedule.spaced("10 minutes")),
              handler: () => Effect.never,
              shutdownGrace: 0
            })
            yield* Queue.outsideTransaction(Numbers.enqueue(1, { maxAttempts: 2 }))
            const first = yield* eventually("it is claimed", deadline, (at) => at > 0)
            // By then its time would have been over
            yield* eventually("its lease is renewed", deadline, (at) => at > first)
            yield* open
            yield* eventually("it has failed", liveRows(Numbers), ([row]) => row?.failures === 1)
            expect(yield* liveRows(Numbers)).toMatchObject([{ attempt: 1, errors: [{ kind: "timeout" }] }])
          })
        )
      ))

    test.each([true, false])(
      "one whose worker is stopped meanwhile is released: transactional %s (G81)",
      (transactional) =>
        run(
          Effect.gen(function* () {
            const { open } = yield* taken
            yield* Effect.scoped(
              Effect.gen(function* () {
                yield* transactional
                  ? Worker.make(Numbers, { transactional, handler: () => Effect.void, shutdownGrace: "50 millis" })
                  : Worker.make(Numbers, { handler: () => transaction(Effect.void), shutdownGrace: "50 millis" })
                yield* Queue.outsideTransaction(Numbers.enqueue(1, { maxAttempts: 2 }))
                yield* eventually("it is claimed", liveRows(Numbers), ([row]) => row?.state === "leased")
              })
            )
            expect(yield* liveRows(Numbers)).toMatchObject([{ state: "ready", attempt: 0 }])
            yield* open
          })
        )
    )
  }
})
