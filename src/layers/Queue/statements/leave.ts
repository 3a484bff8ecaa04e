/**
 * leave: how jobs leave the live table, whoever ends them. With the row go its dedupe key (or the key is held on for
 * its window) and its place in its ordering key; a dead letter is written, holds its key if the queue says so, and an
 * envelope of it is enqueued in the queue's dead-letter queue. All in the transaction of the removal.
 *
 * The parts for PostgreSQL are CTEs after one named `gone`: the removed rows, whole. A burial also has one named
 * `verdict` (id, reason, crashes, failures, errors, failure_times).
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import { type Names, nextval, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { advanceKey } from "./lanes.js"
import { intOrNull, textOrNull } from "./rows.js"

/** What a job keeps when it leaves the live table, unless the move says otherwise. */
export const keptColumns =
  "queue, payload, priority, enqueued_at, due_at, expires_at, expires_ms, max_attempts, dedupe_key, dedupe_scope, dedupe_window_ms, ordering_key, headers, progress, history"

export const qualified = (alias: string, columns: string): string =>
  columns
    .split(", ")
    .map((column) => `${alias}.${column}`)
    .join(", ")

const quoted: PerEngine<(expression: string) => string> = {
  postgres: (expression) => `coalesce(to_json(${expression})::text, 'null')`,
  sqlite: (expression) => `json_quote(${expression})`
}

/** The payload of a job in a dead-letter queue: see `Queue.deadEnvelope`. */
const envelope = (n: Names, g: string, v: string): string =>
  `'{"payload":' || ${g}.payload || ',"reason":"' || ${v}.reason || '","errors":' || coalesce(${v}.errors, '[]') || ',"origin":{"id":' || ${g}.id || ',"queue":"' || ${g}.queue || '","attempts":' || ${g}.attempt || ',"priority":' || ${g}.priority || ',"enqueuedAt":' || ${g}.enqueued_at || ',"diedAt":' || ${n.now} || ',"dedupeKey":' || ${quoted[n.engine](`${g}.dedupe_key`)} || ',"orderingKey":' || ${quoted[n.engine](`${g}.ordering_key`)} || '}}'`

/** A default of the queue that takes the envelope. */
const setting: PerEngine<(column: string, name: string, type: string) => string> = {
  postgres: (column, name, type) => `(${column}::json ->> '${name}')::${type}`,
  sqlite: (column, name) => `json_extract(${column}, '$.${name}')`
}

const envelopeColumns = "queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, visible_at, headers"

const envelopeValues = (n: Names, g: string, v: string, q: string, d: string): string =>
  `${q}.dead_letter_queue, ${envelope(n, g, v)}, coalesce(${setting[n.engine](`${d}.defaults`, "priority", "smallint")}, 0), 0, coalesce(${setting[n.engine](`${d}.defaults`, "maxAttempts", "integer")}, 20), ${n.now}, ${n.now}, ${n.now}, ${g}.headers`

const letterColumns = `id, attempt, crashes, failures, errors, failure_times, reason, died_at, token, ${keptColumns}`

/**
 * PostgreSQL: the keys and places of the rows in `gone`. A key with a window is held on, unless its job was cancelled:
 * all of them, or those whose verdict says so.
 */
export const released = (n: Names, notify: boolean, cancelled: boolean | "verdict" = false): string => {
  const held = (k: string, which: string) =>
    `${k}.queue = ANY (ARRAY(SELECT DISTINCT queue FROM gone)) AND ${k}.dedupe_key = ANY (ARRAY(SELECT dedupe_key FROM gone WHERE dedupe_key IS NOT NULL${which})) AND ${k}.free_at IS NULL`
  const called = (g: string) =>
    cancelled === "verdict" ? `${g}id IN (SELECT id FROM verdict WHERE reason = 'cancelled')` : "false"
  const windowed = (g = "") => `${g}dedupe_window_ms IS NOT NULL AND NOT ${called(g)}`
  const windows =
    cancelled === true
      ? ""
      : `, windows AS (
      UPDATE ${n.dedupeKeys} k SET free_at = ${n.now} + g.dedupe_window_ms FROM gone g
      WHERE ${held("k", ` AND ${windowed()}`)} AND k.job_id = g.id AND ${windowed("g.")}
    )`
  return `keys AS (
      DELETE FROM ${n.dedupeKeys} k WHERE ${held("k", cancelled === true ? "" : ` AND NOT (${windowed()})`)} AND k.job_id = ANY (ARRAY(SELECT id FROM gone${cancelled === true ? "" : ` WHERE NOT (${windowed()})`}))
    )${windows}, marks AS (
      INSERT INTO ${n.laneMarks} (queue, ordering_key) SELECT DISTINCT queue, ordering_key FROM gone WHERE ordering_key IS NOT NULL
      RETURNING queue
    )${notify ? `, freed AS MATERIALIZED (SELECT pg_notify(:channel, queue) FROM (SELECT DISTINCT queue FROM marks) AS q)` : ""}`
}

/** PostgreSQL: `released`, and the letters of the rows in `gone` by their `verdict`. */
export const buried = (n: Names, notify: boolean, cancelled = false): string => {
  const letters = `${released(n, notify, cancelled ? true : "verdict")}, letters AS (
      INSERT INTO ${n.deadLetters} (${letterColumns})
      SELECT g.id, g.attempt, v.crashes, v.failures, v.errors, v.failure_times, v.reason, ${n.now}, g.token, ${qualified("g", keptColumns)}
      FROM gone g JOIN verdict v USING (id)
    )`
  if (cancelled) return letters
  return `${letters}, blocks AS (
      INSERT INTO ${n.laneBlocks} (letter_id, queue, ordering_key)
      SELECT g.id, g.queue, g.ordering_key FROM gone g JOIN verdict v USING (id) JOIN ${n.queues} q ON q.name = g.queue
      WHERE g.ordering_key IS NOT NULL AND q.on_dead = 'block' AND v.reason <> 'cancelled'
    ), envelopes AS (
      INSERT INTO ${n.jobs} (id, ${envelopeColumns})
      SELECT ${nextval(n.jobIds)}, ${envelopeValues(n, "g", "v", "q", "d")}
      FROM gone g JOIN verdict v USING (id) JOIN ${n.queues} q ON q.name = g.queue LEFT JOIN ${n.queues} d ON d.name = q.dead_letter_queue
      WHERE q.dead_letter_queue IS NOT NULL AND v.reason <> 'cancelled'
      RETURNING queue
    )${notify ? `, sent AS MATERIALIZED (SELECT pg_notify(:channel, queue) FROM (SELECT DISTINCT queue FROM envelopes) AS q)` : ""}`
}

/** PostgreSQL: what the statement answers besides its own, so that every CTE with a notification is read. */
export const leaveFacts = (notify: boolean, kind: "released" | "buried" | "cancelled"): string => {
  const noted = [
    ...(notify ? ["(SELECT count(*) FROM freed)"] : []),
    ...(notify && kind === "buried" ? ["(SELECT count(*) FROM sent)"] : [])
  ]
  const topics = kind === "buried" ? ", (SELECT string_agg(DISTINCT queue, ',') FROM envelopes) AS envelope_queues" : ""
  return `(ordering_key IS NOT NULL) AS keyed${topics}${noted.length === 0 ? "" : `, ${noted.join(" + ")} AS noted`}`
}

/** The queues in which a statement enqueued envelopes, by any of its rows; no name has a comma. */
export const envelopeQueues = ({ envelope_queues: names }: Row): ReadonlyArray<string> =>
  typeof names === "string" ? names.split(",") : []

/** Why a job is dead, and what it remembers. */
export interface Verdict {
  readonly reason: string
  readonly crashes: unknown
  readonly failures: unknown
  readonly errors: unknown
  readonly times: unknown
}

/** What a row must tell for `leave`. */
export const leavingColumns = "id, queue, dedupe_key, dedupe_window_ms, ordering_key"

/** What one call gathers: queues whose next job may be ready, and the settings it has looked up. */
export interface Leaving {
  readonly woken: Set<string>
  readonly settings: Map<string, Row | undefined>
}

export const leaving = (): Leaving => ({ woken: new Set(), settings: new Map() })

/** SQLite: the same row by row, inside the write lock. */
export const makeLeave = (n: Names) => {
  const settings = statement(
    n,
    "leave_settings",
    `SELECT dead_letter_queue, on_dead, retain_completed_ms FROM ${n.queues} WHERE name = :queue`
  )
  const letter = statement(
    n,
    "leave_letter",
    `INSERT INTO ${n.deadLetters} (${letterColumns})
    SELECT id, attempt, :crashes, :failures, :errors, :times, :reason, ${n.now}, token, ${keptColumns} FROM ${n.jobs} WHERE id = :id`
  )
  const completed = statement(
    n,
    "leave_completed",
    `INSERT INTO ${n.completedJobs} (id, attempt, crashes, failures, errors, failure_times, completed_at, token, ${keptColumns})
    SELECT id, attempt, crashes, failures, errors, failure_times, ${n.now}, token, ${keptColumns} FROM ${n.jobs} WHERE id = :id`
  )
  const remove = statement(n, "leave_job", `DELETE FROM ${n.jobs} WHERE id = :id`)
  const mine = "queue = :queue AND dedupe_key = :key AND job_id = :id AND free_at IS NULL"
  const freeKey = statement(n, "leave_key", `DELETE FROM ${n.dedupeKeys} WHERE ${mine}`)
  const holdKey = statement(
    n,
    "leave_key_window",
    `UPDATE ${n.dedupeKeys} SET free_at = ${n.now} + :window WHERE ${mine}`
  )
  const block = statement(
    n,
    "leave_block",
    `INSERT INTO ${n.laneBlocks} (letter_id, queue, ordering_key) VALUES (:id, :queue, :key)`
  )
  const send = statement(
    n,
    "leave_envelope",
    `INSERT INTO ${n.jobs} (${envelopeColumns})
    SELECT ${envelopeValues(n, "g", "g", "q", "d")}
    FROM ${n.deadLetters} g JOIN ${n.queues} q ON q.name = g.queue LEFT JOIN ${n.queues} d ON d.name = q.dead_letter_queue
    WHERE g.id = :id RETURNING queue`
  )
  const advance = advanceKey(n)
  const settingsOf = (session: Session, queue: string, { settings: known }: Leaving) =>
    known.has(queue)
      ? Effect.succeed(known.get(queue))
      : Effect.map(session.execute(settings, { queue }), ([row]) => {
          known.set(queue, row)
          return row
        })
  /** The key and the place of a row that has left. */
  const release = (session: Session, row: Row, { woken }: Leaving, window: number | null) =>
    Effect.gen(function* () {
      const { id } = row
      const queue = String(row.queue)
      const key = textOrNull(row.dedupe_key)
      if (key !== null && window !== null) yield* session.execute(holdKey, { queue, key, id, window })
      else if (key !== null) yield* session.execute(freeKey, { queue, key, id })
      const place = textOrNull(row.ordering_key)
      if (place !== null && (yield* advance(session, queue, place)) !== undefined) woken.add(queue)
    })
  return {
    retains: (session: Session, queue: string, call: Leaving) =>
      Effect.map(settingsOf(session, queue, call), (set) => intOrNull(set?.retain_completed_ms) !== null),
    release,
    /** To the completed jobs. */
    complete: (session: Session, row: Row, call: Leaving): Effect.Effect<void, StoreError> =>
      Effect.gen(function* () {
        yield* session.execute(completed, { id: row.id })
        yield* session.execute(remove, { id: row.id })
        yield* release(session, row, call, intOrNull(row.dedupe_window_ms))
      }),
    /** To the dead letters. */
    bury: (session: Session, row: Row, verdict: Verdict, call: Leaving): Effect.Effect<void, StoreError> =>
      Effect.gen(function* () {
        const { id } = row
        const queue = String(row.queue)
        const cancelled = verdict.reason === "cancelled"
        const set = yield* settingsOf(session, queue, call)
        yield* session.execute(letter, { id, ...verdict })
        yield* session.execute(remove, { id })
        if (row.ordering_key !== null && !cancelled && set?.on_dead === "block")
          yield* session.execute(block, { id, queue, key: row.ordering_key })
        yield* release(session, row, call, cancelled ? null : intOrNull(row.dedupe_window_ms))
        if (!cancelled && textOrNull(set?.dead_letter_queue) !== null) {
          const [sent] = yield* session.execute(send, { id })
          if (sent !== undefined) call.woken.add(String(sent.queue))
        }
      })
  }
}
