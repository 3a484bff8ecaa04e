/**
 * export: reads a namespace page by page, and looks first whether it is at rest.
 */
import { Effect } from "effect"
import type { StoreError } from "../../services/Errors.js"
import { soundRecord, type TransferRecord } from "../../services/TransferRecord.js"
import { type Names, type PerEngine, type Row, type Session, type Statement, statement } from "../engine.js"
import { bool, int } from "../Queue/statements/rows.js"
import { type Columns, columns, propertiesOf } from "./columns.js"

/** Where a page begins, and what it is of. */
export interface Page {
  readonly queues: ReadonlyArray<string> | null
  readonly after: number
  readonly limit: number
  /** Characters of payload. */
  readonly size: number
}

type Read = (session: Session, page: Page) => Effect.Effect<ReadonlyArray<TransferRecord>, StoreError>

export interface Reads {
  readonly origin: (session: Session) => Effect.Effect<string, StoreError>
  /** The identities of the namespaces that this one has taken over from, and of those that they had taken over from. */
  readonly holds: (session: Session) => Effect.Effect<ReadonlyArray<string>, StoreError>
  /** Whether it has taken over from one that had taken over from that namespace. */
  readonly byAnother: (session: Session, origin: string) => Effect.Effect<boolean, StoreError>
  readonly now: (session: Session) => Effect.Effect<number, StoreError>
  /** Queues with live jobs that are not paused, and those with leased ones. */
  readonly busy: (
    session: Session,
    queues: ReadonlyArray<string> | null
  ) => Effect.Effect<{ readonly unpaused: ReadonlyArray<string>; readonly leased: ReadonlyArray<string> }, StoreError>
  readonly jobs: Read
  readonly dead: Read
  readonly completed: Read
  /** The rest are few: each in one page. */
  readonly queues: Read
  readonly keys: Read
  readonly schedules: Read
}

const within: PerEngine<(column: string) => string> = {
  postgres: (column) => `(:queues::text[] IS NULL OR ${column} = ANY (:queues::text[]))`,
  sqlite: (column) => `(:queues IS NULL OR ${column} IN (SELECT value FROM json_each(:queues)))`
}

const listed: PerEngine<(queues: ReadonlyArray<string> | null) => unknown> = {
  postgres: (queues) => queues,
  sqlite: (queues) => (queues === null ? null : JSON.stringify(queues))
}

const record = (type: string, list: Columns, row: Row, more: object = {}): TransferRecord =>
  soundRecord({ type, ...propertiesOf(row, list), ...more } as TransferRecord)

export const makeReads = (n: Names): Reads => {
  const of = within[n.engine]
  const origin = statement(n, "export_origin", `SELECT id FROM ${n.identity}`)
  // One look into the index for each: there is a row for everything that was ever taken over
  const origins = `WITH RECURSIVE o (origin) AS (
      SELECT min(origin) FROM ${n.imports}
      UNION ALL SELECT (SELECT min(i.origin) FROM ${n.imports} i WHERE i.origin > o.origin) FROM o WHERE o.origin IS NOT NULL
    )`
  const holds = statement(
    n,
    "export_holds",
    `${origins}
    SELECT origin AS id FROM o WHERE origin IS NOT NULL
    UNION SELECT i.source FROM o JOIN ${n.imports} i ON i.origin = o.origin AND i.kind = 'holds'`
  )
  const byAnother = statement(
    n,
    "import_by_another",
    `${origins}
    SELECT 1 AS met FROM o JOIN ${n.imports} i ON i.origin = o.origin AND i.kind = 'holds' AND i.source = :origin LIMIT 1`
  )
  const present = statement(n, "present", `SELECT ${n.now} AS now`)
  const busy = statement(
    n,
    "export_busy",
    `SELECT j.queue, max(CASE WHEN j.token IS NULL THEN 0 ELSE 1 END) AS leased,
      (SELECT q.paused_at FROM ${n.queues} q WHERE q.name = j.queue) IS NULL AS unpaused
    FROM ${n.jobs} j WHERE ${of("j.queue")} GROUP BY j.queue ORDER BY j.queue`
  )
  /** Whether an id is in a page of a table; there is at least one, if there is any. By primary key, whatever the planner knows. */
  const among: PerEngine<(ids: string) => string> = {
    postgres: (ids) => `= ANY (ARRAY(${ids}))`,
    sqlite: (ids) => `IN (${ids})`
  }
  const inPage = (table: string) =>
    among[n.engine](`SELECT id FROM (
        SELECT id, sum(length(payload)) OVER (ORDER BY id) - length(payload) AS before FROM (
          SELECT p.id, p.payload FROM ${table} p WHERE p.id > :after AND ${of("p.queue")} ORDER BY p.id LIMIT :limit
        ) AS page
      ) AS sized WHERE before < :size OR before = 0`)
  const jobs = statement(
    n,
    "export_jobs",
    `SELECT j.*, EXISTS (SELECT 1 FROM ${n.dedupeKeys} k
        WHERE k.queue = j.queue AND k.dedupe_key = j.dedupe_key AND k.job_id = j.id AND k.free_at IS NULL) AS holds_key
    FROM ${n.jobs} j WHERE j.id ${inPage(n.jobs)} ORDER BY j.id`
  )
  const dead = statement(
    n,
    "export_dead",
    `SELECT d.*, EXISTS (SELECT 1 FROM ${n.laneBlocks} b WHERE b.letter_id = d.id) AS blocks_key
    FROM ${n.deadLetters} d WHERE d.id ${inPage(n.deadLetters)} ORDER BY d.id`
  )
  const completed = statement(
    n,
    "export_completed",
    `SELECT c.* FROM ${n.completedJobs} c WHERE c.id ${inPage(n.completedJobs)} ORDER BY c.id`
  )
  const queues = statement(n, "export_queues", `SELECT * FROM ${n.queues} WHERE ${of("name")} ORDER BY name`)
  const keys = statement(
    n,
    "export_keys",
    `SELECT * FROM ${n.dedupeKeys} WHERE free_at > ${n.now} AND ${of("queue")} ORDER BY queue, dedupe_key`
  )
  const schedules = statement(n, "export_schedules", `SELECT * FROM ${n.schedules} WHERE ${of("queue")} ORDER BY name`)
  const read =
    (text: Statement, make: (row: Row) => TransferRecord): Read =>
    (session, { queues: some, ...page }) =>
      Effect.map(session.execute(text, { ...page, queues: listed[n.engine](some) }), (rows) => rows.map(make))
  return {
    origin: (session) => Effect.map(session.execute(origin, {}), ([row]) => String(row?.id)),
    holds: (session) => Effect.map(session.execute(holds, {}), (rows) => rows.map((row) => String(row.id)).sort()),
    byAnother: (session, of) => Effect.map(session.execute(byAnother, { origin: of }), (rows) => rows.length > 0),
    now: (session) => Effect.map(session.execute(present, {}), ([row]) => int(row?.now)),
    busy: (session, some) =>
      Effect.map(session.execute(busy, { queues: listed[n.engine](some) }), (rows) => {
        const named = (where: (row: Row) => boolean) => rows.filter(where).map((row) => String(row.queue))
        return { unpaused: named((row) => bool(row.unpaused)), leased: named((row) => int(row.leased) === 1) }
      }),
    jobs: read(jobs, (row) => record("job", columns.job, row, { id: int(row.id), holdsKey: bool(row.holds_key) })),
    dead: read(dead, (row) => record("dead", columns.dead, row, { id: int(row.id), blocksKey: bool(row.blocks_key) })),
    completed: read(completed, (row) => record("completed", columns.completed, row, { id: int(row.id) })),
    queues: read(queues, (row) => record("queue", columns.queue, row)),
    keys: read(keys, (row) =>
      soundRecord({
        type: "key",
        queue: String(row.queue),
        dedupeKey: String(row.dedupe_key),
        jobId: int(row.job_id),
        freeAt: int(row.free_at)
      })
    ),
    schedules: read(schedules, (row) => record("schedule", columns.schedule, row))
  }
}
