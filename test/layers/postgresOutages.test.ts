/** What a PostgreSQL and the network before it can do to a worker, an enqueue and a transaction. */
import { Queue, Wake, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Context, Duration, Effect, Either, Layer, Redacted, Schedule, Schema } from "effect"
import pg from "pg"
import { afterAll, beforeAll, describe, expect, it } from "vitest"
import { diary, Letters, live, logs, wait } from "../support/outages.js"
import { type Postgres, startPostgres, withClient } from "../support/postgres.js"
import { type Proxy, startProxy } from "../support/proxy.js"

/** Of every url of this file; the server trusts everybody but `app`. It must never be seen again. */
const secret = "hunter2"

const Effects = Queue.make("effects", { payload: Schema.String })

let server: Postgres

beforeAll(async () => {
  server = await startPostgres({ own: true, settings: { max_connections: "40" } })
})
afterAll(() => server.stop())

const withSecret = (url: string): string => Object.assign(new URL(url), { password: secret }).href

const query = (url: string, text: string) =>
  Effect.promise(() => withClient(url, async (client) => (await client.query(text)).rows))

/** A database of its own, with its tables, and a proxy before it. */
const database = Effect.gen(function* () {
  const url = withSecret(yield* Effect.promise(() => server.createDatabase()))
  yield* Effect.scoped(engine(url, { listen: false }))
  const proxy = yield* proxyTo(url)
  return { url, proxy }
})

const proxyTo = (url: string) =>
  Effect.acquireRelease(
    Effect.promise(() => startProxy(url)),
    (proxy: Proxy) => Effect.promise(proxy.close)
  )

/** An engine with a client of its own, as another process has it. */
const engine = (url: string, options: Pg.Options = {}) =>
  Layer.build(Pg.layerUrl(Redacted.make(url), { sweeper: false, pollInterval: "30 seconds", ...options }))

const send = (from: Context.Context<Pg.Services>, text: string, options?: Queue.EnqueueOptions) =>
  Letters.enqueue(text, options).pipe(Effect.provide(from))

const wakeState = (of: Context.Context<Pg.Services>) => Effect.runSync(Context.get(of, Wake.Wake).state)._tag

const sessions = (url: string, which = "") =>
  query(
    url,
    `SELECT pid, application_name, state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'alkstore%' ${which}`
  )

const rowsOf = (url: string) => query(url, "SELECT id, payload FROM alkstore.jobs ORDER BY id")

/** How long something took, in milliseconds. */
const timed = <A, E, R>(self: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.timed(self), ([duration, value]) => [Duration.toMillis(duration), value] as const)

describe("at the start", () => {
  const failure = (url: string, options: Pg.Options = {}) =>
    live(
      Effect.flatMap(timed(Effect.either(engine(url, options))), ([millis, result]) =>
        Effect.succeed({ millis, error: Either.isLeft(result) ? (result.left as Error & { _tag: string }) : undefined })
      )
    )

  it("G75: no server, none that answers, no database: a typed failure, soon, without the password", async () => {
    const url = withSecret(server.url)
    const silent = await startProxy(url)
    silent.hold()
    try {
      const cases = await Promise.all([
        failure(Object.assign(new URL(url), { port: "1" }).href),
        failure(silent.url),
        failure(`${url}_missing`)
      ])
      for (const { error, millis } of cases) {
        expect(error?._tag).toMatch(/^(StoreError|SqlError)$/)
        expect(millis).toBeLessThan(15_000)
        expect(JSON.stringify(error) + String(error) + error?.message).not.toContain(secret)
      }
    } finally {
      await silent.close()
    }
  })

  it("G89: own connections that are refused say why, without the password", async () => {
    const url = withSecret(await server.createDatabase())
    const elsewhere = (change: Partial<URL>) => ({
      connection: { url: Redacted.make(Object.assign(new URL(url), change).href) },
      connectTimeout: "1 second" as const
    })
    const silent = await startProxy(url)
    silent.hold()
    try {
      const missing = await failure(url, elsewhere({ pathname: "/missing" }))
      expect(missing.error).toMatchObject({ _tag: "StoreError", reason: "denied" })
      const gone = await failure(url, elsewhere({ port: "1" }))
      expect(gone.error).toMatchObject({ _tag: "StoreError", reason: "connection", retryable: true })
      const mute = await failure(url, elsewhere({ port: String(silent.port) }))
      expect(mute.error).toMatchObject({ _tag: "StoreError", retryable: true })
      for (const { error } of [missing, gone, mute]) {
        expect(error?.message).not.toContain(secret)
        expect(String(error)).not.toContain(secret)
      }
    } finally {
      await silent.close()
    }
  })
})

describe("a worker that starts while the database refuses", () => {
  it("G75: says so, and by its health; then it has recovered and works", () =>
    live(
      Effect.gen(function* () {
        const { proxy, url } = yield* database
        const mine = yield* engine(proxy.url)
        const producer = yield* engine(url, { listen: false })
        yield* send(producer, "waiting")
        proxy.refuse()
        proxy.cut()
        const { done, events, worker } = yield* diary(mine)
        yield* wait("it says so", () => events.includes("Outage"))
        expect(yield* worker.health).toMatchObject({ healthy: false })
        proxy.pass()
        yield* wait("it works", () => done.includes("waiting"), 15_000)
        expect(events.slice(0, 3)).toEqual(["Outage", "Recovered", "Started"])
        expect(yield* worker.health).toMatchObject({ healthy: true, problems: [] })
      })
    ))
})

describe("connections", () => {
  it("G61, G75: every session is terminated, again and again; the worker goes on and wakes come back", () =>
    live(
      Effect.gen(function* () {
        const { url } = yield* database
        const mine = yield* engine(url)
        const producer = yield* engine(url, { listen: false })
        const { done } = yield* diary(mine)
        for (let round = 1; round <= 4; round++) {
          yield* wait("listening", () => wakeState(mine) === "Live")
          yield* query(
            url,
            `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`
          )
          yield* wait("the loss is seen", () => wakeState(mine) === "Degraded")
          yield* wait("listening again", () => wakeState(mine) === "Live")
          // The producer's connections were cut as well: an enqueue that meets one says so and changed nothing
          yield* Effect.retry(send(producer, `round ${round}`), { times: 3 })
          yield* wait("woken", () => done.length === round, 2_000)
        }
        expect(done).toEqual(["round 1", "round 2", "round 3", "round 4"])
      })
    ))

  it("G61: a LISTEN connection that is half open is replaced", () =>
    live(
      Effect.gen(function* () {
        const { proxy, url } = yield* database
        const mine = yield* engine(proxy.url)
        const producer = yield* engine(url, { listen: false })
        const { done } = yield* diary(mine)
        yield* wait("listening", () => wakeState(mine) === "Live")
        proxy.holdOld((sent) => sent.includes("alkstore-wake"))
        yield* send(producer, "unheard")
        yield* wait("the silence is noticed", () => wakeState(mine) === "Degraded")
        yield* wait("found on the new connection", () => done.length === 1, 5_000)
        yield* send(producer, "heard")
        yield* wait("woken", () => done.length === 2, 2_000)
      })
    ))

  it("G75: data connections that are half open are given up; new jobs run", () =>
    live(
      Effect.gen(function* () {
        const { proxy, url } = yield* database
        const mine = yield* engine(proxy.url, { statementTimeout: "1 second", connectTimeout: "1 second" })
        const producer = yield* engine(url, { listen: false })
        const { done, events } = yield* diary(mine, {
          visibilityTimeout: "6 seconds",
          handler: (job) => (job.payload === "slow" ? Effect.sleep("1 second") : Effect.void)
        })
        yield* send(producer, "slow")
        yield* wait("it runs", async () => (await Effect.runPromise(sessions(url))).length > 0)
        proxy.holdOld()
        yield* send(producer, "new")
        yield* wait("both are done", () => done.includes("slow") && done.includes("new"), 30_000)
        yield* wait("both are acked", async () => (await Effect.runPromise(rowsOf(url))).length === 0, 30_000)
        expect(events.filter((tag) => tag === "Acked").length).toBeGreaterThanOrEqual(2)
      })
    ))

  it("G75: a server without a free connection is waited for", () =>
    live(
      Effect.gen(function* () {
        const { url } = yield* database
        const mine = yield* engine(url)
        const producer = yield* engine(url, { listen: false })
        const { done } = yield* diary(mine)
        yield* send(producer, "before")
        yield* wait("it works", () => done.length === 1)
        const hogs: Array<pg.Client> = []
        const free = Effect.promise(() => Promise.all(hogs.splice(0).map((client) => client.end())))
        yield* Effect.addFinalizer(() => free)
        // Takes what there is, and ours as soon as they are cut
        yield* Effect.promise(async () => {
          for (;;) {
            const client = new pg.Client({ connectionString: url })
            client.on("error", () => {})
            try {
              await client.connect()
              hogs.push(client)
            } catch {
              return
            }
          }
        })
        const [hog] = hogs
        const cut = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'alkstore%'`
        yield* Effect.promise(() => hog?.query(cut) ?? Promise.reject())
        // Refused, unless the places that the cut made free were still to be had
        const late = yield* Effect.either(send(producer, "refused"))
        const outcome = Either.isLeft(late) ? late.left._tag : "taken"
        expect(["StoreError", "EnqueueUncertain", "taken"]).toContain(outcome)
        yield* free
        yield* Effect.retry(send(producer, "after"), { times: 3 })
        yield* wait("it works again", () => done.includes("after"), 15_000)
      })
    ))

  it("G35: the Layer has as many connections as documented, none of them idle in a transaction, and takes no lock with them", () =>
    live(
      Effect.gen(function* () {
        const { url } = yield* database
        const mine = yield* engine(url, { connections: 3 })
        const { done } = yield* diary(mine, { concurrency: 20 })
        const enqueues = Effect.forEach(
          Array.from({ length: 300 }, (_, n) => String(n)),
          (text) => send(mine, text),
          { concurrency: 30 }
        )
        yield* Effect.fork(enqueues)
        for (let look = 0; look < 20; look++) {
          const seen = yield* sessions(url)
          expect(seen.filter(({ application_name: name }) => name === "alkstore").length).toBeLessThanOrEqual(3)
          expect(seen.filter(({ application_name: name }) => name === "alkstore-wake").length).toBeLessThanOrEqual(1)
          // Only what takes several statements is in a transaction, and it is never left in one
          expect(seen.filter(({ state }) => state === "idle in transaction (aborted)")).toEqual([])
        }
        yield* wait("all are done", () => done.length === 300, 20_000)
        expect(yield* sessions(url, "AND state LIKE 'idle in transaction%'")).toEqual([])
        expect(yield* sessions(url)).toHaveLength(4)
        expect(yield* query(url, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'")).toEqual([])
      })
    ))
})

describe("answers that are lost", () => {
  it("G42: an ack whose answer was lost is repeated and counted once; the job is not run again", () =>
    live(
      Effect.gen(function* () {
        const { proxy, url } = yield* database
        const mine = yield* engine(proxy.url)
        const producer = yield* engine(url, { listen: false })
        const { done, events, started, worker } = yield* diary(mine, { visibilityTimeout: "2 seconds" })
        for (let round = 1; round <= 5; round++) {
          const swallowed = proxy.swallowReply("alkstore_ack")
          yield* send(producer, `round ${round}`)
          yield* Effect.promise(() => swallowed)
          yield* wait("it counts", async () => (await Effect.runPromise(worker.status)).acked === round)
        }
        yield* wait("nothing is left", async () => (await Effect.runPromise(rowsOf(url))).length === 0)
        expect(started).toHaveLength(5)
        expect(done).toHaveLength(5)
        expect(yield* worker.status).toMatchObject({ acked: 5, lost: 0, retried: 0 })
        expect(events.filter((tag) => tag === "LeaseLost")).toEqual([])
      })
    ))

  it("G11: an enqueue whose answer was lost says that it is uncertain, and is never doubled", () =>
    live(
      Effect.gen(function* () {
        const { proxy, url } = yield* database
        const mine = yield* engine(proxy.url, { listen: false })
        yield* send(mine, "warm")
        for (let round = 1; round <= 5; round++) {
          const swallowed = proxy.swallowReply("alkstore_enqueue")
          const result = yield* Effect.either(send(mine, `round ${round}`))
          expect(result).toMatchObject({ left: { _tag: "EnqueueUncertain", retryable: false } })
          yield* Effect.promise(() => swallowed)
          expect(yield* rowsOf(url)).toHaveLength(1 + round)
        }
        // The one way to repeat it: a key
        const swallowed = proxy.swallowReply("alkstore_enqueue")
        const once = yield* Effect.either(send(mine, "keyed", { dedupeKey: "k" }))
        expect(Either.isLeft(once)).toBe(true)
        yield* Effect.promise(() => swallowed)
        expect(yield* send(mine, "keyed", { dedupeKey: "k" })).toMatchObject({ deduplicated: true })
        expect(yield* rowsOf(url)).toHaveLength(7)
      })
    ))

  it("G11: an enqueue that was never sent is no uncertain one", () =>
    live(
      Effect.gen(function* () {
        const { proxy, url } = yield* database
        const mine = yield* engine(proxy.url, { listen: false })
        proxy.refuse()
        proxy.cut()
        // The first may still meet a connection that looks alive
        yield* Effect.either(send(mine, "a"))
        expect(yield* Effect.either(send(mine, "b"))).toMatchObject({
          left: { _tag: "StoreError", reason: "connection" }
        })
        proxy.pass()
        yield* Effect.retry(send(mine, "c"), { times: 3 })
        expect((yield* rowsOf(url)).map(({ payload }) => payload)).toEqual(['"c"'])
      })
    ))

  it("G16: a COMMIT whose answer was lost is uncertain, not failed; the pool is fine afterwards", () =>
    live(
      Effect.gen(function* () {
        const { proxy, url } = yield* database
        const mine = yield* engine(proxy.url, { listen: false })
        for (let round = 1; round <= 5; round++) {
          const swallowed = proxy.swallowReply("COMMIT")
          const result = yield* Queue.transaction(send(mine, "in a transaction")).pipe(
            Effect.provide(mine),
            Effect.either
          )
          yield* Effect.promise(() => swallowed)
          expect(result).toMatchObject({ left: { _tag: "StoreError", reason: "uncertain", retryable: false } })
          expect(yield* rowsOf(url)).toHaveLength(round)
        }
        yield* Queue.transaction(send(mine, "after")).pipe(Effect.provide(mine))
        expect(yield* rowsOf(url)).toHaveLength(6)
      })
    ))

  /** A worker whose handlers write a job of another queue in their transaction. */
  const transactional = (mine: Context.Context<Pg.Services>, before: (attempt: number) => void = () => {}) =>
    Effect.gen(function* () {
      const runs: Array<string> = []
      const worker = yield* Worker.make(Letters, {
        transactional: true,
        visibilityTimeout: "5 seconds",
        retry: Schedule.spaced("50 millis"),
        handler: (job) =>
          Effect.gen(function* () {
            runs.push(`${job.payload}, ${job.attempt}`)
            yield* Effects.enqueue(job.payload)
            before(job.attempt)
          })
      })
      return { runs, worker, acked: async () => (await Effect.runPromise(worker.status)).acked }
    }).pipe(Effect.provide(mine))

  const effectsOf = (url: string) =>
    Effect.map(query(url, "SELECT payload FROM alkstore.jobs WHERE queue = 'effects' ORDER BY id"), (rows) =>
      rows.map(({ payload }) => JSON.parse(payload))
    )

  it("G122: a transactional handler whose COMMIT was answered to nobody has run, once", () =>
    live(
      Effect.gen(function* () {
        const { proxy, url } = yield* database
        const mine = yield* engine(proxy.url)
        const producer = yield* engine(url, { listen: false })
        const { acked, runs, worker } = yield* transactional(mine)
        const rounds = [1, 2, 3, 4, 5].map((round) => `round ${round}`)
        for (const [done, round] of rounds.entries()) {
          const swallowed = proxy.swallowReply("COMMIT")
          yield* send(producer, round)
          yield* Effect.promise(() => swallowed)
          yield* wait("it counts", async () => (await acked()) === done + 1)
        }
        expect(runs).toEqual(rounds.map((round) => `${round}, 1`))
        expect(yield* effectsOf(url)).toEqual(rounds)
        expect(yield* rowsOf(url)).toHaveLength(5)
        expect(yield* worker.status).toMatchObject({ acked: 5, lost: 0, retried: 0, released: 0 })
      })
    ))

  it("G120, G122: one whose connection is cut before the COMMIT has written nothing, and runs again", () =>
    live(
      Effect.gen(function* () {
        const { proxy, url } = yield* database
        const mine = yield* engine(proxy.url)
        const producer = yield* engine(url, { listen: false })
        const { acked, runs, worker } = yield* transactional(mine, (attempt) => {
          if (attempt === 1) proxy.cut()
        })
        for (const round of ["a", "b", "c"]) yield* send(producer, round)
        yield* wait("all are done", async () => (await acked()) === 3, 20_000)
        const effects = yield* effectsOf(url)
        expect([...effects].sort()).toEqual(["a", "b", "c"])
        expect(runs.length).toBeGreaterThan(3)
        expect(yield* worker.status).toMatchObject({ acked: 3, dead: 0 })
        expect(yield* rowsOf(url)).toHaveLength(3)
      })
    ))

  it("G88: a transaction whose connection is cut fails typed, and leaves nothing", () =>
    live(
      Effect.gen(function* () {
        const { proxy, url } = yield* database
        const mine = yield* engine(proxy.url, { listen: false })
        for (let round = 1; round <= 5; round++) {
          const result = yield* Queue.transaction(
            Effect.gen(function* () {
              yield* send(mine, "before the cut")
              proxy.cut()
              yield* send(mine, "after the cut")
            })
          ).pipe(Effect.provide(mine), Effect.either)
          expect(result).toMatchObject({ left: { _tag: "StoreError", reason: "connection" } })
        }
        expect(yield* rowsOf(url)).toEqual([])
        yield* Effect.all(
          Array.from({ length: 5 }, () => Queue.transaction(send(mine, "fine")).pipe(Effect.provide(mine))),
          { concurrency: "unbounded" }
        )
        expect(yield* rowsOf(url)).toHaveLength(5)
      })
    ))
})

it("G89: nothing that was logged in this file contains a password", () => {
  expect(logs.filter((line) => line.includes(secret))).toEqual([])
})
