/**
 * Schedules: stored recurrences. However many processes run this, each boundary gives one job.
 */
import { Queue, Schedules, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Schedule, Schema } from "effect"

const Reports = Queue.make("reports", { payload: Schema.Struct({ kind: Schema.Literal("daily", "pulse") }) })

const nightly = Schedules.make("nightly-report", {
  cron: "0 3 * * *",
  timeZone: "Europe/Berlin",
  queue: Reports,
  payload: { kind: "daily" },
  maxAttempts: 5
})

const pulse = Schedules.make("pulse", {
  every: "1 second",
  queue: Reports,
  payload: { kind: "pulse" },
  overlap: "skip",
  expires: "1 minute"
})

const program = Effect.gen(function* () {
  const worker = yield* Worker.make(Reports, {
    handler: (job) => {
      const boundary = Schedules.boundary(job)
      const late = boundary === undefined ? "now, by hand" : `${boundary.getTime() % 1_000} ms past the second`
      return Effect.log(`${job.payload.kind}: ${late}`)
    }
  })
  yield* Schedules.trigger("nightly-report")
  yield* Effect.repeat(worker.status, { until: ({ acked }) => acked === 3, schedule: Schedule.spaced("50 millis") })
  yield* Schedules.pause("pulse")
  for (const schedule of yield* Schedules.list) {
    const next = schedule.nextAt === undefined ? "paused" : `next at ${schedule.nextAt.toISOString()}`
    yield* Effect.log(`${schedule.name}: ${next}`)
  }
})

program.pipe(
  Effect.scoped,
  Effect.provide(Schedules.layer([nightly, pulse])),
  Effect.provide(Sqlite.layerFile("schedules.db")),
  Effect.runPromise
)
