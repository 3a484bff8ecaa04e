/**
 * PostgreSQL: the application's client for what belongs to its transactions, our own connections for the rest.
 */
import type { SqlClient } from "@effect/sql"
import { Effect } from "effect"
import { conflictRetry } from "../../schedule/Polling.js"
import { retryWhile } from "../../schedule/retryWhile.js"
import type { Service as ClockService } from "../../services/Clock.js"
import type { StoreError } from "../../services/Errors.js"
import { type Names, type Parameters, type Session, statement } from "../engine.js"
import { storeError } from "../storeError.js"
import {
  type Access,
  ambient,
  type Connection,
  type Database,
  type Extent,
  joins,
  positional,
  type Refused,
  refuseForeign,
  standing,
  tracked,
  type Verb
} from "./Database.js"
import type { PgConnections } from "./PgConnections.js"
import { makeTransaction } from "./transaction.js"

const withNow = (parameters: Parameters, now: number): Parameters => {
  parameters.now = now
  return parameters
}

export const makePgDatabase = (
  sql: SqlClient.SqlClient,
  names: Names,
  clock: ClockService,
  connections: PgConnections
): Effect.Effect<Database, StoreError> =>
  Effect.gen(function* () {
    // Interrupted while it waits, a reservation would leak its connection
    const ours = yield* Effect.uninterruptible(Effect.scoped(sql.reserve)).pipe(
      Effect.mapError((error) => storeError("connect", error))
    )

    const turns = new WeakMap<Connection, Effect.Semaphore>()
    const turnOf = (connection: Connection): Effect.Semaphore => {
      const turn = turns.get(connection) ?? Effect.unsafeMakeSemaphore(1)
      turns.set(connection, turn)
      return turn
    }

    /**
     * Statements in the caller's transaction, one at a time: the driver is about to refuse more. Uninterruptible: an
     * interrupt cancels whatever the backend runs next.
     */
    const inside = (connection: Connection, now: number): Session => ({
      writes: true,
      joined: true,
      execute: (statement, parameters) =>
        connection.execute(statement.text, positional(statement, withNow(parameters, now)), undefined).pipe(
          Effect.mapError((error) => storeError(statement.name, error)),
          turnOf(connection).withPermits(1),
          Effect.uninterruptible,
          tracked
        )
    })

    const begin = statement(names, "begin", "BEGIN")
    const commit = statement(names, "commit", "COMMIT")
    const rollback = statement(names, "rollback", "ROLLBACK")

    const inTransaction = <A>(session: Session, verb: Verb<A>): Effect.Effect<A, StoreError> =>
      Effect.zipRight(
        session.execute(begin, {}),
        Effect.matchCauseEffect(verb(session), {
          onFailure: (cause) => Effect.zipRight(Effect.either(session.execute(rollback, {})), Effect.failCause(cause)),
          onSuccess: (value) => Effect.as(session.execute(commit, {}), value)
        })
      )

    /**
     * What the engine has rolled back for a conflict is done again: the transaction, or that very statement. The statements
     * before it are committed, and would not find what they have changed themselves.
     */
    const again = <A>(self: Effect.Effect<A, StoreError>) =>
      retryWhile(self, conflictRetry, ({ reason }) => reason === "conflict")

    /** Where rows are stamped by the server no statement has this process's time. */
    const present = <A>(use: (now: number) => Effect.Effect<A, StoreError>): Effect.Effect<A, StoreError> =>
      clock.source === "database" ? use(0) : Effect.flatMap(clock.now, use)

    const apart = <A>(access: Access, operation: string, verb: Verb<A>, extent?: Extent) => {
      const whole = extent === "transaction"
      const once = connections.use(access, operation, (session) =>
        present((now) => {
          const execute: Session["execute"] = (text, parameters) => session.execute(text, withNow(parameters, now))
          const bound: Session = {
            writes: true,
            joined: false,
            pid: session.pid,
            execute: whole ? execute : (text, parameters) => again(execute(text, parameters))
          }
          return whole ? inTransaction(bound, verb) : verb(bound)
        })
      )
      return whole ? again(once) : once
    }

    return {
      names,
      joined: <A>(access: Access, operation: string, verb: Verb<A>, extent?: Extent) =>
        ambient(ours, (transaction, independent): Effect.Effect<A, Refused> => {
          if (transaction._tag === "None" || independent) return apart(access, operation, verb, extent)
          if (transaction._tag === "Own") return present((now) => verb(inside(transaction.connection, now)))
          return access === "read" ? apart(access, operation, verb) : Effect.fail(refuseForeign(operation))
        }),
      apart,
      joins: joins(ours),
      standing: standing(ours),
      transaction: makeTransaction(sql, { begin: "BEGIN" }),
      holdsWriteLock: Effect.succeed(false),
      afterTransaction: Effect.void
    }
  })
