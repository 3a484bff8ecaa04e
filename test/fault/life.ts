/**
 * The whole life of workers, a relay, a sweeper and a scheduler with a fault at one of their statements: they must come to
 * the same end by themselves. The Layer is never built again: it lives through all faults.
 */
import { SqlClient } from "@effect/sql"
import { Job, Outbox, Queue, Schedules, Worker } from "alkstore"
import { Effect, Exit, Schedule, Schema, type Scope, Stream } from "effect"
import { timeout } from "../support/form.js"
import { until } from "../support/until.js"
import type { FaultServices } from "./engines.js"
import type { World } from "./world.js"

export interface Diary {
  /** How often each job's handler was started. */
  readonly runs: Map<string, number>
  /** Ids of messages that were delivered. */
  readonly delivered: Set<string>
  /** At the instants of `performance.now()`. */
  readonly events: Array<Worker.WorkerEvent & { readonly at: number }>
}

/** Short, so that what a lost answer leaves leased is free again soon; not so short that a busy machine loses some. */
export const visibilityMillis = timeout(3_000, 10_000)

const policy = {
  visibilityTimeout: visibilityMillis,
  heartbeat: Schedule.spaced("200 millis"),
  retry: Schedule.spaced("10 millis"),
  concurrency: 4,
  shutdownGrace: "50 millis"
} as const

/** The names of the jobs, and how they are enqueued. */
const jobs: Readonly<Record<string, Queue.EnqueueOptions>> = {
  plain: {},
  "fails once": {},
  fatal: {},
  spent: { maxAttempts: 2 },
  snoozes: {},
  slow: {},
  "first of a key": { orderingKey: "k" },
  "second of a key": { orderingKey: "k" },
  later: { delay: "50 millis" },
  effect: {},
  endless: {}
}

/** What is left when all is done but the job that does not end. */
export const endless = "endless"

/** Queues of one life. */
export const definitions = ({ name }: World) => ({
  work: Queue.make(name("work"), { payload: Schema.String, maxAttempts: 5 }),
  whole: Queue.make(name("whole"), { payload: Schema.String }),
  batches: Queue.make(name("batches"), { payload: Schema.String }),
  events: Outbox.make(name("events"), { message: Schema.String, key: () => "k" })
})

/** As a producer does whose answers get lost: again, with a key. */
const insist = <A, E, R>(self: Effect.Effect<A, E, R>) =>
  Effect.retry(self, { times: 4, schedule: Schedule.spaced("10 millis") })

const write = (text: string) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) => sql`INSERT INTO marks (text) VALUES (${text})`)

const note = ({ runs }: Diary, text: string) =>
  Effect.sync(() => {
    const count = (runs.get(text) ?? 0) + 1
    runs.set(text, count)
    return count
  })

const handlerOf =
  (diary: Diary, { events }: ReturnType<typeof definitions>) =>
  (job: Job.Job<string>) =>
    Effect.gen(function* () {
      yield* note(diary, job.payload)
      switch (job.payload) {
        case "fails once":
          return job.failures === 0 ? yield* Effect.fail("on purpose") : undefined
        case "spent":
          return yield* Effect.fail("on purpose")
        case "fatal":
          return yield* Effect.fail(new Job.Fatal({ error: "on purpose" }))
        case "snoozes":
          return job.failures === 0 && diary.runs.get("snoozes") === 1
            ? yield* Effect.fail(new Job.Snooze({ delay: "20 millis" }))
            : undefined
        case "slow":
          return yield* Effect.zipRight(job.heartbeat("half"), Effect.sleep("300 millis"))
        case "endless":
          return yield* Effect.never
        case "effect":
          // Effect, message and ack are one
          return yield* Queue.transaction(
            Effect.all([write("effect"), events.publish("effect"), job.ack], { discard: true })
          )
        default:
          return undefined
      }
    })

const begin = (world: World, diary: Diary) =>
  Effect.gen(function* () {
    const defined = definitions(world)
    const watch = (worker: Worker.Worker) =>
      Effect.forkScoped(
        Stream.runForEach(worker.events, (event) =>
          Effect.sync(() => diary.events.push({ ...event, at: performance.now() }))
        )
      )
    const noted = (text: string) => Effect.zipRight(note(diary, text), write(text))
    yield* Effect.flatMap(Worker.make(defined.work, { ...policy, handler: handlerOf(diary, defined) }), watch)
    yield* Effect.flatMap(
      Worker.make(defined.whole, { ...policy, transactional: true, handler: ({ payload }) => noted(payload) }),
      watch
    )
    const batchHandler = (some: ReadonlyArray<Job.Job<string>>) =>
      Effect.forEach(some, ({ payload }) => note(diary, payload), { discard: true })
    yield* Effect.flatMap(Worker.make(defined.batches, { ...policy, batchHandler }), watch)
    // A message that has arrived nowhere is not done: the first delivery fails
    const deliver = ({ id }: Outbox.Delivery<string>) =>
      Effect.flatMap(note(diary, "delivery"), (times) =>
        times === 1 ? Effect.fail("on purpose") : Effect.sync(() => void diary.delivered.add(id))
      )
    yield* Effect.flatMap(Worker.make(defined.events.queue, { ...Outbox.relay({ deliver }), ...policy }), watch)
    return defined
  })

const produce = (world: World, { batches, whole, work }: ReturnType<typeof definitions>) =>
  Effect.gen(function* () {
    const pulse = Schedules.make(world.name("pulse"), { cron: "0 0 1 1 *", queue: work, payload: "pulse" })
    const keyed = (payload: string): Queue.EnqueueOptions => ({ dedupeKey: payload, dedupeWindow: "1 hour" })
    yield* insist(work.enqueueMany(Object.keys(jobs), (payload) => ({ ...keyed(payload), ...jobs[payload] })))
    yield* insist(whole.enqueueMany(["whole 1", "whole 2"], keyed))
    yield* insist(batches.enqueueMany(["batch 1", "batch 2", "batch 3"], keyed))
    yield* insist(Schedules.put(pulse))
    const { database, name, operator } = world
    yield* operator(
      `UPDATE ${database.table("schedules")} SET next_at = 1700000000000, fire_at = 1 WHERE name = '${name("pulse")}' AND fired = 0`
    )
  })

/** The long form has no hurry. */
const patience = timeout(25_000, 90_000)

/** All jobs have ended but the endless one, and the schedule has fired. */
const ended = async ({ database, prefix }: World): Promise<boolean> => {
  const { jobs: live = [], schedules = [] } = await database.look()
  const mine = live.filter(({ queue }) => String(queue).startsWith(prefix))
  return mine.every(({ payload }) => payload === `"${endless}"`) && schedules.every(({ fired }) => fired === 1)
}

/** From the first enqueue to the end of the shutdown. Answers what went wrong on the way. */
export const live = (world: World, diary: Diary): Effect.Effect<ReadonlyArray<string>, never, FaultServices> =>
  Effect.gen(function* () {
    const problems: Array<string> = []
    const life = Effect.gen(function* () {
      const defined = yield* begin(world, diary)
      yield* produce(world, defined)
      yield* Effect.tryPromise(() => until("all have ended", () => ended(world), patience))
      yield* Effect.tryPromise(() => until("the endless one runs", () => diary.runs.has(endless)))
    }) satisfies Effect.Effect<void, unknown, FaultServices | Scope.Scope>
    const exit = yield* Effect.exit(
      Effect.timeoutFail(Effect.disconnect(Effect.scoped(life)), {
        duration: patience + 25_000,
        onTimeout: () => "the shutdown does not end"
      })
    )
    if (Exit.isFailure(exit)) problems.push(`the life fails: ${exit.cause}`)
    return problems
  })
