/**
 * sweep: finds what has expired and which leases have lapsed, in pages. Each write checks again what it was found by,
 * so several sweeps at once do no harm. Lapsed leases are decided about in `Settlement.lapsed` and applied by `settle`.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { ClaimedRow } from "../../../services/Settlement.js"
import { type Names, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { buried, envelopeQueues, leaveFacts, leaving, leavingColumns, makeLeave, qualified } from "./leave.js"
import { leaseOver } from "./lists.js"
import { claimedColumns, claimedRow, int, textOrNull } from "./rows.js"

export interface Cursor {
  readonly at: number
  readonly id: number
}

export const fromStart: Cursor = { at: Number.MIN_SAFE_INTEGER, id: 0 }

export type LapsedRow = ClaimedRow & { readonly worker: string | null; readonly maxCrashes: number }

export interface Expired {
  readonly count: number
  /** Whose each of them was. */
  readonly queues: ReadonlyArray<string>
  /** Queues that may have a job more to claim. */
  readonly woken: ReadonlySet<string>
}

export interface Sweep {
  /** Moves up to `limit` expired jobs to the dead letters. */
  readonly expire: (session: Session, queue: string | undefined, limit: number) => Effect.Effect<Expired, StoreError>
  /** Moves one job to the dead letters if it has expired; answers whether it has. One that is locked is waited for. */
  readonly expireJob: (session: Session, id: number) => Effect.Effect<Expired, StoreError>
  /** Expired jobs after the cursor, by the instant at which they expired. */
  readonly expired: (
    session: Session,
    queue: string | undefined,
    after: Cursor,
    limit: number
  ) => Effect.Effect<ReadonlyArray<Cursor>, StoreError>
  /** The next queue, by name, that has leased jobs. */
  readonly nextLeased: (session: Session, after: string) => Effect.Effect<string | undefined, StoreError>
  /** Jobs of a queue whose lease has lapsed, after the cursor. */
  readonly lapsed: (
    session: Session,
    queue: string,
    after: Cursor,
    limit: number
  ) => Effect.Effect<ReadonlyArray<LapsedRow>, StoreError>
  /** Whether a retention may have passed, of one queue or of all, or a dedupe window. */
  readonly due: (session: Session, queue: string | undefined) => Effect.Effect<boolean, StoreError>
  /** Deletes dedupe keys whose window has passed; answers how many. */
  readonly freeKeys: (session: Session, limit: number) => Effect.Effect<number, StoreError>
  /** Whether a dead holder of a lock has left its row. */
  readonly locksLeft: (session: Session) => Effect.Effect<boolean, StoreError>
  /** Deletes such rows; answers how many. */
  readonly forgetLocks: (session: Session, limit: number) => Effect.Effect<number, StoreError>
}

const lapsedRow = (row: Row): LapsedRow => ({
  ...claimedRow(row, 0),
  worker: textOrNull(row.worker),
  maxCrashes: int(row.max_crashes)
})

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

const expired = (n: Names) => {
  const text = (scope: string) =>
    statement(
      n,
      "sweep_expired_ids",
      `SELECT id, expires_at FROM ${n.jobs} WHERE expires_at IS NOT NULL AND token IS NULL AND expires_at <= ${n.now}${scope} AND (expires_at, id) > (:afterAt, :afterId)
      ORDER BY expires_at, id LIMIT :limit`
    )
  const everywhere = text("")
  const ofQueue = text(" AND queue = :queue")
  return (session: Session, queue: string | undefined, after: Cursor, limit: number) =>
    Effect.map(
      session.execute(queue === undefined ? everywhere : ofQueue, {
        queue,
        limit,
        afterAt: after.at,
        afterId: after.id
      }),
      (rows) => rows.map((row): Cursor => ({ at: int(row.expires_at), id: int(row.id) }))
    )
}

const due = (n: Names) => {
  const text = (name: string, scope: string, keys: string) => {
    const passed = (table: string, at: string, setting: string) =>
      `EXISTS (SELECT 1 FROM ${n.queues} q WHERE q.${setting} IS NOT NULL${scope} AND (SELECT min(l.${at}) FROM ${table} l WHERE l.queue = q.name) <= ${n.now} - q.${setting})`
    return statement(
      n,
      name,
      `SELECT 1 AS due WHERE ${passed(n.deadLetters, "died_at", "retain_dead_ms")} OR ${passed(n.completedJobs, "completed_at", "retain_completed_ms")}${keys}`
    )
  }
  const all = text(
    "sweep_due",
    "",
    ` OR (SELECT min(free_at) FROM ${n.dedupeKeys} WHERE free_at IS NOT NULL) <= ${n.now}`
  )
  const one = text("sweep_due_of", " AND q.name = :queue", "")
  return (session: Session, queue: string | undefined) =>
    Effect.map(session.execute(queue === undefined ? all : one, { queue }), (rows) => rows.length > 0)
}

const freeKeys = (n: Names, lock: string, pick: (select: string) => string) => {
  const text = statement(
    n,
    "sweep_keys",
    `DELETE FROM ${n.dedupeKeys} WHERE free_at <= ${n.now} AND ${pick(`SELECT queue, dedupe_key FROM ${n.dedupeKeys} WHERE free_at IS NOT NULL AND free_at <= ${n.now} ORDER BY free_at LIMIT :limit${lock}`)} RETURNING job_id`
  )
  return (session: Session, limit: number) => Effect.map(session.execute(text, { limit }), (rows) => rows.length)
}

/** A lock that ended a whole ttl ago: its holder, which may be late but still renew it, is dead. */
const abandoned = (n: Names): string => `expires_at + ttl_ms <= ${n.now}`

/** Reads all locks: they are as many as are held, and what the dead have left since the last sweep. */
const locksLeft = (n: Names) => {
  const text = statement(n, "sweep_locks_left", `SELECT 1 AS found FROM ${n.locks} WHERE ${abandoned(n)} LIMIT 1`)
  return (session: Session) => Effect.map(session.execute(text, {}), (rows) => rows.length > 0)
}

/** Free already; but one with a name of its own, which nobody takes again, would leave its row for ever. */
const forgetLocks = (n: Names, lock: string) => {
  const text = statement(
    n,
    "sweep_locks",
    `DELETE FROM ${n.locks} WHERE ${abandoned(n)} AND name IN (SELECT name FROM ${n.locks} WHERE ${abandoned(n)} ORDER BY name LIMIT :limit${lock}) RETURNING name`
  )
  return (session: Session, limit: number) => Effect.map(session.execute(text, { limit }), (rows) => rows.length)
}

const postgres = (n: Names, notify: boolean): Sweep => {
  const expire = (scope: string, pick = "ORDER BY expires_at LIMIT :limit::integer FOR UPDATE SKIP LOCKED") =>
    statement(
      n,
      "sweep_expired",
      `WITH held AS MATERIALIZED (
        SELECT id FROM ${n.jobs} WHERE expires_at IS NOT NULL AND token IS NULL AND expires_at <= ${n.now}${scope}
        ${pick}
      ), gone AS (
        DELETE FROM ${n.jobs} WHERE id = ANY (ARRAY(SELECT id FROM held)) RETURNING *
      ), verdict AS (
        SELECT id, 'expired'::text AS reason, crashes, failures, errors, failure_times FROM gone
      ), ${buried(n, notify)}
      SELECT id, queue, ${leaveFacts(notify, "buried")} FROM gone`
    )
  const everywhere = expire("")
  const ofQueue = expire(" AND queue = :queue")
  const ofJob = expire(" AND id = :id", "FOR UPDATE")
  const moved = (rows: ReadonlyArray<Row>): Expired => ({
    count: rows.length,
    queues: rows.map((row) => String(row.queue)),
    woken: new Set(rows.flatMap(envelopeQueues))
  })
  return {
    expire: (session, queue, limit) =>
      Effect.map(
        session.execute(queue === undefined ? everywhere : ofQueue, { queue, limit, channel: n.channel }),
        moved
      ),
    expireJob: (session, id) => Effect.map(session.execute(ofJob, { id, channel: n.channel }), moved),
    expired: expired(n),
    nextLeased: nextLeased(n),
    lapsed: lapsed(n, leaseOver(n, "j.")),
    due: due(n),
    freeKeys: freeKeys(n, " FOR UPDATE SKIP LOCKED", (select) => `(queue, dedupe_key) IN (${select})`),
    locksLeft: locksLeft(n),
    forgetLocks: forgetLocks(n, " FOR UPDATE SKIP LOCKED")
  }
}

const sqlite = (n: Names): Sweep => {
  const found = (scope: string) =>
    statement(
      n,
      "sweep_expired",
      `SELECT ${leavingColumns}, crashes, failures, errors, failure_times FROM ${n.jobs} WHERE expires_at IS NOT NULL AND token IS NULL AND expires_at <= ${n.now}${scope} ORDER BY expires_at LIMIT :limit`
    )
  const everywhere = found("")
  const ofQueue = found(" AND queue = :queue")
  const ofJob = found(" AND id = :id")
  const leave = makeLeave(n)
  const move = (session: Session, rows: ReadonlyArray<Row>) =>
    Effect.gen(function* () {
      const call = leaving()
      for (const row of rows) {
        const { crashes, errors, failure_times: times, failures } = row
        yield* leave.bury(session, row, { reason: "expired", crashes, errors, failures, times }, call)
      }
      return { count: rows.length, queues: rows.map((row) => String(row.queue)), woken: call.woken }
    })
  return {
    expire: (session, queue, limit) =>
      Effect.flatMap(session.execute(queue === undefined ? everywhere : ofQueue, { queue, limit }), (rows) =>
        session.writes
          ? move(session, rows)
          : Effect.succeed({ count: rows.length, queues: [], woken: new Set<string>() })
      ),
    expireJob: (session, id) => Effect.flatMap(session.execute(ofJob, { id, limit: 1 }), (rows) => move(session, rows)),
    expired: expired(n),
    nextLeased: nextLeased(n),
    lapsed: lapsed(n, leaseOver(n, "j.")),
    due: due(n),
    freeKeys: freeKeys(n, "", (select) => `(queue, dedupe_key) IN (${select})`),
    locksLeft: locksLeft(n),
    forgetLocks: forgetLocks(n, "")
  }
}

export const sweep: PerEngine<(n: Names, notify: boolean) => Sweep> = { postgres, sqlite }
