/**
 * operate: what is done to live jobs by somebody who does not hold them: cancel, change, clear; and queues paused and
 * resumed. Whether a job waits or is leased is decided under the row's lock.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { CancelOutcome, Change, ChangeOutcome, LiveFilter, Signals } from "../../../services/Operations.js"
import { controlTopic } from "../../../services/Wake.js"
import { type Names, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { buried, leaveFacts, leaving, leavingColumns, makeLeave, released } from "./leave.js"
import { int, intOrNull } from "./rows.js"

export interface Cancelled {
  readonly outcomes: ReadonlyArray<CancelOutcome>
  readonly keyed: boolean
}

export interface Operate {
  readonly cancel: (session: Session, queue: string, ids: ReadonlyArray<number>) => Effect.Effect<Cancelled, StoreError>
  readonly change: (
    session: Session,
    queue: string,
    ids: ReadonlyArray<number>,
    change: Change
  ) => Effect.Effect<ReadonlyArray<ChangeOutcome>, StoreError>
  readonly select: (
    session: Session,
    queue: string,
    filter: LiveFilter,
    after: number,
    limit: number
  ) => Effect.Effect<ReadonlyArray<number>, StoreError>
  /** Deletes a page of waiting jobs. */
  readonly clear: (session: Session, queue: string, limit: number) => Effect.Effect<number, StoreError>
  /** Answers whether that changed anything. */
  readonly setPaused: (session: Session, queue: string, paused: boolean) => Effect.Effect<boolean, StoreError>
  readonly signals: (session: Session, queue: string, ids: ReadonlyArray<number>) => Effect.Effect<Signals, StoreError>
}

const dueAt: PerEngine<(n: Names) => string> = {
  postgres: (n) =>
    `coalesce(greatest(:runAt::bigint, ${n.now}), ${n.now} + :delay::bigint, due_at)`.replace(
      `greatest(:runAt::bigint, ${n.now})`,
      `CASE WHEN :runAt::bigint IS NOT NULL THEN greatest(:runAt::bigint, ${n.now}) END`
    ),
  sqlite: (n) => `coalesce(max(:runAt, ${n.now}), ${n.now} + :delay, due_at)`
}

/** The change of a waiting job; one that its ordering key blocks stays blocked, due at its new time. */
const changed = (n: Names) => {
  const due = dueAt[n.engine](n)
  const [small, big] = n.engine === "postgres" ? ["::smallint", "::bigint"] : ["", ""]
  const moves = `(:runAt${big} IS NOT NULL OR :delay${big} IS NOT NULL)`
  return `priority = coalesce(:priority${small}, priority), due_at = ${due},
      visible_at = CASE WHEN visible_at IS NULL THEN NULL WHEN ${moves} THEN ${due} ELSE visible_at END,
      expires_at = CASE WHEN ${moves} AND expires_ms IS NOT NULL THEN ${due} + expires_ms ELSE expires_at END`
}

const wanted = ({ delayMillis: delay, priority, runAt }: Change) => ({ delay, priority, runAt })

const notice = (from: string, topic: string) =>
  `, note AS MATERIALIZED (SELECT pg_notify(:channel, ${topic}) FROM (SELECT 1 FROM ${from} LIMIT 1) AS one)`

/** The criteria of a filter, besides those by id and key; each statement has a name of its own. */
const stateCondition = (n: Names): Readonly<Record<string, string>> => ({
  ready: `(token IS NULL AND visible_at <= ${n.now})`,
  delayed: `(token IS NULL AND visible_at > ${n.now})`,
  blocked: "(token IS NULL AND visible_at IS NULL)",
  leased: "(token IS NOT NULL)"
})

const arrays: PerEngine<(values: ReadonlyArray<number>) => unknown> = {
  postgres: (values) => values,
  sqlite: (values) => JSON.stringify(values)
}

const anyOf: PerEngine<string> = {
  postgres: "id = ANY (:ids::bigint[])",
  sqlite: "id IN (SELECT value FROM json_each(:ids))"
}

const reads = (n: Names): Pick<Operate, "select" | "signals" | "setPaused"> => {
  const conditions = stateCondition(n)
  const selected = (
    parts: { readonly ids: boolean; readonly key: boolean; readonly place: boolean },
    states: string
  ) => {
    const where = [
      "queue = :queue AND id > :after AND enqueued_at >= :from AND enqueued_at < :until",
      ...(parts.ids ? [anyOf[n.engine]] : []),
      ...(parts.key
        ? [
            `id IN (SELECT k.job_id FROM ${n.dedupeKeys} k WHERE k.queue = :queue AND k.dedupe_key = :key) AND dedupe_key = :key`
          ]
        : []),
      ...(parts.place ? ["ordering_key = :place"] : []),
      ...(states === ""
        ? []
        : [
            `(${states
              .split(",")
              .map((state) => conditions[state])
              .join(" OR ")})`
          ])
    ]
    const name = `select_${parts.ids ? "i" : ""}${parts.key ? "k" : ""}${parts.place ? "o" : ""}_${states.replaceAll(",", "_")}`
    return statement(n, name, `SELECT id FROM ${n.jobs} WHERE ${where.join(" AND ")} ORDER BY id LIMIT :limit`)
  }
  const pause = statement(
    n,
    "pause",
    `INSERT INTO ${n.queues} AS q (name, paused_at, defined_by, updated_at) VALUES (:queue, ${n.now}, 'producer', ${n.now})
    ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at WHERE q.paused_at IS NULL RETURNING name`
  )
  const resume = statement(
    n,
    "resume",
    `UPDATE ${n.queues} SET paused_at = NULL WHERE name = :queue AND paused_at IS NOT NULL RETURNING name`
  )
  const signals = statement(
    n,
    "signals",
    `SELECT id, EXISTS (SELECT 1 FROM ${n.queues} q WHERE q.name = :queue AND q.paused_at IS NOT NULL) AS paused
    FROM (SELECT 0 AS id UNION ALL SELECT id FROM ${n.jobs} WHERE ${anyOf[n.engine]} AND cancel_requested_at IS NOT NULL) AS asked`
  )
  return {
    select: (session, queue, { dedupeKey, from, ids, orderingKey, states, until }, after, limit) =>
      Effect.map(
        session.execute(
          selected(
            { ids: ids !== null, key: dedupeKey !== null, place: orderingKey !== null },
            [...new Set(states ?? [])].sort().join(",")
          ),
          {
            queue,
            after,
            limit,
            from: from ?? Number.MIN_SAFE_INTEGER,
            until: until ?? Number.MAX_SAFE_INTEGER,
            ids: arrays[n.engine](ids ?? []),
            key: dedupeKey,
            place: orderingKey
          }
        ),
        (rows) => rows.map((row) => int(row.id))
      ),
    setPaused: (session, queue, paused) =>
      Effect.map(session.execute(paused ? pause : resume, { queue }), (rows) => rows.length > 0),
    signals: (session, queue, ids) =>
      Effect.map(session.execute(signals, { queue, ids: arrays[n.engine](ids) }), (rows) => ({
        paused: rows.some((row) => row.paused === true || row.paused === 1),
        cancelled: rows.map((row) => int(row.id)).filter((id) => id !== 0)
      }))
  }
}

const answers = <A>(ids: ReadonlyArray<number>, rows: ReadonlyArray<Row>, of: (row: Row) => A, missing: A) => {
  const byId = new Map(rows.map((row) => [int(row.id), of(row)]))
  return ids.map((id) => byId.get(id) ?? missing)
}

const postgres = (n: Names, notify: boolean): Operate => {
  const held = `held AS MATERIALIZED (
      SELECT id, token FROM ${n.jobs} WHERE id = ANY (:ids::bigint[]) AND queue = :queue ORDER BY id FOR UPDATE
    )`
  const cancel = statement(
    n,
    "cancel",
    `WITH ${held}, asked AS (
      UPDATE ${n.jobs} SET cancel_requested_at = coalesce(cancel_requested_at, ${n.now})
      WHERE id = ANY (ARRAY(SELECT id FROM held WHERE token IS NOT NULL)) RETURNING id
    ), gone AS (
      DELETE FROM ${n.jobs} WHERE id = ANY (ARRAY(SELECT id FROM held WHERE token IS NULL)) RETURNING *
    ), verdict AS (
      SELECT id, 'cancelled'::text AS reason, crashes, failures, errors, failure_times FROM gone
    ), ${buried(n, notify, true)}${notify ? notice("asked", ":control") : ""}
    SELECT id, 'cancelled' AS outcome, ${leaveFacts(notify, "cancelled")} FROM gone
    UNION ALL SELECT id, 'requested', false${notify ? ", (SELECT count(*) FROM note)" : ""} FROM asked`
  )
  const change = statement(
    n,
    "change",
    `WITH ${held}, changed AS (
      UPDATE ${n.jobs} SET ${changed(n)} WHERE id = ANY (ARRAY(SELECT id FROM held WHERE token IS NULL)) RETURNING id
    )${notify ? notice("changed", ":queue") : ""}
    SELECT id, token IS NOT NULL AS leased${notify ? ", (SELECT count(*) FROM note) AS noted" : ""} FROM held`
  )
  const clear = statement(
    n,
    "clear",
    `WITH gone AS (
      DELETE FROM ${n.jobs} WHERE id = ANY (ARRAY(
        SELECT id FROM ${n.jobs} WHERE queue = :queue AND token IS NULL LIMIT :limit::integer FOR UPDATE SKIP LOCKED
      )) RETURNING *
    ), ${released(n, notify, true)}
    SELECT id, ${leaveFacts(notify, "cancelled")} FROM gone`
  )
  return {
    ...reads(n),
    cancel: (session, queue, ids) =>
      Effect.map(session.execute(cancel, { queue, ids, channel: n.channel, control: controlTopic(queue) }), (rows) => ({
        outcomes: answers(ids, rows, (row) => row.outcome as CancelOutcome, "tooLate"),
        keyed: rows.some((row) => row.keyed === true)
      })),
    change: (session, queue, ids, how) =>
      Effect.map(session.execute(change, { queue, ids, channel: n.channel, ...wanted(how) }), (rows) =>
        answers<ChangeOutcome>(ids, rows, (row) => (row.leased === true ? "leased" : "changed"), "tooLate")
      ),
    clear: (session, queue, limit) =>
      Effect.map(session.execute(clear, { queue, limit, channel: n.channel }), (rows) => rows.length)
  }
}

const sqlite = (n: Names): Operate => {
  const find = statement(
    n,
    "operate_find",
    `SELECT ${leavingColumns}, token, crashes, failures, errors, failure_times FROM ${n.jobs} WHERE id = :id AND queue = :queue`
  )
  const ask = statement(
    n,
    "cancel",
    `UPDATE ${n.jobs} SET cancel_requested_at = coalesce(cancel_requested_at, ${n.now}) WHERE id = :id`
  )
  const change = statement(n, "change", `UPDATE ${n.jobs} SET ${changed(n)} WHERE id = :id`)
  const waiting = statement(
    n,
    "clear_find",
    `SELECT ${leavingColumns} FROM ${n.jobs} WHERE queue = :queue AND token IS NULL LIMIT :limit`
  )
  const remove = statement(n, "clear", `DELETE FROM ${n.jobs} WHERE id = :id`)
  const leave = makeLeave(n)
  return {
    ...reads(n),
    cancel: (session, queue, ids) =>
      Effect.map(
        Effect.forEach(ids, (id) =>
          Effect.gen(function* () {
            const [row] = yield* session.execute(find, { id, queue })
            if (row === undefined) return "tooLate" as const
            if (intOrNull(row.token) !== null)
              return yield* Effect.as(session.execute(ask, { id }), "requested" as const)
            const { crashes, errors, failure_times: times, failures } = row
            yield* leave.bury(session, row, { reason: "cancelled", crashes, errors, failures, times }, leaving())
            return "cancelled" as const
          })
        ),
        (outcomes) => ({ outcomes, keyed: false })
      ),
    change: (session, queue, ids, how) =>
      Effect.forEach(ids, (id) =>
        Effect.gen(function* () {
          const [row] = yield* session.execute(find, { id, queue })
          if (row === undefined) return "tooLate" as const
          if (intOrNull(row.token) !== null) return "leased" as const
          yield* session.execute(change, { id, ...wanted(how) })
          return "changed" as const
        })
      ),
    clear: (session, queue, limit) =>
      Effect.gen(function* () {
        const rows = yield* session.execute(waiting, { queue, limit })
        const call = leaving()
        for (const row of rows) {
          yield* session.execute(remove, { id: row.id })
          yield* leave.release(session, row, call, null)
        }
        return rows.length
      })
  }
}

export const operate: PerEngine<(n: Names, notify: boolean) => Operate> = { postgres, sqlite }
