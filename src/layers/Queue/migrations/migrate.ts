/**
 * Migrations: versioned, each applied once, by one process at a time, all pending ones in one transaction. A database
 * that is up to date is only read, so a role without rights to the schema can start.
 */
import { Effect } from "effect"
import { SchemaMismatch, StoreError } from "../../../services/Errors.js"
import type { Database, Verb } from "../../Database/Database.js"
import { type Names, type PerEngine, type Session, statement, tableNames } from "../../engine.js"
import { int, textOrNull } from "../statements/rows.js"
import { initial } from "./0001_initial.js"
import { schedules } from "./0002_schedules.js"
import { operations } from "./0003_operations.js"
import { imports } from "./0004_imports.js"
import { wakes } from "./0005_wakes.js"

interface Migration {
  readonly version: number
  readonly name: string
  /** The oldest version of the schema's reader that may still work on it afterwards: raised by a contraction only. */
  readonly oldestReader: number
  readonly up: PerEngine<(n: Names) => ReadonlyArray<string>>
}

export const migrations: ReadonlyArray<Migration> = [
  { version: 1, name: "initial", oldestReader: 1, up: initial },
  { version: 2, name: "schedules", oldestReader: 1, up: schedules },
  { version: 3, name: "operations", oldestReader: 1, up: operations },
  { version: 4, name: "imports", oldestReader: 1, up: imports },
  { version: 5, name: "wakes", oldestReader: 1, up: wakes }
]

export const latest: number = migrations[migrations.length - 1]?.version ?? 0

interface Found {
  /** 0 when there are no tables. */
  readonly version: number
  readonly oldestReader: number
}

/** Whether there is a table of versions, by a column that no other tool's table of migrations has. */
const exists: PerEngine<string> = {
  postgres: `SELECT 1 AS found FROM pg_catalog.pg_namespace n
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'migrations'
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = 'oldest_reader'
    WHERE n.nspname = :namespace::text`,
  sqlite: `SELECT 1 AS found FROM sqlite_master m JOIN pragma_table_info(m.name) c
    WHERE m.type = 'table' AND m.name = :namespace || 'migrations' AND c.name = 'oldest_reader'`
}

/** What has one of the names of a namespace that has no tables yet. SQLite takes names that differ in case alone for one. */
const occupied: PerEngine<string> = {
  postgres: `SELECT c.relname AS name FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid
    WHERE n.nspname = :namespace::text AND c.relname = ANY (ARRAY(SELECT json_array_elements_text(:names::json))) ORDER BY c.relname LIMIT 1`,
  sqlite: `SELECT name FROM sqlite_master
    WHERE lower(name) IN (SELECT lower(:namespace || value) FROM json_each(:names)) ORDER BY name LIMIT 1`
}

/** What stands before every migration: the lock that lets one process in at a time. */
const lock: PerEngine<ReadonlyArray<string>> = {
  postgres: [
    // Transaction-scoped, so it leaves with the transaction whatever happens; behind poolers too
    "SELECT pg_advisory_xact_lock(hashtextextended(:lock::text, 0))",
    "SELECT set_config('statement_timeout', '0', true)"
  ],
  // The immediate transaction is the lock
  sqlite: []
}

/** The table of versions. */
const versions: PerEngine<(n: Names) => string> = {
  postgres: (n) =>
    `CREATE TABLE IF NOT EXISTS ${n.migrations} (version integer PRIMARY KEY, name text NOT NULL, oldest_reader integer NOT NULL, applied_at bigint NOT NULL)`,
  sqlite: (n) =>
    `CREATE TABLE IF NOT EXISTS ${n.migrations} (version INTEGER PRIMARY KEY, name TEXT NOT NULL, oldest_reader INTEGER NOT NULL, applied_at INTEGER NOT NULL)`
}

const run = (session: Session, names: Names, text: string, parameters: object = {}) =>
  session.execute(statement(names, "migrate", text), { ...parameters })

/**
 * Only when there is none: the owner of a schema may lack the right to create others, which CREATE SCHEMA asks for even
 * when it has nothing to do.
 */
const createSchema: PerEngine<(session: Session, names: Names) => Effect.Effect<void, StoreError>> = {
  postgres: (session, names) =>
    Effect.flatMap(
      run(session, names, "SELECT 1 AS found FROM pg_catalog.pg_namespace WHERE nspname = :namespace::text", {
        namespace: names.namespace
      }),
      (found) =>
        found.length > 0
          ? Effect.void
          : Effect.asVoid(run(session, names, `CREATE SCHEMA IF NOT EXISTS ${names.schema}`))
    ),
  sqlite: () => Effect.void
}

const look =
  (names: Names): Verb<Found> =>
  (session) =>
    Effect.gen(function* () {
      const [table] = yield* run(session, names, exists[names.engine], { namespace: names.namespace })
      if (table === undefined) return { version: 0, oldestReader: 0 }
      const [row] = yield* run(
        session,
        names,
        `SELECT coalesce(max(version), 0) AS version, coalesce(max(oldest_reader), 0) AS oldest_reader FROM ${names.migrations}`
      )
      return { version: int(row?.version), oldestReader: int(row?.oldest_reader) }
    })

/** What a start has found, and what kept it from creating its tables, if anything did. */
interface Applied extends Found {
  readonly occupiedBy: string | null
}

const apply =
  (names: Names): Verb<Applied> =>
  (session) =>
    Effect.gen(function* () {
      const mine = { lock: `alkstore:migrate:${names.namespace}` }
      for (const text of lock[names.engine]) yield* run(session, names, text, mine)
      const found = yield* look(names)(session)
      if (found.version === 0) {
        const { engine, namespace } = names
        // `lanes`: of version 1 only
        const wanted = { namespace, names: JSON.stringify([...tableNames, "lanes"]) }
        const [other] = yield* run(session, names, occupied[engine], wanted)
        if (other !== undefined) return { ...found, occupiedBy: textOrNull(other.name) }
        yield* createSchema[engine](session, names)
        yield* run(session, names, versions[engine](names))
      }
      for (const migration of migrations) {
        if (migration.version <= found.version) continue
        for (const text of migration.up[names.engine](names)) yield* run(session, names, text)
        yield* run(
          session,
          names,
          `INSERT INTO ${names.migrations} (version, name, oldest_reader, applied_at) VALUES (:version, :name, :oldestReader, ${names.now})`,
          {
            version: migration.version,
            name: migration.name,
            oldestReader: migration.oldestReader
          }
        )
      }
      return { ...(yield* look(names)(session)), occupiedBy: null }
    })

const mismatch = (names: Names, found: Found, advice: string) =>
  new SchemaMismatch({
    namespace: names.namespace,
    found: found.version,
    expected: latest,
    message: `namespace ${names.namespace}: the tables are at version ${found.version}, this library is at version ${latest}: ${advice}`
  })

const taken = (names: Names, other: string) =>
  new SchemaMismatch({
    namespace: names.namespace,
    found: 0,
    expected: latest,
    message: `namespace ${names.namespace}: ${other} is in the database already and is not of this namespace; nothing was created. Give the layer another \`namespace\``
  })

/** A role that may not change the schema is told who may. */
const denied =
  (names: Names, found: Found) =>
  <E>(error: E | StoreError): E | StoreError =>
    error instanceof StoreError && error.reason === "denied"
      ? new StoreError({
          reason: error.reason,
          operation: error.operation,
          message: `${error.message}. The tables of namespace ${names.namespace} are at version ${found.version}, this library is at version ${latest}, and this role may not change them: run \`alkstore migrate\` as the role that owns the schema`,
          cause: error.cause
        })
      : error

/**
 * Brings the tables of the namespace up to date (`migrate`), or only verifies that this library can work with them. A
 * newer schema is fine as long as it names this version among the readers it allows.
 */
export const migrate = (db: Database, mode: "migrate" | "verify"): Effect.Effect<Found, SchemaMismatch | StoreError> =>
  Effect.gen(function* () {
    const { names } = db
    let found = yield* db.apart("read", "migrate", look(names))
    if (found.version < latest && mode === "migrate") {
      const applying = db.apart("write", "migrate", apply(names), "transaction")
      const applied = yield* Effect.mapError(applying, denied(names, found))
      if (applied.occupiedBy !== null) return yield* taken(names, applied.occupiedBy)
      found = applied
    }
    if (found.oldestReader > latest)
      return yield* mismatch(names, found, "they are too new for it; upgrade the library")
    if (found.version < latest) return yield* mismatch(names, found, "run `alkstore migrate`, or let the layer migrate")
    return found
  }).pipe(
    Effect.catchTag("TransactionOpen", (error) =>
      Effect.fail(
        new SchemaMismatch({ namespace: db.names.namespace, found: 0, expected: latest, message: error.message })
      )
    )
  )
