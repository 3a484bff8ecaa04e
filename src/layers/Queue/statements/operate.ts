/**
 * operate: what is done to live jobs by somebody who does not hold them: cancel, change, clear; and queues paused and
 * resumed. Whether a job waits or is leased is decided under the row's lock.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { CancelOutcome, Change, ChangeOutcome, Signals } from "../../../services/Operations.js"
import { controlTopic } from "../../../services/Wake.js"
import { type Names, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { buried, leaveFacts, leaving, leavingColumns, makeLeave, released } from "./leave.js"
import { idAmong, listOf, metAt } from "./lists.js"
import { bool, int, intOrNull } from "./rows.js"

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
  /** Deletes a page of waiting jobs. */
  readonly clear: (session: Session, queue: string, limit: number) => Effect.Effect<number, StoreError>
  /** Answers whether that changed anything. */
  readonly setPaused: (session: Session, queue: string, paused: boolean) => Effect.Effect<boolean, StoreError>
  readonly signals: (session: Session, queue: string, ids: ReadonlyArray<number>) => Effect.Effect<Signals, StoreError>
}

/** The due time that is asked for, or null. */
const asked: PerEngine<(n: Names) => string> = {
  postgres: (n) =>
    `CASE WHEN :runAt::bigint IS NOT NULL THEN greatest(:runAt::bigint, ${n.now}) ELSE ${n.now} + :delay::bigint END`,
  sqlite: (n) => `coalesce(max(:runAt, ${n.now}), ${n.now} + :delay)`
}

/** What is due already and is to be due now keeps its place. */
const dueAt = (n: Names) =>
  `CASE WHEN due_at <= ${n.now} AND ${asked[n.engine](n)} <= ${n.now} THEN due_at ELSE coalesce(${asked[n.engine](n)}, due_at) END`

/** Waits, but has expired: dead, though nobody has met it yet. */
const spent = (n: Names) =>
  `coalesce(token IS NULL AND expires_at <= ${n.now}, ${n.engine === "sqlite" ? "0" : "false"})`

/** The change of a waiting job; one that its ordering key blocks stays blocked, due at its new time. */
const changed = (n: Names) => {
  const due = dueAt(n)
  const met = metAt[n.engine](due, "CASE WHEN expires_ms IS NULL THEN expires_at END")
  const small = n.engine === "postgres" ? "::smallint" : ""
  return `priority = coalesce(:priority${small}, priority), due_at = ${due},
      visible_at = CASE WHEN visible_at IS NULL OR ${due} = due_at THEN visible_at ELSE ${met} END,
      expires_at = CASE WHEN expires_ms IS NULL OR ${due} = due_at THEN expires_at ELSE ${due} + expires_ms END`
}

const wanted = ({ delayMillis: delay, priority, runAt }: Change) => ({ delay, priority, runAt })

const notice = (from: string, topic: string) =>
  `, note AS MATERIALIZED (SELECT pg_notify(:channel, ${topic}) FROM (SELECT 1 FROM ${from} LIMIT 1) AS one)`

const reads = (n: Names, notify: boolean): Pick<Operate, "signals" | "setPaused"> => {
  const told = (change: string) =>
    notify && n.engine === "postgres"
      ? `WITH changed AS (${change}) SELECT name, pg_notify(:channel, name), pg_notify(:channel, :control) FROM changed`
      : change
  const pause = statement(
    n,
    "pause",
    told(`INSERT INTO ${n.queues} AS q (name, paused_at, defined_by, updated_at) VALUES (:queue, ${n.now}, 'producer', ${n.now})
    ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at WHERE q.paused_at IS NULL RETURNING name`)
  )
  const resume = statement(
    n,
    "resume",
    told(`UPDATE ${n.queues} SET paused_at = NULL WHERE name = :queue AND paused_at IS NOT NULL RETURNING name`)
  )
  const signals = statement(
    n,
    "signals",
    `SELECT id, EXISTS (SELECT 1 FROM ${n.queues} q WHERE q.name = :queue AND q.paused_at IS NOT NULL) AS paused
    FROM (SELECT 0 AS id UNION ALL SELECT id FROM ${n.jobs} WHERE ${idAmong[n.engine]} AND cancel_requested_at IS NOT NULL) AS asked`
  )
  return {
    setPaused: (session, queue, paused) =>
      Effect.map(
        session.execute(paused ? pause : resume, { queue, channel: n.channel, control: controlTopic(queue) }),
        (rows) => rows.length > 0
      ),
    signals: (session, queue, ids) =>
      Effect.map(session.execute(signals, { queue, ids: listOf[n.engine](ids) }), (rows) => ({
        paused: rows.some((row) => bool(row.paused)),
        cancelled: rows.map((row) => int(row.id)).filter((id) => id !== 0)
      }))
  }
}

const outcomesOf = (ids: ReadonlyArray<number>, rows: ReadonlyArray<Row>): ReadonlyArray<CancelOutcome> => {
  const byId = new Map(rows.map((row) => [int(row.id), row.outcome as CancelOutcome]))
  return ids.map((id) => byId.get(id) ?? "tooLate")
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
  // A lock would keep the renewals of the others out until its transaction ends
  const change = statement(
    n,
    "change",
    `WITH waiting AS MATERIALIZED (
      SELECT id FROM ${n.jobs} WHERE id = ANY (:ids::bigint[]) AND queue = :queue AND token IS NULL AND NOT ${spent(n)} ORDER BY id FOR UPDATE
    ), changed AS (
      UPDATE ${n.jobs} SET ${changed(n)} WHERE id = ANY (ARRAY(SELECT id FROM waiting)) RETURNING id
    )${notify ? notice("changed", ":queue") : ""}
    SELECT id${notify ? ", (SELECT count(*) FROM note) AS noted" : ""} FROM changed`
  )
  const left = statement(
    n,
    "change_left",
    `SELECT id FROM ${n.jobs} WHERE id = ANY (:ids::bigint[]) AND queue = :queue AND NOT ${spent(n)}`
  )
  const clear = statement(
    n,
    "clear",
    `WITH waiting AS MATERIALIZED (
      SELECT id FROM ${n.jobs} WHERE queue = :queue AND token IS NULL AND visible_at IS NOT NULL
      ORDER BY priority DESC, visible_at, id LIMIT :limit::integer FOR UPDATE SKIP LOCKED
    ), blocked AS MATERIALIZED (
      SELECT id FROM ${n.jobs} WHERE queue = :queue AND visible_at IS NULL AND token IS NULL
      ORDER BY id LIMIT :limit::integer FOR UPDATE SKIP LOCKED
    ), gone AS (
      DELETE FROM ${n.jobs} WHERE id = ANY (ARRAY(SELECT id FROM waiting UNION ALL SELECT id FROM blocked)) RETURNING *
    ), ${released(n, notify, true)}
    SELECT id, ${leaveFacts(notify, "cancelled")} FROM gone`
  )
  return {
    ...reads(n, notify),
    cancel: (session, queue, ids) =>
      Effect.map(session.execute(cancel, { queue, ids, channel: n.channel, control: controlTopic(queue) }), (rows) => ({
        outcomes: outcomesOf(ids, rows),
        keyed: rows.some((row) => row.keyed === true)
      })),
    change: (session, queue, ids, how) =>
      Effect.gen(function* () {
        const rows = yield* session.execute(change, { queue, ids, channel: n.channel, ...wanted(how) })
        const done = new Set(rows.map(({ id }) => int(id)))
        const others = ids.filter((id) => !done.has(id))
        const live = others.length === 0 ? [] : yield* session.execute(left, { queue, ids: others })
        const leased = new Set(live.map(({ id }) => int(id)))
        return ids.map((id) => (done.has(id) ? "changed" : leased.has(id) ? "leased" : "tooLate"))
      }),
    clear: (session, queue, limit) =>
      Effect.map(session.execute(clear, { queue, limit, channel: n.channel }), (rows) => rows.length)
  }
}

const sqlite = (n: Names): Operate => {
  const find = statement(
    n,
    "operate_find",
    `SELECT ${leavingColumns}, token, ${spent(n)} AS spent, crashes, failures, errors, failure_times FROM ${n.jobs} WHERE id = :id AND queue = :queue`
  )
  const ask = statement(
    n,
    "cancel",
    `UPDATE ${n.jobs} SET cancel_requested_at = coalesce(cancel_requested_at, ${n.now}) WHERE id = :id`
  )
  const change = statement(n, "change", `UPDATE ${n.jobs} SET ${changed(n)} WHERE id = :id`)
  const pick = (name: string, where: string) =>
    statement(n, name, `SELECT ${leavingColumns} FROM ${n.jobs} WHERE queue = :queue AND ${where} LIMIT :limit`)
  // Each by its index
  const waiting = pick("clear_find", "token IS NULL AND visible_at IS NOT NULL")
  const blocked = pick("clear_blocked", "visible_at IS NULL AND token IS NULL")
  const remove = statement(n, "clear", `DELETE FROM ${n.jobs} WHERE id = :id`)
  const leave = makeLeave(n)
  return {
    ...reads(n, false),
    cancel: (session, queue, ids) => {
      const call = leaving()
      return Effect.map(
        Effect.forEach(ids, (id) =>
          Effect.gen(function* () {
            const [row] = yield* session.execute(find, { id, queue })
            if (row === undefined) return "tooLate" as const
            if (intOrNull(row.token) !== null)
              return yield* Effect.as(session.execute(ask, { id }), "requested" as const)
            const { crashes, errors, failure_times: times, failures } = row
            yield* leave.bury(session, row, { reason: "cancelled", crashes, errors, failures, times }, call)
            return "cancelled" as const
          })
        ),
        (outcomes) => ({ outcomes, keyed: false })
      )
    },
    change: (session, queue, ids, how) =>
      Effect.forEach(ids, (id) =>
        Effect.gen(function* () {
          const [row] = yield* session.execute(find, { id, queue })
          if (row === undefined || bool(row.spent)) return "tooLate" as const
          if (intOrNull(row.token) !== null) return "leased" as const
          yield* session.execute(change, { id, ...wanted(how) })
          return "changed" as const
        })
      ),
    clear: (session, queue, limit) =>
      Effect.gen(function* () {
        const rows = [
          ...(yield* session.execute(waiting, { queue, limit })),
          ...(yield* session.execute(blocked, { queue, limit }))
        ]
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
