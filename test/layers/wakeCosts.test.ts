/** What wakes cost: how many notifications enqueues send, and what one for another queue costs. */
import { Queue, Wake, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Context, Deferred, Effect, Layer, Redacted, Schema } from "effect"
import pg from "pg"
import { expect, inject, test, vi } from "vitest"
import { makeTap } from "../security/tap.js"
import { temporaryFile } from "../support/engines.js"
import { live, wait } from "../support/outages.js"
import { createDatabase } from "../support/postgres.js"
import { connectTo, postgresChannel } from "../support/steppedEngines.js"

const Letters = Queue.make("letters", { payload: Schema.Number })
const Parcels = Queue.make("parcels", { payload: Schema.Number })

const engine = (url: string, options: Pg.Options = {}) =>
  Layer.build(Pg.layerUrl(Redacted.make(url), { sweeper: false, scheduler: false, pollInterval: "1 hour", ...options }))

const database = Effect.promise(() => createDatabase(inject("pgUrl")))

const isLive = (of: Context.Context<Wake.Wake>) =>
  wait("listening", () => Effect.runSync(Context.get(of, Wake.Wake).state)._tag === "Live")

/** What a client that listens is told by what `act` does. */
const notifications = <A, E, R>(url: string, act: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const client = yield* connectTo(url)
    const told: Array<string | undefined> = []
    client.on("notification", ({ payload }) => told.push(payload))
    yield* Effect.promise(() => client.query(`LISTEN "${postgresChannel}"`))
    yield* act
    // What was notified before comes before
    yield* Effect.promise(() => client.query(`SELECT pg_notify('${postgresChannel}', 'the end')`))
    yield* wait("the end", () => told.includes("the end"))
    return told.slice(0, -1)
  }).pipe(Effect.scoped)

const numbers = Array.from({ length: 20 }, (_, n) => n)

const atOnce = (...queues: ReadonlyArray<typeof Letters>) =>
  Effect.forEach(
    numbers.flatMap((n) => queues.map((queue) => [queue, n] as const)),
    ([queue, n]) => queue.enqueue(n),
    { concurrency: "unbounded", discard: true }
  )

test("PostgreSQL: enqueues that wait at the same moment send one notification, or one for each of their queues", () =>
  live(
    Effect.gen(function* () {
      const url = yield* database
      const mine = yield* engine(url, { listen: false })
      const told = <E>(act: Effect.Effect<unknown, E, Queue.Queue>) => notifications(url, Effect.provide(act, mine))
      // Known before, so that nobody waits for a definition of its queue
      yield* Effect.provide(Effect.all([Letters.counts, Parcels.counts, Letters.enqueue(0), Parcels.enqueue(0)]), mine)
      expect(yield* told(atOnce(Letters))).toEqual(["letters"])
      expect([...(yield* told(atOnce(Letters, Parcels)))].sort()).toEqual(["letters", "parcels"])
      // Equal ones of one transaction are folded by the server; these are of three
      expect(yield* told(Effect.repeatN(atOnce(Letters), 2))).toEqual(["letters", "letters", "letters"])
    })
  ))

test("PostgreSQL: so do those of a process that listens itself", () =>
  live(
    Effect.gen(function* () {
      const url = yield* database
      const mine = yield* engine(url)
      yield* isLive(mine)
      const client = yield* connectTo(url)
      const told: Array<string | undefined> = []
      client.on("notification", ({ payload }) => told.push(payload))
      yield* Effect.promise(() => client.query(`LISTEN "${postgresChannel}"`))
      yield* Effect.provide(Effect.all([Letters.enqueue(0), Parcels.enqueue(0)]), mine)
      yield* wait("told of both", () => told.includes("letters") && told.includes("parcels"))
      told.length = 0
      yield* Effect.provide(atOnce(Letters), mine)
      yield* wait("told", () => told.includes("letters"))
      // Whatever else there was to be told comes before this
      yield* Effect.provide(Parcels.enqueue(1), mine)
      yield* wait("told of the other queue", () => told.includes("parcels"))
      expect(told).toEqual(["letters", "parcels"])
    })
  ))

/** The texts that clients of one side send from now on. */
const spied = (side: string) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const texts: Array<string> = []
      const send = pg.Client.prototype.query as (...parameters: ReadonlyArray<unknown>) => unknown
      const spy = vi.spyOn(pg.Client.prototype, "query").mockImplementation(function (this: pg.Client, ...parameters) {
        const { connectionParameters } = this as unknown as { connectionParameters: Record<string, unknown> }
        const [query] = parameters as ReadonlyArray<string | { readonly text: string }>
        if (connectionParameters.fallback_application_name === side)
          texts.push(typeof query === "string" ? query : (query?.text ?? ""))
        return send.apply(this, parameters)
      })
      return { texts, spy }
    }),
    ({ spy }) => Effect.sync(() => spy.mockRestore())
  )

test("PostgreSQL: a wake for another queue costs an idle worker no statement", () =>
  live(
    Effect.gen(function* () {
      const url = yield* database
      const named = Object.assign(new URL(url), { search: "?fallback_application_name=idle" }).href
      const there = yield* engine(url)
      const here = yield* engine(named)
      const done = yield* Deferred.make<number>()
      const worker = yield* Effect.provide(
        Worker.make(Letters, { handler: ({ payload }) => Deferred.succeed(done, payload) }),
        here
      )
      const others = yield* Context.get(here, Wake.Wake).subscribe(Wake.queueTopic(Parcels.name))
      yield* Effect.all([isLive(here), isLive(there)])
      yield* wait("idle", async () => ((await Effect.runPromise(worker.health)).lastClaimMillisAgo ?? 0) > 100)
      const { texts } = yield* spied("idle")
      for (const n of numbers) {
        yield* Effect.provide(Parcels.enqueue(n), there)
        // It has come to this process
        yield* Effect.timeout(others.await, "20 seconds")
      }
      const ofProbe = /^SELECT 1$/
      const idle = texts.filter((text) => !ofProbe.test(text))
      // One for its own queue, and it works
      yield* Effect.provide(Letters.enqueue(7), there)
      expect(yield* Effect.timeout(Deferred.await(done), "20 seconds")).toBe(7)
      expect(idle).toEqual([])
      const claims = texts.filter((text) => text.includes("alkstore:claim"))
      expect(claims.length).toBeGreaterThan(0)
      expect(claims.length).toBeLessThan(5)
    })
  ))

test("SQLite: what is written for other processes, and their looks at it, go by an index", () =>
  live(
    Effect.gen(function* () {
      const filename = yield* temporaryFile
      const tap = yield* Effect.acquireRelease(Effect.sync(makeTap), ({ close }) => Effect.sync(close))
      const options = { sweeper: false, scheduler: false, pollInterval: "1 hour" } as const
      const open = Layer.build(Layer.fresh(Sqlite.layerFile(filename, options)))
      const [here, there] = [yield* open, yield* open]
      yield* isLive(here)
      const told = yield* Effect.flatMap(Wake.Wake, (wake) => wake.subscribe(Wake.controlTopic(Letters.name))).pipe(
        Effect.provide(here)
      )
      yield* Effect.provide(Letters.pause, there)
      yield* Effect.timeout(told.await, "10 seconds")
      yield* wait("told", () => tap.texts.some((text) => text.includes('DELETE FROM "_alkstore_wakes"')))
      const texts = new Set(tap.texts.filter((text) => /_alkstore_wakes\b/.test(text) && !/CREATE|EXPLAIN/.test(text)))
      const db = new BetterSqlite(filename)
      const plans = [...texts].map((text) => {
        const bound = { id: 0, change: 0, topics: "[]" }
        const plan = db.prepare<[object], { detail: string }>(`EXPLAIN QUERY PLAN ${text}`).all(bound)
        return plan.map(({ detail }) => detail).join("; ")
      })
      db.close()
      expect(plans.length).toBeGreaterThanOrEqual(4)
      for (const plan of plans) {
        expect(plan).toContain("_alkstore_wakes_by_change")
        expect(plan).not.toContain("SCAN _alkstore_wakes")
      }
    })
  ))
