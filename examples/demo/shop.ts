/**
 * The shop: one queue, one table, and the one line that chooses the engine.
 */
import { SqlClient } from "@effect/sql"
import { Queue, transaction } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Redacted, Schema } from "effect"

export class SendEmail extends Schema.TaggedClass<SendEmail>()("SendEmail", {
  to: Schema.String,
  order: Schema.Number
}) {}

export const Emails = Queue.make("emails", { payload: SendEmail, maxAttempts: 3 })

const { DATABASE_URL, DEMO_FILE = "demo.db", DEMO_NAMESPACE = "alkstore_demo" } = process.env

export const engine = DATABASE_URL === undefined ? "SQLite" : "PostgreSQL"

/** The same program on either engine. */
export const Database =
  DATABASE_URL === undefined
    ? Sqlite.layerFile(DEMO_FILE)
    : Pg.layerUrl(Redacted.make(DATABASE_URL), { namespace: DEMO_NAMESPACE })

const orders = DATABASE_URL === undefined ? "orders" : `${DEMO_NAMESPACE}.orders`

export const createOrders = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  const id = sql.onDialectOrElse({
    sqlite: () => sql.literal("INTEGER PRIMARY KEY"),
    orElse: () => sql.literal("INTEGER PRIMARY KEY GENERATED ALWAYS AS IDENTITY")
  })
  yield* sql`CREATE TABLE ${sql(orders)} (id ${id}, customer TEXT NOT NULL)`
})

export const countOrders = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  const rows = yield* sql<{ count: number | string }>`SELECT count(*) AS count FROM ${sql(orders)}`
  return Number(rows[0]?.count)
})

/** The order and its e-mail job are committed together. `then` runs last in the same transaction. */
export const placeOrder = <E = never, R = never>(customer: string, then: Effect.Effect<unknown, E, R> = Effect.void) =>
  transaction(
    Effect.gen(function* () {
      const sql = yield* SqlClient.SqlClient
      const rows = yield* sql<{ id: number }>`INSERT INTO ${sql(orders)} (customer) VALUES (${customer}) RETURNING id`
      const order = Number(rows[0]?.id)
      const receipt = yield* Emails.enqueue(new SendEmail({ to: customer, order }))
      yield* then
      return { order, job: receipt.id }
    })
  )

/** What PostgreSQL keeps when the demo is over: nothing. */
export const dropEverything = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  if (engine === "PostgreSQL") yield* sql`DROP SCHEMA ${sql(DEMO_NAMESPACE)} CASCADE`
})
