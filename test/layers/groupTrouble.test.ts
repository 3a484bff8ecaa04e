/**
 * What calls that share a run must not do to each other on a bad day: fail, hang or be interrupted for another.
 */
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Lock, Queue, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Context, Effect, Either, Exit, Fiber, FiberId, Layer, Redacted, Schema } from "effect"
import { expect, inject, it } from "vitest"
import { activity } from "../../src/layers/Database/Database.js"
import { makeWrites } from "../../src/layers/Database/writes.js"
import { temporaryFile } from "../support/engines.js"
import { Letters, live, wait } from "../support/outages.js"
import { createDatabase, lockWaits, withClient } from "../support/postgres.js"
import { startProxy } from "../support/proxy.js"
import { connectTo } from "../support/steppedEngines.js"

const query = (url: string, text: string) =>
  Effect.promise(() => withClient(url, async (client) => (await client.query(text)).rows))

const pgEngine = (url: string, options: Pg.Options = {}) =>
  Layer.build(
    Layer.provideMerge(
      Pg.layer({ sweeper: false, scheduler: false, listen: false, ...options }),
      PgClient.layer({ url: Redacted.make(url) })
    )
  ).pipe(Effect.tap((built) => Effect.provide(Letters.enqueue("warm"), built)))

const trigger = (url: string, body: string) =>
  query(
    url,
    `CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.payload = '"bad"' THEN ${body} END IF; RETURN NEW; END $$;
     CREATE TRIGGER bad BEFORE INSERT ON alkstore.jobs FOR EACH ROW EXECUTE FUNCTION bad()`
  )

const tags = (results: ReadonlyArray<Either.Either<unknown, { readonly _tag: string; readonly reason?: string }>>) =>
  results.map((result) => (Either.isRight(result) ? "done" : `${result.left._tag} ${result.left.reason}`))

it("G190 PG: a conflict met by callers that were interrupted meanwhile does not stop all enqueues of the process", () =>
  live(
    Effect.gen(function* () {
      const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
      const mine = yield* pgEngine(url)
      yield* trigger(url, "PERFORM pg_sleep(0.3); RAISE EXCEPTION 'conflict' USING ERRCODE = '40001';")
      const send = (text: string) => Effect.provide(Letters.enqueue(text), mine)
      const calls = yield* Effect.forEach(["bad", "a", "b"], (text) => Effect.forkDaemon(send(text)))
      yield* wait("it is under way", async () => {
        const rows = await Effect.runPromise(
          query(url, "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
        )
        return rows.length > 0
      })
      for (const call of calls.slice(0, 2)) yield* Fiber.interruptAsFork(call, FiberId.none)
      const b = yield* Effect.either(
        Effect.timeout(Effect.disconnect(Fiber.join(calls[2] as (typeof calls)[number])), "5 seconds")
      )
      const later = yield* Effect.either(Effect.timeout(Effect.disconnect(send("later")), "5 seconds"))
      expect([b._tag, later._tag]).toEqual(["Right", "Right"])
    })
  ))

it("G190 PG: a row that always conflicts (40001 of a trigger) fails its caller alone", () =>
  live(
    Effect.gen(function* () {
      const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
      const mine = yield* pgEngine(url)
      yield* trigger(url, "RAISE EXCEPTION 'conflict' USING ERRCODE = '40001';")
      const results = yield* Effect.forEach(["a", "bad", "b"], (text) => Effect.either(Letters.enqueue(text)), {
        concurrency: "unbounded"
      }).pipe(Effect.provide(mine))
      expect(tags(results)).toEqual(["done", "StoreError conflict", "done"])
    })
  ))

it("G28 PG: what was settled before a statement that met a deadlock is not told to be lost", () =>
  live(
    Effect.gen(function* () {
      const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
      const mine = yield* pgEngine(url)
      yield* query(
        url,
        `CREATE SEQUENCE tries;
        CREATE FUNCTION once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          IF OLD.token IS NOT NULL AND NEW.token IS NULL AND nextval('tries') = 1 THEN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END IF;
          RETURN NEW; END $$;
        CREATE TRIGGER once BEFORE UPDATE ON alkstore.jobs FOR EACH ROW EXECUTE FUNCTION once()`
      )
      yield* Effect.provide(Letters.enqueue("second"), mine)
      const [done, back] = yield* Effect.provide(Letters.claim({ limit: 2 }), mine)
      if (done === undefined || back === undefined) return expect.fail("there are two")
      const history = { crashes: 0, failures: 0, errors: null, failureTimes: null }
      const outcomes = yield* Context.get(mine, Queue.Queue).settle(Letters.name, [
        { _tag: "Ack", id: done.id, token: done.lease.token },
        {
          _tag: "Return",
          id: back.id,
          token: back.lease.token,
          attempt: 0,
          delayMillis: 0,
          undecodableSince: null,
          history
        }
      ])
      expect(outcomes).toEqual(["done", "done"])
      expect(yield* query(url, "SELECT last_value::int AS tries FROM tries")).toEqual([{ tries: 2 }])
    })
  ))

it("G190 PG: a row whose statement the server cancels (statement timeout, 57014) fails its caller alone", () =>
  live(
    Effect.gen(function* () {
      const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
      const mine = yield* pgEngine(url, { statementTimeout: "1 second" })
      yield* trigger(url, "PERFORM pg_sleep(5);")
      const results = yield* Effect.forEach(["a", "bad", "b"], (text) => Effect.either(Letters.enqueue(text)), {
        concurrency: "unbounded"
      }).pipe(Effect.provide(mine))
      expect(tags(results)).toEqual(["done", "StoreError timeout", "done"])
    })
  ))

it("G190 PG: a lock on the table costs all who share a run a few deadlines, not one each", () =>
  live(
    Effect.gen(function* () {
      const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
      const mine = yield* pgEngine(url, { statementTimeout: "500 millis" })
      const results = yield* Effect.promise(() =>
        withClient(url, async (client) => {
          await client.query("BEGIN; LOCK TABLE alkstore.jobs IN ACCESS EXCLUSIVE MODE")
          const calls = Effect.replicateEffect(Effect.either(Letters.enqueue("late")), 300, {
            concurrency: "unbounded"
          })
          return Effect.runPromise(Effect.provide(calls, mine))
        })
      )
      expect(new Set(tags(results))).toEqual(new Set(["StoreError timeout"]))
      yield* Effect.provide(Letters.enqueue("later"), mine)
      expect(yield* query(url, `SELECT payload FROM alkstore.jobs ORDER BY id`)).toEqual([
        { payload: '"warm"' },
        { payload: '"later"' }
      ])
    })
  ))

it("G190 PG: a network that swallows everything costs one deadline, however many queues are in the flush", () =>
  live(
    Effect.gen(function* () {
      const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
      const proxy = yield* Effect.acquireRelease(
        Effect.promise(() => startProxy(url)),
        (proxy) => Effect.promise(proxy.close)
      )
      const mine = yield* pgEngine(proxy.url, { statementTimeout: "1 second" })
      const queues = [1, 2, 3, 4].map((n) => Queue.make(`q${n}`, { payload: Schema.String }))
      yield* Effect.provide(
        Effect.forEach(queues, (queue) => queue.enqueue("warm")),
        mine
      )
      proxy.holdOld()
      const started = performance.now()
      const results = yield* Effect.forEach(queues, (queue) => Effect.either(queue.enqueue("x")), {
        concurrency: "unbounded"
      }).pipe(Effect.provide(mine))
      const millis = performance.now() - started
      console.log(millis, tags(results))
      expect(millis).toBeLessThan(5_000)
    })
  ))

it("G190 SQLite: a row for which the COMMIT fails (a deferred foreign key) fails its caller alone", () =>
  live(
    Effect.gen(function* () {
      const filename = yield* temporaryFile
      const mine = yield* Layer.build(Sqlite.layerFile(filename, { sweeper: false }))
      yield* Effect.provide(Letters.enqueue("warm"), mine)
      const sql = Context.get(mine, SqlClient.SqlClient)
      yield* sql.unsafe("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
      yield* sql.unsafe("CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
      yield* sql.unsafe(
        `CREATE TRIGGER bad AFTER INSERT ON _alkstore_jobs WHEN NEW.payload = '"bad"' BEGIN INSERT INTO child VALUES (7); END`
      )
      const results = yield* Effect.forEach(["a", "bad", "b"], (text) => Effect.either(Letters.enqueue(text)), {
        concurrency: "unbounded"
      }).pipe(Effect.provide(mine))
      expect(tags(results)).toEqual(["done", "StoreError constraint", "done"])
    })
  ))

it("G190 SQLite without WAL: a leader that is interrupted while its COMMIT meets a reader interrupts nobody else", () =>
  live(
    Effect.gen(function* () {
      const filename = yield* temporaryFile
      const client = SqliteClient.layer({ filename, disableWAL: true })
      const mine = yield* Layer.build(
        Layer.provideMerge(Sqlite.layer({ sweeper: false, scheduler: false, watch: false }), client)
      )
      yield* Effect.provide(Letters.enqueue("warm"), mine)
      const reader = new BetterSqlite(filename)
      reader.exec("BEGIN; SELECT count(*) FROM _alkstore_jobs")
      const fates = new Set<string>()
      for (let turns = 0; turns < 60; turns++) {
        const calls = yield* Effect.forEach(
          Array.from({ length: 300 }, (_, n) => `${turns}: ${n}`),
          (text) => Effect.forkDaemon(Effect.provide(Letters.enqueue(text), mine))
        )
        yield* Effect.repeatN(Effect.yieldNow(), turns)
        yield* Fiber.interruptAsFork(calls[0] as (typeof calls)[number], FiberId.none)
        const before = activity.total
        yield* wait("others have tried", () => activity.total > before + 1)
        reader.exec("COMMIT")
        const exits = yield* Effect.forEach(calls.slice(1), (call) =>
          Effect.timeout(Effect.disconnect(Fiber.await(call)), "5 seconds")
        )
        for (const exit of exits)
          fates.add(Exit.isSuccess(exit) ? "done" : Exit.isInterrupted(exit) ? "interrupted" : String(exit))
        reader.exec("BEGIN; SELECT count(*) FROM _alkstore_jobs")
      }
      reader.close()
      expect([...fates]).toEqual(["done"])
    })
  ))

it("writes: a verb that throws leaves no transaction open and fails its caller alone", () =>
  live(
    Effect.gen(function* () {
      let open = false
      const one = yield* Effect.makeSemaphore(1)
      const write = makeWrites({
        clock: {
          source: "process",
          virtual: true,
          now: Effect.succeed(0),
          monotonic: Effect.succeed(0),
          monotonicOf: () => 0,
          stall: () => Effect.succeed({ millis: 0, mark: 0 }),
          breath: (call) => call,
          lull: () => Effect.void
        },
        limitMillis: 100,
        use: (use) => one.withPermits(1)(Effect.uninterruptible(use({} as never))),
        session: () => Effect.succeed({} as never),
        run: (_, text) =>
          Effect.sync(() => {
            if (text.startsWith("BEGIN") && open) throw new Error("cannot start a transaction within a transaction")
            open = text.startsWith("BEGIN")
          })
      })
      const fine = write("fine", () => Effect.succeed("done"))
      const throws = write("throws", () => {
        throw new Error("thrown")
      })
      const exits = yield* Effect.forEach([fine, throws, fine], Effect.exit, { concurrency: "unbounded" })
      expect([open, ...exits.map(Exit.isSuccess)]).toEqual([false, true, false, true])
    })
  ))

it("G193 PG: an enqueue that is interrupted after it was sent wakes the workers of its own process", () =>
  live(
    Effect.gen(function* () {
      const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
      const mine = yield* pgEngine(url, { listen: true, pollInterval: "1 hour" })
      const worker = yield* Effect.provide(Worker.make(Letters, { handler: () => Effect.void }), mine)
      const acked = (count: number) => async () => (await Effect.runPromise(worker.status)).acked === count
      yield* wait("the first one has been worked on", acked(1))
      const lock = yield* connectTo(url)
      yield* Effect.promise(() => lock.query("BEGIN; LOCK TABLE alkstore.jobs IN SHARE MODE"))
      const enqueuing = yield* Effect.forkDaemon(Effect.provide(Letters.enqueue("a"), mine))
      yield* wait("it is under way", async () => (await lock.query(lockWaits)).rows.length > 0)
      yield* Fiber.interruptAsFork(enqueuing, FiberId.none)
      yield* Effect.promise(() => lock.query("COMMIT"))
      yield* wait("it has been worked on", acked(2))
    })
  ))

const Others = Queue.make("others", { payload: Schema.String })

const throughProxy = Effect.gen(function* () {
  const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
  const proxy = yield* Effect.acquireRelease(
    Effect.promise(() => startProxy(url)),
    (proxy) => Effect.promise(proxy.close)
  )
  const mine = yield* pgEngine(proxy.url)
  yield* Effect.provide(Others.enqueue("warm"), mine)
  return { url, proxy, mine }
})

const together = (calls: ReadonlyArray<ReturnType<typeof Letters.enqueue>>) =>
  Effect.all(
    calls.map((call) => Effect.either(call)),
    { concurrency: "unbounded" }
  )

const words = (results: ReadonlyArray<Either.Either<unknown, { readonly _tag: string }>>) =>
  results.map((result) => (Either.isRight(result) ? "done" : result.left._tag))

it("G11, G190 PG: what was still to be sent when the connection was lost is not uncertain", () =>
  live(
    Effect.gen(function* () {
      const { mine, proxy } = yield* throughProxy
      const swallowed = proxy.swallowReply("alkstore_enqueue")
      const results = yield* Effect.provide(together([Letters.enqueue("a"), Others.enqueue("b")]), mine)
      yield* Effect.promise(() => swallowed)
      expect(words(results)).toEqual(["EnqueueUncertain", "StoreError"])
    })
  ))

it("G11, G190 PG: nor is it when they go one by one, since one of them was refused", () =>
  live(
    Effect.gen(function* () {
      const { mine, proxy, url } = yield* throughProxy
      yield* trigger(url, "RAISE EXCEPTION 'no' USING ERRCODE = '23514';")
      const swallowed = proxy.swallowReply('"b"')
      const calls = [...["bad", "b", "c"].map((text) => Letters.enqueue(text)), Others.enqueue("d")]
      const results = yield* Effect.provide(together(calls), mine)
      yield* Effect.promise(() => swallowed)
      expect(words(results)).toEqual(["StoreError", "EnqueueUncertain", "StoreError", "StoreError"])
    })
  ))

it("G68 PG: a lock that is released inside a transaction wakes those who wait for it here", () =>
  live(
    Effect.gen(function* () {
      const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
      const mine = yield* pgEngine(url, { pollInterval: "1 hour" })
      const hands = Effect.gen(function* () {
        const lock = yield* Lock.Lock
        const sql = yield* SqlClient.SqlClient
        const held = yield* lock.acquire("l", { ttl: "60 seconds" })
        const waiter = yield* Effect.fork(lock.acquire("l", { ttl: "60 seconds" }))
        yield* wait("it waits", async () => (await Effect.runPromise(waiter.status))._tag === "Suspended")
        yield* sql.withTransaction(lock.release(held))
        return yield* Effect.timeoutOption(Fiber.join(waiter), "3 seconds")
      })
      expect((yield* Effect.provide(hands, mine))._tag).toBe("Some")
    })
  ))
