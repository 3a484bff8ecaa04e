/** The roles of the security guide, on PostgreSQL: each can do its work, and nothing else. */
import type { SqlClient } from "@effect/sql"
import { Lock, Queue, Schedules, transaction } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Effect, Redacted, Schema } from "effect"
import { afterAll, beforeAll, describe, expect, inject, it } from "vitest"
import { migrations } from "../../src/layers/Queue/migrations/migrate.js"
import { live, logs } from "../support/outages.js"
import { withClient } from "../support/postgres.js"
import { makeRoles, type Role, type Roles } from "./guide.js"
import { workerLife } from "./workerLife.js"

const Letters = Queue.make("letters", { payload: Schema.String })

let roles: Roles
beforeAll(async () => {
  roles = await makeRoles(inject("pgUrl"))
  await withClient(roles.url, async (admin) => {
    await admin.query("CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.secrets AS SELECT 'a secret' AS secret")
  })
  // `alkstore migrate` as the guide's owner, who may not create schemas
  await live(Effect.scoped(Effect.provide(Effect.void, Pg.layerUrl(Redacted.make(roles.urlOf("owner")), still))))
  await roles.grant()
})
afterAll(() => roles.drop())

const still: Pg.Options = { sweeper: false, scheduler: false, listen: false }
const reading: Pg.Options = { ...still, migrate: false }

/** Something done as a role. */
const as = <A, E>(
  role: Role,
  effect: Effect.Effect<A, E, Pg.Services | SqlClient.SqlClient>,
  options: Pg.Options = reading
) => live(Effect.provide(effect, Pg.layerUrl(Redacted.make(roles.urlOf(role)), options)))

/** The SQLSTATE with which a statement of a role is refused; or that it is not. */
const refusal = (role: Role, text: string) =>
  withClient(roles.urlOf(role), (client) =>
    client.query(text).then(
      () => "done",
      (error: { readonly code?: string }) => error.code
    )
  )

const denied = { _tag: "StoreError", reason: "denied", retryable: false }

const areDenied = (...calls: ReadonlyArray<Effect.Effect<unknown, unknown, Pg.Services>>) =>
  Effect.forEach(calls, (call) => Effect.map(Effect.flip(call), (error) => expect(error).toMatchObject(denied)))

/** What changes the schema, or reaches beyond it. */
const forbidden: ReadonlyArray<string> = [
  "CREATE TABLE alkstore.mine (a integer)",
  "CREATE TABLE public.mine (a integer)",
  "CREATE TEMPORARY TABLE mine (a integer)",
  "CREATE SCHEMA mine",
  "CREATE INDEX ON alkstore.jobs (payload)",
  "CREATE FUNCTION alkstore.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
  "CREATE TRIGGER mine BEFORE INSERT ON alkstore.jobs FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
  "CREATE VIEW alkstore.mine AS SELECT 1",
  "CREATE ROLE mine",
  "ALTER TABLE alkstore.jobs ADD COLUMN mine integer",
  "ALTER TABLE alkstore.jobs DISABLE TRIGGER ALL",
  "ALTER SEQUENCE alkstore.tokens RESTART",
  "ALTER SCHEMA alkstore RENAME TO mine",
  "DROP TABLE alkstore.jobs",
  "DROP SCHEMA alkstore CASCADE",
  "DROP INDEX alkstore.jobs_head",
  "TRUNCATE alkstore.jobs",
  "TRUNCATE alkstore.dead_letters",
  "INSERT INTO alkstore.migrations VALUES (99, 'mine', 99, 0)",
  "DELETE FROM alkstore.migrations",
  "UPDATE alkstore.identity SET id = 'mine'",
  "SELECT setval('alkstore.tokens', 1)",
  "SELECT * FROM elsewhere.secrets",
  "COPY alkstore.jobs TO PROGRAM 'true'",
  "SELECT pg_read_file('PG_VERSION')"
]

describe("the worker's role", () => {
  it("G206: does all that a worker does, and nothing of it is refused", async () => {
    await workerLife(roles.urlOf("worker"), roles.url)
    // The sweeper and the scheduler have nobody to fail for
    expect(logs.filter((line) => /denied|42501/.test(line))).toEqual([])
  })

  it.each(forbidden)("G206: is refused %s", async (text) => {
    expect(await refusal("worker", text)).toBe("42501")
  })

  it("G206: is not a member of the owner's", async () => {
    expect(await refusal("worker", `SET ROLE ${roles.nameOf("owner")}`)).toBe("42501")
  })

  it("G84, G205: starts with or without `migrate` on tables that are up to date, and writes nothing", async () => {
    // Whatever would be written fails
    const readOnly = (on: string) =>
      withClient(roles.url, (admin) =>
        admin.query(`ALTER ROLE ${roles.nameOf("worker")} SET default_transaction_read_only = ${on}`)
      )
    await readOnly("on")
    try {
      for (const migrate of [true, false]) await as("worker", Effect.void, { ...still, migrate })
    } finally {
      await readOnly("off")
    }
  })

  it("G85, G205: on older tables is told who has to migrate", async () => {
    const latest = migrations.at(-1)
    const saved = await withClient(roles.url, async (admin) => {
      const { rows } = await admin.query("DELETE FROM alkstore.migrations WHERE version = $1 RETURNING *", [
        latest?.version
      ])
      return rows[0]
    })
    try {
      const start = (migrate: boolean) =>
        live(
          Effect.flip(
            Effect.provide(Effect.void, Pg.layerUrl(Redacted.make(roles.urlOf("worker")), { ...still, migrate }))
          )
        )
      const refused = await start(true)
      expect(refused).toMatchObject(denied)
      expect(refused.message).toContain("run `alkstore migrate` as the role that owns the schema")
      expect(await start(false)).toMatchObject({ _tag: "SchemaMismatch", found: Number(latest?.version) - 1 })
    } finally {
      await withClient(roles.url, (admin) =>
        admin.query("INSERT INTO alkstore.migrations VALUES ($1, $2, $3, $4)", [
          saved.version,
          saved.name,
          saved.oldest_reader,
          saved.applied_at
        ])
      )
    }
  })
})

describe("the enqueuer's role", () => {
  it("G207: enqueues, alone, in batches, with keys and in transactions of its own", async () => {
    // A worker has been there before
    await as(
      "worker",
      Effect.flatMap(Queue.Queue, (queue) => queue.define(Letters.settings, "worker"))
    )
    const receipts = await as(
      "enqueuer",
      Effect.gen(function* () {
        yield* Letters.enqueue("one")
        yield* Letters.enqueueMany(["two", "three"], { delay: "1 second", headers: { a: "b" }, priority: 3 })
        yield* transaction(Letters.enqueue("four", { expires: "1 hour" }))
        const first = yield* Letters.enqueue("five", { dedupeKey: "k" })
        const second = yield* Letters.enqueue("five again", { dedupeKey: "k" })
        yield* Letters.enqueueMany(["six", "seven"], { orderingKey: "o" })
        return [first.id === second.id, second.deduplicated]
      })
    )
    expect(receipts).toEqual([true, true])
    const claimed = await as(
      "worker",
      Effect.gen(function* () {
        yield* Letters.runNow({ state: "delayed" })
        const jobs = yield* Letters.claim({ limit: 20 })
        yield* Effect.forEach(jobs, ({ ack }) => ack)
        const last = yield* Letters.claim({ limit: 20 })
        yield* Effect.forEach(last, ({ ack }) => ack)
        return [...jobs, ...last].map(({ payload }) => payload).sort()
      })
    )
    expect(claimed).toEqual(["five", "four", "one", "seven", "six", "three", "two"])
  })

  it("G207: can neither claim nor settle, cancel, pause, sweep, lock or schedule", async () => {
    await as("worker", Letters.enqueue("a"))
    await as(
      "enqueuer",
      Effect.gen(function* () {
        const store = yield* Queue.Queue
        const row = { id: 1, token: 1 }
        yield* areDenied(
          Letters.claim(),
          store.settle("letters", [{ _tag: "Ack", ...row }]),
          store.renew([{ ...row, visibilityMillis: 1_000, progress: undefined }]),
          Letters.cancel(1),
          Letters.clear,
          Letters.pause,
          Letters.list(),
          Letters.deadLetters.list(),
          Queue.find(1),
          Letters.enqueue("b", { dedupeKey: "a", onDuplicate: "replace" }).pipe(
            Effect.zipRight(Letters.enqueue("c", { dedupeKey: "a", onDuplicate: "replace" }))
          ),
          Lock.tryAcquire("mine"),
          Schedules.remove("mine")
        )
      })
    )
  })

  it.each([
    "SELECT payload FROM alkstore.jobs",
    "SELECT headers FROM alkstore.jobs",
    "SELECT * FROM alkstore.dead_letters",
    "SELECT * FROM alkstore.completed_jobs",
    "SELECT * FROM alkstore.schedules",
    "INSERT INTO alkstore.jobs (queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, token) VALUES ('letters', '1', 0, 0, 1, 0, 0, 1)",
    "UPDATE alkstore.jobs SET visible_at = 0",
    "DELETE FROM alkstore.jobs",
    "DELETE FROM alkstore.dedupe_keys",
    "UPDATE alkstore.queues SET paused_at = 0",
    "SELECT nextval('alkstore.tokens')",
    ...forbidden
  ])("G207: is refused %s", async (text) => {
    expect(await refusal("enqueuer", text)).toBe("42501")
  })
})

describe("the monitor's role", () => {
  it("G208: sees everything", async () => {
    await as("worker", Effect.zipRight(Letters.enqueue("seen"), Letters.enqueue("delayed", { delay: "1 day" })))
    const seen = await as(
      "monitor",
      Effect.gen(function* () {
        const { delayed, ready } = yield* Letters.counts
        const [job] = yield* Letters.list({ limit: 1 })
        yield* Effect.all([Letters.running(), Letters.completed(), Letters.deadLetters.list(), Lock.list])
        yield* Effect.all([Schedules.list, Queue.find(job?.id ?? 0)])
        return [ready.count > 0, delayed.count, job?.queue, yield* Queue.names]
      })
    )
    expect(seen).toEqual([true, 1, "letters", expect.arrayContaining(["letters"])])
  })

  it("G208: changes nothing", async () => {
    await as(
      "monitor",
      areDenied(
        Letters.enqueue("a"),
        Letters.claim(),
        Letters.pause,
        Letters.clear,
        Letters.cancelMany({ all: true }),
        Letters.runNow({ state: "delayed" }),
        Letters.deadLetters.purge({ all: true }),
        Lock.tryAcquire("mine"),
        Schedules.remove("mine")
      )
    )
  })

  it.each([
    "INSERT INTO alkstore.queues (name, defined_by, updated_at) VALUES ('mine', 'worker', 0)",
    "UPDATE alkstore.jobs SET priority = 1",
    "DELETE FROM alkstore.jobs",
    "DELETE FROM alkstore.dead_letters",
    "SELECT 1 FROM alkstore.jobs FOR UPDATE",
    "BEGIN; LOCK TABLE alkstore.jobs IN ACCESS EXCLUSIVE MODE",
    "SELECT nextval('alkstore.job_ids')",
    ...forbidden
  ])("G208: is refused %s", async (text) => {
    expect(await refusal("monitor", text)).toBe("42501")
  })
})
