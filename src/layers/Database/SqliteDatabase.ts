/**
 * SQLite: one connection per client, one writer per file. Writes take the write lock first (BEGIN IMMEDIATE), so that
 * no read of theirs can be outdated, and wait for it asynchronously, so that the event loop goes on.
 */
import type { SqlClient } from "@effect/sql"
import { Context, Duration, Effect, Exit, FiberRef, type Schedule, Scope } from "effect"
import { busyRetry } from "../../schedule/Polling.js"
import { retryWhile } from "../../schedule/retryWhile.js"
import type { Service as ClockService } from "../../services/Clock.js"
import { StoreError, type TransactionOpen } from "../../services/Errors.js"
import type { Names, Session } from "../engine.js"
import { storeError } from "../storeError.js"
import { atEnd } from "./atEnd.js"
import {
  type Access,
  ambient,
  type Combined,
  type Connection,
  type Database,
  type Extent,
  ended,
  joins,
  opened,
  type Refused,
  refuseForeign,
  refuseOpen,
  standing,
  tracked,
  type Verb
} from "./Database.js"
import { type Lent, lentBy } from "./fileClient.js"
import { cached, makeRun, type Run } from "./prepared.js"
import { makeTransaction } from "./transaction.js"
import { makeWrites } from "./writes.js"

export interface SqliteSettings {
  /** How long one statement blocks the event loop for the write lock before it is retried asynchronously. */
  readonly busyTimeout: Duration.DurationInput
  /** How long a call waits for the write lock in all before it fails (`busy`). */
  readonly busyLimit: Duration.DurationInput
  readonly synchronous: "NORMAL" | "FULL" | "EXTRA" | "OFF"
}

export const makeSqliteDatabase = (
  sql: SqlClient.SqlClient,
  names: Names,
  clock: ClockService,
  settings: SqliteSettings
): Effect.Effect<Database, StoreError> =>
  Effect.gen(function* () {
    const retry: Schedule.Schedule<unknown> = busyRetry(settings.busyLimit)
    const reserved = Effect.scoped(
      Effect.flatMap(sql.reserve, (ours) => Effect.map(makeRun(ours), (run) => [ours, run] as const))
    )
    const [ours, runOurs] = yield* Effect.mapError(reserved, (error) => storeError("connect", error))
    /** For who has the connection for itself, as a transaction of the caller, whose fibers share it, has not. */
    const runOf = (connection: Connection): Run => (connection === ours ? runOurs : cached(connection))

    /** One instant for all statements of a verb: taken when it has what it waited for. */
    const session = (run: Run, writes: boolean, joined: boolean): Effect.Effect<Session> =>
      Effect.map(clock.now, (now) => ({
        writes,
        joined,
        ends: writes && !joined ? [] : undefined,
        execute: (statement, parameters) => {
          parameters.now = now
          return run(statement.name, statement.text, parameters)
        }
      }))

    const lent = lentBy(sql)
    const connected = lent === undefined ? reserving(sql) : borrowing(lent)
    const withConnection: WithConnection = (use) => clock.breath(connected(use))
    const transaction = makeTransaction(sql, { begin: "BEGIN IMMEDIATE", retryBegin: retry })

    const immediately = makeWrites({
      clock,
      limitMillis: Duration.toMillis(settings.busyLimit),
      use: withConnection,
      session: (connection) => session(runOf(connection), true, false),
      run: (connection, text, operation) => runOf(connection)(operation, text)
    })

    const reading = <A>(verb: Verb<A>) =>
      retryWhile(
        withConnection((connection) => Effect.flatMap(session(runOf(connection), false, false), verb)),
        retry,
        ({ reason }) => reason === "busy"
      )

    const alone = <A>(access: Access, operation: string, verb: Verb<A>, combined?: Combined<A>) =>
      access === "read" ? reading(verb) : immediately(operation, verb, combined)

    return {
      names,
      joined: <A>(access: Access, operation: string, verb: Verb<A>, _extent?: Extent, combined?: Combined<A>) =>
        ambient(ours, (transaction, independent): Effect.Effect<A, Refused> => {
          if (transaction._tag === "None") return alone(access, operation, verb, combined)
          if (transaction._tag === "Foreign") {
            return independent || access === "read"
              ? alone(access, operation, verb)
              : Effect.fail(refuseForeign(operation))
          }
          return independent
            ? Effect.fail(refuseOpen(operation))
            : clock.breath(
                inSavepoint(access, cached(transaction.connection), operation, (run) =>
                  Effect.flatMap(session(run, true, true), verb)
                )
              )
        }),
      apart: <A>(access: Access, operation: string, verb: Verb<A>) =>
        ambient(
          ours,
          (transaction): Effect.Effect<A, TransactionOpen | StoreError> =>
            transaction._tag === "Own" ? Effect.fail(refuseOpen(operation)) : alone(access, operation, verb)
        ),
      joins: joins(ours),
      standing: standing(ours),
      transaction: (self) => clock.breath(transaction(self)),
      holdsWriteLock: lent === undefined ? heldByUs(sql) : Effect.sync(() => !lent.turns.free()),
      // Who waits for the end wakes others then: a client that gives no connection has no open transaction either
      afterTransaction: Effect.asVoid(Effect.either(Effect.scoped(sql.reserve)))
    } satisfies Database
  })

type WithConnection = <A>(use: (connection: Connection) => Effect.Effect<A, StoreError>) => Effect.Effect<A, StoreError>

/** Waiting for the one connection can be interrupted; having it cannot. */
const borrowing =
  ({ connection, turns }: Lent): WithConnection =>
  (use) =>
    turns.take(() => {
      opened()
      return atEnd(use(connection), ended)
    })

/**
 * The same with the application's own client. The scope that it asks for is put into the fiber's own context for that
 * moment: an effect that provides it would cost more than most statements.
 */
const reserving = (sql: SqlClient.SqlClient): WithConnection => {
  const reserve = Effect.mapError(sql.reserve, (error) => storeError("connect", error))
  return (use) =>
    Effect.uninterruptibleMask((restore) =>
      Effect.withFiberRuntime((fiber) => {
        const back = FiberRef.set(FiberRef.currentContext, fiber.currentContext)
        return Effect.flatMap(Scope.make(), (scope) => {
          const lent = Context.make(Scope.Scope, scope) as Context.Context<never>
          const reserved = restore(reserve as Effect.Effect<Connection, StoreError>)
          return Effect.matchCauseEffect(Effect.zipRight(FiberRef.set(FiberRef.currentContext, lent), reserved), {
            onFailure: (cause) =>
              Effect.zipRight(Effect.zipRight(back, Scope.close(scope, Exit.void)), Effect.failCause(cause)),
            onSuccess: (connection) =>
              Effect.flatMap(Effect.exit(Effect.zipRight(back, tracked(use(connection)))), (exit) =>
                Effect.zipRight(Scope.close(scope, exit), exit)
              )
          })
        })
      })
    )
}

let savepoints = 0

/**
 * A verb inside the caller's transaction is done in one go: its statements answer at once, and no other fiber of the
 * transaction has a turn between them, whose own would be undone with it, or find what it has half done.
 */
const inOneGo = Effect.withMaxOpsBeforeYield(Number.MAX_SAFE_INTEGER)

/**
 * One of several statements is whole or not at all. Its savepoint is named by a counter: the stock client names them by
 * depth, and two of one depth would end each other.
 */
const inSavepoint = <A>(
  access: Access,
  run: Run,
  operation: string,
  verb: (run: Run) => Effect.Effect<A, StoreError>
) => {
  if (access === "read") return inOneGo(tracked(verb(run)))
  const name = `alkstore_${++savepoints}`
  return run(operation, `SAVEPOINT ${name}`).pipe(
    Effect.zipRight(Effect.exit(verb(run))),
    Effect.flatMap((exit) =>
      Effect.zipRight(
        Effect.either(Exit.isSuccess(exit) ? Effect.void : run(operation, `ROLLBACK TO ${name}`)),
        Effect.zipRight(Effect.either(run(operation, `RELEASE ${name}`)), exit)
      )
    ),
    Effect.uninterruptible,
    inOneGo,
    tracked
  )
}

/**
 * Whether somebody in this process has the one connection: it can be had without waiting, or not. A client that answers
 * with an error is held by nobody.
 */
const heldByUs = (sql: SqlClient.SqlClient): Effect.Effect<boolean> =>
  Effect.raceFirst(
    // Who asks may be uninterruptible, and in the very transaction that has it
    Effect.interruptible(Effect.as(Effect.either(Effect.scoped(sql.reserve)), false)),
    Effect.as(Effect.yieldNow(), true)
  )

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
        (text) => cached(connection)("connect", text),
        { discard: true }
      )
    ),
    Effect.mapError((error) => (error instanceof StoreError ? error : storeError("connect", error)))
  )
