/** Enqueues that are in flight at once on PostgreSQL: how much they take, seen from the server, and how they fail. */
import { PgClient } from "@effect/sql-pg"
import * as Pg from "alkstore/Pg"
import { Effect, Either, Layer, Redacted } from "effect"
import pg from "pg"
import { describe, expect, inject, it } from "vitest"
import { Letters, live, wait } from "../support/outages.js"
import { createDatabase, lockWaits, withClient } from "../support/postgres.js"
import { startProxy } from "../support/proxy.js"

const names = (count: number) => Array.from({ length: count }, (_, n) => `job ${n}`)

const database = Effect.promise(() => createDatabase(inject("pgUrl")))

/** An engine with a client of its own, whose table and queue are there. */
const engine = (url: string, options: Pg.Options = {}) =>
  Layer.build(
    Layer.provideMerge(
      Pg.layer({ sweeper: false, scheduler: false, listen: false, ...options }),
      PgClient.layer({ url: Redacted.make(url) })
    )
  ).pipe(Effect.tap((built) => Effect.provide(Letters.enqueue("warm"), built)))

type Engine = Effect.Effect.Success<ReturnType<typeof engine>>

const query = (url: string, text: string) =>
  Effect.promise(() => withClient(url, async (client) => (await client.query(text)).rows))

const atOnce = (from: Engine, texts: ReadonlyArray<string>) =>
  Effect.forEach(texts, (text) => Effect.either(Letters.enqueue(text)), { concurrency: "unbounded" }).pipe(
    Effect.provide(from)
  )

/** In how many transactions the jobs were written. */
const transactions = (url: string) =>
  Effect.map(
    query(url, `SELECT count(DISTINCT xmin::text)::int AS n FROM alkstore.jobs WHERE payload <> '"warm"'`),
    ([row]) => Number(row?.n)
  )

const payloads = (url: string) =>
  Effect.map(query(url, `SELECT payload FROM alkstore.jobs WHERE payload <> '"warm"' ORDER BY id`), (rows) =>
    rows.map(({ payload }) => JSON.parse(payload))
  )

const reasons = (results: ReadonlyArray<Either.Either<unknown, { readonly _tag: string; readonly reason?: string }>>) =>
  results.map((result) =>
    Either.isRight(result) ? "done" : [result.left._tag, result.left.reason].filter(Boolean).join(" ")
  )

/** Notifications of the queue, told in the order of commits. */
const listener = (url: string) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const client = new pg.Client({ connectionString: url })
      await client.connect()
      const heard: Array<string> = []
      client.on("notification", ({ payload }) => heard.push(String(payload)))
      await client.query(`LISTEN "__alkstore_alkstore"`)
      return { client, heard }
    }),
    ({ client }) => Effect.promise(() => client.end())
  )

/** How many there were until now. */
const count = ({ client, heard }: Effect.Effect.Success<ReturnType<typeof listener>>, mark: string) =>
  Effect.gen(function* () {
    yield* Effect.promise(() => client.query(`SELECT pg_notify('__alkstore_alkstore', '${mark}')`))
    yield* wait("the mark is heard", () => heard.includes(mark))
    return heard.splice(0).filter((payload) => payload === Letters.name).length
  })

/** Keeps all inserts waiting for as long as `use` runs. */
const locked = <A, E, R>(url: string, use: Effect.Effect<A, E, R>) =>
  Effect.acquireUseRelease(
    Effect.promise(async () => {
      const client = new pg.Client({ connectionString: url })
      await client.connect()
      await client.query("BEGIN; LOCK TABLE alkstore.jobs IN SHARE ROW EXCLUSIVE MODE")
      return client
    }),
    () => use,
    (client) => Effect.promise(() => client.end())
  )

const waiting = (url: string) =>
  wait("a statement waits for the table", async () => {
    const rows = await Effect.runPromise(query(url, `${lockWaits} AND relation = 'alkstore.jobs'::regclass`))
    return rows.length > 0
  })

describe("enqueues in flight at once", () => {
  it("G190: ten take one transaction and one notification, or two of each; one after the other they take ten", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const mine = yield* engine(url)
        const ears = yield* listener(url)
        for (const text of names(10)) yield* Effect.provide(Letters.enqueue(text), mine)
        expect(yield* transactions(url)).toBe(10)
        expect(yield* count(ears, "one by one")).toBe(10)
        yield* query(url, `DELETE FROM alkstore.jobs WHERE payload <> '"warm"'`)
        expect(reasons(yield* atOnce(mine, names(10)))).toEqual(Array(10).fill("done"))
        expect(yield* payloads(url)).toEqual(names(10))
        expect(yield* transactions(url)).toBeLessThanOrEqual(2)
        expect(yield* count(ears, "at once")).toBeLessThanOrEqual(2)
      })
    ))

  it("G190: those that come while one is under way share the next", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const mine = yield* engine(url)
        const [first, others] = yield* locked(
          url,
          Effect.gen(function* () {
            const first = yield* Effect.fork(atOnce(mine, ["first"]))
            yield* waiting(url)
            const others = yield* Effect.fork(atOnce(mine, names(20)))
            yield* Effect.repeatN(Effect.yieldNow(), 50)
            return [first, others] as const
          })
        )
        yield* first
        expect(reasons(yield* others)).toEqual(Array(20).fill("done"))
        expect(yield* payloads(url)).toEqual(["first", ...names(20)])
        expect(yield* transactions(url)).toBe(2)
      })
    ))
})

describe("a connection that is lost", () => {
  it("G11, G190: before the answer came: all of the flush are told so, and nothing is sent again", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const proxy = yield* Effect.acquireRelease(
          Effect.promise(() => startProxy(url)),
          (proxy) => Effect.promise(proxy.close)
        )
        const mine = yield* engine(proxy.url)
        for (let round = 1; round <= 3; round++) {
          const swallowed = proxy.swallowReply("alkstore_enqueue")
          const results = yield* atOnce(mine, names(10))
          yield* Effect.promise(() => swallowed)
          expect(reasons(results)).toEqual(Array(10).fill("EnqueueUncertain"))
          // The next one needs a connection of its own, and nothing of what was lost comes with it
          yield* Effect.provide(Letters.enqueue("warm"), mine)
          expect(yield* payloads(url)).toEqual(Array.from({ length: round }, () => names(10)).flat())
        }
      })
    ))

  it("G11, G190: before the commit: all are uncertain, and none is there", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const mine = yield* engine(url)
        const results = yield* locked(
          url,
          Effect.gen(function* () {
            const calls = yield* Effect.fork(atOnce(mine, names(10)))
            yield* waiting(url)
            yield* query(url, `SELECT pg_terminate_backend(pid) FROM (${lockWaits}) AS waits`)
            return yield* calls
          })
        )
        expect(reasons(results)).toEqual(Array(10).fill("EnqueueUncertain"))
        yield* Effect.provide(Letters.enqueue("later"), mine)
        expect(yield* payloads(url)).toEqual(["later"])
      })
    ))

  it("G11, G190: before anything was sent: all fail, and none is uncertain", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const proxy = yield* Effect.acquireRelease(
          Effect.promise(() => startProxy(url)),
          (proxy) => Effect.promise(proxy.close)
        )
        const mine = yield* engine(proxy.url)
        proxy.refuse()
        proxy.cut()
        // This one may still meet a connection that looks alive
        yield* atOnce(mine, ["a"])
        expect(reasons(yield* atOnce(mine, names(10)))).toEqual(Array(10).fill("StoreError connection"))
        proxy.pass()
        yield* Effect.retry(Effect.provide(Letters.enqueue("later"), mine), { times: 3 })
        expect(yield* payloads(url)).toEqual(["later"])
      })
    ))
})
