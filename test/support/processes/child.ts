/** The child process of the tests of several processes: a worker or a producer, as the configuration says. */
import { appendFileSync } from "node:fs"
import { runMain } from "@effect/platform-node/NodeRuntime"
import { type Job, Outbox, Queue, Worker } from "alkstore"
import { Effect, Either, Layer, Redacted, Schedule, Stream } from "effect"
import { type Config, Effects, type Entry, Events, type Task, Tasks, task } from "./config.js"
import { inOrder, watchStatements } from "./statements.js"

const config: Config = JSON.parse(process.argv[2] ?? "")

/** Appended in one write, so that processes do not mix their lines and a killed one loses none. */
const write = (event: string, job?: { readonly id: number; readonly attempt: number }): void => {
  const entry: Entry = { event, pid: process.pid, ...job, at: Date.now() }
  appendFileSync(config.ledger, `${JSON.stringify(entry)}\n`)
}

const spin = (millis: number): void => {
  const end = performance.now() + millis
  while (performance.now() < end);
}

const perform = (job: Job.Job<Task>): Effect.Effect<void> => {
  const { act, first, millis } = job.payload
  if (first && job.attempt > 1) return Effect.void
  const ref = { id: job.id, attempt: job.attempt }
  switch (act) {
    case "nothing":
      return Effect.void
    case "sleep":
      return Effect.sleep(millis)
    case "kill":
      return Effect.zipRight(
        Effect.sync(() => void process.kill(process.pid, "SIGKILL")),
        Effect.never
      )
    case "ack":
      return Effect.sleep(millis).pipe(
        Effect.zipRight(Effect.either(job.ack)),
        Effect.map((answer) =>
          write(Either.isRight(answer) ? "ack accepted" : `ack refused: ${answer.left._tag}`, ref)
        ),
        Effect.uninterruptible
      )
    case "never":
      return Effect.uninterruptible(Effect.never)
    case "spin":
      return Effect.sync(() => spin(millis))
  }
}

const handler = (job: Job.Job<Task>) => {
  const ref = { id: job.id, attempt: job.attempt }
  write("start", ref)
  return (config.transactional === true ? Effect.zipRight(Effects.enqueue(job.id), perform(job)) : perform(job)).pipe(
    Effect.tap(() => write("end", ref)),
    Effect.onInterrupt(() => Effect.sync(() => write("interrupted", ref)))
  )
}

const worker = Effect.gen(function* () {
  const worker = yield* Worker.make(Tasks, {
    handler,
    concurrency: config.concurrency,
    prefetch: config.prefetch,
    visibilityTimeout: config.visibilityMillis,
    stuckAfter: config.stuckAfterMillis,
    shutdownGrace: config.graceMillis,
    transactional: config.transactional,
    retry: Schedule.spaced("10 millis")
  })
  yield* worker.events.pipe(
    Stream.runForEach((event) =>
      Effect.sync(() => {
        if (event._tag === "Started" || event._tag === "Acked") return
        write(event._tag, "job" in event ? { id: event.job.jobId, attempt: event.job.attempt } : undefined)
      })
    ),
    Effect.forkScoped
  )
  if (config.killAfterAck === true) {
    const acked = worker.status.pipe(Effect.repeat({ until: ({ acked }) => acked > 0, schedule: Schedule.spaced(1) }))
    yield* Effect.forkScoped(Effect.map(acked, () => process.kill(process.pid, "SIGKILL")))
  }
  write("ready")
  return worker
})

const acked = (count: number) =>
  Effect.gen(function* () {
    const running = yield* worker
    yield* running.status.pipe(
      Effect.repeat({ until: ({ acked }) => acked >= count, schedule: Schedule.spaced("10 millis") })
    )
  }).pipe(Effect.scoped)

/** Whoever runs it: its own job is gone. */
const once = Effect.gen(function* () {
  const { id } = yield* Tasks.enqueue(task("nothing"))
  const queue = yield* Queue.Queue
  yield* worker
  yield* queue
    .list(Tasks.name, { limit: 1, after: id - 1 })
    .pipe(Effect.repeat({ until: ([row]) => row?.id !== id, schedule: Schedule.spaced("20 millis") }))
}).pipe(Effect.scoped)

const produce = Effect.gen(function* () {
  const { batch = 1, count = 0 } = config
  for (let done = 0; done < count; done += batch) {
    const receipts = yield* Tasks.enqueueMany(
      Array.from({ length: Math.min(batch, count - done) }, () => task("nothing"))
    )
    const lines = receipts.map(({ id }): Entry => ({ event: "receipt", pid: process.pid, id, at: Date.now() }))
    appendFileSync(config.ledger, lines.map((line) => `${JSON.stringify(line)}\n`).join(""))
  }
})

const relay = Layer.launch(
  Outbox.layer(Events, {
    concurrency: config.concurrency,
    visibilityTimeout: config.visibilityMillis,
    retry: Schedule.spaced("10 millis"),
    deliver: ({ id, message }) =>
      Effect.tryPromise(async (signal) => {
        const body = JSON.stringify({ id, pid: process.pid, ...message })
        const response = await fetch(config.url ?? "", { method: "POST", body, signal })
        if (!response.ok) throw new Error(`answered ${response.status}`)
      })
  })
)

const program = (role: Exclude<Config["role"], "hold">) => {
  switch (role) {
    case "work":
      return Effect.scoped(Effect.zipRight(worker, Effect.never))
    case "finish":
      return acked(config.count ?? 1)
    case "once":
      return once
    case "produce":
      return produce
    case "relay":
      return relay
    case "schedule":
      return Effect.zipRight(
        Effect.sync(() => write("ready")),
        Effect.never
      )
  }
}

/** As a program that is no user of ours would. */
const hold = async () => {
  const { default: Database } = await import("better-sqlite3")
  const database = new Database(config.database)
  database.exec("BEGIN IMMEDIATE")
  write("ready")
  setTimeout(() => {
    database.exec("COMMIT")
    database.close()
    write("end")
  }, config.holdMillis)
}

const start = async (role: Exclude<Config["role"], "hold">) => {
  const pollInterval = config.pollMillis
  if (config.killAt !== undefined)
    await watchStatements(config.engine, {
      before: inOrder(config.killAt, () => void process.kill(process.pid, "SIGKILL"))
    })
  // Each loads its driver, which takes most of the time that a process needs to start
  const engine =
    config.engine === "sqlite"
      ? (await import("alkstore/Sqlite")).layerFile(config.database, { pollInterval })
      : (await import("alkstore/Pg")).layerUrl(Redacted.make(config.database), { pollInterval })
  write("begin")
  const main = program(role).pipe(Effect.provide(engine))
  // Those that are to end by themselves are not helped by runMain, which may call process.exit
  if (role === "work" || role === "produce" || role === "relay" || role === "schedule") runMain(main)
  else await Effect.runPromise(main)
}

await (config.role === "hold" ? hold() : start(config.role))
