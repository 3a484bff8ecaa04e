/** Writes of one process at the same moment on SQLite: how many commits they take, and other processes' locks. */
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { SqlClient } from "@effect/sql"
import { Lock, transaction } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Context, Deferred, Duration, Effect, Either, Exit, Fiber, Layer, Option } from "effect"
import { afterAll, describe, expect, it } from "vitest"
import { activity } from "../../src/layers/Database/Database.js"
import { Letters, live, wait } from "../support/outages.js"

const directory = mkdtempSync(join(tmpdir(), "alkstore-group-"))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const fresh = () => join(mkdtempSync(join(directory, "db-")), "test.db")

const names = (count: number, what = "job") => Array.from({ length: count }, (_, n) => `${what} ${n}`)

const engine = (filename: string, options: Sqlite.Options = {}) =>
  Layer.build(
    Sqlite.layerFile(filename, { sweeper: false, scheduler: false, pollInterval: "30 seconds", ...options })
  ).pipe(Effect.tap((built) => Effect.provide(Letters.enqueue("warm"), built)))

type Engine = Effect.Effect.Success<ReturnType<typeof engine>>

/** A connection as another process has it, which a test reads by, and takes and lets go of the lock. */
const stranger = (filename: string) =>
  Effect.acquireRelease(
    Effect.sync(() => new BetterSqlite(filename)),
    (db) => Effect.sync(() => db.close())
  )

const send = (from: Engine, text: string) => Effect.provide(Letters.enqueue(text), from)

const atOnce = (from: Engine, texts: ReadonlyArray<string>) =>
  Effect.forEach(texts, (text) => Effect.either(Effect.timed(send(from, text))), { concurrency: "unbounded" })

const payloads = (db: BetterSqlite.Database) =>
  (
    db.prepare(`SELECT payload FROM _alkstore_jobs WHERE payload <> '"warm"' ORDER BY id`).all() as ReadonlyArray<{
      payload: string
    }>
  ).map(({ payload }) => JSON.parse(payload))

/** Commits in the write-ahead log since its last restart: frames that say how big the database is after them. */
const commits = (filename: string): number => {
  const file = `${filename}-wal`
  if (!existsSync(file)) return 0
  const wal = readFileSync(file)
  if (wal.length < 32) return 0
  const [page, salt] = [wal.readUInt32BE(8), wal.subarray(16, 24)]
  let found = 0
  for (let at = 32; at + 24 + page <= wal.length; at += 24 + page) {
    if (!wal.subarray(at + 8, at + 16).equals(salt)) break
    if (wal.readUInt32BE(at + 4) > 0) found++
  }
  return found
}

const failures = (
  results: ReadonlyArray<Either.Either<unknown, { readonly _tag: string; readonly reason?: string }>>
) => results.map((result) => (Either.isRight(result) ? "done" : `${result.left._tag} ${result.left.reason}`))

/** What was forked has got as far as it can without anything from outside. */
const begun = Effect.repeatN(Effect.yieldNow(), 50)

/** They have met the lock. */
const tried = Effect.gen(function* () {
  const before = activity.total
  yield* wait("somebody has tried", () => activity.total > before + 1)
})

const elapsed = <A, E, R>(self: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.timed(self), ([duration, value]) => [Duration.toMillis(duration), value] as const)

describe("writes at the same moment", () => {
  it("G190: ten take one commit, or two; one after the other they take ten", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename)
        const db = yield* stranger(filename)
        const before = commits(filename)
        for (const text of names(10)) yield* send(mine, text)
        const between = commits(filename)
        expect(between - before).toBe(10)
        expect(failures(yield* atOnce(mine, names(10)))).toEqual(Array(10).fill("done"))
        expect(commits(filename) - between).toBeLessThanOrEqual(2)
        expect(payloads(db)).toEqual([...names(10), ...names(10)])
      })
    ))

  it("G190: what waits for a transaction of the application's shares one commit after it", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename)
        const db = yield* stranger(filename)
        const before = commits(filename)
        const held = yield* Deferred.make<void>()
        const end = yield* Deferred.make<void>()
        const app = yield* Effect.fork(
          Effect.provide(
            transaction(
              Effect.gen(function* () {
                yield* Letters.enqueue("of the application")
                yield* Deferred.succeed(held, undefined)
                yield* Deferred.await(end)
              })
            ),
            mine
          )
        )
        yield* Deferred.await(held)
        const others = yield* Effect.fork(atOnce(mine, names(10)))
        yield* begun
        expect(others.unsafePoll()).toBeNull()
        yield* Deferred.succeed(end, undefined)
        yield* Fiber.join(app)
        expect(failures(yield* Fiber.join(others))).toEqual(Array(10).fill("done"))
        expect(commits(filename) - before).toBeLessThanOrEqual(3)
        expect(payloads(db)).toEqual(["of the application", ...names(10)])
      })
    ))
})

describe("a lock that another connection holds", () => {
  it("G190, G16: for longer than `busyLimit`: each fails after its own, not one after the other", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename, { busyLimit: "400 millis" })
        const db = yield* stranger(filename)
        db.exec("BEGIN IMMEDIATE")
        const first = yield* Effect.fork(elapsed(Effect.either(send(mine, "first"))))
        yield* tried
        const [millis, results] = yield* elapsed(atOnce(mine, names(20)))
        expect(failures(results)).toEqual(Array(20).fill("StoreError busy"))
        expect(millis).toBeGreaterThanOrEqual(400)
        expect(millis).toBeLessThan(2_000)
        const [own, result] = yield* Fiber.join(first)
        expect(failures([result])).toEqual(["StoreError busy"])
        expect(own).toBeGreaterThanOrEqual(400)
        expect(own).toBeLessThan(2_000)
        db.exec("ROLLBACK")
        yield* send(mine, "later")
        expect(payloads(db)).toEqual(["later"])
      })
    ))

  it("G190, G16: who comes later has its own time: it does not fail with those who came before", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename, { busyLimit: "1 second" })
        const db = yield* stranger(filename)
        db.exec("BEGIN IMMEDIATE")
        const first = yield* Effect.fork(atOnce(mine, names(5, "early")))
        yield* Effect.sleep("600 millis")
        const second = yield* Effect.fork(atOnce(mine, names(5, "late")))
        expect(failures(yield* Fiber.join(first))).toEqual(Array(5).fill("StoreError busy"))
        db.exec("ROLLBACK")
        expect(failures(yield* Fiber.join(second))).toEqual(Array(5).fill("done"))
        expect(payloads(db)).toEqual(names(5, "late"))
      })
    ))

  it("G190, G192, G16: that is let go in time fails nobody, and all of them share a commit in their order", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename)
        const db = yield* stranger(filename)
        const before = commits(filename)
        db.exec("BEGIN IMMEDIATE")
        const calls = yield* Effect.fork(atOnce(mine, names(20)))
        yield* tried
        db.exec("ROLLBACK")
        expect(failures(yield* Fiber.join(calls))).toEqual(Array(20).fill("done"))
        expect(payloads(db)).toEqual(names(20))
        expect(commits(filename) - before).toBeLessThanOrEqual(2)
      })
    ))

  it("G191: who is interrupted while it waits, the first one too, was never there; the others go on", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename)
        const db = yield* stranger(filename)
        db.exec("BEGIN IMMEDIATE")
        const calls = yield* Effect.forEach(names(6), (text) => Effect.fork(send(mine, text)))
        yield* tried
        for (const n of [0, 1, 4]) {
          const [millis, exit] = yield* elapsed(Fiber.interrupt(calls[n] as (typeof calls)[number]))
          expect(Exit.isInterrupted(exit)).toBe(true)
          expect(millis).toBeLessThan(1_000)
        }
        db.exec("ROLLBACK")
        const exits = yield* Effect.forEach(calls, Fiber.await)
        expect(exits.map(Exit.isSuccess)).toEqual([false, false, true, true, false, true])
        expect(payloads(db)).toEqual(["job 2", "job 3", "job 5"])
      })
    ))

  it("G70, G191: a named lock's timeout and interrupt do not wait for it, nor does a caller that cannot be interrupted", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename, { busyLimit: "1 hour" })
        const db = yield* stranger(filename)
        db.exec("BEGIN IMMEDIATE")
        const acquire = Effect.provide(Lock.acquire("a", { timeout: "50 millis" }), mine)
        expect(yield* Effect.flip(acquire)).toMatchObject({ _tag: "LockTimeout" })
        expect(yield* Effect.flip(Effect.uninterruptible(acquire))).toMatchObject({ _tag: "LockTimeout" })
        const locked = yield* Effect.fork(Effect.provide(Effect.void.pipe(Lock.withLock("a")), mine))
        yield* tried
        expect(Exit.isInterrupted(yield* Fiber.interrupt(locked))).toBe(true)
        db.exec("ROLLBACK")
        expect(Option.isSome(yield* Effect.provide(Lock.tryAcquire("a"), mine))).toBe(true)
      })
    ))

  it("G190: in which one row is refused: the others are there once, whenever the lock comes and goes", () =>
    live(
      Effect.gen(function* () {
        const filename = fresh()
        const mine = yield* engine(filename)
        const db = yield* stranger(filename)
        yield* Context.get(mine, SqlClient.SqlClient).unsafe(
          `CREATE TRIGGER refuse BEFORE INSERT ON _alkstore_jobs WHEN NEW.payload LIKE '%job 3%' BEGIN SELECT RAISE(ABORT, 'boom'); END`
        )
        for (let round = 0; round < 5; round++) {
          db.exec("BEGIN IMMEDIATE")
          const calls = yield* Effect.fork(atOnce(mine, names(8)))
          yield* tried
          db.exec("ROLLBACK")
          const results = yield* Fiber.join(calls)
          expect(results.map(Either.isRight)).toEqual([true, true, true, false, true, true, true, true])
          expect(String(Either.getLeft(results[3] as (typeof results)[number]))).toContain("boom")
          expect(payloads(db)).toEqual(names(8).filter((text) => text !== "job 3"))
          db.exec("DELETE FROM _alkstore_jobs")
        }
      })
    ))
})

describe("a transaction that the application left open behind a COMMIT that failed", () => {
  it("G190: an enqueue that is answered is committed; here it is refused", () =>
    live(
      Effect.gen(function* () {
        const file = fresh()
        const mine = yield* engine(file)
        const left = Effect.gen(function* () {
          const sql = yield* SqlClient.SqlClient
          yield* sql`PRAGMA foreign_keys = ON`
          yield* sql`CREATE TABLE a (id INTEGER PRIMARY KEY)`
          yield* sql`CREATE TABLE b (a INTEGER REFERENCES a (id) DEFERRABLE INITIALLY DEFERRED)`
          yield* Effect.exit(sql.withTransaction(sql`INSERT INTO b VALUES (7)`))
          return yield* Effect.either(Letters.enqueue("after"))
        })
        const answer = yield* Effect.provide(left, mine)
        expect(Either.isLeft(answer) && answer.left._tag).toBe("StoreError")
        const other = yield* stranger(file)
        expect(other.prepare("SELECT payload FROM _alkstore_jobs").all()).toEqual([{ payload: '"warm"' }])
      })
    ))
})
