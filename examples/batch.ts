/**
 * A batch handler: one call for many jobs, each of which ends on its own.
 */
import { Job, Queue, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Either, Schedule, Schema } from "effect"

const Readings = Queue.make("readings", { payload: Schema.Struct({ sensor: Schema.Number, value: Schema.Number }) })

/** As a service that takes many at once answers: each by itself. */
const upload = (readings: ReadonlyArray<{ readonly sensor: number; readonly value: number }>) =>
  Effect.as(
    Effect.log(`uploading ${readings.length} readings at once`),
    readings.map(({ sensor, value }) =>
      sensor < 0
        ? Either.left(new Job.Fatal({ error: `there is no sensor ${sensor}` }))
        : value > 100
          ? Either.left("too hot to be true")
          : Either.right(value)
    )
  )

const program = Effect.gen(function* () {
  const worker = yield* Worker.make(Readings, {
    batch: { size: 50, maxWait: "100 millis" },
    batchHandler: (jobs) => upload(jobs.map(({ payload }) => payload)),
    retry: Schedule.stop
  })
  yield* Readings.enqueueMany(
    Array.from({ length: 20 }, (_, n) => ({ sensor: n === 7 ? -1 : n, value: n === 13 ? 1_000 : n }))
  )
  yield* Effect.repeat(worker.status, {
    until: ({ acked, dead }) => acked + dead === 20,
    schedule: Schedule.spaced("10 millis")
  })
  yield* Effect.log(`${(yield* worker.status).acked} uploaded`)
  for (const { errors, reason } of yield* Readings.deadLetters.list())
    yield* Effect.log(`${reason}: ${errors[0]?.message}`)
})

program.pipe(Effect.scoped, Effect.provide(Sqlite.layerFile("readings.db")), Effect.runPromise)
