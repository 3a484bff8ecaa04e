/**
 * inspect: what is running, a job wherever it is, and which queues there are; for people.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { LiveRow } from "../../../services/JobRows.js"
import type { Found } from "../../../services/Operations.js"
import { type Names, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { keptColumns } from "./leave.js"
import { completedRow, deadRow, int, liveRow } from "./rows.js"
import type { Cursor } from "./sweep.js"

export interface Inspect {
  /** Leased jobs of a queue by the end of their lease. */
  readonly running: (
    session: Session,
    queue: string,
    after: Cursor,
    limit: number
  ) => Effect.Effect<ReadonlyArray<LiveRow>, StoreError>
  readonly find: (session: Session, id: number) => Effect.Effect<Found | undefined, StoreError>
  readonly queues: (session: Session) => Effect.Effect<ReadonlyArray<string>, StoreError>
}

/** One look-up per distinct queue name of an index that begins with it. */
const namesOf = (table: string, condition: string) =>
  `SELECT min(queue) FROM ${table} WHERE ${condition}
      UNION ALL SELECT (SELECT min(t.queue) FROM ${table} t WHERE t.queue > found.name AND ${condition}) FROM found WHERE found.name IS NOT NULL`

const foundRow = (row: Row): Found => {
  switch (row.place) {
    case "Live":
      return { _tag: "Live", job: liveRow(row, int(row.now)) }
    case "Dead":
      return { _tag: "Dead", job: deadRow({ ...row, died_at: row.ended_at }) }
    default:
      return { _tag: "Completed", job: completedRow({ ...row, completed_at: row.ended_at }) }
  }
}

const make = (n: Names): Inspect => {
  const running = statement(
    n,
    "running",
    `SELECT j.*, ${n.now} AS now FROM ${n.jobs} j
    WHERE j.queue = :queue AND j.token IS NOT NULL AND (j.visible_at, j.id) > (:at, :id) ORDER BY j.visible_at, j.id LIMIT :limit`
  )
  // One statement, one look: a job that is on its way from one table to another is in one of them
  const common = `id, ${keptColumns}, attempt, crashes, failures, errors`
  const find = statement(
    n,
    "find",
    `SELECT 'Live' AS place, ${common}, token, worker, claimed_at, visible_at, cancel_requested_at, NULL AS reason, NULL AS ended_at, ${n.now} AS now FROM ${n.jobs} WHERE id = :id
    UNION ALL SELECT 'Dead', ${common}, token, NULL, NULL, NULL, NULL, reason, died_at, ${n.now} FROM ${n.deadLetters} WHERE id = :id
    UNION ALL SELECT 'Completed', ${common}, token, NULL, NULL, NULL, NULL, NULL, completed_at, ${n.now} FROM ${n.completedJobs} WHERE id = :id`
  )
  const queues = statement(
    n,
    "queues",
    `WITH RECURSIVE found (name) AS (${namesOf(n.jobs, "token IS NULL AND visible_at IS NOT NULL")})
    SELECT name FROM ${n.queues} UNION SELECT name FROM found WHERE name IS NOT NULL ORDER BY name`
  )
  return {
    running: (session, queue, { at, id }, limit) =>
      Effect.map(session.execute(running, { queue, at, id, limit }), (rows) =>
        rows.map((row) => liveRow(row, int(row.now)))
      ),
    find: (session, id) =>
      Effect.map(session.execute(find, { id }), ([row]) => (row === undefined ? undefined : foundRow(row))),
    queues: (session) => Effect.map(session.execute(queues, {}), (rows) => rows.map((row) => String(row.name)))
  }
}

/** The two engines share these statements. */
export const inspect: PerEngine<(n: Names) => Inspect> = { postgres: make, sqlite: make }
