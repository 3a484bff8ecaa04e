/** What other processes, the file system and an idle evening can do to a worker on SQLite. */
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync
} from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import { SqlClient } from "@effect/sql"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Wake } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Context, Duration, Effect, Layer } from "effect"
import { afterAll, describe, expect, it } from "vitest"
import { activity } from "../../src/layers/Database/Database.js"
import { sqliteNames } from "../../src/layers/engine.js"
import * as SqliteWake from "../../src/layers/Wake/SqliteWake.js"
import { diary, Letters, live, wait } from "../support/outages.js"

const directory = mkdtempSync(join(tmpdir(), "alkstore-outages-"))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const fresh = () => join(mkdtempSync(join(directory, "db-")), "test.db")

/** An engine with a client of its own, as another process has it. */
const engine = (filename: string, options: Sqlite.Options = {}) =>
  Layer.build(Sqlite.layerFile(filename, { sweeper: false, pollInterval: "30 seconds", ...options }))

const send = (from: Context.Context<Sqlite.Services>, text: string) => Letters.enqueue(text).pipe(Effect.provide(from))

const wakeState = (of: Context.Context<Sqlite.Services>) => Effect.runSync(Context.get(of, Wake.Wake).state)._tag

const watching = (of: Context.Context<Sqlite.Services>) => wait("watching", () => wakeState(of) === "Live")

const rowsOf = (of: Context.Context<Sqlite.Services | SqlClient.SqlClient>) =>
  Context.get(of, SqlClient.SqlClient)`SELECT payload FROM _alkstore_jobs`

/** Another process that takes the write lock and keeps it for so long. */
const holdLock = (filename: string, millis: number) =>
  Effect.promise(async () => {
    const program = `
      const db = new (require("better-sqlite3"))(process.argv[1])
      db.exec("BEGIN IMMEDIATE")
      console.log("held")
      setTimeout(() => { db.exec("ROLLBACK"); db.close() }, Number(process.argv[2]))`
    const child: ChildProcess = spawn(process.execPath, ["-e", program, filename, String(millis)], {
      stdio: ["ignore", "pipe", "inherit"]
    })
    const ended = once(child, "exit")
    if (child.stdout !== null) await once(child.stdout, "data")
    return { ended }
  })

/** Turns of the event loop while something runs: none when it blocks. */
const ticks = <A, E, R>(self: Effect.Effect<A, E, R>) =>
  Effect.suspend(() => {
    let count = 0
    const timer = setInterval(() => count++, 20)
    return Effect.map(
      Effect.ensuring(
        self,
        Effect.sync(() => clearInterval(timer))
      ),
      () => count
    )
  })

const failure = (layer: Layer.Layer<never, unknown>) =>
  live(Effect.map(Effect.flip(Layer.build(layer)), (error) => error as Error & { readonly _tag: string }))

describe("a file that another process has locked", () => {
  it.each([1_000, 7_000])("G16, G75: for %i ms: the event loop goes on, and so does all work afterwards", (millis) =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename, { busyLimit: "500 millis" })
        const { done, events, started, worker } = yield* diary(mine, {
          concurrency: 5,
          visibilityTimeout: "20 seconds",
          handler: () => Effect.sleep("300 millis")
        })
        const names = Array.from({ length: 10 }, (_, n) => `job ${n}`)
        yield* Letters.enqueueMany(names).pipe(Effect.provide(mine))
        yield* wait("it is under way", () => started.length === 5)
        const { ended } = yield* holdLock(filename, millis)
        const refused = send(mine, "refused")
        const turns = yield* ticks(
          Effect.gen(function* () {
            expect(yield* Effect.flip(refused)).toMatchObject({ _tag: "StoreError", reason: "busy", retryable: true })
            yield* Effect.promise(() => ended)
          })
        )
        // A wait inside the driver would leave none
        expect(turns).toBeGreaterThan(millis / 200)
        yield* wait("all are done", () => done.length === 10)
        yield* wait("all are acked", async () => (await Effect.runPromise(worker.status)).acked === 10)
        expect([...started].sort()).toEqual(names)
        expect(yield* rowsOf(mine)).toEqual([])
        expect(events.filter((tag) => tag === "LeaseLost" || tag === "Restarted")).toEqual([])
      })
    )
  )

  it("G75: before a worker starts: it says so, and by its health; then it has recovered and works", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename, { busyLimit: "100 millis" })
        const { ended } = yield* holdLock(filename, 2_000)
        const { done, events, worker } = yield* diary(mine)
        yield* wait("it says so", () => events.includes("Outage"))
        expect(yield* worker.health).toMatchObject({ healthy: false })
        yield* Effect.promise(() => ended)
        yield* Effect.retry(send(mine, "after"), { times: 20 })
        yield* wait("it works", () => done.includes("after"), 15_000)
        expect(events.slice(0, 3)).toEqual(["Outage", "Recovered", "Started"])
        expect(yield* worker.health).toMatchObject({ healthy: true, problems: [] })
      })
    ))

  it("G16: for less than `busyLimit`: an enqueue waits for it", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename)
        yield* holdLock(filename, 1_000)
        yield* send(mine, "patient")
        expect(yield* rowsOf(mine)).toHaveLength(1)
      })
    ))
  it("G33: for longer than a lease: what its claim waited is no part of the lease", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename)
        const { done, events, started } = yield* diary(mine, {
          visibilityTimeout: "500 millis",
          handler: () => Effect.sleep("200 millis")
        })
        yield* Letters.enqueue("due", { delay: "500 millis" }).pipe(Effect.provide(mine))
        yield* holdLock(filename, 2_000)
        yield* wait("it is done", () => done.length === 1)
        expect(started).toEqual(["due"])
        expect(events.filter((tag) => tag === "LeaseLost")).toEqual([])
      })
    ))
})

describe("a file that cannot be used", () => {
  it("G88: no directory", async () => {
    const error = await failure(Sqlite.layerFile(join(directory, "missing", "test.db")))
    expect(error).toMatchObject({ _tag: "StoreError", reason: "connection" })
    expect(error.message).toContain("directory does not exist")
  })

  it("G88: read-only by the client's own wish", async () => {
    const filename = fresh()
    new BetterSqlite(filename).exec("CREATE TABLE a (a)").close()
    const client = SqliteClient.layer({ filename, readonly: true, disableWAL: true })
    expect(await failure(Layer.provide(Sqlite.layer(), client))).toMatchObject({
      _tag: "StoreError",
      reason: "readonly"
    })
  })

  // To root nothing is read-only
  it.runIf(process.getuid?.() !== 0)("G88: read-only by its directory", async () => {
    const filename = fresh()
    new BetterSqlite(filename).exec("CREATE TABLE a (a)").close()
    chmodSync(filename, 0o444)
    chmodSync(dirname(filename), 0o555)
    try {
      const error = await failure(Sqlite.layerFile(filename))
      expect(error._tag).toBe("StoreError")
      expect(error).toMatchObject({ reason: expect.stringMatching(/^(readonly|connection)$/) })
    } finally {
      chmodSync(dirname(filename), 0o755)
    }
  })

  it("G88: not a database; it is left as it is", async () => {
    const filename = fresh()
    const content = Buffer.from("this is a letter, not a database; ".repeat(200))
    writeFileSync(filename, content)
    const error = await failure(Sqlite.layerFile(filename))
    expect(error).toMatchObject({ _tag: "StoreError", reason: "corrupt", retryable: false })
    expect(error.message).toContain("was left as it is")
    expect(readFileSync(filename)).toEqual(content)
    expect(readdirSync(dirname(filename))).toEqual(["test.db"])
  })

  it("G88: damaged in the middle; the worker says so and does not spin", async () => {
    const filename = fresh()
    await live(
      Effect.flatMap(engine(filename), (mine) =>
        Effect.provide(Letters.enqueueMany(Array.from({ length: 500 }, () => "x".repeat(500))), mine)
      )
    )
    const content = readFileSync(filename)
    // The schema is at the front, the latest rows are at the end
    const from = content.length / 2
    content.fill(0xff, from)
    writeFileSync(filename, content)
    await live(
      Effect.gen(function* () {
        const mine = yield* engine(filename)
        const error = yield* Effect.flip(send(mine, "a"))
        expect(error).toMatchObject({ _tag: "StoreError", reason: "corrupt" })
        const { worker } = yield* diary(mine)
        yield* wait("it says so", async () => !(await Effect.runPromise(worker.health)).healthy)
        const before = activity.total
        yield* Effect.sleep("1 second")
        expect(activity.total - before).toBeLessThan(20)
      })
    )
    // Nobody began it anew
    expect(readFileSync(filename).length).toBeGreaterThanOrEqual(content.length)
  })
})

describe("the watcher", () => {
  it("G57, G60: sees every one of 100 commits of another connection, checkpoints or not", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename)
        const other = yield* engine(filename, { watch: false })
        const sql = Context.get(other, SqlClient.SqlClient)
        const { done } = yield* diary(mine)
        yield* watching(mine)
        for (let n = 1; n <= 100; n++) {
          if (n % 3 === 0) yield* Effect.ignore(sql`PRAGMA wal_checkpoint(TRUNCATE)`)
          if (n % 3 === 1) yield* Effect.ignore(sql`PRAGMA wal_checkpoint(PASSIVE)`)
          yield* send(other, `commit ${n}`)
          yield* wait(`woken by commit ${n}`, () => done.length === n, 2_000)
        }
      })
    ))

  it("G57: wakes for no job that is leased already, and for the next that is not", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename)
        yield* watching(mine)
        const wake = Context.get(mine, Wake.Wake)
        const letters = yield* wake.subscribe(Wake.queueTopic("letters"))
        const parcels = yield* wake.subscribe(Wake.queueTopic("parcels"))
        const stranger = yield* Effect.acquireRelease(
          Effect.sync(() => new BetterSqlite(filename)),
          (db) => Effect.sync(() => db.close())
        )
        const insert = stranger.prepare(
          "INSERT INTO _alkstore_jobs (queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, visible_at, token) VALUES (?, '1', 0, 0, 1, 1, 1, 9000000000000, ?)"
        )
        insert.run("letters", 1)
        insert.run("parcels", null)
        yield* Effect.timeout(parcels.await, "10 seconds")
        const woken = Effect.as(letters.await, true)
        expect(yield* Effect.raceFirst(woken, Effect.as(Effect.repeatN(Effect.yieldNow(), 20), false))).toBe(false)
        insert.run("letters", null)
        expect(yield* Effect.timeout(woken, "10 seconds")).toBe(true)
      })
    ))

  it("G61: that comes late, or again, wakes for what was committed before", () =>
    live(
      Effect.gen(function* () {
        const elsewhere = fresh()
        yield* Effect.scoped(Effect.flatMap(engine(elsewhere), (other) => send(other, "before")))
        const here = join(mkdtempSync(join(directory, "late-")), "db")
        const hour = Duration.hours(1)
        const late = yield* Layer.build(SqliteWake.layer(join(here, "test.db"), sqliteNames("_alkstore_"), hour))
        const wake = Context.get(late, Wake.Wake)
        const { await: woken } = yield* wake.subscribe(Wake.queueTopic(Letters.name))
        expect(yield* wake.state).toMatchObject({ _tag: "Degraded" })
        // The file and what is in it are there at once
        renameSync(dirname(elsewhere), here)
        yield* Effect.timeout(woken, "10 seconds")
        expect(yield* wake.state).toEqual({ _tag: "Live" })
      })
    ))

  it("G61: whose directory is deleted is degraded, and work goes on", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename, { pollInterval: "200 millis" })
        const { done } = yield* diary(mine)
        yield* watching(mine)
        rmSync(dirname(filename), { recursive: true, force: true })
        yield* wait("it notices", () => wakeState(mine) === "Degraded")
        // No wake tells of this one
        yield* Context.get(mine, SqlClient.SqlClient)`
          INSERT INTO _alkstore_jobs (queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, visible_at)
          VALUES (${Letters.name}, '"found"', 0, 0, 20, 1, 1, 1)`
        yield* wait("found by polling", () => done.includes("found"), 5_000)
      })
    ))

  it("G24, G59: an idle worker does about a statement a second, whatever strangers roll back", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* Layer.build(Sqlite.layerFile(filename))
        yield* diary(mine)
        yield* watching(mine)
        yield* wait("it has looked", () => activity.open === 0)
        const stranger = new BetterSqlite(filename, { timeout: 1_000 })
        const idle = activity.total
        yield* Effect.sleep("4 seconds")
        expect(activity.total - idle).toBeLessThanOrEqual(10)
        const disturbed = activity.total
        for (let n = 0; n < 100; n++) {
          stranger.exec("BEGIN IMMEDIATE; CREATE TABLE unwanted (a); ROLLBACK")
          yield* Effect.sleep("20 millis")
        }
        expect(activity.total - disturbed).toBeLessThanOrEqual(15)
        stranger.close()
      })
    ))

  it("a thousand wakes leave nothing behind", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename)
        const other = yield* engine(filename, { watch: false })
        const { done } = yield* diary(mine)
        yield* watching(mine)
        yield* send(other, "first")
        yield* wait("it works", () => done.length === 1)
        const resources = () => process.getActiveResourcesInfo().length
        const files = () => (existsSync("/proc/self/fd") ? readdirSync("/proc/self/fd").length : 0)
        const before = { resources: resources(), files: files() }
        for (let n = 0; n < 1_000; n++) yield* send(other, "again")
        yield* wait("all are done", () => done.length === 1_001, 20_000)
        expect(resources() - before.resources).toBeLessThanOrEqual(5)
        expect(files() - before.files).toBeLessThanOrEqual(5)
      })
    ))
})

it("the SQLite of the tests has the fix of the WAL's reset", () =>
  live(
    Effect.gen(function* () {
      const mine = yield* engine(":memory:")
      const [row] = yield* Context.get(mine, SqlClient.SqlClient)<{
        version: string
      }>`SELECT sqlite_version() AS version`
      const [major = 0, minor = 0, patch = 0] = (row?.version ?? "").split(".").map(Number)
      expect(major * 1e6 + minor * 1e3 + patch).toBeGreaterThanOrEqual(3_051_003)
    })
  ))
