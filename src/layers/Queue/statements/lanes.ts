/**
 * lanes: which job of an ordering key may be claimed. A job with a key is enqueued blocked; the first of a key that
 * has no other one unblocked is unblocked here, at its own due time. That at most one is, the unique index `jobs_head`
 * says as well.
 *
 * PostgreSQL: whatever may free a key or adds to one leaves a mark, in its own transaction: marks never wait for each
 * other, so two transactions on one key don't either. Whoever meets a mark advances its key. A mark commits with what
 * it is about, so who sees the one sees the other: nothing is left blocked for ever.
 * SQLite: inside the write lock nobody else changes a key: it is advanced at once, and there are no marks.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import { type JobState, stateOf } from "../../../services/JobState.js"
import { makeTurn, type Names, type PerEngine, type Session, statement } from "../../engine.js"
import { idAmong, metAt } from "./lists.js"
import { int, intOrNull } from "./rows.js"

/** Marks of one pass. */
const marksPerPass = 1_000

export interface Advanced {
  readonly unblocked: number
  /** There may be more marks than a pass takes, and it got somewhere with those it took. */
  readonly more: boolean
  /** Another pass was under way, or it must have its turn before it looks: nothing was done. */
  readonly missed: boolean
}

export interface Lanes {
  /** Deals with the marks of a queue. `mine`: the transaction has its turn already. */
  readonly advance: (session: Session, queue: string, mine: boolean) => Effect.Effect<Advanced, StoreError>
  /** Waits until the pass that is under way, if any, has ended, and has the turn for the rest of the transaction. */
  readonly turn: (session: Session, queue: string) => Effect.Effect<void, StoreError>
  /** The states of those that are live. */
  readonly states: (
    session: Session,
    ids: ReadonlyArray<number>
  ) => Effect.Effect<ReadonlyMap<number, JobState>, StoreError>
  readonly isMarked: (session: Session, queue: string) => Effect.Effect<boolean, StoreError>
  /** The next queue, by name, that has marks. */
  readonly nextMarked: (session: Session, after: string) => Effect.Effect<string | undefined, StoreError>
}

/**
 * Nobody of this key is unblocked, and no dead letter of a job before it holds it: one that was requeued, or that others behind it
 * have overtaken by expiring, waits for nobody at the head. A LIMIT keeps a planner from reading whole tables, the plus from
 * walking the letters by their ids.
 */
const free = (n: Names, queue: string, key: string, job: string): string =>
  `(SELECT 1 FROM ${n.jobs} h WHERE h.queue = ${queue} AND h.ordering_key = ${key} AND h.ordering_key IS NOT NULL AND h.visible_at IS NOT NULL LIMIT 1) IS NULL
      AND (SELECT 1 FROM ${n.laneBlocks} b WHERE b.queue = ${queue} AND b.ordering_key = ${key} AND +b.letter_id < ${job}id LIMIT 1) IS NULL`

/** PostgreSQL: whether the next pass unblocks a job, by its alias. */
export const isNextHead = (n: Names, job: string): string =>
  `(${job}.ordering_key IS NOT NULL AND ${job}.visible_at IS NULL
      AND (SELECT 1 FROM ${n.jobs} f WHERE f.queue = ${job}.queue AND f.ordering_key = ${job}.ordering_key AND f.ordering_key IS NOT NULL AND f.id < ${job}.id LIMIT 1) IS NULL
      AND ${free(n, `${job}.queue`, `${job}.ordering_key`, `${job}.`)})`

/**
 * One pass at a time per queue, by a lock that ends with the statement's transaction: two passes with different
 * snapshots could unblock two jobs of one key. The one that could slip between the snapshot and the lock is refused by
 * the unique index, and tried again by the caller. No index knows of a dead letter that has begun to hold its key in
 * that gap: where letters do, the lock comes before the snapshot, in a statement of its own.
 *
 * A job that somebody has locked (to replace, change or cancel it in a transaction of theirs) is not waited for: its key
 * is marked again, behind the others. The comparisons of rows make every planner walk `lane_marks_by_queue`, mark by
 * mark, and find the first job of a key in `jobs_ordered`: otherwise it might sort all marks, or walk through all jobs.
 * A plain `visible_at IS NULL` would invite it to read all that are blocked, by their own index.
 */
const postgres = (n: Names, notify: boolean): Lanes => {
  const pass = statement(
    n,
    "advance",
    `WITH RECURSIVE turn AS MATERIALIZED (
      SELECT CASE WHEN :mine::boolean OR (SELECT 1 FROM ${n.queues} q WHERE q.name = :queue AND q.on_dead = 'block') IS NULL
        THEN pg_try_advisory_xact_lock(hashtextextended(:lane, 0)) ELSE false END AS mine
    ), marks (n, id, queue, ordering_key) AS (
      SELECT 0, 0::bigint, :queue::text COLLATE "C", NULL::text FROM turn WHERE mine
      UNION ALL
      SELECT p.n + 1, m.id, m.queue, m.ordering_key FROM marks p CROSS JOIN LATERAL (
        SELECT m.id, m.queue, m.ordering_key FROM ${n.laneMarks} m
        WHERE (m.queue, m.id) > (p.queue, p.id) ORDER BY m.queue, m.id LIMIT 1
      ) m WHERE p.n < ${marksPerPass} AND m.queue = p.queue
    ), heads AS MATERIALIZED (
      SELECT f.id, k.ordering_key FROM (SELECT DISTINCT ordering_key FROM marks WHERE n > 0) k CROSS JOIN LATERAL (
        SELECT j.id, j.queue, j.ordering_key FROM ${n.jobs} j
        WHERE j.ordering_key IS NOT NULL AND (j.queue, j.ordering_key, j.id) > (:queue, k.ordering_key, 0)
        ORDER BY j.queue, j.ordering_key, j.id LIMIT 1
      ) f WHERE f.queue = :queue AND f.ordering_key = k.ordering_key AND ${free(n, ":queue", "k.ordering_key", "f.")}
    ), held AS MATERIALIZED (
      SELECT j.id FROM ${n.jobs} j WHERE j.id = ANY (ARRAY(SELECT id FROM heads)) AND coalesce(j.visible_at, -1) = -1 FOR UPDATE SKIP LOCKED
    ), unblocked AS (
      UPDATE ${n.jobs} j SET visible_at = ${metAt.postgres("j.due_at", "j.expires_at")} WHERE j.id = ANY (ARRAY(SELECT id FROM held)) RETURNING j.id
    ), done AS (
      DELETE FROM ${n.laneMarks} WHERE id = ANY (ARRAY(SELECT id FROM marks))
    ), again AS (
      INSERT INTO ${n.laneMarks} (queue, ordering_key)
      SELECT :queue, h.ordering_key FROM heads h WHERE h.id <> ALL (ARRAY(SELECT id FROM held)) RETURNING id
    )${notify ? `, note AS MATERIALIZED (SELECT pg_notify(:channel, :queue) FROM (SELECT 1 FROM unblocked LIMIT 1) AS one)` : ""}
    SELECT mine, (SELECT max(n) FROM marks) AS marks, (SELECT count(DISTINCT ordering_key) FROM marks) - (SELECT count(*) FROM again) AS settled, (SELECT count(*) FROM unblocked) AS unblocked${notify ? ", (SELECT count(*) FROM note) AS noted" : ""} FROM turn`
  )
  const turn = makeTurn(n, "advance_turn")
  const nextMarked = statement(
    n,
    "advance_queues",
    `SELECT queue FROM ${n.laneMarks} WHERE queue > :after ORDER BY queue LIMIT 1`
  )
  const marked = statement(n, "advance_marked", `SELECT 1 AS marked FROM ${n.laneMarks} WHERE queue = :queue LIMIT 1`)
  const states = statement(
    n,
    "advance_states",
    `SELECT id, token, visible_at, ${n.now} AS now FROM ${n.jobs} WHERE ${idAmong.postgres}`
  )
  const lane = (queue: string) => `alkstore:lanes:${n.namespace}:${queue}`
  return {
    advance: (session, queue, mine) =>
      Effect.map(session.execute(pass, { queue, mine, lane: lane(queue), channel: n.channel }), ([row]) => ({
        unblocked: int(row?.unblocked),
        more: int(row?.marks) === marksPerPass && int(row?.settled) > 0,
        missed: row?.mine !== true
      })),
    states: (session, ids) =>
      Effect.map(
        session.execute(states, { ids }),
        (rows) =>
          new Map(
            rows.map((row) => [
              int(row.id),
              stateOf({ token: intOrNull(row.token), visibleAt: intOrNull(row.visible_at) }, int(row.now))
            ])
          )
      ),
    isMarked: (session, queue) => Effect.map(session.execute(marked, { queue }), (rows) => rows.length > 0),
    turn: (session, queue) => turn(session, lane(queue)),
    nextMarked: (session, after) =>
      Effect.map(session.execute(nextMarked, { after }), ([row]) => (row === undefined ? undefined : String(row.queue)))
  }
}

/** SQLite: the first job of a key, unblocked if it may be; answers its id. */
export const advanceKey = (n: Names) => {
  const text = statement(
    n,
    "advance",
    `UPDATE ${n.jobs} SET visible_at = ${metAt.sqlite("due_at", "expires_at")}
    WHERE id = (SELECT j.id FROM ${n.jobs} j WHERE j.queue = :queue AND j.ordering_key = :key ORDER BY j.id LIMIT 1)
      AND visible_at IS NULL AND token IS NULL AND ${free(n, ":queue", ":key", "")}
    RETURNING id`
  )
  return (session: Session, queue: string, key: string): Effect.Effect<number | undefined, StoreError> =>
    Effect.map(session.execute(text, { queue, key }), ([row]) => (row === undefined ? undefined : int(row.id)))
}

const sqlite = (): Lanes => ({
  states: () => Effect.succeed(new Map()),
  isMarked: () => Effect.succeed(false),
  advance: () => Effect.succeed({ unblocked: 0, more: false, missed: false }),
  turn: () => Effect.void,
  nextMarked: () => Effect.succeed(undefined)
})

export const lanes: PerEngine<(n: Names, notify: boolean) => Lanes> = { postgres, sqlite }
