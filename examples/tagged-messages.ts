/**
 * A union of tagged messages is the protocol of an actor: one handler per message.
 */
import { Queue, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Schedule, Schema } from "effect"

class Deposit extends Schema.TaggedClass<Deposit>()("Deposit", { account: Schema.String, amount: Schema.Number }) {}
class Close extends Schema.TaggedClass<Close>()("Close", { account: Schema.String }) {}

const Accounts = Queue.make("accounts", { payload: Schema.Union(Deposit, Close) })

const program = Effect.gen(function* () {
  yield* Accounts.enqueueMany([new Deposit({ account: "a1", amount: 5 }), new Close({ account: "a1" })])
  const worker = yield* Worker.make(Accounts, {
    handlers: {
      Deposit: ({ payload }) => Effect.log(`${payload.amount} into ${payload.account}`),
      Close: ({ payload }) => Effect.log(`${payload.account} is closed`)
    },
    concurrency: 1
  })
  yield* Effect.repeat(worker.status, { until: ({ acked }) => acked === 2, schedule: Schedule.spaced("10 millis") })
})

program.pipe(Effect.scoped, Effect.provide(Sqlite.layerFile("accounts.db")), Effect.runPromise)
