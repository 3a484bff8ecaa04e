/**
 * settle: applies what was decided about claimed jobs, each guarded by its lease token: where no row has it, nothing
 * changes and the outcome says so. A job and its dedupe key leave in one transaction; a dead letter is moved, never
 * copied.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import { cancelledInstead, type Settlement, type SettleOutcome } from "../../../services/Settlement.js"
import { type Names, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { both, gone, held, leases, makeAck } from "./ackPostgres.js"
import { addDone, type Done, isDone, whyNot } from "./byToken.js"
import { buried, envelopeQueues, type Leaving, leaveFacts, leaving, leavingColumns, makeLeave } from "./leave.js"
import { idAmong, leaseOver, listed, metAt } from "./lists.js"
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

const byTag = (settlements: ReadonlyArray<Settlement>) => ({
  acks: settlements.filter((s): s is Tagged<"Ack"> => s._tag === "Ack"),
  returns: settlements.filter((s): s is Tagged<"Return"> => s._tag === "Return"),
  burials: settlements.filter((s): s is Tagged<"Bury"> => s._tag === "Bury")
})

const outcomes = (
  settlements: ReadonlyArray<Settlement>,
  done: Done,
  cancelled: Done,
  left: ReadonlyArray<Row>
): ReadonlyArray<SettleOutcome> => {
  const missed = whyNot(left)
  return settlements.map((settlement) =>
    isDone(done, settlement) ? "done" : isDone(cancelled, settlement) ? "cancelled" : missed(settlement)
  )
}

const allDone = (settlements: ReadonlyArray<Settlement>): Settled => ({
  outcomes: settlements.map(() => "done"),
  woken: new Set(),
  keyed: false
})

/** One statement per kind of settlement, for any number of jobs. Rows are locked in the order of their ids. */
const postgres: Settle = (n, notify) => {
  const acknowledge = makeAck(n, notify)
  const giveBack = both(
    n,
    "give_back",
    (skip) => `WITH input AS (
      SELECT * FROM unnest(:ids::bigint[], :tokens::bigint[], :attempts::integer[], :delays::bigint[], :undecodable::bigint[], :crashes::integer[], :failures::integer[], :errors::text[], :times::text[])
        AS i (id, token, attempt, delay, undecodable_since, crashes, failures, errors, failure_times)
    ), ${held(n, skip)}, back AS (
      UPDATE ${n.jobs} j
      SET token = NULL, worker = NULL, claimed_at = NULL, visibility_ms = NULL, attempt = i.attempt,
        visible_at = ${metAt.postgres(`coalesce(${n.now} + i.delay, least(j.visible_at, ${n.now}))`, "j.expires_at")}, due_at = coalesce(${n.now} + i.delay, least(j.visible_at, ${n.now})),
        undecodable_since = i.undecodable_since, crashes = i.crashes, failures = i.failures, errors = i.errors, failure_times = i.failure_times
      FROM input i
      WHERE j.id = i.id AND j.token = i.token AND j.id = ANY (ARRAY(SELECT id FROM held)) AND j.cancel_requested_at IS NULL
      RETURNING j.id, i.token
    )${notify ? ", note AS MATERIALIZED (SELECT pg_notify(:channel, :queue) FROM (SELECT 1 FROM back LIMIT 1) AS one)" : ""}
    SELECT id, token${notify ? ", (SELECT count(*) FROM note) AS noted" : ""} FROM back`
  )
  const bury = both(
    n,
    "bury",
    (skip) => `WITH input AS (
      SELECT * FROM unnest(:ids::bigint[], :tokens::bigint[], :reasons::text[], :crashes::integer[], :failures::integer[], :errors::text[], :times::text[])
        AS i (id, token, reason, crashes, failures, errors, failure_times)
    ), ${held(n, skip)}, ${gone(n)}, verdict AS (
      SELECT i.id, i.reason, i.crashes, i.failures, i.errors, i.failure_times FROM input i JOIN gone g ON g.id = i.id AND g.token = i.token
    ), ${buried(n, notify)}
    SELECT id, token, ${leaveFacts(notify, "buried")} FROM gone`
  )
  const look = statement(
    n,
    "settle_look",
    `SELECT id, token, cancel_requested_at FROM ${n.jobs} WHERE ${idAmong.postgres}`
  )
  const histories = (list: ReadonlyArray<Tagged<"Return"> | Tagged<"Bury">>) => ({
    crashes: list.map((s) => s.history.crashes),
    failures: list.map((s) => s.history.failures),
    errors: list.map((s) => s.history.errors),
    times: list.map((s) => s.history.failureTimes)
  })
  /** What was done; undefined where that is all, and wakes nobody. */
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
      const acked = yield* acknowledge(session, acks, common, pick)
      if (acked.whole && acks.length === settlements.length) return undefined
      if (acked.whole) rows.push(...acks.map(({ id, token }) => ({ id, token })))
      rows.push(...acked.rows)
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
      if (rows === undefined) return allDone(settlements)
      const done = addDone(new Map(), rows)
      const missed = settlements.filter((s) => !isDone(done, s))
      let left = missed.length === 0 ? [] : yield* session.execute(look, { ids: missed.map((s) => s.id) })
      const asked = toCancel(missed, left)
      const cancelled: Done = new Map()
      if (asked.length > 0) {
        const more = (yield* apply(session, queue, asked, options)) ?? []
        rows.push(...more)
        addDone(cancelled, more)
        left = left.filter((row) => !cancelled.has(int(row.id)))
      }
      const woken = new Set<string>()
      if (settlements.some((s) => s._tag === "Return" && isDone(done, s))) woken.add(queue)
      for (const name of rows.flatMap(envelopeQueues)) woken.add(name)
      return {
        outcomes: outcomes(settlements, done, cancelled, left),
        woken,
        keyed: rows.some((row) => row.keyed === true)
      }
    })
}

/** What would go back, but is to be cancelled, is dead instead. */
const toCancel = (missed: ReadonlyArray<Settlement>, left: ReadonlyArray<Row>): ReadonlyArray<Tagged<"Bury">> => {
  const asked = new Set(left.filter((row) => intOrNull(row.cancel_requested_at) !== null).map((row) => int(row.id)))
  return missed.flatMap((s) => (s._tag === "Return" && asked.has(s.id) ? [cancelledInstead(s)] : []))
}

/**
 * Acks many at once, the others job by job, inside the write lock; nothing can be locked by somebody else. `CROSS JOIN`:
 * the list first, and each of its jobs by id. An UPDATE that joins a list could not be told to, and would walk the
 * table where statistics make it small.
 */
const sqlite: Settle = (n) => {
  const guard = (alias: string) => `(NOT :lapsedOnly OR ${leaseOver(n, alias)})`
  const held = `id = :id AND token = :token AND ${guard("")}`
  const find = statement(n, "settle_find", `SELECT ${leavingColumns}, token FROM ${n.jobs} WHERE ${held}`)
  const ack = statement(
    n,
    "ack",
    `DELETE FROM ${n.jobs} WHERE id IN (
      SELECT j.id FROM ${listed("leases", ["id", "token"])} AS i CROSS JOIN ${n.jobs} j NOT INDEXED WHERE j.id = i.id AND j.token = i.token AND ${guard("j.")}
        AND NOT EXISTS (SELECT 1 FROM ${n.queues} q WHERE q.name = :queue AND q.retain_completed_ms IS NOT NULL)
    ) RETURNING ${leavingColumns}, token`
  )
  const giveBack = statement(
    n,
    "give_back",
    `UPDATE ${n.jobs} SET token = NULL, worker = NULL, claimed_at = NULL, visibility_ms = NULL, attempt = :attempt,
      visible_at = ${metAt.sqlite(`coalesce(${n.now} + :delay, min(visible_at, ${n.now}))`, "expires_at")}, due_at = coalesce(${n.now} + :delay, min(visible_at, ${n.now})),
      undecodable_since = :undecodable, crashes = :crashes, failures = :failures, errors = :errors, failure_times = :times
    WHERE ${held} AND cancel_requested_at IS NULL RETURNING id`
  )
  const look = statement(
    n,
    "settle_look",
    `SELECT id, token, cancel_requested_at FROM ${n.jobs} WHERE ${idAmong.sqlite}`
  )
  const leave = makeLeave(n)
  const acknowledge = (
    session: Session,
    queue: string,
    acks: ReadonlyArray<Tagged<"Ack">>,
    lapsedOnly: number,
    call: Leaving
  ) =>
    Effect.gen(function* () {
      if (acks.length === 0) return []
      const leases = JSON.stringify(acks.map(({ id, token }) => [id, token]))
      const gone = yield* session.execute(ack, { queue, leases, lapsedOnly })
      // None where the queue keeps its completed jobs
      if (gone.length === 0 && (yield* leave.retains(session, queue, call))) {
        const kept: Array<Row> = []
        for (const { id, token } of acks) {
          const [row] = yield* session.execute(find, { id, token, lapsedOnly })
          if (row === undefined) continue
          yield* leave.complete(session, row, call)
          kept.push(row)
        }
        return kept
      }
      for (const row of gone)
        if (row.dedupe_key !== null || row.ordering_key !== null)
          yield* leave.release(session, row, call, intOrNull(row.dedupe_window_ms))
      return gone
    })
  const restore = (session: Session, returns: ReadonlyArray<Tagged<"Return">>, lapsedOnly: number) =>
    Effect.gen(function* () {
      const back: Array<Row> = []
      for (const { attempt, delayMillis: delay, history, id, token, undecodableSince: undecodable } of returns) {
        const { crashes, errors, failureTimes: times, failures } = history
        const values = { id, token, lapsedOnly, attempt, delay, undecodable, crashes, failures, errors, times }
        // The token that it had is not in the row any more
        for (const row of yield* session.execute(giveBack, values)) back.push({ ...row, token })
      }
      return back
    })
  const buryAll = (session: Session, burials: ReadonlyArray<Tagged<"Bury">>, lapsedOnly: number, call: Leaving) =>
    Effect.gen(function* () {
      const buried: Array<Row> = []
      for (const { history, id, reason, token } of burials) {
        const [row] = yield* session.execute(find, { id, token, lapsedOnly })
        if (row === undefined) continue
        const { crashes, errors, failureTimes: times, failures } = history
        yield* leave.bury(session, row, { reason, crashes, failures, errors, times }, call)
        buried.push(row)
      }
      return buried
    })
  return (session, queue, settlements, { lapsedOnly }) =>
    Effect.gen(function* () {
      const call = leaving()
      const { woken } = call
      const only = lapsedOnly ? 1 : 0
      const { acks, burials, returns } = byTag(settlements)
      const done: Done = new Map()
      const settled = (rows: ReadonlyArray<Row>) => addDone(done, rows)
      settled(yield* acknowledge(session, queue, acks, only, call))
      const back = yield* restore(session, returns, only)
      settled(back)
      if (back.length > 0) woken.add(queue)
      settled(yield* buryAll(session, burials, only, call))
      const missed = settlements.filter((s) => !isDone(done, s))
      if (missed.length === 0) return { outcomes: outcomes(settlements, done, new Map(), []), woken, keyed: false }
      const left = yield* session.execute(look, { ids: JSON.stringify(missed.map((s) => s.id)) })
      const cancelled = addDone(new Map(), yield* buryAll(session, toCancel(missed, left), only, call))
      return { outcomes: outcomes(settlements, done, cancelled, left), woken, keyed: false }
    })
}

export const settle: PerEngine<Settle> = { postgres, sqlite }
