/**
 * What operators' statements cost: the product's own texts, for a small queue beside many rows of others, under the
 * server's own planner settings and in every state of statistics. Whatever is beside them is not read.
 */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite, { type Database as SqliteFile } from "better-sqlite3"
import { Effect, Layer, Redacted } from "effect"
import pg from "pg"
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest"
import { positional } from "../../src/layers/Database/Database.js"
import { type Names, postgresNames, type Session, sqliteNames } from "../../src/layers/engine.js"
import { counts } from "../../src/layers/Queue/statements/counts.js"
import { inspect } from "../../src/layers/Queue/statements/inspect.js"
import { fromEnd } from "../../src/layers/Queue/statements/letterReads.js"
import { letters } from "../../src/layers/Queue/statements/letters.js"
import { operate } from "../../src/layers/Queue/statements/operate.js"
import { select } from "../../src/layers/Queue/statements/select.js"
import { fromStart, sweep } from "../../src/layers/Queue/statements/sweep.js"
import { scheduleStatements } from "../../src/layers/Schedules/statements.js"
import type { StoreError } from "../../src/services/Errors.js"
import type { DeadFilter, LiveFilter } from "../../src/services/Operations.js"
import { createDatabase } from "../support/postgres.js"

/** Rows beside those of the small queue. */
const many = 20_000

/** Rows of the small queue in each state. */
const few = 10

type Run = (session: Session) => Effect.Effect<unknown, StoreError>

const dead: DeadFilter = { ids: null, reasons: null, from: null, until: null, error: null, orderingKey: null }
const alive: LiveFilter = { ids: null, dedupeKey: null, orderingKey: null, states: null, from: null, until: null }

const letter = (id: number) => ({
  id,
  queue: "small",
  reason: "failed" as const,
  payload: "{}",
  priority: 0,
  attempts: 1,
  maxAttempts: 20,
  crashes: 0,
  failures: 1,
  enqueuedAt: 1,
  dueAt: 1,
  diedAt: 1,
  expiresAt: null,
  dedupeKey: `key ${id}`,
  orderingKey: null,
  headers: null,
  progress: null,
  errors: [],
  history: []
})

/** A count of nothing: no estimate is asked for. */
const none = { ready: 0, delayed: 0, blocked: 0, leased: 0, dead: 0, completed: 0 }

const later = { delayMillis: 60_000, runAt: null, priority: 3 }

/** Each operation, on a few rows; dead letters of a rare reason are among many of another of the same queue. */
const runsOf = (
  n: Names,
  ids: ReadonlyArray<number>,
  letterIds: ReadonlyArray<number>
): Readonly<Record<string, Run>> => {
  const find = select[n.engine](n)
  const on = letters[n.engine](n, true)
  const at = operate[n.engine](n, true)
  const look = inspect[n.engine](n)
  const sweeps = sweep[n.engine](n, true)
  const schedules = scheduleStatements(n)
  const chosen =
    (filter: Partial<LiveFilter>): Run =>
    (s) =>
      find.ids(s, "small", { ...alive, ...filter }, 0, 500)
  const rare = { ...dead, reasons: ["crashed" as const] }
  return {
    counts: (s) => counts[n.engine](n)(s, "small"),
    list: (s) => find.list(s, "small", 0, 100),
    "select all": chosen({}),
    "select by state": chosen({ states: ["ready", "leased"] }),
    "select blocked": chosen({ states: ["blocked"] }),
    "select by time": chosen({ from: 2 }),
    "select by id": chosen({ ids }),
    "select by key": chosen({ dedupeKey: "small 1" }),
    "select by ordering key": chosen({ orderingKey: "place" }),
    "letters of a queue": (s) => on.list(s, "small", dead, fromEnd, 100),
    "letters of a rare reason": (s) => on.list(s, "mixed", rare, fromEnd, 100),
    "letters by id": (s) => on.list(s, "small", { ...dead, ids: letterIds }, fromEnd, 100),
    "the first page of many letters": (s) => on.list(s, "big", dead, fromEnd, few),
    "lock letters": (s) => on.lock(s, "small", dead, fromStart, 500),
    "lock letters of a rare reason": (s) => on.lock(s, "mixed", rare, fromStart, 500),
    "lock the first of many letters": (s) => on.lock(s, "big", dead, fromStart, few),
    "the latest letter": (s) => on.latest(s, "big"),
    requeue: (s) => on.requeue(s, letterIds.map(letter), "small", 0),
    purge: (s) => on.purge(s, letterIds),
    retire: (s) => on.retire(s, undefined, 500),
    "retire of a queue": (s) => on.retire(s, "small", 500),
    "retention due": (s) => sweeps.due(s, undefined),
    "retention of a queue due": (s) => sweeps.due(s, "small"),
    completed: (s) => on.completed(s, "small", fromEnd, 100),
    "the first page of many completed": (s) => on.completed(s, "big", fromEnd, few),
    cancel: (s) => at.cancel(s, "small", ids),
    change: (s) => at.change(s, "small", ids, later),
    clear: (s) => at.clear(s, "small", 500),
    running: (s) => look.running(s, "small", fromStart, 100),
    find: (s) => look.find(s, ids[0] ?? 0),
    "names of queues": (s) => look.queues(s),
    "schedules that are due": (s) => s.execute(schedules.due, { limit: 100 }),
    "the next schedule": (s) => s.execute(schedules.nextIn, {})
  }
}

const job =
  "queue, payload, attempt, max_attempts, enqueued_at, due_at, visible_at, token, visibility_ms, priority, dedupe_key, ordering_key"
const ended = "id, queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, errors"

/** Statements that fill the tables, `numbers` being a table expression with so many rows of `g`. */
const filling = (n: Names, numbers: (count: number) => string): ReadonlyArray<string> => {
  const jobs = (queue: string, count: number, visible: string, rest = "NULL, NULL") =>
    `INSERT INTO ${n.jobs} (${job}) SELECT '${queue}', '{}', 0, 20, 1, 1, ${visible}, ${rest}, 0, '${queue} ' || g, NULL FROM ${numbers(count)}`
  const blocked = (queue: string, count: number) =>
    `INSERT INTO ${n.jobs} (${job}) SELECT '${queue}', '{}', 0, 20, 1, 1, NULL, NULL, NULL, 0, NULL, 'place' FROM ${numbers(count)}`
  let base = 0
  const next = () => {
    base += 1_000_000
    return base
  }
  const letter = (queue: string, count: number, reason: string) =>
    `INSERT INTO ${n.deadLetters} (${ended}, reason, died_at) SELECT ${next()} + g, '${queue}', '{}', 0, 1, 20, 1, 1, '[]', '${reason}', g FROM ${numbers(count)}`
  const completed = (queue: string, count: number) =>
    `INSERT INTO ${n.completedJobs} (${ended}, completed_at) SELECT ${next()} + g, '${queue}', '{}', 0, 1, 20, 1, 1, '[]', g FROM ${numbers(count)}`
  const scheduled = (count: number, at: string) =>
    `INSERT INTO ${n.schedules} (name, queue, payload, options, catch_up, overlap, declared, next_at, fire_at, created_at, updated_at)
    SELECT 'at ' || (${at}), 'small', '{}', '{}', 'latest', 'allow', false, 1, ${at}, 1, 1 FROM ${numbers(count)}`
  const leased = "1000 + g, 30000"
  const far = "9000000000000 + g"
  return [
    jobs("big", many, "1000 + g"),
    jobs("big", many, far),
    jobs("big", many, far, leased),
    blocked("big", many),
    jobs("small", few, "1000 + g"),
    jobs("small", few, far),
    jobs("small", few, far, leased),
    blocked("small", few),
    letter("big", many, "failed"),
    letter("mixed", many, "exhausted"),
    letter("mixed", few, "crashed"),
    letter("small", few, "failed"),
    completed("big", many),
    completed("small", few),
    scheduled(many, far),
    scheduled(few, "1000 + g"),
    `INSERT INTO ${n.dedupeKeys} (queue, dedupe_key, job_id) SELECT queue, dedupe_key, min(id) FROM ${n.jobs} WHERE dedupe_key IS NOT NULL GROUP BY queue, dedupe_key`,
    `INSERT INTO ${n.queues} (name, retain_dead_ms, retain_completed_ms, defined_by, updated_at) VALUES ('big', 8000000000000, 8000000000000, 'worker', 1), ('small', 8000000000000, 8000000000000, 'worker', 1)`
  ]
}

const statistics: ReadonlyArray<readonly [string, string]> = [
  ["never analysed", "never"],
  ["analysed when they were empty", "empty"],
  ["analysed when they were full", "full"]
]

describe("PostgreSQL", () => {
  const names = postgresNames("alkstore", "database")
  const clients: Array<pg.Client> = []
  afterAll(() => Promise.all(clients.map((client) => client.end())))

  interface Node {
    readonly "Node Type": string
    readonly "Relation Name"?: string
    readonly "Index Name"?: string
    readonly "Actual Rows": number
    readonly "Actual Loops": number
    readonly "Rows Removed by Filter"?: number
    readonly "Rows Removed by Index Recheck"?: number
    readonly "Shared Hit Blocks": number
    readonly "Shared Read Blocks": number
    readonly Plans?: ReadonlyArray<Node>
  }

  const nodes = (node: Node): ReadonlyArray<Node> => [node, ...(node.Plans ?? []).flatMap(nodes)]

  const fresh = async (when: string): Promise<pg.Client> => {
    const url = await createDatabase(inject("pgUrl"))
    await Effect.runPromise(
      Effect.scoped(Layer.build(Pg.layerUrl(Redacted.make(url), { listen: false, sweeper: false })))
    )
    const client = new pg.Client({ connectionString: url })
    clients.push(client)
    await client.connect()
    for (const table of [
      names.jobs,
      names.deadLetters,
      names.completedJobs,
      names.queues,
      names.dedupeKeys,
      names.schedules
    ])
      await client.query(`ALTER TABLE ${table} SET (autovacuum_enabled = false)`)
    if (when === "empty") await client.query("ANALYZE")
    for (const text of filling(names, (count) => `generate_series(1, ${count}) AS g`)) await client.query(text)
    if (when === "full") await client.query("ANALYZE")
    return client
  }

  const literal = (value: unknown): string =>
    value === null || value === undefined
      ? "NULL"
      : Array.isArray(value)
        ? pg.escapeLiteral(
            `{${value.map((item) => (item === null ? "NULL" : JSON.stringify(String(item)))).join(",")}}`
          )
        : typeof value === "string"
          ? pg.escapeLiteral(value)
          : String(value)

  /** The rows and pages that a statement reads, twice over and taken back. */
  const explain = async (client: pg.Client, text: string, values: ReadonlyArray<unknown>, generic: boolean) => {
    let plan: Node | undefined
    for (let round = 0; round < 2; round++) {
      await client.query("BEGIN")
      await client.query(`SET LOCAL plan_cache_mode = ${generic ? "force_generic_plan" : "force_custom_plan"}`)
      await client.query(`PREPARE it AS ${text}`)
      const list = values.length === 0 ? "" : `(${values.map(literal).join(", ")})`
      const { rows } = await client.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE it${list}`)
      await client.query("DEALLOCATE it")
      await client.query("ROLLBACK")
      plan = rows[0]["QUERY PLAN"][0].Plan as Node
    }
    const top = plan as Node
    const scans = nodes(top).filter((node) => node["Relation Name"] !== undefined || node["Index Name"] !== undefined)
    const touched = (node: Node) =>
      (node["Actual Rows"] + (node["Rows Removed by Filter"] ?? 0) + (node["Rows Removed by Index Recheck"] ?? 0)) *
      node["Actual Loops"]
    return {
      rows: scans.reduce((sum, node) => sum + touched(node), 0),
      buffers: top["Shared Hit Blocks"] + top["Shared Read Blocks"],
      shape: scans
        .map((node) => `${node["Node Type"]} ${node["Index Name"] ?? node["Relation Name"]}: ${touched(node)}`)
        .join(", ")
    }
  }

  test.each(statistics)(
    "G158: an operation on a small queue does not read the rows beside it, in tables %s",
    async (_, when) => {
      const client = await fresh(when)
      const idsOf = async (text: string) => (await client.query<{ id: number }>(text)).rows.map(({ id }) => id)
      const ids = await idsOf(`SELECT id::integer FROM ${names.jobs} WHERE queue = 'small' ORDER BY id LIMIT ${few}`)
      const letterIds = await idsOf(`SELECT id::integer FROM ${names.deadLetters} WHERE queue = 'small' LIMIT ${few}`)
      for (const [what, run] of Object.entries(runsOf(names, ids, letterIds))) {
        const sent: Array<readonly [string, string, ReadonlyArray<unknown>]> = []
        const execute: Session["execute"] = (statement, parameters) =>
          Effect.sync(() => {
            sent.push([statement.name, statement.text, positional(statement, parameters)])
            return statement.name === "counts" ? [none] : []
          })
        Effect.runSync(run({ writes: true, joined: false, execute }))
        expect(sent.length, what).toBeGreaterThan(0)
        for (const [name, text, values] of sent)
          for (const generic of [false, true]) {
            const cost = await explain(client, text, values, generic)
            const told = `${what}: ${name}${generic ? " (generic plan)" : ""}, by ${cost.shape}`
            // Which reasons are rare is known by statistics only
            if (/rare reason/.test(what) && when !== "full") continue
            expect.soft(cost.rows, told).toBeLessThanOrEqual(40 * few)
            expect.soft(cost.buffers, told).toBeLessThanOrEqual(100 * few)
          }
      }
    }
  )
})

describe("SQLite", () => {
  const names = sqliteNames("_alkstore_")
  const directory = mkdtempSync(join(tmpdir(), "alkstore-plans-"))
  const filename = join(directory, "test.db")
  let db: SqliteFile

  beforeAll(async () => {
    await Effect.runPromise(Effect.scoped(Layer.build(Sqlite.layerFile(filename, { sweeper: false, watch: false }))))
    db = new BetterSqlite(filename)
  })

  afterAll(() => {
    db.close()
    rmSync(directory, { recursive: true, force: true })
  })

  const numbers = (count: number) =>
    `(WITH RECURSIVE s (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM s WHERE g < ${count}) SELECT g FROM s) AS numbers`

  test.each(statistics)(
    "G158: an operation on a small queue does not read the rows beside it, in tables %s",
    (_, when) => {
      const tables = [
        names.jobs,
        names.deadLetters,
        names.completedJobs,
        names.dedupeKeys,
        names.queues,
        names.schedules
      ]
      db.exec(`${tables.map((table) => `DELETE FROM ${table};`).join("")} DROP TABLE IF EXISTS sqlite_stat1`)
      if (when === "empty") db.exec("ANALYZE")
      for (const text of filling(names, numbers)) db.exec(text)
      if (when === "full") db.exec("ANALYZE")
      const idsOf = (text: string) =>
        db
          .prepare<[], { id: number }>(text)
          .all()
          .map(({ id }) => id)
      const ids = idsOf(`SELECT id FROM ${names.jobs} WHERE queue = 'small' ORDER BY id LIMIT ${few}`)
      const letterIds = idsOf(`SELECT id FROM ${names.deadLetters} WHERE queue = 'small' LIMIT ${few}`)
      for (const [what, run] of Object.entries(runsOf(names, ids, letterIds))) {
        const execute: Session["execute"] = (statement, parameters) =>
          Effect.sync(() => {
            const bound = { ...parameters, now: Date.now() }
            const plan = db.prepare<[object], { detail: string }>(`EXPLAIN QUERY PLAN ${statement.text}`).all(bound)
            // Whole tables by their names; index searches by the queue alone would be as bad where an id is sought
            const bad = plan.filter(
              ({ detail }) =>
                /\bSCAN (_alkstore_|j\b|w\b|l\b|k\b|d\b|t\b)/.test(detail) &&
                !/SCAN _alkstore_queues|SCAN q\b|USING (COVERING )?INDEX _alkstore_schedules_firing/.test(detail)
            )
            expect.soft(bad, `${what}: ${statement.name}: ${plan.map(({ detail }) => detail).join("; ")}`).toEqual([])
            const prepared = db.prepare<[object], Record<string, unknown>>(statement.text)
            if (prepared.reader) return prepared.all(bound)
            prepared.run(bound)
            return []
          })
        const start = performance.now()
        db.exec("BEGIN")
        Effect.runSync(run({ writes: true, joined: false, execute }))
        db.exec("ROLLBACK")
        expect.soft(performance.now() - start, what).toBeLessThan(500)
      }
    }
  )
})
