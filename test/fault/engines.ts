/** The two engines with faults between the product and the database, and an operator who looks past the faults. */
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { SqliteClient } from "@effect/sql-sqlite-node"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Effect, Layer, Redacted, type Scope } from "effect"
import pg from "pg"
import { inject } from "vitest"
import { temporaryFile } from "../support/engines.js"
import { createDatabase } from "../support/postgres.js"
import type { Faults } from "./faults.js"
import { startPostgresFaults } from "./postgresFaults.js"
import { startSqliteFaults } from "./sqliteFaults.js"
import { type Raw, tables } from "./state.js"

export type FaultServices = Pg.Services | SqlClient.SqlClient

export interface Options {
  readonly postgres?: Pg.Options
  readonly sqlite?: Sqlite.Options
}

/** A database, and who looks at it beside the product. */
export interface Database {
  readonly engine: "postgres" | "sqlite"
  readonly name: string
  readonly table: (name: string) => string
  /** Statements, separated by semicolons, of somebody who meets no fault. */
  readonly operator: (text: string) => Promise<void>
  /** Everything that is committed. */
  readonly look: () => Promise<Raw>
  /** What a call has left behind that keeps others out: open transactions, connections beyond those there may be. */
  readonly stray: () => Promise<ReadonlyArray<string>>
  /** Builds the Layer under test. Faults begin when they are armed: also while it is built. */
  readonly faults: Faults
  readonly layer: (options?: Options) => Layer.Layer<FaultServices, unknown>
}

/** Connections of the application's pool. */
export const poolSize = 2

/** What is left of a writer that has not ended. */
export const writersOf = (db: BetterSqlite.Database): ReadonlyArray<string> => {
  try {
    db.pragma("busy_timeout = 0")
    db.exec("BEGIN IMMEDIATE; ROLLBACK")
    return []
  } catch {
    return ["a transaction that holds the write lock"]
  } finally {
    db.pragma("busy_timeout = 2000")
  }
}

const ownConnections = 2

const marks = "CREATE TABLE IF NOT EXISTS marks (text TEXT NOT NULL)"

const quiet = { sweeper: false, scheduler: false } as const

const onPostgres = (text: string): string =>
  tables
    .map((table) => `'${table}', (SELECT coalesce(json_agg(t), '[]') FROM ${text.replace("*", table)} t)`)
    .join(", ")

const makePostgres = (listening: boolean): Effect.Effect<Database, never, Scope.Scope> =>
  Effect.gen(function* () {
    const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
    // Nobody's call waits for what listens
    const faults = yield* Effect.acquireRelease(
      Effect.promise(() => startPostgresFaults(url, (startup) => listening || !startup.includes("alkstore-wake"))),
      ({ close }) => Effect.promise(close)
    )
    const client = new pg.Client({ connectionString: url })
    yield* Effect.acquireRelease(
      Effect.promise(() => client.connect()),
      () => Effect.promise(() => client.end())
    )
    const table = (name: string) => (name === "marks" ? "marks" : `alkstore.${name}`)
    yield* Effect.promise(() => client.query(marks))
    const all = `SELECT json_build_object(${onPostgres("*").replaceAll(/FROM (\w+) t/g, (_, name: string) => `FROM ${table(name)} t`)}) AS raw`
    return {
      engine: "postgres",
      name: "PostgreSQL",
      table,
      faults,
      operator: async (text) => void (await client.query(text)),
      look: async () => (await client.query<{ raw: Raw }>({ name: "look", text: all })).rows[0]?.raw ?? {},
      stray: async () => {
        const { rows } = await client.query<{ state: string; query: string }>(
          "SELECT state, query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        const open = rows.filter(({ state }) => state !== "idle").map(({ query, state }) => `${state}: ${query}`)
        return rows.length > poolSize + ownConnections + (listening ? 1 : 0)
          ? [...open, `${rows.length} connections`]
          : open
      },
      layer: (options = {}) =>
        Layer.provideMerge(
          Pg.layer({ ...quiet, listen: listening, connections: ownConnections, ...options.postgres }),
          PgClient.layer({ url: Redacted.make(faults.url), maxConnections: poolSize, connectTimeout: "5 seconds" })
        )
    }
  })

/** `postgres`: without what listens; `listeningPostgres`: its statements count, too. */
export const postgres = makePostgres(false)
export const listeningPostgres = makePostgres(true)

export const sqlite: Effect.Effect<Database, unknown, Scope.Scope> = Effect.gen(function* () {
  const filename = yield* temporaryFile
  const db = yield* Effect.acquireRelease(
    Effect.sync(() => new BetterSqlite(filename, { timeout: 2_000 })),
    (open) => Effect.sync(() => open.close())
  )
  db.pragma("journal_mode = WAL")
  db.exec(marks)
  const built = yield* Layer.build(SqliteClient.layer({ filename }))
  const faults = yield* Effect.provide(Effect.flatMap(SqlClient.SqlClient, startSqliteFaults), built)
  const table = (name: string) => (name === "marks" ? "marks" : `"_alkstore_${name}"`)
  const looks = new Map<string, BetterSqlite.Statement>()
  const rowsOf = (name: string) => {
    const look = looks.get(name) ?? db.prepare(`SELECT * FROM ${table(name)}`)
    looks.set(name, look)
    return look.all() as Raw[string]
  }
  return {
    engine: "sqlite",
    name: "SQLite",
    table,
    faults,
    operator: async (text) => void db.exec(text),
    look: async () => Object.fromEntries(tables.map((name) => [name, rowsOf(name)])),
    stray: async () => writersOf(db),
    // One call's statements come in one order: no turns of the event loop are let in between, as in real time
    layer: (options = {}) =>
      Layer.provideMerge(
        Sqlite.layerWith({ ...quiet, watch: false, ...options.sqlite }, { virtualTime: options.sqlite === undefined }),
        Layer.succeedContext(built)
      )
  }
})
