/**
 * sweep: finds what has expired and which leases have lapsed, in pages. Each write checks again what it was found by,
 * so several sweeps at once do no harm. Lapsed leases are decided about in `Settlement.lapsed` and applied by `settle`.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { ClaimedRow } from "../../../services/Settlement.js"
import { type Names, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { claimedColumns, claimedRow, int, textOrNull } from "./rows.js"
import { keptColumns, leaseOver, qualified } from "./settle.js"

export interface Cursor {
  readonly at: number
  readonly id: number
}

export const fromStart: Cursor = { at: Number.MIN_SAFE_INTEGER, id: 0 }

export type LapsedRow = ClaimedRow & { readonly worker: string | null; readonly maxCrashes: number }

export interface Sweep {
  /** Moves up to `limit` expired jobs to the dead letters; answers how many. */
  readonly expire: (session: Session, queue: string | undefined, limit: number) => Effect.Effect<number, StoreError>
  /** The next queue, by name, that has leased jobs. */
  readonly nextLeased: (session: Session, after: string) => Effect.Effect<string | undefined, StoreError>
  /** Jobs of a queue whose lease has lapsed, after the cursor. */
  readonly lapsed: (
    session: Session,
    queue: string,
    after: Cursor,
    limit: number
  ) => Effect.Effect<ReadonlyArray<LapsedRow>, StoreError>
}

const lapsedRow = (row: Row): LapsedRow => ({
  ...claimedRow(row, 0),
  worker: textOrNull(row.worker),
  maxCrashes: int(row.max_crashes)
})

const letters = (n: Names) =>
  `INSERT INTO ${n.deadLetters} (id, attempt, crashes, failures, errors, failure_times, reason, died_at, token, ${keptColumns})`
const expiredLetter = (n: Names, alias: string) =>
  `${alias}.id, ${alias}.attempt, ${alias}.crashes, ${alias}.failures, ${alias}.errors, ${alias}.failure_times, 'expired', ${n.now}, NULL, ${qualified(alias, keptColumns)}`

const nextLeased = (n: Names) => {
  const text = statement(
    n,
    "sweep_queues",
    `SELECT queue FROM ${n.jobs} WHERE token IS NOT NULL AND queue > :after ORDER BY queue LIMIT 1`
  )
  return (session: Session, after: string) =>
    Effect.map(session.execute(text, { after }), ([row]) => (row === undefined ? undefined : String(row.queue)))
}

const lapsed = (n: Names, condition: string) => {
  const text = statement(
    n,
    "sweep_lapsed",
    `SELECT ${qualified("j", claimedColumns)}, j.worker, coalesce(q.max_crashes, 5) AS max_crashes
    FROM ${n.jobs} j LEFT JOIN ${n.queues} q ON q.name = j.queue
    WHERE j.token IS NOT NULL AND j.queue = :queue AND ${condition} AND (j.visible_at, j.id) > (:afterAt, :afterId)
    ORDER BY j.visible_at, j.id LIMIT :limit`
  )
  return (session: Session, queue: string, after: Cursor, limit: number) =>
    Effect.map(session.execute(text, { queue, afterAt: after.at, afterId: after.id, limit }), (rows) =>
      rows.map(lapsedRow)
    )
}

const postgres = (n: Names): Sweep => {
  const expire = (scope: string) =>
    statement(
      n,
      "sweep_expired",
      `WITH held AS MATERIALIZED (
        SELECT id FROM ${n.jobs} WHERE expires_at IS NOT NULL AND token IS NULL AND expires_at <= ${n.now}${scope}
        ORDER BY expires_at LIMIT :limit::integer FOR UPDATE SKIP LOCKED
      ), gone AS (
        DELETE FROM ${n.jobs} WHERE id = ANY (ARRAY(SELECT id FROM held)) RETURNING *
      ), keys AS (
        DELETE FROM ${n.dedupeKeys} k USING gone g WHERE g.dedupe_key IS NOT NULL AND k.queue = g.queue AND k.dedupe_key = g.dedupe_key AND k.job_id = g.id AND k.free_at IS NULL
      ), moved AS (
        ${letters(n)} SELECT ${expiredLetter(n, "g")} FROM gone g
      )
      SELECT id FROM gone`
    )
  const everywhere = expire("")
  const ofQueue = expire(" AND queue = :queue")
  return {
    expire: (session, queue, limit) =>
      Effect.map(session.execute(queue === undefined ? everywhere : ofQueue, { queue, limit }), (rows) => rows.length),
    nextLeased: nextLeased(n),
    lapsed: lapsed(n, leaseOver(n, "j."))
  }
}

const sqlite = (n: Names): Sweep => {
  const found = (scope: string) =>
    statement(
      n,
      "sweep_expired",
      `SELECT id, queue, dedupe_key FROM ${n.jobs} WHERE expires_at IS NOT NULL AND token IS NULL AND expires_at <= ${n.now}${scope} ORDER BY expires_at LIMIT :limit`
    )
  const everywhere = found("")
  const ofQueue = found(" AND queue = :queue")
  const move = statement(
    n,
    "sweep_expired_letter",
    `${letters(n)} SELECT ${expiredLetter(n, "j")} FROM ${n.jobs} j WHERE j.id = :id`
  )
  const remove = statement(n, "sweep_expired_job", `DELETE FROM ${n.jobs} WHERE id = :id`)
  const freeKey = statement(
    n,
    "sweep_expired_key",
    `DELETE FROM ${n.dedupeKeys} WHERE queue = :queue AND dedupe_key = :key AND job_id = :id AND free_at IS NULL`
  )
  return {
    expire: (session, queue, limit) =>
      Effect.gen(function* () {
        const rows = yield* session.execute(queue === undefined ? everywhere : ofQueue, { queue, limit })
        if (!session.writes) return rows.length
        for (const { dedupe_key: key, id, queue: of } of rows) {
          yield* session.execute(move, { id })
          yield* session.execute(remove, { id })
          if (key !== null) yield* session.execute(freeKey, { queue: of, key, id })
        }
        return rows.length
      }),
    nextLeased: nextLeased(n),
    lapsed: lapsed(n, leaseOver(n, "j."))
  }
}

export const sweep: PerEngine<(n: Names) => Sweep> = { postgres, sqlite }
