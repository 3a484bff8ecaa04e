/**
 * A queue without a worker: claim, do, settle by hand.
 */
import { Queue } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Schema } from "effect"

const Numbers = Queue.make("numbers", { payload: Schema.Number })

const divide = (n: number): Effect.Effect<number, string> =>
  n === 0 ? Effect.fail("division by zero") : Effect.succeed(100 / n)

const program = Effect.gen(function* () {
  yield* Numbers.enqueueMany([4, 0, 5])
  const jobs = yield* Numbers.claim({ limit: 10, visibilityTimeout: "1 minute" })
  yield* Effect.forEach(jobs, (job) =>
    divide(job.payload).pipe(
      Effect.tap((result) => Effect.log(`100 / ${job.payload} = ${result}`)),
      Effect.zipRight(job.ack),
      Effect.catchAll((error) => job.fail(error))
    )
  )
  for (const letter of yield* Numbers.deadLetters.list()) {
    yield* Effect.log(`dead: ${letter.payload}, because of ${letter.errors[0]?.message}`)
  }
})

program.pipe(Effect.provide(Sqlite.layerFile("manual.db")), Effect.runPromise)
