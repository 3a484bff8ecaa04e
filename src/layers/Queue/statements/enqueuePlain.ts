/**
 * enqueue, of jobs without keys that differ in their payload alone, as nearly all do: one statement, with a list of
 * payloads and the rest said once.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { NewJob, Receipt } from "../../../services/QueueStore.js"
import { type Names, type PerEngine, type Session, statement } from "../../engine.js"
import { added, dueAt } from "./holder.js"
import { int } from "./rows.js"

type EnqueuePlain = (
  n: Names,
  notify: boolean
) => (session: Session, queue: string, jobs: ReadonlyArray<NewJob>) => Effect.Effect<ReadonlyArray<Receipt>, StoreError>

/** Whether a job has no key that others might have, so that it can neither wait for another nor be refused. */
export const isPlain = (job: NewJob): boolean => job.dedupeKey === null && job.orderingKey === null

/** Whether jobs are plain and differ in nothing but their payload. */
export const areAlike = (jobs: ReadonlyArray<NewJob>): boolean => {
  const [first] = jobs
  if (first === undefined) return false
  return jobs.every(
    (job) =>
      isPlain(job) &&
      job.priority === first.priority &&
      job.maxAttempts === first.maxAttempts &&
      job.delayMillis === first.delayMillis &&
      job.runAt === first.runAt &&
      job.expiresMillis === first.expiresMillis &&
      job.expiresAt === first.expiresAt &&
      job.headers === first.headers
  )
}

const columns =
  "queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, visible_at, expires_at, expires_ms, headers"

/** What is said once of jobs that are alike, and their payload or payloads. */
export const plainParameters = (n: Names, queue: string, job: NewJob, payload: unknown) => ({
  queue,
  channel: n.channel,
  priority: job.priority,
  maxAttempts: job.maxAttempts,
  delay: job.delayMillis,
  runAt: job.runAt,
  expiresMillis: job.expiresMillis,
  expiresAt: job.expiresAt,
  headers: job.headers,
  payload
})

const postgres: EnqueuePlain = (n, notify) => {
  const dueOf = (now: string) => dueAt(now, "greatest", ":runAt::bigint", ":delay::bigint")
  const values = (payload: string, now: string, due: string) =>
    `:queue, ${payload}, :priority::smallint, 0, :maxAttempts::integer, ${now}, ${due}, ${due}, coalesce(:expiresAt::bigint, ${due} + :expiresMillis::bigint), :expiresMillis::bigint, :headers::text`
  const noted = notify ? ", pg_notify(:channel, :queue)::text AS noted" : ""
  // The server's clock each time that it is named: of one row that is less than to begin a query of its own for it
  const one = statement(
    n,
    "enqueue_one",
    `INSERT INTO ${n.jobs} (${columns}) VALUES (${values(":payload::text", n.now, dueOf(n.now))})
    RETURNING id::text AS ids, due_at AS due, enqueued_at AS now${noted}`
  )
  // Of many it is looked at once (`OFFSET` keeps that apart). Ids are given in the order of the list, and come back in order
  const many = statement(
    n,
    "enqueue_plain",
    `WITH added AS (
      INSERT INTO ${n.jobs} (${columns}) SELECT ${values("i.payload", "t.now", "t.due")}
      FROM (SELECT c.now, ${dueOf("c.now")} AS due FROM (SELECT ${n.now} AS now OFFSET 0) AS c OFFSET 0) AS t
      CROSS JOIN unnest(:payload::text[]) WITH ORDINALITY AS i (payload, n) ORDER BY i.n
      RETURNING id, due_at, enqueued_at
    )
    SELECT string_agg(id::text, ',' ORDER BY id) AS ids, min(due_at) AS due, min(enqueued_at) AS now${noted} FROM added`
  )
  return (session, queue, jobs) => {
    const [first] = jobs
    if (first === undefined) return Effect.succeed([])
    const payload = jobs.length === 1 ? first.payload : jobs.map((job) => job.payload)
    const given = plainParameters(n, queue, first, payload)
    return Effect.map(session.execute(jobs.length === 1 ? one : many, given), ([row]) => {
      const dueAt = int(row?.due)
      const now = int(row?.now)
      return String(row?.ids)
        .split(",")
        .map((id) => added(Number(id), dueAt, now))
    })
  }
}

const sqlite: EnqueuePlain = (n) => {
  const due = dueAt(n.now, "max", ":runAt", ":delay")
  const values = (payload: string) =>
    `:queue, ${payload}, :priority, 0, :maxAttempts, ${n.now}, ${due}, ${due}, coalesce(:expiresAt, ${due} + :expiresMillis), :expiresMillis, :headers`
  const one = statement(
    n,
    "enqueue_one",
    `INSERT INTO ${n.jobs} (${columns}) VALUES (${values(":payload")}) RETURNING id, due_at - enqueued_at AS wait`
  )
  const insert = `INSERT INTO ${n.jobs} (${columns}) SELECT ${values("value")} FROM json_each(:payload)`
  const many = statement(n, "enqueue_plain", insert)
  // Under the write lock AUTOINCREMENT counts on, and to hear the id of each row costs as much as its INSERT
  const last = statement(
    n,
    "enqueue_last",
    `SELECT id, changes() AS count, due_at - enqueued_at AS wait FROM ${n.jobs} WHERE id = last_insert_rowid()`
  )
  // In the caller's transaction a statement of another of its fibers may come between
  const told = statement(n, "enqueue_told", `${insert} RETURNING id, due_at - enqueued_at AS wait`)
  return (session, queue, jobs) => {
    const [first] = jobs
    if (first === undefined) return Effect.succeed([])
    if (jobs.length === 1) {
      const given = plainParameters(n, queue, first, first.payload)
      return Effect.map(session.execute(one, given), ([row]) => [added(int(row?.id), int(row?.wait), 0)])
    }
    const payload = JSON.stringify(jobs.map((job) => job.payload))
    const given = plainParameters(n, queue, first, payload)
    if (session.joined)
      return Effect.map(session.execute(told, given), (rows) =>
        // Ids are given in the order of the list; a RETURNING has none
        rows.map((row) => added(int(row.id), int(row.wait), 0)).sort((a, b) => a.id - b.id)
      )
    return Effect.flatMap(session.execute(many, given), () =>
      Effect.map(session.execute(last, {}), ([row]) => {
        const before = int(row?.id) - int(row?.count)
        const wait = int(row?.wait)
        return jobs.map((_, index) => added(before + 1 + index, wait, 0))
      })
    )
  }
}

export const enqueuePlain: PerEngine<EnqueuePlain> = { postgres, sqlite }
