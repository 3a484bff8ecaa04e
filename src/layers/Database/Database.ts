/**
 * What a verb needs of an engine: sessions that join the caller's transaction, or that stand outside of it.
 */
import { SqlClient, type SqlConnection } from "@effect/sql"
import { Context, Effect, Option } from "effect"
import { ForeignTransaction, type StoreError, TransactionOpen } from "../../services/Errors.js"
import { TransactionMode } from "../../services/QueueStore.js"
import type { Names, Parameters, Row, Session, Statement } from "../engine.js"

export type Connection = SqlConnection.Connection

export interface Database {
  readonly names: Names
  /**
   * Runs a verb in the caller's transaction when it is our client's; otherwise on a connection of our own, where it
   * is atomic: one statement on PostgreSQL (a transaction when `extent` asks for it), an immediate transaction on
   * SQLite, shared with other writes of this process that wait at the same moment. `read` takes no write lock. A verb may be run again after a rollback: it has no effect
   * but on the database.
   */
  readonly joined: <A>(
    access: Access,
    operation: string,
    verb: Verb<A>,
    extent?: Extent,
    combined?: Combined<A>
  ) => Effect.Effect<A, Refused>
  /** Runs a verb on a connection of our own, whatever transaction the caller is in. */
  readonly apart: <A>(
    access: Access,
    operation: string,
    verb: Verb<A>,
    extent?: Extent
  ) => Effect.Effect<A, TransactionOpen | StoreError>
  /** Whether the calling fiber is inside a transaction of our client that `joined` would join. */
  readonly joins: Effect.Effect<boolean>
  /** Goes on with where a write of the calling fiber would go: `elsewhere` is whatever `joined` has to decide. */
  readonly standing: <A, E>(
    then: (stands: "inside" | "outside" | "elsewhere") => Effect.Effect<A, E>
  ) => Effect.Effect<A, E>
  readonly transaction: <A, E, R>(self: Effect.Effect<A, E, R>) => Effect.Effect<A, E | StoreError, R>
  readonly holdsWriteLock: Effect.Effect<boolean>
  /** Ends when the transaction that is open now, if any, has ended: for wakes after a commit. */
  readonly afterTransaction: Effect.Effect<void>
}

/** `waits`: a write of rows that a transaction of the application may have locked, which it waits for. */
export type Access = "read" | "write" | "enqueue" | "waits"

/** How verbs of one kind that share a transaction (SQLite) are done at once. */
export interface Combined<A> {
  /** Equal for those that can be. */
  readonly key: string
  readonly input: unknown
  /** Does what the verbs with these inputs would have done, one after the other; what each answers, in order. */
  readonly run: (session: Session, inputs: ReadonlyArray<unknown>) => Effect.Effect<ReadonlyArray<A>, StoreError>
}
/** A verb of several statements, which on PostgreSQL are to be whole. */
export type Extent = "transaction"
export type Verb<A> = (session: Session) => Effect.Effect<A, StoreError>
export type Refused = ForeignTransaction | TransactionOpen | StoreError

/** Whose transaction the calling fiber is in. */
export type Ambient =
  | { readonly _tag: "None" }
  | { readonly _tag: "Own"; readonly connection: Connection }
  | { readonly _tag: "Foreign" }

const none: Ambient = { _tag: "None" }
const foreign: Ambient = { _tag: "Foreign" }

/**
 * The transaction tag is one for all SqlClients: a connection is ours when it is the same object (SQLite has one
 * per client) or of the same class (PostgreSQL makes a class per client).
 */
const ambientOf = (context: Context.Context<never>, ours: Connection): Ambient => {
  const open = Context.getOption(
    context as Context.Context<SqlClient.TransactionConnection>,
    SqlClient.TransactionConnection
  )
  if (Option.isNone(open)) return none
  const [connection] = open.value
  const own = connection === ours || (ours.constructor !== Object && connection.constructor === ours.constructor)
  return own ? { _tag: "Own", connection } : foreign
}

/** Where the calling fiber stands, and whether it asked for independence of its transaction. */
export const ambient = <A, E>(
  ours: Connection,
  then: (transaction: Ambient, independent: boolean) => Effect.Effect<A, E>
): Effect.Effect<A, E> =>
  Effect.withFiberRuntime((fiber) => {
    const context = fiber.currentContext as Context.Context<never>
    return then(ambientOf(context, ours), Context.get(context, TransactionMode) === "outside")
  })

/** See `Database.standing`. */
export const standing =
  (ours: Connection): Database["standing"] =>
  (then) =>
    ambient(ours, (transaction, independent) =>
      then(
        transaction._tag === "None" ? "outside" : transaction._tag === "Own" && !independent ? "inside" : "elsewhere"
      )
    )

/** See `Database.joins`. */
export const joins = (ours: Connection): Effect.Effect<boolean> =>
  ambient(ours, (transaction, independent) => Effect.succeed(transaction._tag === "Own" && !independent))

export const refuseForeign = (operation: string) =>
  new ForeignTransaction({
    operation,
    message: `${operation} was called inside a transaction of another SqlClient than the queue's; nothing was written. Use the queue's client for the transaction, or Queue.outsideTransaction if the two are to be independent`
  })

export const refuseOpen = (operation: string) =>
  new TransactionOpen({
    operation,
    message: `${operation} cannot be part of a transaction, and this SQLite client, which has one connection, is inside one; call it before or after the transaction`
  })

/** Without what ties a fiber to its parent's transaction. */
export const detached = <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.mapInputContext(self, (context: Context.Context<R>) =>
    Context.add(
      Context.omit(SqlClient.TransactionConnection)(
        context as Context.Context<R | SqlClient.TransactionConnection>
      ) as Context.Context<R>,
      TransactionMode,
      "join"
    )
  )

/** Statements that are being executed now, and all that ever were: what `alkstore/Testing` waits for. */
export const activity = { open: 0, total: 0 }

/** A call of the database begins, */
export const opened = (): void => {
  activity.open++
  activity.total++
}

/** and has ended. */
export const ended = (): void => {
  activity.open--
}

const closed = Effect.sync(ended)

export const tracked = <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.suspend(() => {
    opened()
    return Effect.ensuring(self, closed)
  })

/** The values of a statement's parameters, in order; a missing one is a defect of ours. */
export const positional = (statement: Statement, parameters: Parameters): ReadonlyArray<unknown> =>
  statement.parameters.map((name) => {
    if (!(name in parameters)) throw new Error(`statement ${statement.name}: parameter ${name} is missing`)
    return parameters[name]
  })

export type { Row, Session }
