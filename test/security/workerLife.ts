/** All that a worker's process does with its database, in one life. */
import { SqlClient } from "@effect/sql"
import { Job, Lock, Outbox, Queue, Schedules, Transfer, transaction, Wake, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Chunk, Context, Effect, Layer, Redacted, Schedule, Schema, Stream } from "effect"
import { expect } from "vitest"
import { live, wait } from "../support/outages.js"

const Undertaker = Queue.make("undertaker", { payload: Schema.Unknown })
const Work = Queue.make("work", {
  payload: Schema.String,
  deadLetterQueue: Undertaker,
  onDead: "block",
  retainCompleted: "1 hour",
  retainDead: "1 hour"
})
const News = Outbox.make("news", { message: Schema.String, key: () => "paper" })
const Nightly = Schedules.make("nightly", { cron: "0 3 * * *", queue: Work, payload: "nightly" })

/** Operations by hand, in the order in which a job can meet them. */
const byHand = Effect.gen(function* () {
  yield* Work.enqueueMany(["a", "b", "c", "d"], { orderingKey: "o" })
  yield* Work.enqueue("e", { dedupeKey: "k", dedupeWindow: "1 minute", expires: "1 hour" })
  yield* Work.enqueue("f", { dedupeKey: "k", onDuplicate: "replace", delay: "1 hour" })
  yield* Work.setPriority({ dedupeKey: "k" }, 5)
  yield* Work.reschedule({ dedupeKey: "k" }, { delay: 0 })
  yield* transaction(Work.enqueue("g", { dedupeKey: "g", dedupeScope: "waiting" }))
  const jobs = yield* Work.claim({ limit: 10 })
  const [first, second, third] = jobs
  expect(jobs.map(({ payload }) => payload).sort()).toEqual(["a", "f", "g"])
  yield* first?.heartbeat({ at: 1 }) ?? Effect.void
  yield* first?.retry({ delay: 0, error: "again" }) ?? Effect.void
  yield* second?.fail("no") ?? Effect.void
  yield* transaction(third?.release ?? Effect.void)
  const letters = yield* Work.deadLetters.list()
  expect(letters).toHaveLength(1)
  yield* Work.deadLetters.requeue({ reason: "failed" })
  yield* Effect.all([Work.pause, Work.resume, Work.counts, Work.running(), Work.list(), Work.completed(), Queue.names])
  const late = yield* Work.enqueue("too late", { delay: "1 hour" })
  expect(yield* Work.cancel(late.id)).toBe("cancelled")
  yield* Work.deadLetters.purge({ reason: "cancelled" })
  expect(yield* Work.clear).toBeGreaterThan(0)
  yield* Work.deadLetters.purge({ all: true })
  yield* Queue.sweepExpired
})

const locksAndSchedules = Effect.gen(function* () {
  // Beside the sweeper's
  const held = yield* Lock.withLock("a lock")(Lock.list)
  expect(held.map(({ name }) => name)).toContain("a lock")
  const lease = yield* Lock.acquire("another")
  yield* Effect.flatMap(Lock.renew(lease), Lock.release)
  yield* Schedules.put(Nightly)
  yield* Effect.all([Schedules.pause("nightly"), Schedules.resume("nightly"), Schedules.list])
  yield* Schedules.trigger("nightly")
  yield* Work.enqueue("by hand")
  expect(yield* Schedules.remove("nightly")).toBe(true)
})

/** One worker that acks, retries, dead-letters, is told to cancel, and hears of a job by NOTIFY alone. */
const working = (engine: Context.Context<Pg.Services>, elsewhere: Context.Context<Pg.Services>) =>
  Effect.gen(function* () {
    const tags = new Set<string>()
    const worker = yield* Worker.make(Work, {
      retry: Schedule.spaced(1),
      visibilityTimeout: "5 seconds",
      handler: (job): Effect.Effect<unknown, unknown> => {
        if (job.payload === "fail") return Job.fatal("no")
        if (job.payload === "long") return Effect.zipRight(Effect.ignore(job.heartbeat({ long: true })), Effect.never)
        return job.payload === "twice" && job.attempt === 1 ? Effect.fail("first") : Effect.void
      }
    })
    yield* Effect.forkScoped(Stream.runForEach(worker.events, ({ _tag }) => Effect.sync(() => tags.add(_tag))))
    const wake = Context.get(engine, Wake.Wake)
    yield* wait("listening", () => Effect.runSync(wake.state)._tag === "Live")
    yield* Effect.provide(Work.enqueueMany(["twice", "fail", "long"]), elsewhere)
    yield* wait("a lease is renewed", () => tags.has("Acked") && tags.has("Retried") && tags.has("Died"))
    const running = yield* Effect.repeat(Work.running(), { until: (rows) => rows.length === 1 })
    expect(yield* Work.cancel(running[0]?.id ?? 0)).toBe("requested")
    yield* wait("it is cancelled", async () => {
      const letters = await Effect.runPromise(Effect.provide(Work.deadLetters.list({ reason: "cancelled" }), engine))
      return letters.length === 1
    })
  })

const delivering = Effect.gen(function* () {
  const delivered: Array<string> = []
  const sql = yield* SqlClient.SqlClient
  yield* transaction(Effect.zipRight(sql`SELECT 1`, News.publishMany(["one", "two"])))
  yield* Outbox.fork(News, { deliver: ({ message }) => Effect.sync(() => delivered.push(message)) })
  yield* wait("delivered", () => delivered.length === 2)
  expect(delivered).toEqual(["one", "two"])
})

const moving = Effect.gen(function* () {
  const records = yield* Stream.runCollect(Transfer.export({ force: true, completed: true }))
  const elsewhere = Chunk.map(records, (record) =>
    record.type === "alkstore" ? { ...record, origin: "other" } : record
  )
  const { complete } = yield* Transfer.import(Stream.fromChunk(elsewhere))
  expect(complete).toBe(true)
})

/** Fails with whatever is refused. `url`: the role's; `other`: somebody's who enqueues from another process. */
export const workerLife = (url: string, other: string): Promise<void> =>
  live(
    Effect.gen(function* () {
      const options: Pg.Options = { migrate: false, pollInterval: "1 hour", sweeper: { schedule: Schedule.spaced(50) } }
      const engine = yield* Layer.build(Pg.layerUrl(Redacted.make(url), options))
      const elsewhere = yield* Layer.build(
        Pg.layerUrl(Redacted.make(other), { sweeper: false, scheduler: false, listen: false })
      )
      yield* byHand.pipe(Effect.provide(engine))
      yield* locksAndSchedules.pipe(Effect.provide(engine))
      yield* Effect.scoped(working(engine, elsewhere)).pipe(Effect.provide(engine))
      yield* Effect.scoped(delivering).pipe(Effect.provide(engine))
      yield* moving.pipe(Effect.provide(engine))
    })
  )
