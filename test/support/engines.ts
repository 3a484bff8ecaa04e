/**
 * The engines under test: each a Layer of a fresh database. Under TestClock (`virtual`) rows are stamped by the test's
 * clock on both engines, so that leases, delays and backoff follow `Testing.advance`.
 */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Duration, Effect, Layer, Redacted } from "effect"
import { inject } from "vitest"
import * as PollWake from "../../src/layers/Wake/PollWake.js"
import * as Pg from "../../src/Pg.js"
import * as Sqlite from "../../src/Sqlite.js"
import { createDatabase, dropDatabase } from "./postgres.js"

export interface EngineOptions {
  /** TestClock rules; wakes are this process's own. Default: real time, the engine's own wakes. */
  readonly virtual?: boolean
  /** No wake ever comes; the poll interval is short. */
  readonly silent?: boolean
  /** Whether schedules fire by themselves. Default: in real time only, where looking for them costs no timers. */
  readonly scheduler?: boolean
  readonly sqlite?: Sqlite.Options
  readonly postgres?: Pg.Options
}

export type EngineServices = Sqlite.Services | SqlClient.SqlClient

export interface EngineUnderTest {
  readonly name: string
  readonly engine: "postgres" | "sqlite"
  readonly layer: (options?: EngineOptions) => Layer.Layer<EngineServices, unknown>
  /** The same engine once more over a client that is there already: another namespace, another process's Layer. */
  readonly beside: (options?: EngineOptions) => Layer.Layer<Sqlite.Services, unknown, SqlClient.SqlClient>
  /** A client of another fresh database. */
  readonly client: Layer.Layer<SqlClient.SqlClient, unknown>
  /** A table of the default namespace, quoted for SQL: for what only an operator with a console can do. */
  readonly table: (name: string) => string
  /** Whether something can be written beside an open transaction of the queue's client: it has more connections. */
  readonly besideTransactions: boolean
}

const namespaced = {
  postgres: (name: string) => `"alkstore"."${name}"`,
  sqlite: (name: string) => `"_alkstore_${name}"`
}

const seams = ({ silent, virtual }: EngineOptions) => ({
  ...(silent === true
    ? { wake: PollWake.layerSilent(Duration.millis(virtual === true ? 1_000 : 50)) }
    : virtual === true
      ? { wake: PollWake.layerLocal(Duration.days(1), "", true) }
      : {}),
  virtualTime: virtual === true
})

export const temporaryFile = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "alkstore-test-"))),
  (directory) => Effect.sync(() => rmSync(directory, { recursive: true, force: true }))
).pipe(Effect.map((directory) => join(directory, "test.db")))

const loops = ({ scheduler, virtual }: EngineOptions) => ({
  sweeper: virtual !== true,
  scheduler: scheduler ?? virtual !== true
})

const sqliteServices = (options: EngineOptions) =>
  Sqlite.layerWith({ ...loops(options), ...options.sqlite }, seams(options))

const postgresServices = (options: EngineOptions) =>
  Pg.layerWith(
    { ...loops(options), ...options.postgres },
    { ...seams(options), processClock: options.virtual === true }
  )

const sqliteOn = (filename: string, options: EngineOptions) =>
  Layer.provideMerge(sqliteServices(options), SqliteClient.layer({ filename }))

/** The generic client is the driver's own, under another tag. */
const sqliteBeside = (options: EngineOptions = {}) =>
  Layer.provide(
    sqliteServices(options),
    Layer.effect(
      SqliteClient.SqliteClient,
      Effect.map(SqlClient.SqlClient, (sql) => sql as SqliteClient.SqliteClient)
    )
  )

const postgresClient = Layer.unwrapScoped(
  Effect.map(
    Effect.acquireRelease(
      Effect.promise(() => createDatabase(inject("pgUrl"))),
      (url) => Effect.promise(() => dropDatabase(inject("pgUrl"), url))
    ),
    (url) => PgClient.layer({ url: Redacted.make(url) })
  )
)

export const sqliteFile: EngineUnderTest = {
  name: "SQLite file",
  engine: "sqlite",
  layer: (options = {}) => Layer.unwrapScoped(Effect.map(temporaryFile, (filename) => sqliteOn(filename, options))),
  beside: sqliteBeside,
  table: namespaced.sqlite,
  besideTransactions: false,
  client: Layer.unwrapScoped(Effect.map(temporaryFile, (filename) => SqliteClient.layer({ filename })))
}

export const sqliteMemory: EngineUnderTest = {
  name: "SQLite memory",
  engine: "sqlite",
  layer: (options = {}) => sqliteOn(":memory:", options),
  beside: sqliteBeside,
  table: namespaced.sqlite,
  besideTransactions: false,
  client: SqliteClient.layer({ filename: ":memory:" })
}

export const postgres: EngineUnderTest = {
  name: "PostgreSQL",
  engine: "postgres",
  layer: (options = {}) => Layer.provideMerge(postgresServices(options), postgresClient),
  beside: (options = {}) =>
    Layer.provide(
      postgresServices(options),
      Layer.effect(
        PgClient.PgClient,
        Effect.map(SqlClient.SqlClient, (sql) => sql as PgClient.PgClient)
      )
    ),
  client: Layer.fresh(postgresClient),
  table: namespaced.postgres,
  besideTransactions: true
}
