/** A PostgreSQL that restarts, turns read-only, is gone at the end, or is set up in ways that are not ours. */
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { Lock, Queue, Wake, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Context, Deferred, Duration, Effect, Either, Exit, Layer, Redacted, Schema, Scope } from "effect"
import { afterAll, beforeAll, describe, expect, it } from "vitest"
import { diary, Letters, live, logs, wait } from "../support/outages.js"
import { type Postgres, startPostgres, withClient } from "../support/postgres.js"
import { startProxy } from "../support/proxy.js"

let server: Postgres

beforeAll(async () => {
  // A server that is ended at once must not lose what it has answered
  server = await startPostgres({ own: true, settings: { synchronous_commit: "on" } })
})
afterAll(() => server.stop())

const query = (url: string, text: string) =>
  Effect.promise(() => withClient(url, async (client) => (await client.query(text)).rows))

const rowsOf = (url: string) => query(url, "SELECT id, payload, attempt FROM alkstore.jobs ORDER BY id")

const engine = (url: string, options: Pg.Options = {}) =>
  Layer.build(Pg.layerUrl(Redacted.make(url), { sweeper: false, pollInterval: "30 seconds", ...options }))

const database = Effect.tap(
  Effect.promise(() => server.createDatabase()),
  (url) => Effect.scoped(engine(url, { listen: false }))
)

const send = (from: Context.Context<Pg.Services>, text: string, options?: Queue.EnqueueOptions) =>
  Letters.enqueue(text, options).pipe(Effect.provide(from))

const names = (prefix: string, count: number) => Array.from({ length: count }, (_, n) => `${prefix} ${n}`)

const listening = (of: Context.Context<Pg.Services>) =>
  wait("listening", () => Effect.runSync(Context.get(of, Wake.Wake).state)._tag === "Live")

describe("restarts", () => {
  it.each(["fast", "immediate"] as const)("G43, G75: %s, in the middle of work: nothing is lost or run twice", (mode) =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const mine = yield* engine(url)
        yield* Letters.enqueueMany([...names("long", 5), ...names("short", 60)]).pipe(Effect.provide(mine))
        const { done, started } = yield* diary(mine, {
          concurrency: 8,
          prefetch: 0,
          visibilityTimeout: "12 seconds",
          handler: (job) => Effect.sleep(job.payload.startsWith("long") ? "2 seconds" : "100 millis")
        })
        yield* wait("it is under way", () => done.length >= 5)
        yield* Effect.promise(() => server.restart(mode))
        const before = started.length
        yield* wait("the loops are back", () => started.length > before, 10_000)
        yield* wait("all are done", () => done.length >= 65, 30_000)
        yield* wait("all are acked", async () => (await Effect.runPromise(rowsOf(url))).length === 0)
        expect([...started].sort()).toEqual([...names("long", 5), ...names("short", 60)].sort())
        expect([...done].sort()).toEqual([...started].sort())
        expect(yield* Letters.deadLetters.list().pipe(Effect.provide(mine))).toEqual([])
        yield* listening(mine)
        yield* Effect.retry(send(mine, "after"), { times: 3 })
        yield* wait("woken", () => done.includes("after"), 2_000)
      })
    )
  )

  it("G75: a server that is read-only for a while; connections made meanwhile are not kept", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const name = new URL(url).pathname.slice(1)
        const mine = yield* engine(url)
        const { done, events } = yield* diary(mine)
        yield* send(mine, "before")
        yield* wait("it works", () => done.length === 1)
        yield* query(server.url, `ALTER DATABASE "${name}" SET default_transaction_read_only = on`)
        yield* query(
          server.url,
          `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '${name}' AND application_name = 'alkstore'`
        )
        yield* Effect.ignore(send(mine, "meets a connection that was cut"))
        const refused = yield* Effect.either(send(mine, "refused"))
        expect(refused).toMatchObject({ left: { _tag: "StoreError", reason: "readonly", retryable: true } })
        yield* Context.get(mine, Wake.Wake).wake([Letters.name])
        yield* wait("the worker says so", () => events.includes("Outage"))
        yield* query(server.url, `ALTER DATABASE "${name}" RESET default_transaction_read_only`)
        yield* wait("the worker is back", () => events.includes("Recovered"), 15_000)
        yield* Effect.retry(send(mine, "after"), { times: 3 })
        yield* wait("it works again", () => done.includes("after"), 10_000)
      })
    ))
})

describe("shutdown", () => {
  it.each(["held", "stopped"] as const)("G83: with the database %s a worker ends within its grace and 5 s", (how) =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const proxy = yield* Effect.acquireRelease(
          Effect.promise(() => startProxy(url)),
          ({ close }) => Effect.promise(close)
        )
        const scope = yield* Scope.make()
        const mine = yield* Scope.extend(engine(proxy.url), scope)
        const { started } = yield* Scope.extend(
          diary(mine, { shutdownGrace: "1 second", handler: () => Effect.never }),
          scope
        )
        yield* Letters.enqueueMany(names("job", 3)).pipe(Effect.provide(mine))
        yield* wait("it is under way", () => started.length === 3)
        if (how === "held") proxy.hold()
        else {
          proxy.refuse()
          proxy.cut()
        }
        const [took] = yield* Effect.timed(Scope.close(scope, Exit.void))
        expect(Duration.toMillis(took)).toBeLessThan(6_000)
      })
    )
  )
})

describe("a pool that handlers have used up", () => {
  it.each([1, 2, 4])("G35: of %i connections: leases are renewed, jobs enqueued and locks taken", (maxConnections) =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const client = yield* Layer.build(PgClient.layer({ url: Redacted.make(url), maxConnections }))
        const mine = yield* Layer.build(
          Layer.provide(Pg.layer({ sweeper: false, pollInterval: "30 seconds" }), Layer.succeedContext(client))
        )
        const sql = Context.get(client, SqlClient.SqlClient)
        const inside = yield* Deferred.make<void>()
        let waiting = 0
        const { done, events, started } = yield* diary(mine, {
          concurrency: maxConnections,
          visibilityTimeout: "1500 millis",
          handler: (job) =>
            job.payload.startsWith("child")
              ? Effect.void
              : sql
                  .withTransaction(
                    Effect.gen(function* () {
                      yield* sql`SELECT 1`
                      if (++waiting === maxConnections) yield* Deferred.succeed(inside, undefined)
                      yield* Deferred.await(inside)
                      yield* Queue.outsideTransaction(send(mine, `child of ${job.payload}`))
                      yield* Effect.void.pipe(Lock.withLock("one for all"), Effect.provide(mine))
                      // Longer than a lease: it holds only by being renewed
                      yield* Effect.sleep("2 seconds")
                    })
                  )
                  .pipe(Effect.catchAll((error) => Effect.die(error)))
        })
        yield* Letters.enqueueMany(names("job", maxConnections)).pipe(Effect.provide(mine))
        yield* wait("all are done", () => done.length === 2 * maxConnections, 15_000)
        expect(started).toHaveLength(2 * maxConnections)
        expect(events.filter((tag) => tag === "LeaseLost")).toEqual([])
      })
    )
  )
})

describe("settings that are not ours", () => {
  it("G75: where SERIALIZABLE is the default, work goes on as ever", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const name = new URL(url).pathname.slice(1)
        yield* query(url, `ALTER DATABASE "${name}" SET default_transaction_isolation = 'serializable'`)
        const engines = yield* Effect.all([engine(url), engine(url)])
        const diaries = yield* Effect.forEach(engines, (mine) => diary(mine, { concurrency: 10 }))
        const all = names("job", 300)
        yield* Effect.forEach(all, (text) => send(engines[0], text), { concurrency: 10 })
        yield* wait("all are done", () => diaries.flatMap(({ done }) => done).length === all.length, 20_000)
        expect(diaries.flatMap(({ started }) => started).sort()).toEqual([...all].sort())
        expect(diaries.flatMap(({ events }) => events).filter((tag) => tag === "Outage")).toEqual([])
      })
    ))

  it("a statement_timeout of the role's does not cut our statements short", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const name = new URL(url).pathname.slice(1)
        yield* query(url, `ALTER DATABASE "${name}" SET statement_timeout = '300ms'`)
        const mine = yield* engine(url, { listen: false })
        const receipt = yield* Effect.promise(() =>
          withClient(url, async (other) => {
            // An enqueue with the same key waits for this transaction to end
            await other.query("BEGIN; SET LOCAL statement_timeout = 0")
            await other.query(`INSERT INTO alkstore.dedupe_keys (queue, dedupe_key, job_id) VALUES ('letters', 'k', 1)`)
            const waiting = Effect.runPromise(send(mine, "a", { dedupeKey: "k" }))
            await other.query("SELECT pg_sleep(1)")
            await other.query("ROLLBACK")
            return waiting
          })
        )
        expect(receipt).toMatchObject({ deduplicated: false })
      })
    ))

  it("G59: without LISTEN, or without NOTIFY, all is found by polling", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const deaf = yield* engine(url, { listen: false, pollInterval: "200 millis" })
        const mute = yield* engine(url, { listen: false, notify: false })
        const { done, worker } = yield* diary(deaf)
        yield* send(mute, "a")
        yield* wait("found", () => done.length === 1, 3_000)
        expect((yield* worker.health).wake).toMatchObject({ _tag: "PollOnly" })
      })
    ))

  it("G57, G60: whatever its size and its queue's name, an enqueue wakes another process", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const mine = yield* engine(url)
        const producer = yield* engine(url, { listen: false })
        const payload = Schema.String
        const start = "x".repeat(63)
        const queues = [start, `${start}y`, "n".repeat(128), "a/b:c.d-e"].map((name) => Queue.make(name, { payload }))
        const woken: Array<string> = []
        for (const queue of queues) {
          const handler = (job: { readonly payload: string; readonly queue: string }) =>
            Effect.sync(() => woken.push(`${job.queue} ${job.payload.length}`))
          yield* Worker.make(queue, { handler }).pipe(Effect.provide(mine))
        }
        yield* listening(mine)
        const sql = Context.get(producer, SqlClient.SqlClient)
        for (const queue of queues) {
          for (const size of [9_000, 1024 * 1024 - 2]) {
            const expected = woken.length + 1
            yield* sql.withTransaction(queue.enqueue("x".repeat(size))).pipe(Effect.provide(producer))
            yield* wait("woken", () => woken.length === expected, 3_000)
            expect(woken.at(-1)).toBe(`${queue.name} ${size}`)
          }
        }
        const [first] = queues
        yield* sql
          .withTransaction(first?.enqueueMany(names("job", 2_000)) ?? Effect.void)
          .pipe(Effect.provide(producer))
        yield* wait("all are done", () => woken.length === 2_008, 15_000)
        const long = Queue.make("n".repeat(129), { payload })
        expect(yield* Effect.either(long.enqueue("a")).pipe(Effect.provide(producer))).toMatchObject({
          left: { _tag: "InvalidArgument", argument: "queue name" }
        })
      })
    ))

  it("G89: a wrong password is said without it", () =>
    live(
      Effect.gen(function* () {
        const url = yield* database
        const file = join(server.dataDir ?? "", "pg_hba.conf")
        yield* query(url, "CREATE ROLE app LOGIN PASSWORD 'right'")
        writeFileSync(file, `host all app 127.0.0.1/32 scram-sha-256\n${readFileSync(file, "utf8")}`)
        yield* query(url, "SELECT pg_reload_conf()")
        const wrong = Redacted.make(Object.assign(new URL(url), { username: "app", password: "hunter2" }).href)
        const own = yield* Effect.either(engine(url, { connection: { url: wrong } }))
        expect(own).toMatchObject({ left: { _tag: "StoreError", reason: "denied", retryable: false } })
        const client = yield* Effect.either(engine(wrong.pipe(Redacted.value)))
        expect(client).toMatchObject({ left: { _tag: expect.stringMatching(/^(StoreError|SqlError)$/) } })
        for (const result of [own, client]) {
          const error = Either.isLeft(result) ? (result.left as Error) : new Error("no failure")
          expect(String(error) + error.message + JSON.stringify(error)).not.toContain("hunter2")
        }
        expect(logs.filter((line) => line.includes("hunter2"))).toEqual([])
      })
    ))
})
