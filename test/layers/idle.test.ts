/** A look for work that finds none writes nothing. */
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { Queue, transaction } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import Database from "better-sqlite3"
import { Effect, Layer, Redacted, Schema } from "effect"
import { expect, inject, test } from "vitest"
import { temporaryFile } from "../support/engines.js"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.String })

/** What a claim may meet and not take. */
const fill = Effect.gen(function* () {
  yield* Letters.enqueue("leased")
  yield* Letters.claim()
  yield* Letters.enqueue("delayed", { delay: "1 hour" })
})

test("G24 SQLite: a claim that finds nothing does not need the write lock", async () => {
  const program = Effect.gen(function* () {
    const filename = yield* temporaryFile
    const run = Effect.gen(function* () {
      yield* fill
      const other = yield* Effect.acquireRelease(
        Effect.sync(() => new Database(filename)),
        (database) => Effect.sync(() => database.close())
      )
      other.exec("BEGIN IMMEDIATE")
      return yield* Letters.claim({ limit: 10 })
    })
    return yield* Effect.provide(run, Sqlite.layerFile(filename, { sweeper: false, busyLimit: 0 }))
  })
  expect(await Effect.runPromise(Effect.scoped(program))).toEqual([])
})

test("G24 PostgreSQL: a claim that finds nothing takes no transaction id", async () => {
  const url = await createDatabase(inject("pgUrl"))
  const program = Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    yield* fill
    const written = (body: Effect.Effect<unknown, unknown, Queue.Queue>) =>
      transaction(
        Effect.zipRight(body, sql<{ yes: boolean }>`SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS yes`)
      )
    const idle = yield* written(Letters.claim({ limit: 10 }))
    const busy = yield* written(Letters.enqueue("ready"))
    return { idle: idle[0]?.yes, busy: busy[0]?.yes }
  })
  const layer = Layer.provideMerge(Pg.layer({ sweeper: false }), PgClient.layer({ url: Redacted.make(url) }))
  expect(await Effect.runPromise(Effect.provide(program, layer))).toEqual({ idle: false, busy: true })
})
