/**
 * An outbox: the event is written in the transaction that places the order, and a relay delivers it to a web service,
 * in order per customer. The service is down at first, and knows repetitions by their id.
 */
import { createServer, type Server } from "node:http"
import type { AddressInfo } from "node:net"
import { SqlClient } from "@effect/sql"
import { Outbox, transaction } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Schedule, Schema } from "effect"

class OrderPlaced extends Schema.TaggedClass<OrderPlaced>()("OrderPlaced", {
  order: Schema.Number,
  customer: Schema.String
}) {}

const OrderEvents = Outbox.make("order-events", { message: OrderPlaced, key: (event) => event.customer })

/** The order and its event are committed together, or neither is. */
const placeOrder = (customer: string) =>
  transaction(
    Effect.gen(function* () {
      const sql = yield* SqlClient.SqlClient
      const [row] = yield* sql<{ id: number }>`INSERT INTO orders (customer) VALUES (${customer}) RETURNING id`
      return yield* OrderEvents.publish(new OrderPlaced({ order: row?.id ?? 0, customer }))
    })
  )

/** Somebody else's service: it does what it is told once for each id. */
const service = Effect.acquireRelease(
  Effect.async<{ readonly url: string; readonly seen: Map<string, string>; readonly server: Server }>((resume) => {
    const seen = new Map<string, string>()
    let requests = 0
    const server = createServer(async (request, response) => {
      const id = String(request.headers["idempotency-key"])
      let body = ""
      for await (const chunk of request) body += chunk
      if (++requests <= 2) return response.writeHead(503).end()
      if (!seen.has(id)) seen.set(id, body)
      return response.writeHead(204).end()
    })
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as AddressInfo
      resume(Effect.succeed({ url: `http://127.0.0.1:${port}/events`, seen, server }))
    })
  }),
  ({ server }) => Effect.sync(() => server.close())
)

const program = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  yield* sql`CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL)`
  const { seen, url } = yield* service

  // As a Layer in a real program: Outbox.layer(OrderEvents, { … })
  yield* Outbox.fork(OrderEvents, {
    deliver: ({ id, message }) =>
      Effect.tryPromise(async (signal) => {
        const body = JSON.stringify(message)
        const response = await fetch(url, { method: "POST", headers: { "idempotency-key": id }, body, signal })
        if (!response.ok) throw new Error(`the service answered ${response.status}`)
      }),
    timeout: "10 seconds",
    retry: Schedule.spaced("100 millis")
  })

  const ids = yield* Effect.forEach(["ann", "bob", "ann"], placeOrder)
  yield* Effect.sleep("20 millis").pipe(Effect.repeat({ until: () => ids.every((id) => seen.has(id)) }))
  for (const body of [...seen.values()].sort()) {
    const { customer, order } = yield* Schema.decode(Schema.parseJson(OrderPlaced))(body)
    yield* Effect.log(`arrived: order ${order} of ${customer}`)
  }
})

program.pipe(Effect.scoped, Effect.provide(Sqlite.layerFile("orders.db")), Effect.runPromise)
