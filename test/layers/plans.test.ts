/**
 * What the hot statements cost: the product's own texts and parameters, under the server's own planner settings (a
 * claim in the caller's transaction has no others), beside one and beside many rows, in every state of statistics.
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
import {
  type Names,
  type Parameters,
  postgresNames,
  type Session,
  type Statement,
  sqliteNames
} from "../../src/layers/engine.js"
import { claim } from "../../src/layers/Queue/statements/claim.js"
import { enqueue } from "../../src/layers/Queue/statements/enqueue.js"
import { handOver } from "../../src/layers/Queue/statements/handOver.js"
import { lanes } from "../../src/layers/Queue/statements/lanes.js"
import { renew } from "../../src/layers/Queue/statements/renew.js"
import { settle } from "../../src/layers/Queue/statements/settle.js"
import { fromStart, sweep } from "../../src/layers/Queue/statements/sweep.js"
import type { StoreError } from "../../src/services/Errors.js"
import type { Settlement } from "../../src/services/Settlement.js"
import { createDatabase } from "../support/postgres.js"
import { newJob } from "../support/rows.js"

/** Rows of each kind beside what is claimed. */
const many = 20_000

/** Jobs per statement. */
const batch = 10

interface Leased {
  readonly id: number
  readonly token: number
}

type Run = (session: Session) => Effect.Effect<unknown, StoreError>

const history = { crashes: 0, failures: 1, errors: "[]", failureTimes: "[]" }

const settlements = (leased: ReadonlyArray<Leased>): Readonly<Record<string, ReadonlyArray<Settlement>>> => ({
  ack: leased.map((lease) => ({ _tag: "Ack", ...lease })),
  "ack of jobs without keys": leased.map((lease) => ({ _tag: "Ack", plain: true, ...lease })),
  giveBack: leased.map((lease) => ({
    _tag: "Return",
    ...lease,
    attempt: 1,
    delayMillis: 0,
    undecodableSince: null,
    history
  })),
  bury: leased.map((lease) => ({ _tag: "Bury", ...lease, reason: "failed", history }))
})

const claimOf = (names: Names, queue: string): Run => {
  const request = { queue, limit: batch, prefetch: 0, visibilityMillis: 30_000, worker: "w", probe: true }
  return (session) => claim[names.engine](names)(session, request)
}

const handOverOf = (names: Names, queue: string): Run => {
  const to = { worker: "w", visibilityMillis: 30_000 }
  return (session) => handOver[names.engine](names, true)(session, queue, [newJob, newJob], to, 0)
}

const hot = (names: Names, leased: ReadonlyArray<Leased>): Readonly<Record<string, Run>> => {
  const write = settle[names.engine](names, true)
  const moves = Object.entries(settlements(leased)).map(([name, list]): [string, Run] => [
    name,
    (session) => write(session, "q", list, { skipLocked: true, lapsedOnly: false })
  ])
  const renewals = leased.map((lease) => ({ ...lease, visibilityMillis: 30_000, progress: undefined }))
  return {
    claim: claimOf(names, "q"),
    "claim where all is delayed": claimOf(names, "later"),
    "claim where nothing is": claimOf(names, "empty"),
    "enqueue as claimed": handOverOf(names, "q"),
    "enqueue as claimed where all is delayed": handOverOf(names, "later"),
    "enqueue as claimed where nothing is": handOverOf(names, "empty"),
    renew: (session) => renew[names.engine](names)(session, renewals),
    "sweep for expired jobs": (session) => sweep[names.engine](names, false).expire(session, undefined, 500),
    "sweep for queues": (session) => sweep[names.engine](names, false).nextLeased(session, ""),
    ...Object.fromEntries(moves)
  }
}

/** What ordering keys add: jobs of ten keys that have others, of ten that have none, and all that become free. */
const ordered = (names: Names, leased: ReadonlyArray<Leased>): Readonly<Record<string, Run>> => {
  const jobs = Array.from({ length: batch }, (_, n) => [`key ${n + 1}`, `new ${n}`, "long"])
    .flat()
    .map((orderingKey) => ({ ...newJob, orderingKey }))
  const { claim: _claim, ...others } = hot(names, leased)
  return {
    ...others,
    claim: claimOf(names, "q"),
    advance: (session) => lanes[names.engine](names, true).advance(session, "q", false),
    "advance: queues": (session) => lanes[names.engine](names, true).nextMarked(session, ""),
    enqueue: (session) => enqueue[names.engine](names, true)(session, "q", jobs)
  }
}

describe("PostgreSQL", () => {
  const names = postgresNames("alkstore", "database")
  const clients: Array<pg.Client> = []

  interface Recorded {
    readonly name: string
    readonly text: string
    readonly values: ReadonlyArray<unknown>
  }

  interface Cost {
    readonly rows: number
    readonly buffers: number
    readonly shape: string
  }

  interface Node {
    readonly "Node Type": string
    readonly "Relation Name"?: string
    readonly "Index Name"?: string
    readonly "Actual Rows": number
    readonly "Actual Loops": number
    readonly "Rows Removed by Filter"?: number
    readonly "Shared Hit Blocks": number
    readonly "Shared Read Blocks": number
    readonly Plans?: ReadonlyArray<Node>
  }

  /** What a verb sends; every answer is empty, so that it goes on to its follow-up statements. */
  const record = (run: Run): ReadonlyArray<Recorded> => {
    const recorded: Array<Recorded> = []
    const execute = (statement: Statement, parameters: Parameters) =>
      Effect.sync(() => {
        recorded.push({ name: statement.name, text: statement.text, values: positional(statement, parameters) })
        // An enqueue goes on until each job has a receipt
        return statement.name === "enqueue_keyed" ? Array.from({ length: 3 * batch }, (_, n) => ({ n: n + 1 })) : []
      })
    Effect.runSync(run({ writes: true, joined: false, execute }))
    return recorded
  }

  const literal = (value: unknown): string =>
    Array.isArray(value)
      ? pg.escapeLiteral(`{${value.map((item) => (item === null ? "NULL" : JSON.stringify(String(item)))).join(",")}}`)
      : typeof value === "string"
        ? pg.escapeLiteral(value)
        : String(value)

  const nodes = (node: Node): ReadonlyArray<Node> => [node, ...(node.Plans ?? []).flatMap(nodes)]

  const costOf = (plan: Node): Cost => {
    const scans = nodes(plan).filter((node) => node["Relation Name"] !== undefined && /Scan/.test(node["Node Type"]))
    const touched = (node: Node) => (node["Actual Rows"] + (node["Rows Removed by Filter"] ?? 0)) * node["Actual Loops"]
    return {
      rows: scans.reduce((sum, node) => sum + touched(node), 0),
      buffers: plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
      shape: scans
        .map((node) => `${node["Node Type"]} of ${node["Index Name"] ?? node["Relation Name"]}: ${touched(node)}`)
        .join(", ")
    }
  }

  /** Runs it twice, and takes it back: the first run marks what is dead in the indexes, as any run does. */
  const explain = async (client: pg.Client, { text, values }: Recorded, generic: boolean): Promise<Cost> => {
    const once = async (): Promise<Cost> => {
      await client.query("BEGIN")
      try {
        if (!generic) {
          const { rows } = await client.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${text}`, [...values])
          return costOf(rows[0]["QUERY PLAN"][0].Plan)
        }
        // What a named statement comes to after a few executions
        await client.query("SET LOCAL plan_cache_mode = force_generic_plan")
        await client.query(`PREPARE hot AS ${text}`)
        const list = values.length === 0 ? "" : `(${values.map(literal).join(", ")})`
        const { rows } = await client.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE hot${list}`)
        await client.query("DEALLOCATE hot")
        return costOf(rows[0]["QUERY PLAN"][0].Plan)
      } finally {
        await client.query("ROLLBACK")
      }
    }
    await once()
    return once()
  }

  const leasedIn = async (client: pg.Client): Promise<ReadonlyArray<Leased>> => {
    const { rows } = await client.query<Leased>(
      `SELECT id::integer, token::integer FROM ${names.jobs} WHERE queue = 'q' AND token IS NOT NULL ORDER BY id LIMIT ${batch}`
    )
    return rows
  }

  const measure = async (client: pg.Client, runs = hot): Promise<Readonly<Record<string, Cost>>> => {
    const costs: Record<string, Cost> = {}
    for (const [verb, run] of Object.entries(runs(names, await leasedIn(client)))) {
      for (const recorded of record(run)) {
        for (const generic of [false, true]) {
          const cost = await explain(client, recorded, generic)
          costs[`${verb}: ${recorded.name}${generic ? " (generic plan)" : ""}`] = cost
        }
      }
    }
    return costs
  }

  const insert = (client: pg.Client, queue: string, count: number, visible: string, rest = "NULL, NULL, 0") =>
    client.query(
      `INSERT INTO ${names.jobs} (queue, payload, attempt, max_attempts, enqueued_at, due_at, visible_at, token, visibility_ms, priority, expires_at)
      SELECT '${queue}', '{}', 0, 20, 1, 1, ${visible}, ${rest}, 9000000000000 + g FROM generate_series(1, ${count}) AS g`
    )

  const later = "9000000000000 + g"
  const renewed = "floor(extract(epoch from statement_timestamp()) * 1000)::bigint + 25000 + g"

  /** `count` rows of every kind beside the rows that are to be claimed and settled. */
  const fill = async (client: pg.Client, count: number) => {
    await insert(client, "q", count, "2000 + g")
    await insert(client, "q", count, later)
    await insert(client, "q", count, renewed, "g + 1000, 30000, 0")
    await insert(client, "other", count, "1000 + g", "NULL, NULL, 9")
    await insert(client, "later", count, later)
    await client.query(
      `INSERT INTO ${names.deadLetters} (id, queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, reason, died_at)
      SELECT -${count} * 1000 - g, 'q', '{}', 0, 1, 1, 1, 1, 'failed', g FROM generate_series(1, ${count}) AS g`
    )
  }

  /** A migrated database whose tables are analysed and vacuumed only when the test says so. */
  const fresh = async (): Promise<pg.Client> => {
    const url = await createDatabase(inject("pgUrl"))
    const options = { listen: false, sweeper: false }
    await Effect.runPromise(Effect.scoped(Layer.build(Pg.layerUrl(Redacted.make(url), options))))
    const client = new pg.Client({ connectionString: url })
    clients.push(client)
    await client.connect()
    for (const table of [
      names.jobs,
      names.deadLetters,
      names.queues,
      names.dedupeKeys,
      names.laneMarks,
      names.laneBlocks
    ])
      await client.query(`ALTER TABLE ${table} SET (autovacuum_enabled = false)`)
    await insert(client, "q", 2 * batch, "1000 + g")
    await insert(client, "q", batch, renewed, "g, 30000, 0")
    return client
  }

  afterAll(() => Promise.all(clients.map((client) => client.end())))

  /** A tree grows a level or two, and a row's heap page and index pages are its own: no more than that. */
  const expectNoGrowth = (small: Readonly<Record<string, Cost>>, big: Readonly<Record<string, Cost>>) => {
    expect(Object.keys(big)).toEqual(Object.keys(small))
    for (const [statement, cost] of Object.entries(big)) {
      if (statement.startsWith("advance: advance")) continue
      const before = small[statement] as Cost
      expect(cost.rows, `${statement}: rows, by ${cost.shape}`).toBeLessThanOrEqual(Math.max(before.rows, 4 * batch))
      const allowed = 2 * before.buffers + 8 * batch
      expect(cost.buffers, `${statement}: buffers, by ${cost.shape}`).toBeLessThanOrEqual(allowed)
    }
  }

  const statistics: ReadonlyArray<[string, string, string]> = [
    ["never analysed", "", ""],
    ["analysed when they were empty", "ANALYZE", ""],
    ["analysed when they were full", "", "ANALYZE"]
  ]

  /** Jobs with keys: `visible` null is a blocked one. */
  const insertKeyed = (client: pg.Client, count: number, key: string, visible: string, rest = "NULL, NULL") =>
    client.query(
      `INSERT INTO ${names.jobs} (queue, payload, attempt, max_attempts, enqueued_at, due_at, visible_at, token, visibility_ms, priority, ordering_key)
      SELECT 'q', '{}', 0, 20, 1, 1, ${visible}, ${rest}, 0, ${key} FROM generate_series(1, ${count}) AS g`
    )

  /** So many keys with a ready job and a blocked one each, as many that a dead letter holds, and a long one. */
  const fillKeys = async (client: pg.Client, keys: number, waiting: number) => {
    await insertKeyed(client, keys, `'${keys} beside ' || g`, "2000 + g")
    await insertKeyed(client, keys, `'${keys} beside ' || g`, "NULL")
    await insertKeyed(client, waiting, "'long'", "NULL")
    await client.query(
      `INSERT INTO ${names.laneBlocks} (letter_id, queue, ordering_key) SELECT -g - (SELECT count(*) FROM ${names.laneBlocks}), 'q', 'dead ' || g FROM generate_series(1, ${keys}) AS g`
    )
  }

  test.each(statistics)(
    "G167: a long key and ten thousand others cost nobody anything, in tables %s",
    async (_, before, after) => {
      const client = await fresh()
      await client.query(`UPDATE ${names.jobs} SET ordering_key = 'leased ' || id WHERE token IS NOT NULL`)
      await client.query(
        `INSERT INTO ${names.jobs} (queue, payload, attempt, max_attempts, enqueued_at, due_at, priority, ordering_key)
      SELECT queue, payload, 0, 20, 1, 1, 0, ordering_key FROM ${names.jobs} WHERE token IS NOT NULL`
      )
      await insertKeyed(client, batch, "'key ' || g", "NULL")
      await insertKeyed(client, 1, "'long'", renewed, "g + 50000, 30000")
      await client.query(
        `INSERT INTO ${names.laneMarks} (queue, ordering_key) SELECT 'q', 'key ' || g FROM generate_series(1, ${batch}) AS g UNION ALL SELECT 'q', 'long' UNION ALL SELECT 'q', 'nobody'`
      )
      if (before !== "") await client.query(before)
      await fillKeys(client, 1, 1)
      const small = await measure(client, ordered)
      await fillKeys(client, 10_000, 100_000)
      if (after !== "") await client.query(after)
      const big = await measure(client, ordered)
      expectNoGrowth(small, big)
      // Each of the twelve keys: its first job, who may be unblocked, what may block it, the change, and its mark, which
      // may be looked for among the twelve. Ten rows of the jobs are changed, each in its indexes
      for (const pass of ["advance: advance", "advance: advance (generic plan)"].map((name) => big[name] as Cost)) {
        expect(pass.rows, pass.shape).toBeLessThanOrEqual(7 * 12 + 13 * 12)
        expect(pass.buffers, pass.shape).toBeLessThanOrEqual(100 * 12)
        // The index of all that are blocked looks small to a planner whose statistics are old
        expect(pass.shape).not.toMatch(/jobs_blocked/)
      }
    }
  )

  test("G167: a hundred thousand marks that nobody has dealt with cost a claim one look, and a pass what it takes", async () => {
    const client = await fresh()
    await fillKeys(client, 1, 1)
    await client.query(`INSERT INTO ${names.laneMarks} (queue, ordering_key) VALUES ('q', 'long')`)
    const { claim, enqueue } = await measure(client, ordered).then((costs) => ({
      claim: costs["claim: claim"] as Cost,
      enqueue: costs["enqueue: enqueue_keyed"] as Cost
    }))
    await client.query(
      `INSERT INTO ${names.laneMarks} (queue, ordering_key) SELECT 'q', 'long' FROM generate_series(1, 100000)`
    )
    const many = await measure(client, ordered)
    expectNoGrowth(
      { claim, enqueue },
      { claim: many["claim: claim"] as Cost, enqueue: many["enqueue: enqueue_keyed"] as Cost }
    )
    const pass = many["advance: advance"] as Cost
    expect(pass.rows, pass.shape).toBeLessThanOrEqual(6 * 1_000)
  })

  test.each(statistics)(
    "G22: a claim, a settle and a renewal cost no more beside many rows, in tables %s",
    async (_, before, after) => {
      const client = await fresh()
      if (before !== "") await client.query(before)
      await fill(client, 1)
      const small = await measure(client)
      await fill(client, many)
      if (after !== "") await client.query(after)
      expectNoGrowth(small, await measure(client))
    }
  )

  test("G22: what churns is vacuumed by how much of it has changed, not by its share", async () => {
    const client = await fresh()
    const { rows } = await client.query<{ relname: string; reloptions: ReadonlyArray<string> }>(
      `SELECT relname, reloptions FROM pg_class WHERE oid IN ('${names.jobs}'::regclass, '${names.laneMarks}'::regclass) ORDER BY relname`
    )
    const vacuumed = [
      "autovacuum_vacuum_scale_factor=0",
      "autovacuum_vacuum_threshold=5000",
      "autovacuum_vacuum_cost_delay=0"
    ]
    expect(rows).toEqual([
      {
        relname: "jobs",
        reloptions: expect.arrayContaining([
          ...vacuumed,
          "autovacuum_analyze_scale_factor=0",
          "autovacuum_analyze_threshold=20000"
        ])
      },
      { relname: "lane_marks", reloptions: expect.arrayContaining(vacuumed) }
    ])
  })

  test("G22: fifty priorities cost a look each, however many rows they have", async () => {
    const client = await fresh()
    const each = (count: number) =>
      Promise.all([
        insert(client, "fifty", count, "1000 + g", "NULL, NULL, g % 50"),
        insert(client, "fifty later", count, later, "NULL, NULL, g % 50")
      ])
    const costs = async () => {
      const [ready] = record(claimOf(names, "fifty"))
      const [delayed] = record(claimOf(names, "fifty later"))
      return {
        ready: await explain(client, ready as Recorded, false),
        delayed: await explain(client, delayed as Recorded, false)
      }
    }
    await each(50)
    const small = await costs()
    await each(many)
    const big = await costs()
    // Two looks per priority where all is delayed: which priorities there are, and when the first of each is due
    expect(big.delayed.rows).toBeLessThanOrEqual(2 * 50 + batch)
    expect(big.ready.rows).toBeLessThanOrEqual(small.ready.rows)
    expect(big.delayed.buffers).toBeLessThanOrEqual(3 * small.delayed.buffers)
    expect(big.ready.buffers).toBeLessThanOrEqual(3 * small.ready.buffers)
  })

  test("G22: where many jobs came and went and nothing was vacuumed, a claim meets none of them again", async () => {
    const client = await fresh()
    await fill(client, 1)
    const small = await measure(client)
    await insert(client, "q", many, "500 + g", "NULL, NULL, 1")
    await client.query(
      `UPDATE ${names.jobs} SET token = id + 100000, visible_at = visible_at + 30000, visibility_ms = 30000, attempt = 1 WHERE priority = 1`
    )
    await client.query(`DELETE FROM ${names.jobs} WHERE priority = 1`)
    const { claim: _, ...others } = hot(names, await leasedIn(client))
    const claimed = await explain(client, record(claimOf(names, "q"))[0] as Recorded, false)
    expect(claimed.rows).toBeLessThanOrEqual(Math.max(small["claim: claim"]?.rows ?? 0, 4 * batch))
    // Their dead index entries are skipped by the page: some hundreds to one
    expect(claimed.buffers).toBeLessThanOrEqual(2 * (small["claim: claim"]?.buffers ?? 0) + many / 20)
    for (const run of Object.values(others)) {
      for (const recorded of record(run))
        expect((await explain(client, recorded, false)).buffers, recorded.name).toBeLessThanOrEqual(many / 20)
    }
  })
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

  /** Runs a verb for real and takes it back; answers the plan of each statement of it. */
  const plansOf = (run: Run): ReadonlyMap<string, ReadonlyArray<string>> => {
    const plans = new Map<string, ReadonlyArray<string>>()
    const session: Session = {
      writes: true,
      joined: false,
      execute: (statement, parameters) =>
        Effect.sync(() => {
          const bound = { ...parameters, now: Date.now() }
          const plan = db.prepare<[object], { detail: string }>(`EXPLAIN QUERY PLAN ${statement.text}`).all(bound)
          plans.set(
            statement.name,
            plan.map(({ detail }) => detail)
          )
          const prepared = db.prepare<[object], Record<string, unknown>>(statement.text)
          if (prepared.reader) return prepared.all(bound)
          prepared.run(bound)
          return []
        })
    }
    db.exec("BEGIN")
    try {
      Effect.runSync(run(session))
    } finally {
      db.exec("ROLLBACK")
    }
    return plans
  }

  const insert = (queue: string, count: number, visible: string, rest = "NULL, NULL, 0") =>
    db.exec(
      `WITH RECURSIVE s (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM s WHERE g < ${count})
      INSERT INTO ${names.jobs} (queue, payload, attempt, max_attempts, enqueued_at, due_at, visible_at, token, visibility_ms, priority, dedupe_key, expires_at)
      SELECT '${queue}', '{}', 0, 20, 1, 1, ${visible}, ${rest}, '${queue}' || g || ${visible}, 9000000000000 + g FROM s`
    )

  const fill = (count: number) => {
    insert("q", count, "1000 + g", "NULL, NULL, g % 50")
    insert("q", count, "9000000000000 + g")
    insert("q", count, `${Date.now()} + 25000 + g`, "g, 30000, 0")
    insert("other", count, "1000 + g", "NULL, NULL, 9")
    insert("later", count, "9000000000000 + g")
    // A key of many, and many keys
    for (const [key, visible] of [
      ["'a place'", "NULL"],
      ["'key ' || g", "NULL"],
      ["'key ' || g", "1000 + g"]
    ])
      db.exec(
        `WITH RECURSIVE s (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM s WHERE g < ${count})
        INSERT INTO ${names.jobs} (queue, payload, attempt, max_attempts, enqueued_at, due_at, visible_at, priority, ordering_key)
        SELECT 'q', '{}', 0, 20, 1, 1, ${visible}, 0, ${key} FROM s`
      )
    db.exec(
      `INSERT OR IGNORE INTO ${names.dedupeKeys} (queue, dedupe_key, job_id) SELECT queue, dedupe_key, id FROM ${names.jobs}`
    )
  }

  const all = (): ReadonlyMap<string, ReadonlyArray<string>> => {
    const leased = db
      .prepare<[], Leased>(`SELECT id, token FROM ${names.jobs} WHERE token IS NOT NULL LIMIT ${batch}`)
      .all()
    const runs = {
      ...hot(names, leased),
      "sweep for lapsed leases": (session: Session) => sweep.sqlite(names, false).lapsed(session, "q", fromStart, 500),
      enqueue: (session: Session) =>
        enqueue.sqlite(names, false)(session, "q", [{ ...newJob, dedupeKey: "a key", orderingKey: "a place" }])
    }
    const gone = leased.map((lease) => ({ ...lease, token: -1, visibilityMillis: 1, progress: undefined }))
    return new Map([
      ...Object.values(runs).flatMap((run) => [...plansOf(run)]),
      ...plansOf((session) => renew.sqlite(names)(session, gone))
    ])
  }

  test.each([
    ["never analysed", ""],
    ["analysed when they were empty", "empty"],
    ["analysed when they were full", "full"]
  ])("G22: no hot statement scans or sorts, in tables %s", (_, when) => {
    db.exec(`DELETE FROM ${names.jobs}; DELETE FROM ${names.dedupeKeys}; DROP TABLE IF EXISTS sqlite_stat1`)
    if (when === "empty") db.exec("ANALYZE")
    fill(2_000)
    if (when === "full") db.exec("ANALYZE")
    const plans = all()
    expect(plans.size).toBeGreaterThanOrEqual(16)
    for (const [name, plan] of plans) {
      const bad = plan.filter(
        // `p`: the priorities that a walk has come to
        (line) => /\bSCAN\b(?! \w+ VIRTUAL TABLE)|TEMP B-TREE/.test(line) && !/SCAN (CONSTANT ROW|p$)/.test(line)
      )
      expect(bad, `${name}: ${plan.join("; ")}`).toEqual([])
    }
    // A search by the queue alone would still walk all of it
    expect(plans.get("claim_next")?.join()).toMatch(/jobs_waiting \(queue=\? AND priority<\?\)/)
    expect(plans.get("claim_ready")?.join()).toMatch(/jobs_waiting \(queue=\? AND priority=\? AND visible_at[<>]\?/)
    expect(plans.get("claim_next")?.join()).toMatch(/jobs_waiting \(queue=\? AND priority=\? AND visible_at>\?\)/)
    expect(plans.get("enqueue_tokens")?.join()).toMatch(/jobs_waiting \(queue=\? AND priority=\?/)
    expect(plans.get("claim_first")?.join()).toMatch(
      /jobs_leased \(queue=\?\).*jobs_waiting \(queue=\?\).*jobs_begun \(queue=\?\)/
    )
    // Not one of a long key's jobs is looked at but the first
    expect(plans.get("advance")?.join()).toMatch(/jobs_ordered \(queue=\? AND ordering_key=\?\)/)
    expect(plans.get("advance")?.join()).toMatch(/jobs_head \(queue=\? AND ordering_key=\?\)/)
    expect(plans.get("advance")?.join()).toMatch(/lane_blocks_by_key \(queue=\? AND ordering_key=\?\)/)
    expect(plans.get("claim")?.join()).toMatch(/INTEGER PRIMARY KEY \(rowid=\?\)/)
  })
})
