/**
 * settle: applies what was decided about claimed jobs, each guarded by its lease token: where no row has it, nothing
 * changes and the outcome says so. A job and its dedupe key leave in one transaction; a dead letter is moved, never
 * copied.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { Settlement, SettleOutcome } from "../../../services/Settlement.js"
import { type Names, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import {
  buried,
  envelopeQueues,
  keptColumns,
  type Leaving,
  leaveFacts,
  leaving,
  leavingColumns,
  makeLeave,
  qualified,
  released
} from "./leave.js"
import { int, intOrNull } from "./rows.js"

export interface Settled {
  readonly outcomes: ReadonlyArray<SettleOutcome>
  /** Queues that may have a job more to claim. */
  readonly woken: ReadonlySet<string>
  /** A job with an ordering key has left. */
  readonly keyed: boolean
}

export interface SettleOptions {
  /** Answer `busy` for rows that are locked instead of waiting for them. */
  readonly skipLocked: boolean
  /** Touch only rows whose lease has ended: for sweeps, which may be overtaken by a renewal. */
  readonly lapsedOnly: boolean
}

type Settle = (
  n: Names,
  notify: boolean
) => (
  session: Session,
  queue: string,
  settlements: ReadonlyArray<Settlement>,
  options: SettleOptions
) => Effect.Effect<Settled, StoreError>

type Tagged<Tag extends Settlement["_tag"]> = Extract<Settlement, { readonly _tag: Tag }>

/** The lease has ended, or was written by a clock that ran ahead: it would begin only in the future. */
export const leaseOver = (n: Names, alias: string) =>
  `(${alias}visible_at <= ${n.now} OR ${alias}visible_at - ${alias}visibility_ms > ${n.now})`

const byTag = (settlements: ReadonlyArray<Settlement>) => ({
  acks: settlements.filter((s): s is Tagged<"Ack"> => s._tag === "Ack"),
  returns: settlements.filter((s): s is Tagged<"Return"> => s._tag === "Return"),
  burials: settlements.filter((s): s is Tagged<"Bury"> => s._tag === "Bury")
})

const outcomes = (
  settlements: ReadonlyArray<Settlement>,
  done: ReadonlySet<number>,
  left: ReadonlyArray<Row>
): ReadonlyArray<SettleOutcome> => {
  const tokens = new Map(left.map((row) => [int(row.id), intOrNull(row.token)]))
  return settlements.map(({ id, token }) =>
    done.has(id) ? "done" : !tokens.has(id) ? "gone" : tokens.get(id) === token ? "busy" : "lost"
  )
}

/** One statement per kind of settlement, for any number of jobs. Rows are locked in the order of their ids. */
const postgres: Settle = (n, notify) => {
  const held = (skip: boolean, input: string) => `held AS MATERIALIZED (
      SELECT j.id FROM ${n.jobs} j JOIN ${input} i ON i.id = j.id AND i.token = j.token
      WHERE j.id = ANY (:ids::bigint[]) AND (NOT :lapsedOnly::boolean OR ${leaseOver(n, "j.")})
      ORDER BY j.id FOR UPDATE OF j${skip ? " SKIP LOCKED" : ""}
    )`
  const gone = `gone AS (
      DELETE FROM ${n.jobs} WHERE id = ANY (ARRAY(SELECT id FROM held)) RETURNING *
    )`
  const both = (make: (skip: boolean) => string, name: string) => ({
    wait: statement(n, name, make(false)),
    skip: statement(n, `${name}_free`, make(true))
  })
  const ack = both(
    (skip) =>
      `WITH input AS (SELECT * FROM unnest(:ids::bigint[], :tokens::bigint[]) AS i (id, token)), ${held(skip, "input")}, ${gone}, ${released(n, notify)}, kept AS (
      INSERT INTO ${n.completedJobs} (id, attempt, crashes, failures, errors, failure_times, completed_at, token, ${keptColumns})
      SELECT g.id, g.attempt, g.crashes, g.failures, g.errors, g.failure_times, ${n.now}, g.token, ${qualified("g", keptColumns)}
      FROM gone g JOIN ${n.queues} q ON q.name = g.queue WHERE q.retain_completed_ms IS NOT NULL
    ) SELECT id, ${leaveFacts(notify, "released")} FROM gone`,
    "ack"
  )
  const giveBack = both(
    (skip) => `WITH input AS (
      SELECT * FROM unnest(:ids::bigint[], :tokens::bigint[], :attempts::integer[], :delays::bigint[], :undecodable::bigint[], :crashes::integer[], :failures::integer[], :errors::text[], :times::text[])
        AS i (id, token, attempt, delay, undecodable_since, crashes, failures, errors, failure_times)
    ), ${held(skip, "input")}, back AS (
      UPDATE ${n.jobs} j
      SET token = NULL, worker = NULL, claimed_at = NULL, visibility_ms = NULL, attempt = i.attempt,
        visible_at = coalesce(${n.now} + i.delay, least(j.visible_at, ${n.now})), due_at = coalesce(${n.now} + i.delay, least(j.visible_at, ${n.now})),
        undecodable_since = i.undecodable_since, crashes = i.crashes, failures = i.failures, errors = i.errors, failure_times = i.failure_times
      FROM input i
      WHERE j.id = i.id AND j.id = ANY (ARRAY(SELECT id FROM held)) AND j.cancel_requested_at IS NULL
      RETURNING j.id
    )${notify ? ", note AS MATERIALIZED (SELECT pg_notify(:channel, :queue) FROM (SELECT 1 FROM back LIMIT 1) AS one)" : ""}
    SELECT id${notify ? ", (SELECT count(*) FROM note) AS noted" : ""} FROM back`,
    "give_back"
  )
  const bury = both(
    (skip) => `WITH input AS (
      SELECT * FROM unnest(:ids::bigint[], :tokens::bigint[], :reasons::text[], :crashes::integer[], :failures::integer[], :errors::text[], :times::text[])
        AS i (id, token, reason, crashes, failures, errors, failure_times)
    ), ${held(skip, "input")}, ${gone}, verdict AS (SELECT id, reason, crashes, failures, errors, failure_times FROM input), ${buried(n, notify)}
    SELECT id, ${leaveFacts(notify, "buried")} FROM gone`,
    "bury"
  )
  const look = statement(
    n,
    "settle_look",
    `SELECT id, token, cancel_requested_at FROM ${n.jobs} WHERE id = ANY (:ids::bigint[])`
  )
  const leases = (list: ReadonlyArray<Settlement>) => ({ ids: list.map((s) => s.id), tokens: list.map((s) => s.token) })
  const histories = (list: ReadonlyArray<Tagged<"Return"> | Tagged<"Bury">>) => ({
    crashes: list.map((s) => s.history.crashes),
    failures: list.map((s) => s.history.failures),
    errors: list.map((s) => s.history.errors),
    times: list.map((s) => s.history.failureTimes)
  })
  const apply = (
    session: Session,
    queue: string,
    settlements: ReadonlyArray<Settlement>,
    { lapsedOnly, skipLocked }: SettleOptions
  ) =>
    Effect.gen(function* () {
      const { acks, burials, returns } = byTag(settlements)
      const pick = skipLocked ? ("skip" as const) : ("wait" as const)
      const common = { queue, lapsedOnly, channel: n.channel }
      const rows: Array<Row> = []
      if (acks.length > 0) rows.push(...(yield* session.execute(ack[pick], { ...common, ...leases(acks) })))
      if (returns.length > 0) {
        const parameters = {
          attempts: returns.map((s) => s.attempt),
          delays: returns.map((s) => s.delayMillis),
          undecodable: returns.map((s) => s.undecodableSince)
        }
        rows.push(
          ...(yield* session.execute(giveBack[pick], {
            ...common,
            ...leases(returns),
            ...histories(returns),
            ...parameters
          }))
        )
      }
      if (burials.length > 0) {
        const reasons = burials.map((s) => s.reason)
        rows.push(
          ...(yield* session.execute(bury[pick], { ...common, ...leases(burials), ...histories(burials), reasons }))
        )
      }
      return rows
    })
  return (session, queue, settlements, options) =>
    Effect.gen(function* () {
      const rows = yield* apply(session, queue, settlements, options)
      const done = new Set(rows.map((row) => int(row.id)))
      const missed = settlements.filter((s) => !done.has(s.id))
      let left = missed.length === 0 ? [] : yield* session.execute(look, { ids: missed.map((s) => s.id) })
      const cancelled = toCancel(missed, left)
      if (cancelled.length > 0) {
        const more = yield* apply(session, queue, cancelled, options)
        rows.push(...more)
        for (const row of more) done.add(int(row.id))
        left = left.filter((row) => !done.has(int(row.id)))
      }
      const woken = new Set<string>()
      if (settlements.some((s) => s._tag === "Return" && done.has(s.id))) woken.add(queue)
      for (const name of rows.flatMap(envelopeQueues)) woken.add(name)
      return { outcomes: outcomes(settlements, done, left), woken, keyed: rows.some((row) => row.keyed === true) }
    })
}

/** What would go back, but is to be cancelled, is dead instead. */
const toCancel = (missed: ReadonlyArray<Settlement>, left: ReadonlyArray<Row>): ReadonlyArray<Settlement> => {
  const asked = new Set(left.filter((row) => intOrNull(row.cancel_requested_at) !== null).map((row) => int(row.id)))
  return missed.flatMap(
    (s): ReadonlyArray<Settlement> =>
      s._tag === "Return" && asked.has(s.id)
        ? [{ _tag: "Bury", id: s.id, token: s.token, reason: "cancelled", history: s.history }]
        : []
  )
}

/** Job by job inside the write lock; nothing can be locked by somebody else. */
const sqlite: Settle = (n) => {
  const guard = `id = :id AND token = :token AND (NOT :lapsedOnly OR ${leaseOver(n, "")})`
  const find = statement(n, "settle_find", `SELECT ${leavingColumns} FROM ${n.jobs} WHERE ${guard}`)
  const ack = statement(n, "ack", `DELETE FROM ${n.jobs} WHERE ${guard} RETURNING ${leavingColumns}`)
  const giveBack = statement(
    n,
    "give_back",
    `UPDATE ${n.jobs} SET token = NULL, worker = NULL, claimed_at = NULL, visibility_ms = NULL, attempt = :attempt,
      visible_at = coalesce(${n.now} + :delay, min(visible_at, ${n.now})), due_at = coalesce(${n.now} + :delay, min(visible_at, ${n.now})),
      undecodable_since = :undecodable, crashes = :crashes, failures = :failures, errors = :errors, failure_times = :times
    WHERE ${guard} AND cancel_requested_at IS NULL RETURNING id`
  )
  const look = statement(n, "settle_look", `SELECT id, token, cancel_requested_at FROM ${n.jobs} WHERE id = :id`)
  const leave = makeLeave(n)
  const apply = (session: Session, queue: string, s: Settlement, lapsedOnly: number, call: Leaving) =>
    Effect.gen(function* () {
      const lease = { id: s.id, token: s.token, lapsedOnly }
      const history =
        s._tag === "Ack"
          ? undefined
          : {
              crashes: s.history.crashes,
              failures: s.history.failures,
              errors: s.history.errors,
              times: s.history.failureTimes
            }
      if (s._tag === "Return") {
        const parameters = { attempt: s.attempt, delay: s.delayMillis, undecodable: s.undecodableSince }
        return (yield* session.execute(giveBack, { ...lease, ...history, ...parameters })).length > 0
      }
      const retained = s._tag === "Bury" || (yield* leave.retains(session, queue, call))
      const [row] = yield* session.execute(retained ? find : ack, lease)
      if (row === undefined) return false
      if (!retained) yield* leave.release(session, row, call, intOrNull(row.dedupe_window_ms))
      else if (s._tag === "Ack" || history === undefined) yield* leave.complete(session, row, call)
      else yield* leave.bury(session, row, { reason: s.reason, ...history }, call)
      return true
    })
  return (session, queue, settlements, { lapsedOnly }) =>
    Effect.gen(function* () {
      const done = new Set<number>()
      const left: Array<Row> = []
      const call = leaving()
      const { woken } = call
      const lapsed = lapsedOnly ? 1 : 0
      for (const s of settlements) {
        let settled = yield* apply(session, queue, s, lapsed, call)
        if (settled && s._tag === "Return") woken.add(queue)
        if (!settled) {
          const rows = yield* session.execute(look, { id: s.id })
          const [cancelled] = toCancel([s], rows)
          settled = cancelled !== undefined && (yield* apply(session, queue, cancelled, lapsed, call))
          if (!settled) left.push(...rows)
        }
        if (settled) done.add(s.id)
      }
      return { outcomes: outcomes(settlements, done, left), woken, keyed: false }
    })
}

export const settle: PerEngine<Settle> = { postgres, sqlite }
