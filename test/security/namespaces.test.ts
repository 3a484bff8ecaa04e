/** Namespaces become part of statements, so they are quoted (PostgreSQL) or of few characters (SQLite). */
import { SqlClient } from "@effect/sql"
import { Lock, Queue, Schedules, Wake } from "alkstore"
import { Context, Effect, Either, Layer, ManagedRuntime, Schema } from "effect"
import fc from "fast-check"
import { afterAll, beforeAll, describe, expect, it } from "vitest"
import { postgresNames } from "../../src/layers/engine.js"
import { queueTopic } from "../../src/services/Wake.js"
import { postgres, sqliteFile } from "../support/engines.js"
import { runs, seed } from "../support/form.js"
import { wait } from "../support/outages.js"
import { hostile } from "./hostile.js"
import { makeTap, type Tap } from "./tap.js"

const Letters = Queue.make("letters", { payload: Schema.String, retainCompleted: "1 hour" })

/** What the compiler of statements, a quoted name, a text or a comment could trip over. */
const chosen = [
  'a"b',
  "o'brien; --",
  "a:queue",
  ":now",
  "::text",
  "$1",
  "$&",
  "back\\slash",
  "\\'; DROP TABLE canary; --",
  '"; DROP TABLE canary; --',
  "*/ DROP TABLE canary; /*",
  "/*condition*/",
  "a REST b",
  "a\n  b",
  "__proto__",
  "名前"
]

/** Some of each kind of statement, the migrations' among them. */
const use = Effect.gen(function* () {
  yield* Letters.enqueueMany(["a", "b"], { orderingKey: "o" })
  yield* Letters.enqueue("c", { dedupeKey: "k" })
  const jobs = yield* Letters.claim({ limit: 3 })
  yield* Effect.forEach(jobs, (job) => (job.payload === "c" ? job.fail("no") : job.ack))
  yield* Letters.deadLetters.requeue({ reason: "failed" })
  yield* Effect.all([Letters.counts, Letters.list(), Letters.completed(), Letters.cancelMany({ state: "ready" })])
  // By hand: how often a holder renews depends on how long it takes
  const lease = yield* Lock.acquire("l", { timeout: 0 })
  yield* Lock.renew(lease)
  yield* Lock.list
  yield* Lock.release(lease)
  yield* Schedules.put(Schedules.make("s", { every: "1 day", queue: Letters, payload: "s" }))
  yield* Schedules.trigger("s")
  yield* Schedules.remove("s")
  yield* Queue.sweepExpired
  return jobs.map(({ payload }) => payload)
})

const quiet = { sweeper: false, scheduler: false }

describe("PostgreSQL", () => {
  const runtime = ManagedRuntime.make(postgres.client)
  let tap: Tap
  beforeAll(async () => {
    await runtime.runPromise(
      Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe("CREATE TABLE canary (note text)"))
    )
    tap = makeTap()
  })
  afterAll(async () => {
    tap.close()
    await runtime.dispose()
  })

  const identifier = (name: string) => `"${name.replaceAll('"', '""')}"`

  /** The statements of a life in a namespace, with a word in the place of its quoted name. */
  const statements = async (namespace: string) => {
    tap.clear()
    const layer = postgres.beside({ silent: true, scheduler: false, postgres: { ...quiet, namespace } })
    const done = await runtime.runPromise(Effect.either(Effect.provide(use, layer)))
    const quoted = identifier(namespace).replaceAll("'", "''")
    const forms = [quoted.replaceAll("\\", "\\\\"), quoted, identifier(namespace)]
    const texts = tap.texts.map((text) =>
      forms.reduce((left, form) => left.replaceAll(form, "<namespace>"), text).replaceAll("nextval(E'", "nextval('")
    )
    return { done, texts: texts.sort() }
  }

  it("G200: whatever the schema is called, the statements differ in its quoted name alone", async () => {
    const harmless = await statements("harmless")
    expect(Either.isRight(harmless.done)).toBe(true)
    expect(harmless.texts.filter((text) => text.includes("<namespace>")).length).toBeGreaterThan(50)
    const check = async (namespace: string) => {
      const { done, texts } = await statements(namespace)
      if (Either.isLeft(done)) {
        expect(done.left).toMatchObject({ _tag: "InvalidArgument", argument: "namespace" })
        expect(texts).toEqual([])
        return
      }
      expect(done.right.sort()).toEqual(["a", "c"])
      expect(texts).toEqual(harmless.texts)
    }
    for (const namespace of chosen) await check(namespace)
    const fresh = hostile.filter((text) => !chosen.includes(text) && text !== "harmless")
    await fc.assert(
      fc.asyncProperty(fc.uniqueArray(fresh, { minLength: 1, maxLength: 1 }), ([text = ""]) =>
        drop(text).then(() => check(text))
      ),
      {
        seed,
        numRuns: runs(5, 100)
      }
    )
    const [found] = await runtime.runPromise(
      Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe("SELECT count(*)::integer AS count FROM canary"))
    )
    expect(found).toEqual({ count: 0 })
  })

  /** One that an earlier run has made would not be made again. */
  const drop = (namespace: string) =>
    runtime.runPromise(
      Effect.ignore(
        Effect.flatMap(SqlClient.SqlClient, (sql) =>
          sql.unsafe(`DROP SCHEMA IF EXISTS ${identifier(namespace)} CASCADE`)
        )
      )
    )

  it.each(chosen)("G200: listens in %s, and whatever is notified there is only a hint", (name) =>
    runtime.runPromise(
      Effect.gen(function* () {
        const sql = yield* SqlClient.SqlClient
        const namespace = `L ${name}`
        const { channel } = postgresNames(namespace, "database")
        const engine = yield* Layer.build(
          postgres.beside({ postgres: { ...quiet, namespace, pollInterval: "1 hour" } })
        )
        const wake = Context.get(engine, Wake.Wake)
        yield* wait("listening", () => Effect.runSync(wake.state)._tag === "Live")
        const woken = yield* wake.subscribe(queueTopic("letters"))
        for (const payload of [...chosen, "", "x".repeat(7_000)]) yield* sql`SELECT pg_notify(${channel}, ${payload})`
        yield* sql`SELECT pg_notify(${channel}, 'letters')`
        yield* Effect.timeout(woken.await, "10 seconds")
        yield* Effect.provide(Letters.enqueue("a"), engine)
        expect(yield* Effect.provide(Letters.claim(), engine)).toHaveLength(1)
        expect(yield* wake.state).toEqual({ _tag: "Live" })
      }).pipe(Effect.scoped)
    )
  )
})

describe("SQLite", () => {
  const runtime = ManagedRuntime.make(sqliteFile.client)
  afterAll(() => runtime.dispose())

  it("G200: a prefix is of letters, digits and _, or refused before a statement has it", async () => {
    const tap = makeTap()
    try {
      await fc.assert(
        fc.asyncProperty(hostile, async (namespace) => {
          tap.clear()
          const layer = sqliteFile.beside({ silent: true, sqlite: { ...quiet, namespace } })
          const done = await runtime.runPromise(Effect.either(Effect.provide(use, layer)))
          const allowed = /^(?!sqlite_)\w{1,64}$/i.test(namespace) && /^[\x20-\x7e]+$/.test(namespace)
          expect(Either.isRight(done)).toBe(allowed)
          if (allowed) return
          expect(done).toMatchObject({ left: { _tag: "InvalidArgument", argument: "namespace" } })
          expect(tap.texts.filter((text) => !text.startsWith("PRAGMA"))).toEqual([])
        }),
        { seed, numRuns: runs(60, 2_000) }
      )
    } finally {
      tap.close()
    }
  })
})
