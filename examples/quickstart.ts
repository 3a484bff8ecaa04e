import { SqlClient } from "@effect/sql"
import { Queue, transaction, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Schedule, Schema } from "effect"

const Emails = Queue.make("emails", { payload: Schema.Struct({ to: Schema.String, order: Schema.Number }) })

// The order and its e-mail job commit together, or neither does
const placeOrder = (customer: string) =>
  Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    const orders = yield* sql<{ id: number }>`INSERT INTO orders (customer) VALUES (${customer}) RETURNING id`
    yield* Emails.enqueueMany(orders.map(({ id }) => ({ to: customer, order: id })))
  }).pipe(transaction)

const program = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  yield* sql`CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT)`
  const worker = yield* Worker.make(Emails, {
    handler: (job) => Effect.log(`to ${job.payload.to}: thank you for order ${job.payload.order}`),
    retry: Schedule.exponential("1 second")
  })
  yield* placeOrder("ann@example.com")
  yield* placeOrder("bob@example.com")
  yield* Effect.repeat(worker.status, { until: ({ acked }) => acked === 2, schedule: Schedule.spaced("10 millis") })
})

program.pipe(Effect.scoped, Effect.provide(Sqlite.layerFile("app.db")), Effect.runPromise)
