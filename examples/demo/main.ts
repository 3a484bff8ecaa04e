/**
 * What a durable queue promises, shown with real processes on a real database: SQLite in a temporary file, or
 * PostgreSQL with DATABASE_URL=postgres://… It ends by itself and exits with 1 when anything is not as promised.
 */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { Queue } from "alkstore"
import { Effect, Exit, Schedule } from "effect"
import { Broken, check, say, seconds, startWorker } from "./processes.js"

const directory = mkdtempSync(join(tmpdir(), "alkstore-demo-"))
process.env.DEMO_FILE = join(directory, "shop.db")
process.env.DEMO_NAMESPACE = `alkstore_demo_${process.pid}`
const { countOrders, createOrders, Database, dropEverything, Emails, engine, placeOrder } = await import("./shop.js")

const waiting = Effect.flatMap(Queue.Queue, (queue) => queue.list(Emails.name, { limit: 100, after: 0 }))

/** Looks until it is so, for 15 s. */
const eventually = <E, R>(promise: string, look: Effect.Effect<boolean, E, R>) =>
  Effect.filterOrFail(
    look,
    (kept) => kept,
    () => new Broken({ promise })
  ).pipe(
    Effect.retry(Schedule.spaced("50 millis").pipe(Schedule.upTo("15 seconds"))),
    Effect.zipRight(say(`  ok: ${promise}`))
  )

const transactions = Effect.gen(function* () {
  yield* say("An order and its e-mail job are committed together.")
  const { job, order } = yield* placeOrder("ann@example.com")
  yield* check(`order ${order} and job ${job} are there`, (yield* countOrders) === 1 && (yield* waiting).length === 1)
  yield* say("An order that is rolled back leaves no job.")
  const refused = yield* Effect.exit(placeOrder("bob@example.com", Effect.fail("card declined")))
  const left = { orders: yield* countOrders, jobs: (yield* waiting).length }
  yield* check(
    "neither the order nor its job is there",
    Exit.isFailure(refused) && left.orders === 1 && left.jobs === 1
  )
})

const retries = Effect.gen(function* () {
  yield* say("A second process runs the worker.")
  const worker = yield* startWorker
  const { attempt } = yield* worker.tells("sent", "ann@example.com")
  yield* check("the e-mail to ann is sent, attempt 1", attempt === 1)

  yield* say("A flaky job is retried with backoff: after about 0.3 s, then 0.6 s.")
  yield* placeOrder("flaky@example.com")
  const sent = yield* worker.tells("sent", "flaky@example.com")
  const starts = worker.told.filter((t) => t.event === "started" && t.to === "flaky@example.com").map((t) => t.at)
  const gaps = starts.slice(1).map((at, n) => at - (starts[n] ?? 0))
  yield* check(
    `sent at attempt 3, after pauses of ${gaps.map((gap) => `${gap.toFixed(2)} s`).join(" and ")}`,
    sent.attempt === 3 && gaps.every((gap) => gap > 0.2)
  )

  yield* say("A poison job is dead-lettered after three attempts, with its errors.")
  yield* placeOrder("poison@example.com")
  yield* eventually(
    "it is in the dead letters: exhausted, three errors",
    Effect.map(Emails.deadLetters.list(), ([letter]) => letter?.reason === "exhausted" && letter.errors.length === 3)
  )
  return worker
})

const program = Effect.gen(function* () {
  yield* say(`alkstore on ${engine}`)
  yield* createOrders
  yield* transactions
  const first = yield* retries

  yield* say("The worker process is killed (SIGKILL) in the middle of a job, beside an idle one.")
  yield* placeOrder("slow@example.com")
  yield* first.tells("started", "slow@example.com", 1)
  const second = yield* startWorker
  const killed = seconds()
  yield* first.signal("SIGKILL")
  const orphan = (yield* first.ended) === "SIGKILL" && (yield* waiting)[0]?.state === "leased"
  yield* check("it is gone, and the job is still leased to it", orphan)
  yield* say("The other takes the job over when the lease of 2 s ends.")
  const again = yield* second.tells("sent", "slow@example.com")
  yield* check(`sent at attempt 2, ${(again.at - killed).toFixed(1)} s after the kill`, again.attempt === 2)

  yield* say("SIGTERM drains a worker: it finishes what it has begun, takes nothing new, and ends.")
  yield* placeOrder("careful@example.com")
  yield* second.tells("started", "careful@example.com")
  yield* second.signal("SIGTERM")
  const code = yield* second.ended
  const finished = second.told.some((t) => t.event === "sent" && t.to === "careful@example.com")
  yield* check("the job was finished, the exit code is 0", finished && code === 0)
  yield* eventually(
    "nothing is left in the queue",
    Effect.map(waiting, (jobs) => jobs.length === 0)
  )
  yield* say("All as promised.")
})

// Interrupted by hand it tidies up as well
const stop = new AbortController()
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => stop.abort())

const exit = await program.pipe(
  Effect.ensuring(Effect.ignoreLogged(dropEverything)),
  Effect.scoped,
  Effect.provide(Database),
  Effect.tapErrorTag("Broken", ({ promise }) => say(`NOT AS PROMISED: ${promise}`)),
  Effect.tapErrorCause((cause) => Effect.logError("the demo failed", cause)),
  (main) => Effect.runPromiseExit(main, { signal: stop.signal })
)
rmSync(directory, { recursive: true, force: true })
process.exitCode = Exit.isSuccess(exit) ? 0 : 1
