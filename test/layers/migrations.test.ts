/** Start-up against databases as they are found: empty, older, newer, shared, half migrated, closed to our role. */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { Lock, Queue } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Effect, Either, type Layer, Redacted, Schema } from "effect"
import { afterAll, describe, expect, inject, it } from "vitest"
import { migrations as known, latest } from "../../src/layers/Queue/migrations/migrate.js"
import { createDatabase, locksHere, withClient } from "../support/postgres.js"
import { until } from "../support/until.js"

interface Options {
  readonly namespace?: string
  readonly migrate?: boolean
}

type Row = Readonly<Record<string, unknown>>

interface Target {
  /** The engine's Layer, with a client of its own. */
  readonly open: (options?: Options) => Layer.Layer<Sqlite.Services, unknown>
  /** As an operator with a console. */
  readonly query: (text: string) => Promise<ReadonlyArray<Row>>
}

interface Subject {
  readonly fresh: () => Promise<Target>
  /** A table of the default namespace, or another, quoted. */
  readonly table: (name: string, namespace?: string) => string
  /** Every table of the database that could be ours. */
  readonly tables: string
  readonly columns: (table: string) => string
  /** What an application does before it creates tables of its own there. */
  readonly makeNamespace: (namespace: string) => string
  readonly odd: ReadonlyArray<string>
  readonly bad: ReadonlyArray<string>
}

const Letters = Queue.make("letters", { payload: Schema.String })

const directory = mkdtempSync(join(tmpdir(), "alkstore-migrations-"))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

let files = 0

const postgresTarget = (url: string): Target => ({
  open: (options = {}) => Pg.layerUrl(Redacted.make(url), { sweeper: false, listen: false, ...options }),
  query: (text) => withClient(url, async (client) => (await client.query<Row>(text)).rows)
})

const postgres: Subject = {
  fresh: async () => postgresTarget(await createDatabase(inject("pgUrl"))),
  table: (name, namespace = "alkstore") => `"${namespace.replaceAll('"', '""')}"."${name}"`,
  tables: "SELECT tablename AS name FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
  columns: (table) => `SELECT column_name AS name FROM information_schema.columns WHERE table_name = '${table}'`,
  makeNamespace: (namespace) => `CREATE SCHEMA "${namespace}"`,
  odd: ["Jobs", "my-jobs", "select", 'a"b', "o'brien; --", "名前"],
  bad: ["", "x".repeat(53), "pg_jobs", "a\u0000b", "\ud800"]
}

const sqlite: Subject = {
  fresh: async () => {
    const filename = join(directory, `${++files}.db`)
    return {
      open: (options = {}) => Sqlite.layerFile(filename, { sweeper: false, watch: false, ...options }),
      query: async (text) => {
        const db = new BetterSqlite(filename)
        try {
          const prepared = db.prepare<[], Row>(text)
          if (prepared.reader) return prepared.all()
          prepared.run()
          return []
        } finally {
          db.close()
        }
      }
    }
  },
  table: (name, namespace = "_alkstore_") => `"${namespace}${name}"`,
  tables: "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'sqlite_sequence'",
  columns: (table) => `SELECT name FROM pragma_table_info('_alkstore_${table}')`,
  makeNamespace: () => "SELECT 1",
  odd: ["Jobs", "select", "1st_", "_"],
  bad: ["", "x".repeat(65), "a;b", "a b", 'a"', "sqlite_", "SQLite_jobs_"]
}

const use = <A, E>(target: Target, effect: Effect.Effect<A, E, Sqlite.Services>, options?: Options) =>
  Effect.runPromise(Effect.either(Effect.provide(effect, target.open(options))))

const start = (target: Target, options?: Options) => use(target, Effect.void, options)

/** One job's whole way, by hand. */
const roundTrip = Effect.gen(function* () {
  const { id } = yield* Letters.enqueue("a", { dedupeKey: "k" })
  const [job] = yield* Letters.claim()
  yield* job?.ack ?? Effect.fail("nothing to claim")
  return id
})

const succeeds = async (result: Promise<Either.Either<unknown, unknown>>) =>
  expect(await result).toMatchObject({ _tag: "Right" })

const fails = async (result: Promise<Either.Either<unknown, unknown>>, error: object) =>
  expect(await result).toMatchObject({ _tag: "Left", left: error })

describe.each([
  ["PostgreSQL", postgres],
  ["SQLite", sqlite]
])("%s", (_, subject) => {
  const migrations = (target: Target) => target.query(`SELECT * FROM ${subject.table("migrations")} ORDER BY version`)

  it("G84: an empty database gets its tables, once; the next start only reads", async () => {
    const target = await subject.fresh()
    await succeeds(use(target, roundTrip))
    const applied = await migrations(target)
    expect(applied).toMatchObject(
      known.map(({ name, oldestReader, version }) => ({ version, name, oldest_reader: oldestReader }))
    )
    await succeeds(use(target, roundTrip))
    expect(await migrations(target)).toEqual(applied)
  })

  it("G84: eight that start together all start, and each version is applied once", async () => {
    const target = await subject.fresh()
    const starts = await Promise.all(Array.from({ length: 8 }, () => use(target, Letters.enqueue("a"))))
    expect(starts.map((result) => Either.merge(Either.map(result, () => "started")))).toEqual(Array(8).fill("started"))
    expect(await migrations(target)).toHaveLength(known.length)
    expect(await target.query(`SELECT id FROM ${subject.table("jobs")}`)).toHaveLength(8)
  })

  it("G85: with `migrate: false` missing tables are refused with advice, and nothing is created", async () => {
    const target = await subject.fresh()
    const refused = await start(target, { migrate: false })
    expect(refused).toMatchObject({ left: { _tag: "SchemaMismatch", found: 0, expected: latest, retryable: false } })
    expect(String(Either.isLeft(refused) && (refused.left as Error).message)).toMatch(
      /version 0.*run `alkstore migrate`/
    )
    expect(await target.query(subject.tables)).toEqual([])
  })

  it("G85: with `migrate: false` tables of an older version are refused, and current ones worked with", async () => {
    const target = await subject.fresh()
    await succeeds(start(target))
    await succeeds(use(target, roundTrip, { migrate: false }))
    await target.query(`DELETE FROM ${subject.table("migrations")} WHERE version > 1`)
    await fails(start(target, { migrate: false }), { _tag: "SchemaMismatch", found: 1, expected: latest })
    expect(await migrations(target)).toMatchObject([{ version: 1 }])
  })

  it("G86: newer tables that still allow this version are worked with, and left as they are", async () => {
    const target = await subject.fresh()
    await succeeds(start(target))
    await target.query(`INSERT INTO ${subject.table("migrations")} VALUES (${latest + 1}, 'next', 1, 0)`)
    await target.query(`ALTER TABLE ${subject.table("jobs")} ADD COLUMN new_column integer`)
    const applied = await migrations(target)
    await succeeds(use(target, roundTrip))
    await succeeds(use(target, roundTrip, { migrate: false }))
    expect(await migrations(target)).toEqual(applied)
  })

  it.each([true, false])(
    "G86: tables that are too new are refused (migrate: %s), and left as they are",
    async (migrate) => {
      const target = await subject.fresh()
      await succeeds(start(target))
      const next = latest + 1
      await target.query(`INSERT INTO ${subject.table("migrations")} VALUES (${next}, 'next', ${next}, 0)`)
      const applied = await migrations(target)
      const refused = await start(target, { migrate })
      expect(refused).toMatchObject({ left: { _tag: "SchemaMismatch", found: next, expected: latest } })
      expect(String(Either.isLeft(refused) && (refused.left as Error).message)).toContain("upgrade the library")
      expect(await migrations(target)).toEqual(applied)
    }
  )

  it("G87: namespaces of any name share a database, each with its own jobs, keys and locks", async () => {
    const target = await subject.fresh()
    const each = (namespace: string) =>
      use(
        target,
        Effect.gen(function* () {
          yield* Letters.enqueue(namespace, { dedupeKey: "one key" })
          yield* Lock.acquire("one lock", { timeout: 0 })
          const jobs = yield* Letters.claim({ limit: 10 })
          return jobs.map(({ attempt, payload }) => ({ attempt, payload }))
        }),
        { namespace }
      )
    for (const namespace of subject.odd)
      expect(await each(namespace)).toMatchObject({ right: [{ attempt: 1, payload: namespace }] })
    for (const namespace of subject.odd)
      expect(await target.query(`SELECT payload FROM ${subject.table("jobs", namespace)}`)).toHaveLength(1)
  })

  it.each(["jobs", "migrations", "schedules", "lanes"])(
    "G210: a namespace in which the application has %s of its own is refused, and stays as it was",
    async (name) => {
      const target = await subject.fresh()
      const table = subject.table(name, "app_")
      await target.query(subject.makeNamespace("app_"))
      await target.query(`CREATE TABLE ${table} (id integer, version integer)`)
      await target.query(`INSERT INTO ${table} VALUES (7, 9)`)
      const before = await target.query(subject.tables)
      const refused = await start(target, { namespace: "app_" })
      expect(refused).toMatchObject({ left: { _tag: "SchemaMismatch", namespace: "app_", found: 0 } })
      expect(String(Either.isLeft(refused) && (refused.left as Error).message)).toMatch(
        new RegExp(`^namespace app_: \\w*${name} is in the database already.* Give the layer another \`namespace\`$`)
      )
      expect(await target.query(subject.tables)).toEqual(before)
      expect(await target.query(`SELECT * FROM ${table}`)).toEqual([{ id: 7, version: 9 }])
      // The application's other tables are in nobody's way
      await succeeds(use(target, roundTrip, { namespace: "other_" }))
    }
  )

  it.each(subject.bad)("G6: %j is no namespace", async (namespace) => {
    const target = await subject.fresh()
    await fails(start(target, { namespace }), { _tag: "InvalidArgument", argument: "namespace" })
    expect(await target.query(subject.tables)).toEqual([])
  })

  it("the live table has the columns that the next versions need", async () => {
    const target = await subject.fresh()
    await succeeds(start(target))
    const columns = (await target.query(subject.columns("jobs"))).map(({ name }) => name)
    const needed = [
      "dedupe_scope",
      "dedupe_window_ms",
      "ordering_key",
      "failure_times",
      "history",
      "cancel_requested_at"
    ]
    expect(columns).toEqual(expect.arrayContaining(needed))
  })
})

describe("PostgreSQL alone", () => {
  /** Everything a worker needs of a schema that somebody else migrates. */
  const grants = (role: string) => [
    `CREATE ROLE ${role} LOGIN PASSWORD 'worker'`,
    `ALTER ROLE ${role} SET search_path = ''`,
    `GRANT USAGE ON SCHEMA alkstore TO ${role}`,
    `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA alkstore TO ${role}`,
    `GRANT USAGE ON ALL SEQUENCES IN SCHEMA alkstore TO ${role}`
  ]

  it("G84: a role with USAGE and DML only, and an empty search_path, works on tables that are up to date", async () => {
    const url = await createDatabase(inject("pgUrl"))
    const owner = postgresTarget(url)
    await succeeds(start(owner))
    const role = `alkstore_worker_${new URL(url).pathname.slice(-8)}`
    for (const text of grants(role)) await owner.query(text)
    try {
      const worker = postgresTarget(Object.assign(new URL(url), { username: role, password: "worker" }).href)
      const all = Effect.gen(function* () {
        yield* roundTrip
        yield* Letters.enqueueMany(["a", "b", "c"], { delay: 0 })
        const [first, second] = yield* Letters.claim({ limit: 2 })
        yield* first?.fail("no") ?? Effect.void
        yield* second?.heartbeat({ done: 1 }) ?? Effect.void
        yield* second?.retry({ delay: "1 minute" }) ?? Effect.void
        yield* Effect.void.pipe(Lock.withLock("a lock"))
        yield* Queue.Queue.pipe(Effect.flatMap((queue) => queue.sweepExpired()))
        return (yield* Letters.deadLetters.list()).map(({ reason }) => reason)
      })
      expect(await use(worker, all, { migrate: false })).toMatchObject({ right: ["failed"] })
      // Tables that are up to date are only read, so `migrate` need not be switched off
      expect(await use(worker, roundTrip)).toMatchObject({ _tag: "Right" })
      await fails(start(worker, { namespace: "other" }), { _tag: "StoreError", reason: "denied" })
    } finally {
      await owner.query(`DROP OWNED BY ${role}`)
      await owner.query(`DROP ROLE ${role}`)
    }
  })

  it("G84: one that is killed while it migrates leaves nothing behind; the next start migrates", async () => {
    const url = await createDatabase(inject("pgUrl"))
    const target = postgresTarget(url)
    await withClient(url, async (other) => {
      // Whoever migrates stands here, in its transaction, with the lock of all migrations
      await other.query("BEGIN")
      await other.query("CREATE SCHEMA alkstore")
      await other.query("CREATE TABLE alkstore.job_ids (a integer)")
      const first = start(target)
      const waiting = `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
      const pid = await until("it waits", async () => (await target.query(waiting))[0]?.pid)
      const next = start(target)
      await until("the next waits too", async () => (await target.query(waiting)).length === 2)
      await target.query(`SELECT pg_terminate_backend(${pid})`)
      await fails(first, { _tag: "StoreError", reason: "connection" })
      await other.query("ROLLBACK")
      await succeeds(next)
    })
    await succeeds(use(target, roundTrip, { migrate: false }))
    const locks = await target.query(`${locksHere} AND locktype = 'advisory'`)
    expect(locks).toEqual([])
  })
})

describe("SQLite alone", () => {
  it("G84: one that is killed while it migrates leaves nothing behind; the next start migrates", async () => {
    const filename = join(directory, "killed.db")
    const half = `
      const db = new (require("better-sqlite3"))(process.argv[1])
      db.pragma("journal_mode = WAL")
      db.exec("BEGIN IMMEDIATE; CREATE TABLE _alkstore_migrations (version); CREATE TABLE _alkstore_jobs (a)")
      console.log("half way")
      setInterval(() => {}, 1000)`
    const child = spawn(process.execPath, ["-e", half, filename], { stdio: ["ignore", "pipe", "inherit"] })
    await once(child.stdout, "data")
    const target: Target = { ...(await sqlite.fresh()), open: () => Sqlite.layerFile(filename) }
    const waiting = start(target)
    child.kill("SIGKILL")
    await succeeds(waiting)
    await succeeds(use(target, roundTrip))
  })
})

describe("SQLite, where a namespace is a prefix", () => {
  it.each([
    ["x", "xcompleted_"],
    ["xcompleted_", "x"],
    ["App_", "app_"]
  ])("G210: beside %s, whose tables would have the same names, %s is refused", async (first, second) => {
    const target = await sqlite.fresh()
    await succeeds(use(target, Letters.enqueue("mine"), { namespace: first }))
    const before = await target.query(sqlite.tables)
    await fails(start(target, { namespace: second }), { _tag: "SchemaMismatch", namespace: second, found: 0 })
    expect(await target.query(sqlite.tables)).toEqual(before)
    expect(await target.query(`SELECT payload FROM ${sqlite.table("jobs", first)}`)).toEqual([{ payload: '"mine"' }])
    await succeeds(use(target, Letters.enqueue("mine, too"), { namespace: first }))
  })
})
