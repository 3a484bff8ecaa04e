/**
 * claim: takes ready jobs of a queue in order (priority, the instant from which they are visible, id), each under a
 * lease with a token of its own.
 *
 * Both engines walk the index of waiting rows priority by priority, from the highest, and stop when they have enough:
 * rows that are delayed, leased, blocked or dead are not met. Rows that have expired are met but not taken; lapsed
 * leases are seen in their own index. Both are only reported: the caller moves them (see `sweep`) and claims again.
 */
import { Effect, Random } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { ClaimRequest } from "../../../services/QueueStore.js"
import type { ClaimedRow } from "../../../services/Settlement.js"
import {
  clockStepMillis,
  type Names,
  nextval,
  onceNow,
  type PerEngine,
  type Row,
  type Session,
  statement
} from "../../engine.js"
import { idAmong } from "./lists.js"
import { bool, int, intOrNull, rareOf, takenColumns, takenNames, takenRow } from "./rows.js"

export interface Claimed {
  /** In no order. */
  readonly rows: ReadonlyArray<ClaimedRow>
  /** How many rows were looked at: as many as asked for means that there may be more. */
  readonly seen: number
  readonly expired: number
  readonly lapsed: boolean
  /** There are marks of ordering keys to deal with: see `lanes`. */
  readonly marked: boolean
  /** The queue is paused: nothing was looked for. */
  readonly paused: boolean
  /** When the next job is due or the next lease ends, if the ready ones were used up; and the present. */
  readonly nextAt: number | null
  readonly now: number
  /** Of the last row that was looked at. PostgreSQL only. */
  readonly last?: ClaimRequest["after"]
}

/** `monotonic`: this process's clock just before the claim. */
type Claim = (
  n: Names
) => (session: Session, request: ClaimRequest, monotonic?: number) => Effect.Effect<Claimed, StoreError>

/** A job that crashed before, or is on its last attempt: claimed only into a free handler, never ahead of one. */
const risky = "(crashes > 0 OR attempt + 1 >= max_attempts)"

export const pausedQueue = (n: Names) =>
  `EXISTS (SELECT 1 FROM ${n.queues} q WHERE q.name = :queue AND q.paused_at IS NOT NULL)`

export const leaseEnds = (n: Names) =>
  `(SELECT l.visible_at FROM ${n.jobs} l WHERE l.queue = :queue AND l.token IS NOT NULL ORDER BY l.visible_at LIMIT 1)`

/**
 * One statement. `priorities` is a skip scan: one index probe per distinct priority, read only as far as needed.
 * `ANY (ARRAY(…))` makes every plan go by primary key; the CTEs are materialised, so that LIMIT means what it says.
 */
const postgres: Claim = (n) => {
  const now = onceNow(n)
  // Of the hinted priority only: the others are walked from their beginning
  const after = (parameter: string) =>
    `CASE WHEN p.priority = :afterPriority::smallint THEN :${parameter}::bigint ELSE -1 END`
  const waiting = (alias: string) =>
    `${alias}.queue = :queue AND ${alias}.token IS NULL AND ${alias}.visible_at IS NOT NULL`
  const text = statement(
    n,
    "claim",
    `WITH RECURSIVE priorities (priority) AS (
      SELECT CASE WHEN NOT ${pausedQueue(n)} THEN coalesce(:afterPriority::smallint, (SELECT w.priority FROM ${n.jobs} w WHERE ${waiting("w")} ORDER BY w.priority DESC LIMIT 1)) END
      UNION ALL
      SELECT (SELECT w.priority FROM ${n.jobs} w WHERE ${waiting("w")} AND w.priority < p.priority ORDER BY w.priority DESC LIMIT 1)
      FROM priorities p WHERE p.priority IS NOT NULL
    ), seen AS MATERIALIZED (
      SELECT s.id, s.expired, s.risky, s.crashed, s.priority, s.visible_at, row_number() OVER () AS n
      FROM (
        SELECT c.* FROM priorities p CROSS JOIN LATERAL (
          SELECT w.id, w.priority, w.visible_at, coalesce(w.expires_at <= ${now}, false) AS expired, ${risky} AS risky, w.crashes > 0 AS crashed
          FROM ${n.jobs} w
          WHERE ${waiting("w")} AND w.priority = p.priority AND w.visible_at <= ${n.now} AND (w.visible_at, w.id) > (${after("afterAt")}, ${after("afterId")})
          ORDER BY w.visible_at, w.id LIMIT :limit::integer FOR UPDATE SKIP LOCKED
        ) c WHERE p.priority IS NOT NULL LIMIT :limit::integer
      ) s
    ), claimed AS (
      UPDATE ${n.jobs} j
      SET token = ${nextval(n.tokens)}, attempt = j.attempt + 1, worker = :worker, claimed_at = ${now},
        visible_at = ${now} + :visibility::bigint, visibility_ms = :visibility::bigint
      WHERE j.id = ANY (ARRAY(SELECT s.id FROM seen s WHERE NOT s.expired AND (NOT s.risky OR s.n <= :handlers::integer
          OR (s.n <= :free::integer AND s.n < coalesce((SELECT min(c.n) FROM seen c WHERE c.crashed), :free::integer + 1)))))
      RETURNING j.id, j.token, ${takenColumns("postgres", "j.")}, CASE WHEN j.dedupe_scope = 'waiting' THEN j.dedupe_key END AS freeing
    ), freed AS (
      DELETE FROM ${n.dedupeKeys} WHERE queue = :queue AND dedupe_key = ANY (ARRAY(SELECT freeing FROM claimed WHERE freeing IS NOT NULL))
        AND job_id = ANY (ARRAY(SELECT id FROM claimed WHERE freeing IS NOT NULL)) AND free_at IS NULL
    ), counted AS (
      SELECT count(*) AS seen, count(*) FILTER (WHERE expired) AS expired FROM seen
    ), facts AS (
      SELECT json_build_array(f.seen, f.expired, ${n.now}, ${pausedQueue(n)}, EXISTS (SELECT 1 FROM ${n.laneMarks} m WHERE m.queue = :queue),
        CASE WHEN :probe::boolean OR f.seen < :limit::integer THEN ${leaseEnds(n)} END,
        CASE WHEN f.seen < :limit::integer THEN (
          SELECT min(d.visible_at) FROM priorities p CROSS JOIN LATERAL (
            SELECT w.visible_at FROM ${n.jobs} w
            WHERE ${waiting("w")} AND w.priority = p.priority AND w.visible_at > ${n.now} ORDER BY w.visible_at LIMIT 1
          ) d WHERE p.priority IS NOT NULL
        ) END,
        (SELECT json_build_array(l.priority, l.visible_at, l.id) FROM seen l WHERE l.n = f.seen))::text AS facts
      FROM counted f
    )
    SELECT f.facts, c.id, c.token, ${takenNames("c.")} FROM facts f LEFT JOIN claimed c ON false
    UNION ALL SELECT NULL, c.id, c.token, ${takenNames("c.")} FROM claimed c`
  )
  return (
    session,
    { after, limit, handlers = limit, prefetch, probe, queue, visibilityMillis, worker },
    monotonic = 0
  ) =>
    Effect.map(
      session.execute(text, {
        queue,
        limit: limit + prefetch,
        free: limit,
        handlers,
        visibility: visibilityMillis,
        worker,
        probe,
        afterPriority: after?.priority ?? null,
        afterAt: after?.visibleAt ?? null,
        afterId: after?.id ?? null
      }),
      (rows) => {
        const told = rows.find((row) => row.facts !== null)
        const facts = told === undefined ? noFacts : (JSON.parse(String(told.facts)) as Facts)
        const [seen, expired, now, paused, marked, leaseEnds, dueNext, last] = facts
        const taken = { queue, now, visibilityMillis, monotonic }
        const [priority, visibleAt, id] = last ?? []
        return {
          rows: rows
            .filter((row) => row.id !== null)
            .map((row) => takenRow(row, int(row.token), int(row.attempt), taken)),
          seen,
          expired,
          lapsed: leaseEnds !== null && leaseEnds <= now,
          marked,
          paused,
          nextAt: earliest(leaseEnds, dueNext),
          now,
          last:
            priority === undefined || visibleAt === undefined || id === undefined
              ? undefined
              : { priority, visibleAt, id }
        }
      }
    )
}

/** What a claim tells beside its rows, in one of its own. */
type Facts = [
  seen: number,
  expired: number,
  now: number,
  paused: boolean,
  marked: boolean,
  leaseEnds: number | null,
  dueNext: number | null,
  last: readonly [priority: number, visibleAt: number, id: number] | null
]

const noFacts: Facts = [0, 0, 0, false, false, null, null, null]

const earliest = (a: number | null, b: number | null): number | null =>
  a === null ? b : b === null ? a : Math.min(a, b)

/**
 * A walk of single look-ups, each by index: in-process, a look-up costs microseconds. Nothing is written when nothing
 * can be claimed, and all that is claimed in one statement. Tokens come from a counter in the same transaction, which
 * moves on by as much as their ids are apart; a claim in the caller's transaction takes a random step more, so that a
 * token that is rolled back there is not handed out again.
 */
const sqlite: Claim = (n) => {
  const waiting = "queue = :queue AND token IS NULL AND visible_at IS NOT NULL"
  const ready = statement(
    n,
    "claim_ready",
    `SELECT id, ${takenColumns("sqlite")} FROM ${n.jobs}
    WHERE ${waiting} AND priority = :priority AND visible_at <= ${n.now} ORDER BY visible_at, id LIMIT :limit`
  )
  // `unlikely`: on analysed tables the planner may find it cheaper to skip through the rows of all queues, and to sort
  const next = statement(
    n,
    "claim_next",
    `SELECT (
        SELECT visible_at FROM ${n.jobs} WHERE unlikely(queue = :queue) AND token IS NULL AND visible_at IS NOT NULL
          AND priority = :priority AND visible_at > ${n.now} ORDER BY visible_at LIMIT 1
      ) AS visible_at,
      (SELECT priority FROM ${n.jobs} WHERE ${waiting} AND priority < :priority ORDER BY priority DESC LIMIT 1) AS below`
  )
  const first = statement(
    n,
    "claim_first",
    `SELECT ${leaseEnds(n)} AS lease_ends, ${n.now} AS now, ${pausedQueue(n)} AS paused,
      (SELECT priority FROM ${n.jobs} WHERE ${waiting} ORDER BY priority DESC LIMIT 1) AS priority,
      (SELECT l.visible_at - l.visibility_ms FROM ${n.jobs} l WHERE l.queue = :queue AND l.token IS NOT NULL ORDER BY l.visible_at - l.visibility_ms DESC LIMIT 1) AS begun`
  )
  const step = statement(
    n,
    "claim_tokens",
    `UPDATE ${n.tokens} SET value = value + :count WHERE id = 1 RETURNING value`
  )
  const take = statement(
    n,
    "claim",
    `UPDATE ${n.jobs} SET token = :base + id, attempt = attempt + 1, worker = :worker, claimed_at = ${n.now},
      visible_at = ${n.now} + :visibility, visibility_ms = :visibility
    WHERE ${idAmong.sqlite}`
  )
  const freeKey = statement(
    n,
    "claim_key",
    `DELETE FROM ${n.dedupeKeys} WHERE queue = :queue AND dedupe_key = :key AND job_id = :id AND free_at IS NULL`
  )
  const free = (session: Session, queue: string, taken: ReadonlyArray<Row>) => {
    const freeing = taken.filter((row) => rareOf(row)[4] === "waiting")
    if (freeing.length === 0) return Effect.void
    return Effect.forEach(freeing, (row) => session.execute(freeKey, { queue, key: rareOf(row)[3], id: row.id }), {
      discard: true
    })
  }
  return (session, { limit, handlers = limit, prefetch, queue, visibilityMillis, worker }, monotonic = 0) =>
    Effect.gen(function* () {
      const wanted = limit + prefetch
      const [facts] = yield* session.execute(first, { queue })
      const now = int(facts?.now)
      let nextAt = intOrNull(facts?.lease_ends)
      const begun = intOrNull(facts?.begun)
      const lapsed = (nextAt !== null && nextAt <= now) || (begun !== null && begun > now + clockStepMillis)
      const paused = bool(facts?.paused)
      const seen: Array<Row> = []
      let priority = paused ? null : intOrNull(facts?.priority)
      while (priority !== null) {
        const rows: ReadonlyArray<Row> = yield* session.execute(ready, {
          queue,
          priority,
          limit: wanted - seen.length
        })
        for (const row of rows) seen.push(row)
        if (seen.length >= wanted) break
        const [rest]: ReadonlyArray<Row> = yield* session.execute(next, { queue, priority })
        nextAt = earliest(nextAt, intOrNull(rest?.visible_at))
        priority = intOrNull(rest?.below)
      }
      const crashed = seen.findIndex((row) => rareOf(row)[0] > 0)
      const together = crashed === -1 ? limit : Math.min(limit, crashed)
      const taken = seen.filter(
        (row, index) => !isExpired(row, now) && (index < Math.max(handlers, together) || !isRisky(row))
      )
      let rows: ReadonlyArray<ClaimedRow> = []
      if (taken.length > 0 && session.writes) {
        const spread = session.joined ? yield* Random.nextIntBetween(0, 1 << 20) : 0
        const ids = taken.map((row) => int(row.id))
        const lowest = Math.min(...ids)
        const count = Math.max(...ids) - lowest + 1
        const [counter] = yield* session.execute(step, { count: count + spread })
        // All of them above whatever was given before, and apart as their ids are
        const base = int(counter?.value) - count + 1 - lowest
        yield* session.execute(take, { ids: JSON.stringify(ids), base, worker, visibility: visibilityMillis })
        yield* free(session, queue, taken)
        const lease = { queue, now, visibilityMillis, monotonic }
        rows = taken.map((row, index) => takenRow(row, base + (ids[index] as number), int(row.attempt) + 1, lease))
      }
      const expired = seen.filter((row) => isExpired(row, now)).length
      return { rows, seen: seen.length, expired, lapsed, marked: false, paused, nextAt, now }
    })
}

const isExpired = (row: Row, now: number): boolean => (rareOf(row)[2] ?? now + 1) <= now

/** As `risky`. */
const isRisky = (row: Row): boolean => rareOf(row)[0] > 0 || int(row.attempt) + 1 >= int(row.max_attempts)

export const claim: PerEngine<Claim> = { postgres, sqlite }
