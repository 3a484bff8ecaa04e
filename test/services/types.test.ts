/** What the types must refuse, shown to the compiler. */
import { mkdirSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { expect, test } from "vitest"
import { compile } from "../support/programs.js"

const directory = fileURLToPath(new URL("../.tmp/types", import.meta.url))

const prelude = `import { Job, Outbox, Queue, Schedules, Supervisor, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Context, Effect, Either, Exit, Layer, Schedule, Schema } from "effect"
const Emails = Queue.make("emails", { payload: Schema.Struct({ to: Schema.String }) })
class Open extends Schema.TaggedClass<Open>()("Open", { account: Schema.String }) {}
class Close extends Schema.TaggedClass<Close>()("Close", { account: Schema.String }) {}
const Accounts = Queue.make("accounts", { payload: Schema.Union(Open, Close) })
const Events = Outbox.make("events", { message: Open, key: (event) => event.account })
class Mailer extends Context.Tag("Mailer")<Mailer, { readonly send: (to: string) => Effect.Effect<void> }>() {}
const send = (job: { readonly payload: { readonly to: string } }) => Effect.flatMap(Mailer, (mailer) => mailer.send(job.payload.to))
const MailerLive = Layer.succeed(Mailer, { send: () => Effect.void })
const run = (layer: Layer.Layer<never, unknown>) => Effect.runPromise(Layer.launch(layer))
`

const accepted: ReadonlyArray<string> = [
  `export default run(Worker.layer(Emails, { batchHandler: (jobs) => Effect.forEach(jobs, (job) => Effect.either(send(job))), batch: { size: 10 } }).pipe(Layer.provide(MailerLive), Layer.provide(Sqlite.layerFile("a.db"))))`,
  `export default Worker.layer(Emails, { batchHandler: (jobs) => Effect.forEach(jobs, (job) => Effect.exit(Effect.fail(job.payload.to))), retry: Schedule.whileInput(Schedule.forever, (failure: Job.JobFailure<string>) => failure.error !== "hopeless") })`,
  `export default Worker.layer(Emails, { batchHandler: (jobs) => Effect.gen(function* () { if (jobs.length > 1) return yield* Effect.fail(new Error("all")); return [Either.left("one"), Either.left(new Job.Fatal({ error: 1 })), Exit.void] }), retry: Schedule.whileInput(Schedule.forever, (failure: Job.JobFailure<string | Error | Job.Fatal>) => failure.error !== "hopeless") })`,
  `export default Worker.layer(Emails, { batchHandler: () => Effect.log("all") })`,
  `export default Worker.layer(Emails, { transactional: true, handler: send })`,
  `export default run(Layer.scopedDiscard(Supervisor.make([Supervisor.worker(Emails, { handler: send }), Supervisor.worker(Accounts, { handlers: { Open: () => Effect.fail("no") } })])).pipe(Layer.provide(MailerLive), Layer.provide(Sqlite.layerFile("a.db"))))`,
  `export default Events.publish(new Open({ account: "a" }), { delay: "1 minute" })`,
  `export default run(Outbox.layer(Events, { deliver: ({ message }) => Effect.flatMap(Mailer, (mailer) => mailer.send(message.account)) }).pipe(Layer.provide(MailerLive), Layer.provide(Sqlite.layerFile("a.db"))))`,
  `export default Emails.enqueue({ to: "a" }, { priority: 1 })`,
  `export default Accounts.enqueue(new Open({ account: "a" }))`,
  `export default run(Worker.layer(Emails, { handler: send }).pipe(Layer.provide(MailerLive), Layer.provide(Sqlite.layerFile("a.db"))))`,
  `export default run(Worker.layer(Accounts, { handlers: { Open: (job) => Effect.log(job.payload.account) } }).pipe(Layer.provide(Sqlite.layerFile("a.db"))))`,
  `export default run(Worker.layer(Accounts, { handlers: { Open: () => Effect.zipRight(Effect.addFinalizer(() => Effect.void), Effect.flatMap(Mailer, (mailer) => mailer.send("a"))), Close: () => Effect.fail("no") } }).pipe(Layer.provide(MailerLive), Layer.provide(Sqlite.layerFile("a.db"))))`,
  `export default (options: Worker.Options<{ readonly to: string }>) => run(Worker.layer(Emails, options).pipe(Layer.provide(Sqlite.layerFile("a.db"))))`,
  `export default (options: Worker.Options<Open | Close>) => run(Worker.layer(Accounts, options).pipe(Layer.provide(Sqlite.layerFile("a.db"))))`,
  `const options: Worker.Options<Open | Close, string, Mailer> = { handler: () => Effect.flatMap(Mailer, (mailer) => mailer.send("a")), retry: Schedule.whileInput(Schedule.forever, (failure: Job.JobFailure<string>) => failure.error !== "hopeless") }
export default run(Worker.layer(Accounts, options).pipe(Layer.provide(MailerLive), Layer.provide(Sqlite.layerFile("a.db"))))`,
  `export default Worker.layer(Emails, { handler: () => Effect.fail("no"), retry: Schedule.whileInput(Schedule.forever, (failure: Job.JobFailure<string>) => failure.error !== "hopeless") })`,
  `export default Schedules.make("a", { cron: "@daily", timeZone: "Europe/Berlin", queue: Emails, payload: { to: "a" }, catchUp: "all", overlap: "skip", priority: 1 })`,
  `export default Schedules.make("a", { every: "5 minutes", queue: Accounts, payload: new Open({ account: "a" }) })`,
  `export default run(Schedules.layer([Schedules.make("a", { every: 60_000, queue: Emails, payload: { to: "a" } })]).pipe(Layer.provide(Sqlite.layerFile("a.db"))))`
]

const refused: ReadonlyArray<readonly [string, string]> = [
  [
    "a batch handler that answers no outcomes",
    `export default Worker.layer(Emails, { batchHandler: (jobs) => Effect.succeed(jobs.map(() => 1)) })`
  ],
  [
    "a batch handler that needs a service that nobody provides",
    `export default run(Worker.layer(Emails, { batchHandler: (jobs) => Effect.forEach(jobs, (job) => Effect.either(send(job))) }).pipe(Layer.provide(Sqlite.layerFile("a.db"))))`
  ],
  [
    "a handler and a batch handler",
    `export default Worker.layer(Emails, { handler: send, batchHandler: () => Effect.void })`
  ],
  ["a batch without a batch handler", `export default Worker.layer(Emails, { handler: send, batch: { size: 10 } })`],
  [
    "a transactional batch handler",
    `export default Worker.layer(Emails, { transactional: true, batchHandler: () => Effect.void })`
  ],
  [
    "a supervisor of a worker that needs a service that nobody provides",
    `export default run(Layer.scopedDiscard(Supervisor.make([Supervisor.worker(Accounts, { handlers: {} }), Supervisor.worker(Emails, { handler: send })])).pipe(Layer.provide(Sqlite.layerFile("a.db"))))`
  ],
  ["a message of another outbox", `export default Events.publish(new Close({ account: "a" }))`],
  [
    "an option that a publish does not have",
    `export default Events.publish(new Open({ account: "a" }), { dedupeKey: "a" })`
  ],
  ["an outbox whose key is no text", `export default Outbox.make("a", { message: Open, key: () => 1 })`],
  [
    "a relay whose delivery needs a service that nobody provides",
    `export default run(Outbox.layer(Events, { deliver: ({ message }) => Effect.flatMap(Mailer, (mailer) => mailer.send(message.account)) }).pipe(Layer.provide(Sqlite.layerFile("a.db"))))`
  ],
  ["a relay's option that is misspelt", `export default Outbox.layer(Events, { deliver: () => Effect.void, time: 2 })`],
  [
    "a schedule whose payload is not its queue's",
    `export default Schedules.make("a", { cron: "@daily", queue: Emails, payload: new Open({ account: "a" }) })`
  ],
  [
    "a schedule by cron and by a period at once",
    `export default Schedules.make("a", { cron: "@daily", every: "1 hour", queue: Emails, payload: { to: "a" } })`
  ],
  [
    "a schedule that says nothing of when",
    `export default Schedules.make("a", { queue: Emails, payload: { to: "a" } })`
  ],
  [
    "a schedule's option that is misspelt",
    `export default Schedules.make("a", { cron: "@daily", queue: Emails, payload: { to: "a" }, orderingkey: "a" })`
  ],
  ["a payload of another queue", `export default Emails.enqueue(new Open({ account: "a" }))`],
  ["a payload with a field of another type", `export default Emails.enqueue({ to: 1 })`],
  ["an option that is misspelt", `export default Emails.enqueue({ to: "a" }, { priorty: 1 })`],
  [
    "a worker whose handler needs a service that nobody provides",
    `export default run(Worker.layer(Emails, { handler: send }).pipe(Layer.provide(Sqlite.layerFile("a.db"))))`
  ],
  [
    "a worker without an engine",
    `export default run(Worker.layer(Emails, { handler: send }).pipe(Layer.provide(MailerLive)))`
  ],
  [
    "a worker one of whose handlers needs a service that nobody provides",
    `export default run(Worker.layer(Accounts, { handlers: { Open: () => Effect.void, Close: () => Effect.flatMap(Mailer, (mailer) => mailer.send("a")) } }).pipe(Layer.provide(Sqlite.layerFile("a.db"))))`
  ],
  [
    "a worker's option that is misspelt",
    `export default Worker.layer(Emails, { handler: () => Effect.void, concurency: 2 })`
  ],
  [
    "a handler and handlers at once",
    `export default Worker.layer(Accounts, { handler: () => Effect.void, handlers: {} })`
  ],
  [
    "a message that the queue does not have beside one that it has",
    `export default Worker.layer(Accounts, { handlers: { Open: (job) => Effect.log(job.payload.account), Move: () => Effect.void } })`
  ],
  [
    "a handler for a message that the queue does not have",
    `export default Worker.layer(Accounts, { handlers: { Move: () => Effect.void } })`
  ],
  [
    "a handler that reads a message as another",
    `export default Worker.layer(Accounts, { handlers: { Open: (job: { readonly payload: Close }) => Effect.log(job) } })`
  ]
]

/** The first error of each file, by its name. */
const errorsOf = async (files: Readonly<Record<string, string>>): Promise<ReadonlyMap<string, string>> => {
  mkdirSync(directory, { recursive: true })
  for (const [name, code] of Object.entries(files)) writeFileSync(join(directory, `${name}.ts`), `${prelude}${code}\n`)
  const compilerOptions = { noUnusedLocals: false, declaration: false }
  const names = Object.keys(files).map((name) => `./${name}.ts`)
  writeFileSync(
    join(directory, "tsconfig.json"),
    JSON.stringify({ extends: "../../../tsconfig.json", compilerOptions, files: names, include: [] })
  )
  const printed = await compile("--noEmit", "-p", directory)
  return new Map([...printed.matchAll(/([\w-]+)\.ts\(.*/g)].map(([line, name = ""]) => [name, line]))
}

const errors = await errorsOf(
  Object.fromEntries([
    ...accepted.map((code, index) => [`accepted-${index}`, code]),
    ...refused.map(([, code], index) => [`refused-${index}`, code])
  ])
)

test("the types take what is right", () => {
  expect([...errors].filter(([name]) => name.startsWith("accepted"))).toEqual([])
})

test.each(refused.map(([what], index) => ({ what, index })))("G90 (G176) the types refuse $what", ({ index }) => {
  expect(errors.get(`refused-${index}`)).toBeDefined()
})
