/** What the worker processes do with jobs. */
import { SqlClient } from "@effect/sql"
import { Job, Lock, Outbox, Schedules, Supervisor } from "alkstore"
import { Effect, Option, Schedule } from "effect"
import { type ChildConfig, Exact, Fragile, Mail, Morgue, note, type Task, Work } from "./config.js"

/** A lock that all contend for, if it is free, and one of the attempt's own name; a killed process leaves both behind. */
const locking = ({ attempt, id, payload }: Job.Job<Task>) =>
  Effect.acquireUseRelease(
    Lock.tryAcquire("soak shared", { ttl: "1 second" }),
    Option.match({
      onNone: () => Effect.void,
      onSome: ({ token }) => note({ kind: "lock", serial: token, job: id })
    }),
    Option.match({ onNone: () => Effect.void, onSome: (lease) => Effect.ignore(Lock.release(lease)) })
  ).pipe(
    Effect.zipRight(Effect.sleep("100 millis")),
    Lock.withLock(`soak ${payload.serial} ${attempt}`, { ttl: "1 second" })
  )

const perform = (job: Job.Job<Task>): Effect.Effect<unknown, unknown, Lock.Lock | SqlClient.SqlClient> => {
  switch (job.payload.act) {
    case "lock":
      return locking(job)
    case "linger":
      return Effect.sleep("300 millis")
    case "retry":
      return job.failures < 2 ? Effect.fail("not yet") : Effect.void
    case "die":
      return Effect.fail("never")
    case "revive":
      return job.history.length === 0 ? Job.fatal("not in this life") : Effect.void
    default:
      return Effect.void
  }
}

const noting = (kind: "work" | "fragile") => (job: Job.Job<Task>) =>
  Effect.zipRight(perform(job), note({ kind, serial: job.payload.serial, job: job.id }))

/** Every seventh fails at first, after its writes. */
const ordered = (job: Job.Job<Task>) =>
  Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    const { key = "", serial } = job.payload
    const moved =
      yield* sql`UPDATE soak_lanes SET last = ${serial} WHERE lane = ${key} AND last < ${serial} RETURNING lane`
    if (moved.length === 0) yield* note({ kind: "disorder", serial, job: job.id })
    yield* note({ kind: "exact", serial, job: job.id })
    if (serial % 7 === 0 && job.failures === 0) yield* Effect.fail("rolled back")
  })

const exact = (job: Job.Job<Task>) => {
  if (job.payload.act === "ordered") return ordered(job)
  return job.payload.act === "tick"
    ? note({ kind: "tick", serial: Schedules.boundary(job)?.getTime() ?? 0, job: job.id })
    : note({ kind: "exact", serial: job.payload.serial, job: job.id })
}

export const workers = ({ graceMillis, visibilityMillis }: ChildConfig) => {
  const policy = {
    visibilityTimeout: visibilityMillis,
    shutdownGrace: graceMillis,
    retry: Schedule.spaced("200 millis")
  }
  /** What is delivered is noted with its job, so that a second delivery can be explained. */
  const relay = Outbox.relay<Task>({ deliver: () => Effect.void })
  return [
    Supervisor.worker(Work, { ...policy, handler: noting("work"), concurrency: 20 }),
    Supervisor.worker(Exact, { ...policy, handler: exact, concurrency: 4, transactional: true }),
    Supervisor.worker(Fragile, { ...policy, handler: noting("fragile") }),
    Supervisor.worker(Morgue, {
      ...policy,
      handler: (job) => note({ kind: "morgue", serial: job.payload.payload.serial, job: job.id })
    }),
    Supervisor.worker(Mail.queue, {
      ...policy,
      handler: (job) =>
        Effect.zipRight(relay.handler(job), note({ kind: "mail", serial: job.payload.serial, job: job.id }))
    })
  ]
}
