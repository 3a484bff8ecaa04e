/**
 * A transaction with typed failures. The stock `withTransaction` turns a failed BEGIN, COMMIT or ROLLBACK into a
 * defect and, on SQLite, leaves the transaction open behind a failed COMMIT. This one uses the same tag, so the two
 * nest in each other.
 */
import { SqlClient, SqlError } from "@effect/sql"
import { Cause, Chunk, Effect, Exit, Fiber, Option, Predicate, type Schedule, Scope } from "effect"
import type { StoreError } from "../../services/Errors.js"
import { reasonOf, storeError } from "../storeError.js"
import type { Connection } from "./Database.js"

const isSqlError = (value: unknown): value is SqlError.SqlError => Predicate.isTagged(value, "SqlError")

const execute = (connection: Connection, text: string) => Effect.asVoid(connection.execute(text, [], undefined))

/**
 * PostgreSQL answers the COMMIT of a transaction in which a statement failed, and was caught, with a rollback and no
 * error: nothing was committed, so it must not pass for a success.
 */
const commit = (connection: Connection) =>
  Effect.flatMap(connection.executeRaw("COMMIT", []), (result) =>
    Predicate.hasProperty(result, "command") && result.command === "ROLLBACK"
      ? Effect.fail(
          new SqlError.SqlError({
            message: "COMMIT was answered with ROLLBACK",
            cause: new Error("rolled back, since a statement in it had failed; nothing was written")
          })
        )
      : Effect.void
  )

/** A rollback fails when there is nothing left to roll back: the connection broke, or the engine rolled back itself. */
const rollback = (connection: Connection, text: string) => Effect.asVoid(Effect.either(execute(connection, text)))

type Reserved = readonly [scope: Scope.CloseableScope, connection: Connection]

/**
 * Waiting for a connection can be interrupted wherever its caller can be. The drivers' pools know no such thing: a connection that
 * comes too late is given back then.
 */
const waited = (reserved: Effect.Effect<Reserved, SqlError.SqlError>): Effect.Effect<Reserved, SqlError.SqlError> =>
  Effect.flatMap(Effect.forkDaemon(reserved), (fiber) =>
    Effect.onInterrupt(Effect.interruptible(Fiber.join(fiber)), () =>
      Effect.forkDaemon(
        Effect.flatMap(Fiber.await(fiber), (exit) =>
          Exit.isSuccess(exit) ? Scope.close(exit.value[0], Exit.void) : Effect.void
        )
      )
    )
  )

export const makeTransaction =
  (
    sql: SqlClient.SqlClient,
    options: {
      readonly begin: string
      /** While another process has the write lock. */
      readonly retryBegin?: Schedule.Schedule<unknown>
    }
  ) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E | StoreError, R> =>
    Effect.checkInterruptible((interruptible) => {
      let begun = false
      let committing = false
      let failure: StoreError | undefined
      const note = (reason?: "uncertain") => (error: SqlError.SqlError) =>
        Effect.sync(() => {
          failure = storeError(
            "transaction",
            error,
            reason === "uncertain" && reasonOf(error) === "connection" ? "uncertain" : reasonOf(error)
          )
        })
      const reserved: Effect.Effect<Reserved, SqlError.SqlError> = Effect.flatMap(Scope.make(), (scope) =>
        Effect.map(Scope.extend(sql.reserve, scope), (connection) => [scope, connection] as const)
      )
      const run = SqlClient.makeWithTransaction({
        transactionTag: SqlClient.TransactionConnection,
        spanAttributes: [],
        acquireConnection: interruptible ? waited(reserved) : reserved,
        begin: (connection) => Effect.tapError(execute(connection, options.begin), note()),
        savepoint: (connection, depth) => execute(connection, `SAVEPOINT effect_sql_${depth}`),
        commit: (connection) =>
          Effect.suspend(() => {
            committing = true
            return commit(connection)
          }).pipe(
            Effect.tapError(note("uncertain")),
            Effect.tapError(() => rollback(connection, "ROLLBACK"))
          ),
        rollback: (connection) => rollback(connection, "ROLLBACK"),
        rollbackSavepoint: (connection, depth) => rollback(connection, `ROLLBACK TO SAVEPOINT effect_sql_${depth}`)
      })
      const body = Effect.suspend(() => {
        begun = true
        return self
      })
      const once: Effect.Effect<A, E | StoreError | SqlError.SqlError, R> = run(body)
      const typed = Effect.catchAllCause(once, (cause): Effect.Effect<A, E | StoreError> => {
        // BEGIN (a typed failure) and COMMIT (a defect) are ours; whatever the body failed with is the caller's
        const ours = failure !== undefined && (!begun || committing)
        if (ours && !Cause.isInterrupted(cause)) return Effect.fail(failure as StoreError)
        if (!begun && !Cause.isInterrupted(cause)) {
          const error = Option.orElse(Cause.failureOption(cause), () =>
            Chunk.findFirst(Cause.defects(cause), isSqlError)
          )
          if (Option.isSome(error) && isSqlError(error.value))
            return Effect.fail(storeError("transaction", error.value))
        }
        return Effect.failCause(cause as Cause.Cause<E>)
      })
      if (options.retryBegin === undefined) return typed
      const locked = (error: E | StoreError) =>
        !begun && Predicate.isTagged(error, "StoreError") && (error as StoreError).reason === "busy"
      return Effect.retry(typed, { schedule: options.retryBegin, while: (error) => locked(error) })
    })
