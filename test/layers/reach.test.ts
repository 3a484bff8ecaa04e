/** Whom a wake reaches: Layers that share nothing but the database, and that poll only once an hour. */
import { mkdirSync, symlinkSync } from "node:fs"
import { dirname, join } from "node:path"
import { Queue, Wake, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Deferred, Effect, Queue as EffectQueue, Layer, Redacted, Schedule, Schema } from "effect"
import { expect, inject, test } from "vitest"
import { temporaryFile } from "../support/engines.js"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.String })

const live = Effect.flatMap(Wake.Wake, (wake) => wake.state).pipe(
  Effect.repeat({ until: ({ _tag }) => _tag === "Live", schedule: Schedule.spaced("10 millis") }),
  Effect.timeout("10 seconds")
)

/** A waiting worker in one Layer gets what another Layer enqueues. */
const reaches = <E>(layer: Layer.Layer<Sqlite.Services, E>) =>
  Effect.gen(function* () {
    const here = yield* Layer.build(Layer.fresh(layer))
    const there = yield* Layer.build(Layer.fresh(layer))
    const got = yield* Deferred.make<string>()
    const worker = yield* Effect.provide(
      Worker.make(Letters, { handler: ({ payload }) => Deferred.succeed(got, payload) }),
      there
    )
    yield* Effect.provide(live, there)
    // It has looked once and waits
    yield* Effect.repeat(worker.health, {
      until: ({ lastClaimMillisAgo }) => (lastClaimMillisAgo ?? 0) > 100,
      schedule: Schedule.spaced("10 millis")
    }).pipe(Effect.timeout("10 seconds"))
    yield* Effect.provide(Letters.enqueue("a"), here)
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
