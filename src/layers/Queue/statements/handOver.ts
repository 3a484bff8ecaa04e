/**
 * enqueue, of jobs that are handed to a worker of this process in the same statement: they are stored as a claim would have left
 * them, if it would find nothing before them. Plain jobs that are alike and due.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { NewJob, Receipt, Receiver } from "../../../services/QueueStore.js"
import type { ClaimedRow } from "../../../services/Settlement.js"
import { type Names, nextval, type PerEngine, type Session, statement } from "../../engine.js"
import { leaseEnds, pausedQueue } from "./claim.js"
import { plainParameters } from "./enqueuePlain.js"
import { added } from "./holder.js"
import { int, type Taken, takenRow } from "./rows.js"

export interface HandedOver {
  readonly receipts: ReadonlyArray<Receipt>
  /** None when the queue is paused, or something else is to be claimed first: then they wait like others. */
  readonly taken: ReadonlyArray<ClaimedRow>
}

/** Undefined, and nothing is written, where it cannot be done so. */
type HandOver = (
  n: Names,
  notify: boolean
) => (
  session: Session,
  queue: string,
  jobs: ReadonlyArray<NewJob>,
  to: Pick<Receiver, "visibilityMillis" | "worker">,
  monotonic: number
) => Effect.Effect<HandedOver | undefined, StoreError>

const columns =
  "queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, visible_at, headers, token, worker, claimed_at, visibility_ms"

/**
 * Whether a claim would find nothing before a new job of this priority, nor a lease that has ended: a skip scan, as a claim's. A
 * LIMIT keeps a planner from reading all that is ready.
 */
const comesFirst = (n: Names, priority: string, now: string): string => {
  const waiting = "w.queue = :queue AND w.token IS NULL AND w.visible_at IS NOT NULL"
  const next = (below: string) =>
    `(SELECT w.priority FROM ${n.jobs} w WHERE ${waiting} AND w.priority >= ${priority}${below} ORDER BY w.priority DESC LIMIT 1)`
  return `(NOT ${pausedQueue(n)} AND coalesce(${leaseEnds(n)}, ${now} + 1) > ${now} AND NOT EXISTS (
      WITH RECURSIVE priorities (priority) AS (
        SELECT ${next("")} UNION ALL SELECT ${next(" AND w.priority < p.priority")} FROM priorities p WHERE p.priority IS NOT NULL
      )
      SELECT 1 FROM priorities p WHERE (SELECT w.visible_at FROM ${n.jobs} w WHERE ${waiting} AND w.priority = p.priority ORDER BY w.visible_at LIMIT 1) <= ${now}
    ))`
}

/** As a claim in the same statement would have answered it. */
const claimedRow = (job: NewJob, id: number, token: number, lease: Taken): ClaimedRow =>
  takenRow(
    {
      id,
      payload: job.payload,
      priority: job.priority,
      max_attempts: job.maxAttempts,
      enqueued_at: lease.now,
      due_at: lease.now,
      headers: job.headers
    },
    token,
    1,
    lease
  )

const postgres: HandOver = (n, notify) => {
  const ifFree = (value: string, otherwise = "NULL") => `CASE WHEN f.free THEN ${value} ELSE ${otherwise} END`
  const put = statement(
    n,
    "enqueue_claimed",
    `WITH f AS MATERIALIZED (SELECT ${comesFirst(n, ":priority::smallint", n.now)} AS free, ${n.now} AS now), added AS (
      INSERT INTO ${n.jobs} (${columns})
      SELECT :queue, i.payload, :priority::smallint, ${ifFree("1", "0")}, :maxAttempts::integer, f.now, f.now, ${ifFree("f.now + :visibility::bigint", "f.now")},
        :headers::text, ${ifFree(nextval(n.tokens))}, ${ifFree(":worker::text")}, ${ifFree("f.now")}, ${ifFree(":visibility::bigint")}
      FROM f, unnest(:payload::text[]) WITH ORDINALITY AS i (payload, n) ORDER BY i.n
      RETURNING id, token, enqueued_at
    )${notify ? ", note AS MATERIALIZED (SELECT pg_notify(:channel, :queue) FROM f WHERE NOT f.free)" : ""}
    SELECT string_agg(id::text, ',' ORDER BY id) AS ids, string_agg(token::text, ',' ORDER BY id) AS tokens, min(enqueued_at) AS now${notify ? ", (SELECT count(*) FROM note) AS noted" : ""} FROM added`
  )
  return (session, queue, jobs, { visibilityMillis, worker }, monotonic) => {
    const [first] = jobs
    if (first === undefined) return Effect.succeed(undefined)
    const payloads = jobs.map(({ payload }) => payload)
    const given = { ...plainParameters(n, queue, first, payloads), worker, visibility: visibilityMillis }
    return Effect.map(session.execute(put, given), ([row]) => {
      const now = int(row?.now)
      const ids = String(row?.ids).split(",").map(Number)
      const tokens = row?.tokens === null ? [] : String(row?.tokens).split(",").map(Number)
      const lease = { queue, now, visibilityMillis, monotonic }
      return {
        receipts: ids.map((id) => added(id, now, now)),
        taken: tokens.map((token, index) => claimedRow(jobs[index] as NewJob, ids[index] as number, token, lease))
      }
    })
  }
}

const sqlite: HandOver = (n) => {
  // Above whatever was given before
  const step = statement(
    n,
    "enqueue_tokens",
    `UPDATE ${n.tokens} SET value = value + :count WHERE id = 1 AND ${comesFirst(n, ":priority", n.now)} RETURNING value`
  )
  const put = statement(
    n,
    "enqueue_claimed",
    `INSERT INTO ${n.jobs} (${columns})
    SELECT :queue, value, :priority, 1, :maxAttempts, ${n.now}, ${n.now}, ${n.now} + :visibility, :headers, :base + key, :worker, ${n.now}, :visibility
    FROM json_each(:payload) RETURNING id, enqueued_at`
  )
  return (session, queue, jobs, { visibilityMillis, worker }, monotonic) => {
    const [first] = jobs
    if (first === undefined) return Effect.succeed(undefined)
    return Effect.flatMap(
      session.execute(step, { queue, count: jobs.length, priority: first.priority }),
      ([counter]) => {
        if (counter === undefined) return Effect.succeed(undefined)
        const base = int(counter.value) - jobs.length + 1
        const payloads = JSON.stringify(jobs.map(({ payload }) => payload))
        const given = { ...plainParameters(n, queue, first, payloads), base, worker, visibility: visibilityMillis }
        return Effect.map(session.execute(put, given), (rows) => {
          const now = int(rows[0]?.enqueued_at)
          const lease = { queue, now, visibilityMillis, monotonic }
          // Ids are given in the order of the list; a RETURNING has none
          const ids = rows.map((row) => int(row.id)).sort((x, y) => x - y)
          return {
            receipts: ids.map((id) => added(id, now, now)),
            taken: ids.map((id, index) => claimedRow(jobs[index] as NewJob, id, base + index, lease))
          }
        })
      }
    )
  }
}

export const handOver: PerEngine<HandOver> = { postgres, sqlite }
