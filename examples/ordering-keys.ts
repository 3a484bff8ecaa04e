/**
 * Accounts as actors: the messages of an account are handled one at a time, in their order, though a worker handles ten
 * accounts at once, and a message that fails is tried again. No account needs a lock.
 */
import { Queue, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Schedule, Schema } from "effect"

class Deposit extends Schema.TaggedClass<Deposit>()("Deposit", { account: Schema.String, amount: Schema.Number }) {}
class Withdraw extends Schema.TaggedClass<Withdraw>()("Withdraw", { account: Schema.String, amount: Schema.Number }) {}

const Accounts = Queue.make("accounts", { payload: Schema.Union(Deposit, Withdraw) })

const send = (...messages: ReadonlyArray<Deposit | Withdraw>) =>
  Accounts.enqueueMany(messages, ({ account }) => ({ orderingKey: account }))

const balances = new Map<string, number>()

/** Reads, takes its time, writes: two of one account at once would lose money. */
const change = (account: string, by: number) =>
  Effect.gen(function* () {
    const before = balances.get(account) ?? 0
    yield* Effect.sleep("5 millis")
    if (before + by < 0) return yield* Effect.fail(`${account} has only ${before}`)
    balances.set(account, before + by)
    yield* Effect.log(`${account}: ${before} ${by < 0 ? "-" : "+"} ${Math.abs(by)} = ${before + by}`)
  })

let firstTime = true
const handlers = {
  Deposit: ({ payload }: { readonly payload: Deposit }) =>
    Effect.suspend(() => {
      // The first one fails once: what comes behind it waits
      const fails = firstTime
      firstTime = false
      return fails ? Effect.fail("the ledger is closed") : change(payload.account, payload.amount)
    }),
  Withdraw: ({ payload }: { readonly payload: Withdraw }) => change(payload.account, -payload.amount)
}

const program = Effect.gen(function* () {
  yield* send(
    new Deposit({ account: "ann", amount: 100 }),
    new Withdraw({ account: "ann", amount: 70 }),
    new Deposit({ account: "bob", amount: 10 }),
    new Withdraw({ account: "ann", amount: 30 })
  )
  const worker = yield* Worker.make(Accounts, { handlers, concurrency: 10, retry: Schedule.spaced("50 millis") })
  yield* Effect.repeat(worker.status, { until: ({ acked }) => acked === 4, schedule: Schedule.spaced("10 millis") })
  yield* Effect.log(
    `at the end: ${[...balances]
      .map(([account, amount]) => `${account} ${amount}`)
      .sort()
      .join(", ")}`
  )
})

program.pipe(Effect.scoped, Effect.provide(Sqlite.layerFile("accounts.db")), Effect.runPromise)
