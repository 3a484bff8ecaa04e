/**
 * SQLite: one connection per client, one writer per file. Writes take the write lock first (BEGIN IMMEDIATE), so that
 * no read of theirs can be outdated, and wait for it asynchronously, so that the event loop goes on.
 */
import type { SqlClient, SqlError } from "@effect/sql"
import { Duration, Effect, Exit, type Schedule, Scope } from "effect"
import { busyRetry } from "../../schedule/Polling.js"
import type { Service as ClockService } from "../../services/Clock.js"
import type { StoreError, TransactionOpen } from "../../services/Errors.js"
import type { Names, Row, Session } from "../engine.js"
import { storeError } from "../storeError.js"
import {
  type Access,
  ambient,
  type Connection,
  type Database,
  outside,
  type Refused,
  refuseForeign,
  refuseOpen,
  tracked,
  type Verb
} from "./Database.js"
import { makeTransaction } from "./transaction.js"

export interface SqliteSettings {
  /** How long one statement blocks the event loop for the write lock before it is retried asynchronously. */
  readonly busyTimeout: Duration.DurationInput
  /** How long a call waits for the write lock in all before it fails (`busy`). */
  readonly busyLimit: Duration.DurationInput
  readonly synchronous: "NORMAL" | "FULL" | "EXTRA" | "OFF"
}

/**
 * The client caches failed preparations as well as good ones: a statement that met a missing table once would fail for
 * ten minutes after it came back. A new generation makes every text a new one.
 */
let generation = 0

const run = (
  connection: Connection,
  text: string,
  parameters?: object
): Effect.Effect<ReadonlyArray<Row>, SqlError.SqlError> =>
  Effect.tapError(
    connection.execute(
      generation === 0 ? text : `${text} -- ${generation}`,
      parameters === undefined ? [] : [parameters],
      undefined
    ),
    (error) =>
      Effect.sync(() => {
        if (error.message.startsWith("Failed to prepare")) generation++
      })
  )

export const makeSqliteDatabase = (
  sql: SqlClient.SqlClient,
  names: Names,
  clock: ClockService,
  settings: SqliteSettings
): Effect.Effect<Database, StoreError> =>
  Effect.gen(function* () {
    const retry: Schedule.Schedule<unknown> = busyRetry(settings.busyLimit)
    const ours = yield* Effect.scoped(sql.reserve).pipe(Effect.mapError((error) => storeError("connect", error)))

    /** One instant for all statements of a verb: taken when it has what it waited for. */
    const session = (connection: Connection, writes: boolean, joined: boolean): Effect.Effect<Session> =>
      Effect.map(clock.now, (now) => ({
        writes,
        joined,
        execute: (statement, parameters) => {
          parameters.now = now
          return Effect.mapError(run(connection, statement.text, parameters), (error) =>
            storeError(statement.name, error)
          )
        }
      }))

    /** Waiting for the one connection can be interrupted; having it cannot. */
    const withConnection = <A>(
      operation: string,
      use: (connection: Connection) => Effect.Effect<A, StoreError>
    ): Effect.Effect<A, StoreError> =>
      Effect.uninterruptibleMask((restore) =>
        Effect.flatMap(Scope.make(), (scope) =>
          restore(Scope.extend(sql.reserve, scope)).pipe(
            Effect.mapError((error) => storeError(operation, error)),
            Effect.flatMap((connection) => tracked(use(connection))),
            Effect.onExit((exit) => Scope.close(scope, exit))
          )
        )
      )

    const immediately = <A>(operation: string, verb: Verb<A>) =>
      withConnection(operation, (connection) =>
        run(connection, "BEGIN IMMEDIATE").pipe(
          Effect.mapError((error) => storeError(operation, error)),
          Effect.zipRight(
            Effect.flatMap(session(connection, true, false), verb).pipe(
              Effect.exit,
              Effect.flatMap((exit) =>
                Exit.isSuccess(exit)
                  ? run(connection, "COMMIT").pipe(
                      Effect.mapError((error) => storeError(operation, error)),
                      Effect.tapError(() => rollback(connection)),
                      Effect.as(exit.value)
                    )
                  : Effect.zipRight(rollback(connection), exit)
              )
            )
          )
        )
      ).pipe(Effect.retry({ schedule: retry, while: (error) => error.reason === "busy" }))

    const reading = <A>(operation: string, verb: Verb<A>) =>
      withConnection(operation, (connection) => Effect.flatMap(session(connection, false, false), verb)).pipe(
        Effect.retry({ schedule: retry, while: (error) => error.reason === "busy" })
      )

    const alone = <A>(access: Access, operation: string, verb: Verb<A>) =>
      access === "read" ? reading(operation, verb) : immediately(operation, verb)

    return {
      names,
      joined: <A>(access: Access, operation: string, verb: Verb<A>) =>
        Effect.flatMap(Effect.zip(ambient(ours), outside), ([transaction, independent]): Effect.Effect<A, Refused> => {
          if (transaction._tag === "None") return alone(access, operation, verb)
          if (transaction._tag === "Foreign") {
            return independent || access === "read"
              ? alone(access, operation, verb)
              : Effect.fail(refuseForeign(operation))
          }
          return independent
            ? Effect.fail(refuseOpen(operation))
            : inSavepoint(access, transaction.connection, operation, (connection) =>
                Effect.flatMap(session(connection, true, true), verb)
              )
        }),
      apart: <A>(access: Access, operation: string, verb: Verb<A>) =>
        Effect.flatMap(
          ambient(ours),
          (transaction): Effect.Effect<A, TransactionOpen | StoreError> =>
            transaction._tag === "Own" ? Effect.fail(refuseOpen(operation)) : alone(access, operation, verb)
        ),
      joins: Effect.zipWith(
        ambient(ours),
        outside,
        (transaction, independent) => transaction._tag === "Own" && !independent
      ),
      transaction: makeTransaction(sql, { begin: "BEGIN IMMEDIATE", retryBegin: retry }),
      holdsWriteLock: heldByUs(sql),
      // Who waits for the end wakes others then: a client that gives no connection has no open transaction either
      afterTransaction: Effect.asVoid(Effect.either(Effect.scoped(sql.reserve)))
    } satisfies Database
  })

/** A rollback that fails found nothing to roll back. */
const rollback = (connection: Connection) => Effect.either(run(connection, "ROLLBACK"))

let savepoints = 0

/**
 * A verb of several statements inside the caller's transaction is whole or not at all. Its savepoint is named by a
 * counter: the stock client names them by depth, and two of one depth would end each other.
 */
const inSavepoint = <A>(
  access: Access,
  connection: Connection,
  operation: string,
  verb: (connection: Connection) => Effect.Effect<A, StoreError>
) => {
  if (access === "read") return tracked(verb(connection))
  const name = `alkstore_${++savepoints}`
  return run(connection, `SAVEPOINT ${name}`).pipe(
    Effect.mapError((error) => storeError(operation, error)),
    Effect.zipRight(Effect.exit(verb(connection))),
    Effect.flatMap((exit) =>
      Effect.zipRight(
        Effect.either(Exit.isSuccess(exit) ? Effect.void : run(connection, `ROLLBACK TO ${name}`)),
        Effect.zipRight(Effect.either(run(connection, `RELEASE ${name}`)), exit)
      )
    ),
    Effect.uninterruptible,
    tracked
  )
}

/**
 * Whether somebody in this process has the one connection: it can be had without waiting, or not. A client that answers
 * with an error is held by nobody.
 */
const heldByUs = (sql: SqlClient.SqlClient): Effect.Effect<boolean> =>
  Effect.raceFirst(Effect.as(Effect.either(Effect.scoped(sql.reserve)), false), Effect.as(Effect.yieldNow(), true))

/**
 * Sets the connection up. WAL is the client's own setting; where it is off, readers and the writer wait for each other.
 */
export const prepareSqlite = (sql: SqlClient.SqlClient, settings: SqliteSettings): Effect.Effect<void, StoreError> =>
  Effect.scoped(sql.reserve).pipe(
    Effect.flatMap((connection) =>
      Effect.forEach(
        [
          `PRAGMA busy_timeout = ${Duration.toMillis(settings.busyTimeout)}`,
          `PRAGMA synchronous = ${settings.synchronous}`
        ],
        (text) => run(connection, text),
        { discard: true }
      )
    ),
    Effect.mapError((error) => storeError("connect", error))
  )
