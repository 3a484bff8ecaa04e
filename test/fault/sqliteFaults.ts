/**
 * SQLite: the client's one connection, whose n-th statement fails as the engine's do. After an I/O error or a full disk the
 * engine may have rolled back the transaction by itself, or not (https://www.sqlite.org/lang_transaction.html): both come.
 */
import { type SqlClient, SqlError } from "@effect/sql"
import BetterSqlite from "better-sqlite3"
import { Effect } from "effect"
import type { Connection } from "../../src/layers/Database/Database.js"
import { type Faults, isUndoing, type Kind, makeCounter } from "./faults.js"

interface SqliteKind extends Kind {
  readonly code: string
  /** The engine has rolled back the whole transaction. */
  readonly rollsBack: boolean
}

const before = (name: string, code: string, rollsBack: boolean): SqliteKind => ({
  name,
  code,
  rollsBack,
  took: false,
  silent: code.startsWith("SQLITE_IOERR"),
  applies: (text) => !isUndoing(text)
})

const kinds: ReadonlyArray<SqliteKind> = [
  before("busy", "SQLITE_BUSY", false),
  // A transaction that could not be begun has not begun: that is decided after all input and output
  {
    ...before("I/O error after", "SQLITE_IOERR_FSYNC", false),
    took: true,
    applies: (text) => !text.startsWith("BEGIN")
  },
  before("I/O error, rolled back", "SQLITE_IOERR_WRITE", true),
  before("disk full, rolled back", "SQLITE_FULL", true),
  before("I/O error before", "SQLITE_IOERR_READ", false),
  before("disk full", "SQLITE_FULL", false)
]

const errorOf = ({ code }: SqliteKind) =>
  new SqlError.SqlError({
    message: "Failed to execute statement",
    cause: new BetterSqlite.SqliteError("a fault of the test", code)
  })

/** Puts itself between a client and its connection, for good. */
export const startSqliteFaults = (sql: SqlClient.SqlClient): Effect.Effect<Faults, SqlError.SqlError> =>
  Effect.gen(function* () {
    const connection: Connection = yield* Effect.scoped(sql.reserve)
    const { arm, next, rest, seen, watch } = makeCounter()
    const { execute, executeRaw, executeUnprepared, executeValues } = connection
    const rollback = Effect.either(execute("ROLLBACK", [], undefined))
    const faulty = <A>(text: string, real: () => Effect.Effect<A, SqlError.SqlError>) =>
      Effect.suspend((): Effect.Effect<A, SqlError.SqlError> => {
        const fault = next(text) as SqliteKind | undefined
        if (fault === undefined)
          return Effect.ensuring(
            real(),
            Effect.sync(() => void seen(text))
          )
        const first = fault.took ? real() : fault.rollsBack ? rollback : Effect.void
        return Effect.zipRight(first, Effect.fail(errorOf(fault)))
      })
    Object.assign(connection, {
      execute: (...given) => faulty(given[0], () => execute(...given)),
      executeRaw: (...given) => faulty(given[0], () => executeRaw(...given)),
      executeUnprepared: (...given) => faulty(given[0], () => executeUnprepared(...given)),
      executeValues: (...given) => faulty(given[0], () => executeValues(...given))
    } satisfies Partial<Connection>)
    return { kinds, arm, watch, rest }
  })
