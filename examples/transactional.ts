/**
 * A transactional worker: what its handler writes and its ack commit together, so each effect in the database happens
 * exactly once, whatever happens to the process.
 */
import { SqlClient } from "@effect/sql"
import { Job, Queue, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Schedule, Schema } from "effect"

const Payments = Queue.make("payments", { payload: Schema.Struct({ account: Schema.String, amount: Schema.Number }) })
const Receipts = Queue.make("receipts", { payload: Schema.Struct({ account: Schema.String, balance: Schema.Number }) })

const PaymentWorker = {
  transactional: true,
  retry: Schedule.spaced("10 millis"),
  handler: ({ attempt, payload }: Job.Job<{ readonly account: string; readonly amount: number }>) =>
    Effect.gen(function* () {
      const sql = yield* SqlClient.SqlClient
      const [account] = yield* sql<{ balance: number }>`
        UPDATE accounts SET balance = balance + ${payload.amount} WHERE name = ${payload.account} RETURNING balance`
      if (account === undefined) return yield* Job.fatal(`there is no account ${payload.account}`)
      yield* Receipts.enqueue({ account: payload.account, balance: account.balance })
      // The first attempt at each payment fails here: the update and the receipt are rolled back with it
      if (attempt === 1) return yield* Effect.fail("the power went out")
    })
} as const

const program = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  yield* sql`CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER)`
  yield* sql`INSERT INTO accounts VALUES ('ann', 0), ('bob', 0)`
  yield* Payments.enqueueMany([
    { account: "ann", amount: 10 },
    { account: "bob", amount: 20 },
    { account: "ann", amount: 30 },
    { account: "eve", amount: 40 }
  ])
  const worker = yield* Worker.make(Payments, PaymentWorker)
  yield* Effect.repeat(worker.status, {
    until: ({ acked, dead }) => acked === 3 && dead === 1,
    schedule: Schedule.spaced("10 millis")
  })
  for (const { balance, name } of yield* sql<{ name: string; balance: number }>`SELECT * FROM accounts ORDER BY name`)
    yield* Effect.log(`${name} has ${balance}`)
  yield* Effect.log(
    `${(yield* Receipts.claim({ limit: 10 })).length} receipts, ${(yield* worker.status).retried} retries`
  )
})

program.pipe(Effect.scoped, Effect.provide(Sqlite.layerFile("payments.db")), Effect.runPromise)
