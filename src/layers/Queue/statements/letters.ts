/**
 * letters: dead letters and completed jobs, listed, requeued and purged. What is moved is locked first: two requeues at
 * once make one job of a letter. Pages are bounded, so that a million letters lock nothing for long.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import { withLife } from "../../../services/History.js"
import type { CompletedRow, DeadRow } from "../../../services/JobRows.js"
import type { DeadFilter } from "../../../services/Operations.js"
import { type Names, nextval, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { advanceKey } from "./lanes.js"
import { letterReads } from "./letterReads.js"
import { int } from "./rows.js"
import type { Cursor } from "./sweep.js"

export interface Letters {
  readonly list: (
    session: Session,
    queue: string,
    filter: DeadFilter,
    before: Cursor,
    limit: number
  ) => Effect.Effect<ReadonlyArray<DeadRow>, StoreError>
  /** The same oldest first, and locked: for moving them. Rows that somebody has locked are left out. */
  readonly lock: (
    session: Session,
    queue: string,
    filter: DeadFilter,
    after: Cursor,
    limit: number
  ) => Effect.Effect<ReadonlyArray<DeadRow>, StoreError>
  /** When the latest letter of a queue died. */
  readonly latest: (session: Session, queue: string) => Effect.Effect<number | null, StoreError>
  /** Moves letters back; answers the ids that those have that went, by the letters'. */
  readonly requeue: (
    session: Session,
    letters: ReadonlyArray<DeadRow>,
    to: string,
    delayMillis: number
  ) => Effect.Effect<ReadonlyMap<number, number>, StoreError>
  /** Deletes letters by id; answers how many, and whether that freed an ordering key. */
  readonly purge: (
    session: Session,
    ids: ReadonlyArray<number>
  ) => Effect.Effect<{ readonly purged: number; readonly freed: boolean }, StoreError>
  readonly completed: (
    session: Session,
    queue: string,
    before: Cursor,
    limit: number
  ) => Effect.Effect<ReadonlyArray<CompletedRow>, StoreError>
  /** Deletes a page of what its queue retains no longer, of one queue or of all; letters that hold their ordering key stay. */
  readonly retire: (session: Session, queue: string | undefined, limit: number) => Effect.Effect<number, StoreError>
}

/** What ended there is history now, and counts afresh. */
const lives = (letter: DeadRow): string => {
  const { attempts, crashes, diedAt, errors, failures, id, queue, reason } = letter
  const text = letter.history.length === 0 ? null : JSON.stringify(letter.history)
  return withLife(text, { id, queue, reason, diedAt, attempts, crashes, failures, errors })
}

/** What a letter takes back to the live jobs as it is. */
const same =
  "payload, priority, max_attempts, enqueued_at, expires_ms, dedupe_key, dedupe_scope, dedupe_window_ms, ordering_key, headers, progress"

/** PostgreSQL: retention of what has died or is completed, queue by queue, from the oldest; what is locked stays. */
const retired = (n: Names, scope: string, table: string, at: string, setting: string, extra: string) =>
  `SELECT d.id FROM ${n.queues} q CROSS JOIN LATERAL (
        SELECT l.id FROM ${table} l WHERE l.queue = q.name AND l.${at} <= ${n.now} - q.${setting}${extra} ORDER BY l.${at}, l.id LIMIT :limit FOR UPDATE SKIP LOCKED
      ) d WHERE q.${setting} IS NOT NULL${scope} LIMIT :limit`

const holds = (n: Names) => ` AND NOT EXISTS (SELECT 1 FROM ${n.laneBlocks} b WHERE b.letter_id = l.id)`

/**
 * A letter keeps its id, unless it has an ordering key that went on without it: then it joins the end, as a new job. A
 * dedupe key is taken only when nobody else holds it: of several letters with one key by the one whose window it is in,
 * else by the one that died first. One that a live job holds is not even tried: a conflict would lock it, and with it
 * the ack of that job, for as long as the transaction lasts.
 */
const postgres = (n: Names, notify: boolean): Letters => {
  const note = (from: string) =>
    notify
      ? `, note AS MATERIALIZED (SELECT pg_notify(:channel, queue) FROM (SELECT DISTINCT queue FROM ${from}) AS q)`
      : ""
  const noted = notify ? ", (SELECT count(*) FROM note) AS noted" : ""
  const requeue = statement(
    n,
    "requeue",
    `WITH letters AS MATERIALIZED (
      SELECT d.*, i.lives, ${n.now} + :delay::bigint AS due, coalesce(k.job_id = d.id AND k.free_at > ${n.now}, false) AS mine, (k.job_id IS NULL OR k.free_at IS NOT NULL) AS open,
        CASE WHEN d.ordering_key IS NOT NULL AND (b.letter_id IS NULL OR d.queue <> :to) THEN ${nextval(n.jobIds)} ELSE d.id END AS fresh
      FROM unnest(:ids::bigint[], :lives::text[]) AS i (id, lives) JOIN ${n.deadLetters} d ON d.id = i.id LEFT JOIN ${n.laneBlocks} b ON b.letter_id = d.id
        LEFT JOIN ${n.dedupeKeys} k ON k.queue = :to AND k.dedupe_key = d.dedupe_key
      WHERE d.id = ANY (:ids::bigint[]) ORDER BY d.died_at, d.id
    ), keys AS (
      INSERT INTO ${n.dedupeKeys} AS k (queue, dedupe_key, job_id)
      SELECT DISTINCT ON (dedupe_key COLLATE "C") :to, dedupe_key, fresh FROM letters WHERE dedupe_key IS NOT NULL AND open ORDER BY dedupe_key COLLATE "C", mine DESC, died_at, id
      ON CONFLICT (queue, dedupe_key) DO UPDATE SET job_id = excluded.job_id, free_at = NULL
      WHERE k.free_at IS NOT NULL AND (k.free_at <= ${n.now} OR k.job_id = ANY (:ids::bigint[]))
      RETURNING job_id
    ), moved AS (
      DELETE FROM ${n.deadLetters} WHERE id = ANY (ARRAY(SELECT id FROM letters WHERE dedupe_key IS NULL OR fresh IN (SELECT job_id FROM keys)))
      RETURNING id
    ), freed AS (
      DELETE FROM ${n.laneBlocks} WHERE letter_id = ANY (ARRAY(SELECT id FROM moved)) RETURNING queue, ordering_key
    ), added AS (
      INSERT INTO ${n.jobs} (id, queue, attempt, due_at, visible_at, expires_at, history, ${same})
      SELECT fresh, :to, 0, due, CASE WHEN ordering_key IS NULL THEN due END, due + expires_ms, lives, ${same} FROM letters JOIN moved USING (id)
      RETURNING queue, ordering_key
    ), marks AS (
      INSERT INTO ${n.laneMarks} (queue, ordering_key)
      SELECT queue, ordering_key FROM freed UNION SELECT queue, ordering_key FROM added WHERE ordering_key IS NOT NULL
      RETURNING queue
    )${note("(SELECT queue FROM added UNION SELECT queue FROM marks) AS every")}
    SELECT id, fresh${noted} FROM letters JOIN moved USING (id)`
  )
  // Keys of jobs that were deleted by hand hold nobody off
  const orphans = statement(
    n,
    "requeue_orphans",
    `DELETE FROM ${n.dedupeKeys} k WHERE k.queue = :to AND k.dedupe_key = ANY (:keys::text[]) AND k.free_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM ${n.jobs} j WHERE j.id = k.job_id)`
  )
  const purge = statement(
    n,
    "purge",
    `WITH gone AS (
      DELETE FROM ${n.deadLetters} WHERE id = ANY (:ids::bigint[]) RETURNING id
    ), freed AS (
      DELETE FROM ${n.laneBlocks} WHERE letter_id = ANY (ARRAY(SELECT id FROM gone)) RETURNING queue, ordering_key
    ), marks AS (
      INSERT INTO ${n.laneMarks} (queue, ordering_key) SELECT DISTINCT queue, ordering_key FROM freed RETURNING queue
    )${note("marks")}
    SELECT (SELECT count(*) FROM gone) AS purged, (SELECT count(*) FROM marks) AS marks${noted}`
  )
  const retire = (name: string, table: string, at: string, setting: string, extra: string) => {
    const text = (suffix: string, scope: string) => {
      const ids = retired(n, scope, table, at, setting, extra).replaceAll(":limit", ":limit::integer")
      return statement(n, `${name}${suffix}`, `DELETE FROM ${table} WHERE id = ANY (ARRAY(${ids})) RETURNING id`)
    }
    return { all: text("", ""), one: text("_of", " AND q.name = :queue") }
  }
  const retirements = [
    retire("retire_dead", n.deadLetters, "died_at", "retain_dead_ms", holds(n)),
    retire("retire_completed", n.completedJobs, "completed_at", "retain_completed_ms", "")
  ]
  return {
    ...letterReads(n),
    requeue: (session, letters, to, delay) =>
      Effect.gen(function* () {
        const keys = letters.flatMap(({ dedupeKey }) => (dedupeKey === null ? [] : [dedupeKey]))
        if (keys.length > 0) yield* session.execute(orphans, { to, keys })
        const ids = letters.map((letter) => letter.id)
        const rows = yield* session.execute(requeue, { to, delay, ids, lives: letters.map(lives), channel: n.channel })
        return new Map(rows.map((row) => [int(row.id), int(row.fresh)]))
      }),
    purge: (session, ids) =>
      Effect.map(session.execute(purge, { ids, channel: n.channel }), ([row]) => ({
        purged: int(row?.purged),
        freed: int(row?.marks) > 0
      })),
    retire: (session, queue, limit) =>
      Effect.map(
        Effect.forEach(retirements, ({ all, one }) =>
          session.execute(queue === undefined ? all : one, { queue, limit })
        ),
        (gone) => gone.flat().length
      )
  }
}

const sqlite = (n: Names): Letters => {
  const held = statement(
    n,
    "requeue_key",
    `SELECT 1 AS held FROM ${n.dedupeKeys} WHERE queue = :to AND dedupe_key = :key
      AND NOT (free_at IS NOT NULL AND (free_at <= ${n.now} OR job_id = :id))
      AND (free_at IS NOT NULL OR EXISTS (SELECT 1 FROM ${n.jobs} j WHERE j.id = job_id))`
  )
  const hold = statement(
    n,
    "requeue_hold",
    `INSERT INTO ${n.dedupeKeys} (queue, dedupe_key, job_id) VALUES (:to, :key, :id)
    ON CONFLICT (queue, dedupe_key) DO UPDATE SET job_id = excluded.job_id, free_at = NULL`
  )
  const free = statement(
    n,
    "letters_free",
    `DELETE FROM ${n.laneBlocks} WHERE letter_id = :id RETURNING queue, ordering_key`
  )
  const add = statement(
    n,
    "requeue",
    `INSERT INTO ${n.jobs} (id, queue, attempt, due_at, visible_at, expires_at, history, ${same})
    SELECT CASE WHEN :fresh THEN NULL ELSE id END, :to, 0, ${n.now} + :delay, CASE WHEN ordering_key IS NULL THEN ${n.now} + :delay END, ${n.now} + :delay + expires_ms, :lives, ${same}
    FROM ${n.deadLetters} WHERE id = :id RETURNING id`
  )
  const remove = statement(n, "purge", `DELETE FROM ${n.deadLetters} WHERE id = :id RETURNING id`)
  const advance = advanceKey(n)
  const retire = (name: string, table: string, at: string, setting: string, extra: string) => ({
    queues: statement(
      n,
      `${name}_queues`,
      `SELECT name, ${setting} AS keep FROM ${n.queues} WHERE ${setting} IS NOT NULL AND (:queue IS NULL OR name = :queue)`
    ),
    remove: statement(
      n,
      name,
      `DELETE FROM ${table} WHERE id IN (SELECT l.id FROM ${table} l WHERE l.queue = :queue AND l.${at} <= ${n.now} - :keep${extra} ORDER BY l.${at}, l.id LIMIT :limit) RETURNING id`
    )
  })
  const retirements = [
    retire("retire_dead", n.deadLetters, "died_at", "retain_dead_ms", holds(n)),
    retire("retire_completed", n.completedJobs, "completed_at", "retain_completed_ms", "")
  ]
  const freeKey = (session: Session, rows: ReadonlyArray<Row>) =>
    Effect.forEach(rows, (row) => advance(session, String(row.queue), String(row.ordering_key)), { discard: true })
  return {
    ...letterReads(n),
    requeue: (session, letters, to, delay) =>
      Effect.gen(function* () {
        const moved = new Map<number, number>()
        for (const letter of letters) {
          const { dedupeKey: key, id, orderingKey, queue } = letter
          if (key !== null && (yield* session.execute(held, { to, key, id })).length > 0) continue
          const freed = yield* session.execute(free, { id })
          const fresh = orderingKey !== null && (freed.length === 0 || queue !== to) ? 1 : 0
          const [row] = yield* session.execute(add, { id, to, delay, fresh, lives: lives(letter) })
          yield* session.execute(remove, { id })
          if (key !== null) yield* session.execute(hold, { to, key, id: row?.id })
          if (orderingKey !== null) yield* advance(session, to, orderingKey)
          yield* freeKey(session, freed)
          moved.set(id, int(row?.id))
        }
        return moved
      }),
    purge: (session, ids) =>
      Effect.gen(function* () {
        let purged = 0
        let freed = false
        for (const id of ids) {
          purged += (yield* session.execute(remove, { id })).length
          const keys = yield* session.execute(free, { id })
          freed ||= keys.length > 0
          yield* freeKey(session, keys)
        }
        return { purged, freed }
      }),
    retire: (session, queue, limit) =>
      Effect.gen(function* () {
        let count = 0
        for (const { queues, remove: gone } of retirements)
          for (const { keep, name } of yield* session.execute(queues, { queue: queue ?? null }))
            count += (yield* session.execute(gone, { queue: name, keep, limit })).length
        return count
      })
  }
}

export const letters: PerEngine<(n: Names, notify: boolean) => Letters> = { postgres, sqlite }
