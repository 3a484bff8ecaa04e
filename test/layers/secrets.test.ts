/** Passwords stay out of whatever the library says, however a connection fails, and payloads out of most of it. */
import { inspect } from "node:util"
import { PgClient } from "@effect/sql-pg"
import { Job, Outbox, Queue, Telemetry, Wake, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Cause, Context, Effect, Exit, Layer, Logger, Metric, Redacted, Schedule, Schema, Stream } from "effect"
import { describe, expect, inject, test } from "vitest"
import { startServer } from "../security/servers.js"
import { live, wait } from "../support/outages.js"
import { createDatabase } from "../support/postgres.js"
import { startProxy } from "../support/proxy.js"
import { makeRecorder } from "../support/tracer.js"

const secret = "hunter2-in-the-url"
/** With characters that have to be encoded. */
const awkward = "hunter2@/#:in the url"
const Letters = Queue.make("letters", { payload: Schema.String })

const good = () => createDatabase(inject("pgUrl"))
const withPassword = (url: string, password = secret) => Object.assign(new URL(url), { password }).href

/** Everything that can be made of an exit, or of anything. */
const shown = (value: unknown): string => {
  const looks = [inspect(value, { depth: 20, showHidden: true, maxStringLength: null, maxArrayLength: null })]
  if (Exit.isExit(value) && Exit.isFailure(value)) {
    looks.push(Cause.pretty(value.cause, { renderErrorCause: true }), JSON.stringify(value))
    for (const error of [...Cause.failures(value.cause), ...Cause.defects(value.cause)])
      looks.push(String(error), (error as Error).stack ?? "", JSON.stringify(error))
  }
  return looks.join("\n")
}

const hides = (text: string) => {
  for (const part of [secret, awkward, encodeURIComponent(awkward), encodeURI(awkward), "hunter2"])
    expect(text).not.toContain(part)
}

/** All that one logs in each of the ways that there are, and all spans and metrics. */
const witnessed = async <A, E>(effect: Effect.Effect<A, E>) => {
  const lines: Array<string> = []
  const recorder = makeRecorder()
  const loggers = [Logger.stringLogger, Logger.logfmtLogger, Logger.jsonLogger]
    .map((logger) => Logger.map(logger, (line) => void lines.push(line)))
    .reduce((one, other) => Logger.zipLeft(one, other))
  const exit = await Effect.runPromiseExit(
    effect.pipe(
      Effect.tapErrorCause((cause) => Effect.logError("it failed", cause)),
      Effect.withSpan("test"),
      Effect.withTracer(recorder.tracer),
      Effect.provide(Logger.replace(Logger.defaultLogger, loggers))
    )
  )
  // What a span succeeded with is the caller's; exporters take its failure
  const spans = recorder.spans.map(({ attributes, exit, name }) =>
    shown([name, [...attributes], exit !== undefined && Exit.isFailure(exit) ? exit : "succeeded"])
  )
  return { exit, said: [...lines, ...spans, shown(Metric.unsafeSnapshot())].join("\n") }
}

/** The client's own pool, or the Layer's own connections beside a good pool. */
const enqueueThrough = async (url: string, own: boolean) => {
  const options: Pg.Options = { listen: false, connectTimeout: "500 millis" }
  const layer = own
    ? Pg.layerUrl(Redacted.make(withPassword(await good())), { ...options, connection: { url: Redacted.make(url) } })
    : Pg.layerUrl(Redacted.make(url), options)
  return witnessed(Effect.provide(Letters.enqueue("a"), layer))
}

const here = () => new URL(inject("pgUrl"))

const failures: ReadonlyArray<readonly [string, () => string | Promise<string>]> = [
  ["nobody listens", () => `postgres://someone:${secret}@127.0.0.1:1/db`],
  ["the host is unknown", () => `postgres://someone:${secret}@nowhere.invalid/db`],
  ["the url is none", () => `postgres://someone:${secret}@[nonsense/db`],
  ["the port is none", () => `postgres://someone:${secret}@localhost:port/db`],
  ["an escape is none", () => `postgres://someone:${secret}%zz@127.0.0.1:1/db%zz`],
  ["the database is missing", () => `${withPassword(inject("pgUrl"))}_missing`],
  ["the password has characters that are encoded", () => `${withPassword(inject("pgUrl"), awkward)}_missing`],
  ["the password is a parameter", () => `${here().href}_missing?password=${secret}&sslpassword=${secret}`],
  ["the server has no TLS", () => `${withPassword(inject("pgUrl"))}?sslmode=require`],
  ["a certificate is missing", () => `${withPassword(inject("pgUrl"))}?sslmode=verify-full&sslrootcert=missing.pem`],
  ["the server speaks something else", async () => withPassword((await startServer("garbage")).url)],
  ["the server hangs up", async () => withPassword((await startServer("hangUp")).url)],
  [
    "the server speaks something else in TLS",
    async () => `${withPassword((await startServer("tlsGarbage")).url)}?sslmode=require`
  ],
  ["the server refuses the password", async () => withPassword((await startServer("refusal")).url)]
]

/** Refused before anything is tried: the driver would take a part of them for a host or a database. */
const refused: ReadonlyArray<readonly [string, string]> = [
  ["a list of settings", `host=127.0.0.1 port=1 user=someone password=${secret}`],
  ["a bare host", `someone:${secret}@127.0.0.1/db`],
  ["another scheme", `mysql://someone:${secret}@127.0.0.1:1/db`],
  ["a password with a slash", "postgres://someone:2/hunter2@127.0.0.1:1/db"],
  ["a password with a hash", "postgres://someone:2#hunter2@127.0.0.1:1/db"]
]

describe.each([
  ["the client's pool", false],
  ["the Layer's own connections", true]
])("%s", (_, own) => {
  test.each(failures)("G89, G202: no password where %s", async (_, url) => {
    const { exit, said } = await enqueueThrough(await url(), own)
    expect(Exit.isFailure(exit)).toBe(true)
    hides(shown(exit))
    hides(said)
  })

  test.each(refused)("G202: %s is refused, and not shown", async (_, url) => {
    const { exit, said } = await enqueueThrough(url, own)
    expect(exit).toMatchObject({ cause: { _tag: "Fail", error: { _tag: "InvalidArgument" } } })
    hides(shown(exit))
    hides(said)
  })
})

test("G89, G202: no password in what a fleet says whose database goes away, nor in its services", async () => {
  const proxy = await startProxy(withPassword(await good()))
  const News = Outbox.make("news", { message: Schema.String })
  const events: Array<unknown> = []
  let states: ReadonlyArray<unknown> = []
  const { exit, said } = await witnessed(
    Effect.gen(function* () {
      const engine = yield* Layer.build(
        Layer.provideMerge(
          Telemetry.layer({ every: "100 millis" }),
          Pg.layerUrl(Redacted.make(proxy.url), {
            connectTimeout: "300 millis",
            statementTimeout: "1 second",
            pollInterval: "200 millis",
            sweeper: { schedule: Schedule.spaced(50) }
          })
        )
      )
      yield* Effect.gen(function* () {
        const worker = yield* Worker.make(Letters, { handler: () => Effect.void })
        yield* Outbox.fork(News, { deliver: () => Effect.void })
        yield* Effect.forkScoped(Stream.runForEach(worker.events, (event) => Effect.sync(() => events.push(event))))
        const wake = yield* Wake.Wake
        yield* wait("listening", () => Effect.runSync(wake.state)._tag === "Live")
        const tagOf = (event: unknown) => (event as { readonly _tag: string })._tag
        yield* Letters.enqueue("before")
        yield* wait("it works", () => events.some((event) => tagOf(event) === "Acked"))
        yield* Effect.sync(() => proxy.refuse())
        yield* Effect.sync(() => proxy.cut())
        yield* wait("an outage", () => events.some((event) => tagOf(event) === "Outage"), 20_000)
        yield* wait("deaf", () => Effect.runSync(wake.state)._tag === "Degraded")
        const calls = [yield* Effect.exit(Letters.enqueue("a")), yield* Effect.exit(News.publish("b"))]
        states = [yield* wake.state, yield* worker.status, yield* worker.health, ...calls, engine]
        yield* Effect.sync(() => proxy.pass())
      }).pipe(Effect.scoped, Effect.provide(engine))
    }).pipe(Effect.scoped)
  )
  await proxy.close()
  expect(Exit.isFailure(exit) ? Cause.pretty(exit.cause) : "").toBe("")
  hides([...events, ...states].map(shown).join("\n"))
  hides(said)
  expect(said).toContain("claiming failed")
})

test("G202: no password in the services of a Layer, however they are printed", () =>
  live(
    Effect.gen(function* () {
      const url = withPassword(yield* Effect.promise(good))
      const given = { username: "postgres", password: Redacted.make(secret) }
      const { hostname, pathname, port } = new URL(url)
      const parts = { ...given, host: hostname, port: Number(port), database: decodeURIComponent(pathname.slice(1)) }
      const engines = [
        yield* Layer.build(Pg.layerUrl(Redacted.make(url))),
        yield* Layer.build(Layer.provideMerge(Pg.layer(), PgClient.layer(parts)))
      ]
      for (const engine of engines) {
        hides(shown(engine))
        hides([...engine.unsafeMap.values()].map((service) => `${shown(service)}${String(service)}`).join("\n"))
        hides(JSON.stringify([...engine.unsafeMap.values()]) ?? "")
        hides(shown(Context.get(engine, Queue.Queue)))
      }
    })
  ))

test("G203: the payload, headers and keys of a job are in no log, span or metric", async () => {
  const tags = new Set<string>()
  const { exit, said } = await witnessed(
    Effect.gen(function* () {
      const engine = yield* Layer.build(Pg.layerUrl(Redacted.make(yield* Effect.promise(good))))
      yield* Effect.gen(function* () {
        const Strict = Queue.make("strict", { payload: Schema.NonEmptyString, deadLetterQueue: "letters" })
        const job = { headers: { hunter2: "hunter2" }, dedupeKey: "hunter2", orderingKey: "hunter2" }
        yield* Strict.enqueue("hunter2", job)
        yield* Strict.enqueue("hunter2", job)
        yield* Effect.flatMap(Strict.claim(), ([claimed]) => claimed?.retry({ delay: 0 }) ?? Effect.void)
        const worker = yield* Worker.make(Strict, {
          retry: Schedule.spaced(1),
          handler: ({ attempt }): Effect.Effect<never, unknown> =>
            attempt === 2 ? Effect.fail("the first time") : Job.fatal("for good")
        })
        yield* Effect.forkScoped(Stream.runForEach(worker.events, ({ _tag }) => Effect.sync(() => tags.add(_tag))))
        yield* wait("it is dead", () => tags.has("Died"))
        const Numbers = Queue.make("letters", { payload: Schema.Number })
        // An envelope is no number: undecodable
        yield* Numbers.claim()
        yield* Strict.deadLetters.requeue({ all: true })
      }).pipe(Effect.scoped, Effect.provide(engine))
    }).pipe(Effect.scoped)
  )
  expect(exit).toMatchObject({ _tag: "Success" })
  expect(said).toContain("process strict")
  hides(said)
})
