/**
 * A supervisor: several workers under one restart policy. One whose handlers hang fails, is started again, and
 * is given up when that does not help; the other goes on.
 */
import { Queue, Supervisor } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Schedule, Schema, Stream } from "effect"

const Emails = Queue.make("emails", { payload: Schema.String })
const Reports = Queue.make("reports", { payload: Schema.String })

const program = Effect.gen(function* () {
  const supervisor = yield* Supervisor.make(
    [
      Supervisor.worker(Emails, { handler: (job) => Effect.log(`to ${job.payload}`) }),
      Supervisor.worker(Reports, {
        // Takes far too long, and does not let itself be interrupted
        handler: () => Effect.uninterruptible(Effect.sleep("5 seconds")),
        concurrency: 1,
        timeout: "50 millis",
        stuckAfter: 0,
        shutdownGrace: 0,
        retry: Schedule.spaced("1 millis")
      })
    ],
    { restart: Schedule.spaced("10 millis"), maxRestarts: 1 }
  )
  yield* supervisor.events.pipe(
    Stream.filter(({ _tag }) => _tag === "Restarting" || _tag === "GaveUp"),
    Stream.runForEach(({ _tag, worker }) => Effect.log(`${_tag}: ${worker}`)),
    Effect.forkScoped
  )
  yield* Reports.enqueueMany(["a", "b"])
  // A program that cannot do without one of its workers ends here
  const { message } = yield* Effect.flip(supervisor.failure)
  yield* Effect.log(`given up: ${message}`)
  yield* Emails.enqueue("ann@example.com")
  yield* Effect.repeat(supervisor.status, {
    until: ({ emails }) => emails?.worker?.acked === 1,
    schedule: Schedule.spaced("10 millis")
  })
  const status = yield* supervisor.status
  yield* Effect.log(`emails: ${status.emails?.state}, reports: ${status.reports?.state}`)
})

program.pipe(Effect.scoped, Effect.provide(Sqlite.layerFile("supervisor.db")), Effect.runPromise)
