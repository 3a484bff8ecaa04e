/** The two engines with faults before a Layer that is built anew each time, in a namespace of its own. */
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { SqliteClient } from "@effect/sql-sqlite-node"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Effect, Layer, Redacted, type Scope } from "effect"
import pg from "pg"
import { inject } from "vitest"
import { type Names, postgresNames, sqliteNames, statement } from "../../src/layers/engine.js"
import { migrations } from "../../src/layers/Queue/migrations/migrate.js"
import { temporaryFile } from "../support/engines.js"
import { createDatabase, locksHere } from "../support/postgres.js"
import { type FaultServices, writersOf } from "./engines.js"
import type { Faults } from "./faults.js"
import { startPostgresFaults } from "./postgresFaults.js"
import { startSqliteFaults } from "./sqliteFaults.js"

export interface Ground {
  readonly name: string
  readonly faults: Faults
  /** In the connection's settings; no error may have it. Where there is none: what nobody could tell. */
  readonly secret: string
  readonly layer: (namespace: string) => Layer.Layer<FaultServices, unknown>
  /** The tables of the first version, with a job. */
  readonly installFirst: (namespace: string) => Promise<void>
  /** Everything that migrations make, as text, without the namespace's name. */
  readonly schema: (namespace: string) => string | Promise<string>
  /** Connections, locks and transactions that are there although no Layer is. */
  readonly left: () => Promise<ReadonlyArray<string>>
}

const quiet = { sweeper: false, scheduler: false } as const

/** The first version's tables as that version has made them, and a job that it has enqueued. */
const firstVersion = (n: Names): ReadonlyArray<string> => {
  const integer = n.engine === "postgres" ? "bigint" : "INTEGER"
  const [first] = migrations
  return [
    ...(n.engine === "postgres" ? [`CREATE SCHEMA ${n.schema}`] : []),
    `CREATE TABLE ${n.migrations} (version integer PRIMARY KEY, name text NOT NULL, oldest_reader integer NOT NULL, applied_at ${integer} NOT NULL)`,
    ...(first?.up[n.engine](n) ?? []).map((text) => statement(n, "migrate", text).text),
    `INSERT INTO ${n.migrations} (version, name, oldest_reader, applied_at) VALUES (1, 'initial', 1, 1)`,
    `INSERT INTO ${n.jobs} (queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, visible_at) VALUES ('letters', '"old"', 0, 0, 20, 1, 1, 1)`
  ]
}

const schemaOfPostgres = `
  SELECT string_agg(line, E'\\n' ORDER BY line) AS text FROM (
    SELECT concat_ws(' ', 'column', table_name, ordinal_position, column_name, data_type, is_nullable, column_default, collation_name) AS line
      FROM information_schema.columns WHERE table_schema = $1
    UNION ALL SELECT concat_ws(' ', 'index', indexname, indexdef) FROM pg_indexes WHERE schemaname = $1
    UNION ALL SELECT concat_ws(' ', 'constraint', conrelid::regclass, conname, pg_get_constraintdef(oid))
      FROM pg_constraint WHERE connamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
    UNION ALL SELECT concat_ws(' ', 'relation', relkind, relname)
      FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
    UNION ALL SELECT concat_ws(' ', 'function', proname, pg_get_functiondef(oid))
      FROM pg_proc WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
    UNION ALL SELECT concat_ws(' ', 'schema') FROM pg_namespace WHERE nspname = $1) AS all_of_it`

const leftOfPostgres = `
  SELECT concat_ws(' ', 'connection', state, query) AS text FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  UNION ALL SELECT concat_ws(' ', 'lock', locktype, mode) FROM (${locksHere}) AS locks
    WHERE pid <> pg_backend_pid()
  UNION ALL SELECT concat_ws(' ', 'prepared', gid) FROM pg_prepared_xacts WHERE database = current_database()`

export const postgresGround: Effect.Effect<Ground, never, Scope.Scope> = Effect.gen(function* () {
  const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
  const faults = yield* Effect.acquireRelease(
    Effect.promise(() => startPostgresFaults(url)),
    ({ close }) => Effect.promise(close)
  )
  // Who waits for a lock that somebody has left fails
  const client = new pg.Client({ connectionString: url, statement_timeout: 5_000 })
  yield* Effect.acquireRelease(
    Effect.promise(() => client.connect()),
    () => Effect.promise(() => client.end())
  )
  const textOf = async (text: string, ...given: ReadonlyArray<string>) =>
    (await client.query<{ text: string | null }>(text, [...given])).rows.map((row) => row.text ?? "")
  const secret = "hunter2"
  // The server trusts everybody
  const guarded = Redacted.make(Object.assign(new URL(faults.url), { password: secret }).href)
  return {
    name: "PostgreSQL",
    faults,
    secret,
    layer: (namespace) =>
      Layer.provideMerge(
        Pg.layer({ ...quiet, listen: false, namespace }),
        PgClient.layer({ url: guarded, maxConnections: 2, connectTimeout: "5 seconds" })
      ),
    installFirst: async (namespace) => {
      await client.query(firstVersion(postgresNames(namespace, "database")).join(";\n"))
    },
    schema: async (namespace) => (await textOf(schemaOfPostgres, namespace)).join().replaceAll(namespace, "*"),
    left: () => textOf(leftOfPostgres)
  }
})

export const sqliteGround: Effect.Effect<Ground, unknown, Scope.Scope> = Effect.gen(function* () {
  const filename = yield* temporaryFile
  const db = yield* Effect.acquireRelease(
    Effect.sync(() => new BetterSqlite(filename, { timeout: 2_000 })),
    (open) => Effect.sync(() => open.close())
  )
  db.pragma("journal_mode = WAL")
  const client = yield* Layer.build(SqliteClient.layer({ filename }))
  const faults = yield* Effect.provide(Effect.flatMap(SqlClient.SqlClient, startSqliteFaults), client)
  const schema = db.prepare<[{ namespace: string }], { line: string }>(
    "SELECT concat_ws(' ', type, name, tbl_name, sql) AS line FROM sqlite_master WHERE substr(tbl_name, 1, length(:namespace)) = :namespace ORDER BY type, name"
  )
  return {
    name: "SQLite",
    faults,
    secret: "hunter2",
    layer: (namespace) =>
      Layer.provideMerge(Sqlite.layer({ ...quiet, watch: false, namespace }), Layer.succeedContext(client)),
    installFirst: async (namespace) => void db.exec(firstVersion(sqliteNames(namespace)).join(";\n")),
    schema: (namespace) =>
      schema
        .all({ namespace })
        .map(({ line }) => line)
        .join("\n")
        .replaceAll(namespace, "*"),
    left: async () => writersOf(db)
  }
})
