/** The program of the crash suite: what its processes do until something ends them. */
import { appendFileSync } from "node:fs"
import { runMain } from "@effect/platform-node/NodeRuntime"
import { SqlClient } from "@effect/sql"
import { type Job, Lock, Schedules, transaction, Worker } from "alkstore"
import type { Services } from "alkstore/Sqlite"
import { Effect, type Layer, Redacted, Schedule, Stream } from "effect"
import { inOrder, watchStatements } from "../support/processes/statements.js"
import { type Config, type Entry, Order, Orders, stallMillis } from "./config.js"

const config: Config = JSON.parse(process.argv[2] ?? "")

/** Appended in one write, so that processes do not mix their lines and a killed one loses none. */
const note = (event: string, more: Partial<Entry> = {}): void => {
  const entry: Entry = { event, pid: process.pid, ...more, at: Date.now() }
  appendFileSync(config.ledger, `${JSON.stringify(entry)}\n`)
}

const die = (): void => void process.kill(process.pid, "SIGKILL")

const stop = (): void => {
  note("stopped")
  process.kill(process.pid, "SIGSTOP")
}

const pointIn = config.point !== undefined && "in" in config.point ? config.point.in : undefined

/** What holds this process up, whoever does it, is the oracle's to know: by its own measure, not the library's. */
const watchStalls = () => {
  let last = Date.now()
  setInterval(() => {
    const from = last
    last = Date.now()
    if (last - from > stallMillis) note("stalled", { from })
  }, 50).unref()
}

/** The effect of a scheduled job has the name of its boundary. */
const leave = (job: Job.Job<Order>) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) => {
    const name = Schedules.boundary(job)?.toISOString() ?? job.payload.name
    return sql`INSERT INTO effects (job, name, token, pid) VALUES (${job.id}, ${name}, ${job.lease.token}, ${process.pid})`
  })

const handler = (job: Job.Job<Order>) => {
  const ref = { job: job.id, attempt: job.attempt, token: job.lease.token }
  note("start", ref)
  if (pointIn === "work") die()
  const settle = transaction(Effect.zipRight(leave(job), job.ack))
  const complete = {
    worker: leave(job),
    settling: pointIn === "worked" ? Effect.uninterruptible(settle) : settle,
    transactional: leave(job)
  }
  return Effect.sleep(job.payload.millis).pipe(
    Effect.onInterrupt(() => Effect.sync(() => note("interrupted", ref))),
    Effect.tap(() => {
      note("worked", ref)
      if (pointIn === "worked") stop()
    }),
    Effect.zipRight(complete[config.style ?? "settling"])
  )
}

const work = Effect.gen(function* () {
  const worker = yield* Worker.make(Orders, {
    handler,
    name: String(process.pid),
    concurrency: config.concurrency ?? 8,
    visibilityTimeout: config.visibilityMillis,
    shutdownGrace: config.graceMillis,
    transactional: config.style === "transactional",
    retry: Schedule.spaced("50 millis")
  })
  yield* worker.events.pipe(
    Stream.runForEach((event) =>
      Effect.sync(() => {
        if (!("job" in event)) return note(event._tag)
        const { attempt, jobId, token } = event.job
        if (event._tag !== "Started") note(event._tag, { job: jobId, attempt, token })
      })
    ),
    Effect.forkScoped
  )
  note("ready")
  yield* Effect.never
}).pipe(Effect.scoped)

const produceOne = (n: number) => {
  const { longEvery = 0, longMillis = 0 } = config
  const name = `${process.pid}:${n}`
  const millis = longEvery > 0 && n % longEvery === 0 ? longMillis : 5 + ((n * 37) % 120)
  return Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    yield* sql`INSERT INTO orders (name) VALUES (${name})`
    yield* Orders.enqueue(new Order({ name, millis }))
  }).pipe(
    transaction,
    Effect.match({
      onFailure: (error) => note("refused", { order: `${name} ${error._tag}` }),
      onSuccess: () => note("receipt", { order: name })
    })
  )
}

const produce = Effect.gen(function* () {
  note("ready")
  for (let n = 0; ; n++) {
    yield* produceOne(n)
    yield* Effect.sleep(config.everyMillis ?? 50)
  }
})

/** What a lock protects: read, wait, write. Two at once lose a step. */
const guard = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  note("ready")
  const step = Effect.gen(function* () {
    note("locked")
    const [row] = yield* sql<{ readonly steps: number }>`SELECT steps FROM guarded`
    yield* Effect.sleep(100)
    yield* sql`UPDATE guarded SET steps = ${Number(row?.steps) + 1}`
    note("unlocked")
    if (pointIn === "work") die()
  })
  yield* step.pipe(
    Lock.withLock("guard", { ttl: config.lockMillis ?? 2_000 }),
    Effect.zipRight(Effect.sleep(10)),
    Effect.forever
  )
})

const serve: Effect.Effect<never> = Effect.zipRight(
  Effect.sync(() => note("ready")),
  Effect.never
)

const stranger = async () => {
  const { default: Database } = await import("better-sqlite3")
  const database = new Database(config.database, { timeout: 10_000 })
  database.exec("BEGIN IMMEDIATE")
  const insert = database.prepare("INSERT INTO orders (name) VALUES (?)")
  for (let n = 0; n < 1_000; n++) insert.run(`stranger ${process.pid}:${n}`)
  note("ready")
  setInterval(() => {}, 60_000)
}

const perform = (
  role: Exclude<Config["role"], "stranger">
): Effect.Effect<void, unknown, Services | SqlClient.SqlClient> => {
  switch (role) {
    case "work":
      return work
    case "produce":
      return produce
    case "guard":
      return guard
    case "serve":
      return serve
  }
}

const start = async (role: Exclude<Config["role"], "stranger">) => {
  const { point, scheduler = false, sweepMillis } = config
  watchStalls()
  if (point !== undefined && "when" in point)
    await watchStatements(config.engine, { [point.when]: inOrder(point.statements, die) })
  const options = {
    scheduler,
    sweeper: sweepMillis === undefined ? false : { schedule: Schedule.spaced(sweepMillis) }
  }
  // Each loads its driver, which takes most of the time that a process needs to start
  const engine: Layer.Layer<Services | SqlClient.SqlClient, unknown> =
    config.engine === "sqlite"
      ? (await import("alkstore/Sqlite")).layerFile(config.database, options)
      : (await import("alkstore/Pg")).layerUrl(Redacted.make(config.database), options)
  note("begin")
  runMain(Effect.provide(perform(role), engine))
}

await (config.role === "stranger" ? stranger() : start(config.role))
