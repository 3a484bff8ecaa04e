/**
 * The stock SqliteClient of one file, with turns of our own at its one connection: the stock one's cost more steps of the
 * runtime than all else about a write. To whoever uses it, it is the same.
 */
import { SqlClient, type SqlConnection, Statement } from "@effect/sql"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Effect } from "effect"
import { makeTurns, type Turns } from "./turns.js"

/** The connection of a client, and the turns at it. */
export interface Lent {
  readonly connection: SqlConnection.Connection
  readonly turns: Turns
}

const made = new WeakMap<SqlClient.SqlClient, Lent>()

/** What is known of a client that was made here. */
export const lentBy = (sql: SqlClient.SqlClient): Lent | undefined => made.get(sql)

export const makeFileClient = (filename: string) =>
  Effect.gen(function* () {
    const stock = yield* SqliteClient.make({ filename })
    const connection = yield* Effect.scoped(stock.reserve)
    const turns = makeTurns(1)
    // As in the stock client: what is no transaction waits for the turn of others, and keeps none
    const turn = turns.take(() => Effect.void)
    const client = yield* SqlClient.make({
      acquirer: turns.take(() => Effect.succeed(connection)),
      transactionAcquirer: Effect.as(turns.hold, connection),
      compiler: Statement.makeCompilerSqlite(),
      spanAttributes: [["db.system.name", "sqlite"]]
    })
    const own = Object.assign(client as SqliteClient.SqliteClient, {
      [SqliteClient.TypeId]: SqliteClient.TypeId,
      config: stock.config,
      export: Effect.zipRight(turn, stock.export),
      backup: (destination: string) => Effect.zipRight(turn, stock.backup(destination)),
      loadExtension: (path: string) => Effect.zipRight(turn, stock.loadExtension(path))
    })
    made.set(own, { connection, turns })
    return own
  })
