/**
 * What fails for good becomes a dead letter, with its reason and errors; an envelope of it goes to a queue of its own,
 * where somebody is told. When the cause is gone, it is requeued.
 */
import { Job, Queue, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Schedule, Schema } from "effect"

const Charge = Schema.Struct({ card: Schema.String, cents: Schema.Number })

const Failed = Queue.make("failed-charges", { payload: Queue.deadEnvelope(Charge) })
const Charges = Queue.make("charges", { payload: Charge, deadLetterQueue: Failed, retainDead: "90 days" })

let bankIsUp = false

const charge = ({ card, cents }: typeof Charge.Type): Effect.Effect<void, Job.Fatal | string> =>
  card === "stolen"
    ? Job.fatal("this card is stolen") // no further attempt
    : bankIsUp
      ? Effect.log(`charged ${cents} to ${card}`)
      : Effect.fail("the bank is down") // by the schedule

const program = Effect.gen(function* () {
  yield* Worker.fork(Charges, { handler: ({ payload }) => charge(payload), retry: Schedule.spaced("50 millis") })
  yield* Worker.fork(Failed, {
    handler: ({ payload: { errors, origin, payload, reason } }) =>
      Effect.log(`tell somebody: ${payload.card}, ${reason} after ${origin.attempts}: ${errors.at(-1)?.message}`)
  })
  yield* Charges.enqueueMany(
    [
      { card: "stolen", cents: 1 },
      { card: "ann's", cents: 200 }
    ],
    { maxAttempts: 3 }
  )

  const died = Effect.map(Charges.counts, ({ dead }) => dead.count === 2)
  yield* Effect.repeat(Effect.delay(died, "50 millis"), { until: (both) => both })

  bankIsUp = true
  const { requeued } = yield* Charges.deadLetters.requeue({ error: "bank is down" })
  yield* Effect.log(`requeued: ${requeued}`)
  const gone = Effect.map(Charges.list(), (jobs) => jobs.length === 0)
  yield* Effect.repeat(Effect.delay(gone, "50 millis"), { until: (none) => none })
  const purged = yield* Charges.deadLetters.purge({ reason: "failed" })
  yield* Effect.log(`purged: ${purged}`)
})

program.pipe(Effect.scoped, Effect.provide(Sqlite.layerFile("charges.db")), Effect.runPromise)
