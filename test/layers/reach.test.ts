/** Whom a wake reaches: Layers that share nothing but the database, and that poll only once an hour. */
import { mkdirSync, symlinkSync } from "node:fs"
import { dirname, join } from "node:path"
import { type Job, Lock, Queue, Wake, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Deferred, Effect, Queue as EffectQueue, Layer, Redacted, Schedule, Schema, type Scope } from "effect"
import { expect, inject, test } from "vitest"
import { temporaryFile } from "../support/engines.js"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.String })
const Parcels = Queue.make("parcels", { payload: Schema.String })

const live = Effect.flatMap(Wake.Wake, (wake) => wake.state).pipe(
  Effect.repeat({ until: ({ _tag }) => _tag === "Live", schedule: Schedule.spaced("10 millis") }),
  Effect.timeout("10 seconds")
)

/** Two Layers of the same database, the second of which listens. */
const pair = <E>(layer: Layer.Layer<Sqlite.Services, E>) =>
  Effect.gen(function* () {
    const here = yield* Layer.build(Layer.fresh(layer))
    const there = yield* Layer.build(Layer.fresh(layer))
    yield* Effect.provide(live, there)
    return { here, there }
  })

/** A waiting worker in one Layer gets what another Layer enqueues. */
const reaches = <E>(
  layer: Layer.Layer<Sqlite.Services, E>,
  enqueue: Effect.Effect<unknown, unknown, Queue.Queue> = Letters.enqueue("a")
) =>
  Effect.gen(function* () {
    const { here, there } = yield* pair(layer)
    const got = yield* Deferred.make<string>()
    const worker = yield* Effect.provide(
      Worker.make(Letters, { handler: ({ payload }) => Deferred.succeed(got, payload) }),
      there
    )
    // It has looked once and waits
    yield* Effect.repeat(worker.health, {
      until: ({ lastClaimMillisAgo }) => (lastClaimMillisAgo ?? 0) > 100,
      schedule: Schedule.spaced("10 millis")
    }).pipe(Effect.timeout("10 seconds"))
    yield* Effect.provide(enqueue, here)
    return yield* Effect.timeout(Deferred.await(got), "20 seconds")
  }).pipe(Effect.scoped)

test("G60 PostgreSQL: a wake crosses from one connection to all others", async () => {
  const url = Redacted.make(await createDatabase(inject("pgUrl")))
  expect(await Effect.runPromise(reaches(Pg.layerUrl(url, { pollInterval: "1 hour", sweeper: false })))).toBe("a")
})

test("G60 SQLite: a wake crosses from one client of the file to all others", async () => {
  const program = Effect.flatMap(temporaryFile, (filename) =>
    reaches(Sqlite.layerFile(filename, { pollInterval: "1 hour", sweeper: false }))
  )
  expect(await Effect.runPromise(Effect.scoped(program))).toBe("a")
})

test("G60 SQLite: a wake crosses for each queue of a commit, however many jobs it adds", async () => {
  const parcels = Array.from({ length: 1_001 }, (_, n) => String(n))
  const both = Queue.transaction(Effect.zipRight(Parcels.enqueueMany(parcels), Letters.enqueue("a")))
  const program = Effect.flatMap(temporaryFile, (filename) =>
    reaches(Sqlite.layerFile(filename, { pollInterval: "1 hour", sweeper: false }), both)
  )
  expect(await Effect.runPromise(Effect.scoped(program))).toBe("a")
})

const engines = {
  PostgreSQL: Effect.map(
    Effect.promise(() => createDatabase(inject("pgUrl"))),
    (url) => Pg.layerUrl(Redacted.make(url), { pollInterval: "1 hour", sweeper: false })
  ),
  SQLite: Effect.map(temporaryFile, (filename) =>
    Sqlite.layerFile(filename, { pollInterval: "1 hour", sweeper: false })
  )
}

test.each(Object.entries(engines))(
  "G60, G69 %s: the release of a lock is heard in another Layer",
  async (_, engine) => {
    const program = Effect.gen(function* () {
      const { here, there } = yield* pair(yield* engine)
      const lease = yield* Effect.provide(Lock.acquire("a lock"), here)
      const { await: woken } = yield* Effect.provide(
        Effect.flatMap(Wake.Wake, (wake) => wake.subscribe(Wake.lockTopic("a lock"))),
        there
      )
      yield* Effect.provide(Lock.release(lease), here)
      yield* Effect.timeout(woken, "20 seconds")
    })
    await Effect.runPromise(Effect.scoped(program as Effect.Effect<void, unknown, Scope.Scope>))
  }
)

test.each(Object.entries(engines))(
  "G185, G186 %s: what is asked of a worker whose handlers are all at work reaches it from another Layer",
  async (_, engine) => {
    const program = Effect.gen(function* () {
      const { here, there } = yield* pair(yield* engine)
      const started = yield* Deferred.make<number>()
      const interrupted = yield* Deferred.make<void>()
      const handler = ({ id }: Job.Job<string>) =>
        Effect.zipRight(
          Deferred.succeed(started, id),
          Effect.onInterrupt(Effect.never, () => Deferred.succeed(interrupted, undefined))
        )
      // No heartbeat tells of anything
      const worker = yield* Effect.provide(
        Worker.make(Letters, { handler, concurrency: 1, visibilityTimeout: "1 hour", shutdownGrace: 0 }),
        there
      )
      const knows = (paused: boolean) =>
        Effect.repeat(worker.status, {
          until: ({ queuePaused }) => queuePaused === paused,
          schedule: Schedule.spaced("10 millis")
        }).pipe(Effect.timeout("20 seconds"))
      const ask = <A, E>(what: Effect.Effect<A, E, Queue.Queue>) => Effect.provide(what, here)
      yield* ask(Letters.enqueue("a"))
      const id = yield* Effect.timeout(Deferred.await(started), "20 seconds")
      expect(yield* ask(Letters.pause)).toBe(true)
      yield* knows(true)
      expect(yield* ask(Letters.resume)).toBe(true)
      yield* knows(false)
      expect(yield* ask(Letters.cancel(id))).toBe("requested")
      yield* Effect.timeout(Deferred.await(interrupted), "20 seconds")
    })
    await Effect.runPromise(Effect.scoped(program as Effect.Effect<void, unknown, Scope.Scope>))
  }
)

test.each([
  ["a link to a file", (file: string) => new BetterSqlite(file).close()],
  ["a link to a file that is not there yet", () => undefined]
])("G60 SQLite: a wake crosses through %s, beside which nothing happens", async (_, make) => {
  const program = Effect.flatMap(temporaryFile, (filename) => {
    const link = join(dirname(filename), "link.db")
    const file = join(dirname(filename), "elsewhere", "real.db")
    mkdirSync(dirname(file))
    make(file)
    symlinkSync(file, link)
    return reaches(Sqlite.layerFile(link, { pollInterval: "1 hour", sweeper: false }))
  })
  expect(await Effect.runPromise(Effect.scoped(program))).toBe("a")
})

test("G60 SQLite: what another program writes by hand, which no wake is about, is found by the poll", async () => {
  const program = Effect.gen(function* () {
    const filename = yield* temporaryFile
    const mine = yield* Layer.build(Sqlite.layerFile(filename, { sweeper: false, scheduler: false }))
    const got = yield* EffectQueue.unbounded<string>()
    const handler = ({ payload }: { readonly payload: string }) => EffectQueue.offer(got, payload)
    yield* Effect.provide(live, mine)
    const worker = yield* Effect.provide(Worker.make(Letters, { handler }), mine)
    yield* Effect.provide(Letters.enqueue("first"), mine)
    yield* EffectQueue.take(got)
    // It knows of nothing to come: its own next look is a minute off
    yield* Effect.repeat(worker.health, {
      until: ({ lastClaimMillisAgo }) => (lastClaimMillisAgo ?? 0) > 2_000,
      schedule: Schedule.spaced("10 millis")
    })
    const other = new BetterSqlite(filename)
    // Not among the ids that are new
    other.exec(
      "INSERT INTO _alkstore_jobs (id, queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, visible_at) VALUES (0, 'letters', '\"by hand\"', 0, 0, 20, 0, 0, 0)"
    )
    other.close()
    // Well before the minute after which a worker looks by itself
    return yield* Effect.timeout(EffectQueue.take(got), "20 seconds")
  })
  expect(await Effect.runPromise(Effect.scoped(program))).toBe("by hand")
})
