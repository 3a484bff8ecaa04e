/**
 * settle: applies what was decided about claimed jobs, each guarded by its lease token: where no row has it, nothing
 * changes and the outcome says so. A job and its dedupe key leave in one transaction; a dead letter is moved, never
 * copied.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { Settlement, SettleOutcome } from "../../../services/Settlement.js"
import { queueTopic } from "../../../services/Wake.js"
import { type Names, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { int, intOrNull } from "./rows.js"

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
) => Effect.Effect<ReadonlyArray<SettleOutcome>, StoreError>

type Tagged<Tag extends Settlement["_tag"]> = Extract<Settlement, { readonly _tag: Tag }>

/** What a job keeps when it leaves the live table. */
export const keptColumns =
  "queue, payload, priority, enqueued_at, due_at, expires_at, expires_ms, max_attempts, dedupe_key, dedupe_scope, dedupe_window_ms, ordering_key, headers, progress, history"

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
    ), keys AS (
      DELETE FROM ${n.dedupeKeys} WHERE queue = :queue AND free_at IS NULL
        AND dedupe_key = ANY (ARRAY(SELECT dedupe_key FROM gone WHERE dedupe_key IS NOT NULL)) AND job_id = ANY (ARRAY(SELECT id FROM gone))
    )`
  const both = (make: (skip: boolean) => string, name: string) => ({
    wait: statement(n, name, make(false)),
    skip: statement(n, `${name}_free`, make(true))
  })
  const ack = both(
    (skip) =>
      `WITH input AS (SELECT * FROM unnest(:ids::bigint[], :tokens::bigint[]) AS i (id, token)), ${held(skip, "input")}, ${gone} SELECT id FROM gone`,
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
      WHERE j.id = i.id AND j.id = ANY (ARRAY(SELECT id FROM held))
      RETURNING j.id
    )${notify ? ", note AS MATERIALIZED (SELECT pg_notify(:channel, :topic) FROM (SELECT 1 FROM back LIMIT 1) AS one)" : ""}
    SELECT id${notify ? ", (SELECT count(*) FROM note) AS noted" : ""} FROM back`,
    "give_back"
  )
  const bury = both(
    (skip) => `WITH input AS (
      SELECT * FROM unnest(:ids::bigint[], :tokens::bigint[], :reasons::text[], :crashes::integer[], :failures::integer[], :errors::text[], :times::text[])
        AS i (id, token, reason, crashes, failures, errors, failure_times)
    ), ${held(skip, "input")}, ${gone}, letters AS (
      INSERT INTO ${n.deadLetters} (id, attempt, crashes, failures, errors, failure_times, reason, died_at, token, ${keptColumns})
      SELECT g.id, g.attempt, i.crashes, i.failures, i.errors, i.failure_times, i.reason, ${n.now}, g.token, ${qualified("g", keptColumns)}
      FROM gone g JOIN input i USING (id)
    )
    SELECT id FROM gone`,
    "bury"
  )
  const look = statement(n, "settle_look", `SELECT id, token FROM ${n.jobs} WHERE id = ANY (:ids::bigint[])`)
  const leases = (list: ReadonlyArray<Settlement>) => ({ ids: list.map((s) => s.id), tokens: list.map((s) => s.token) })
  const histories = (list: ReadonlyArray<Tagged<"Return"> | Tagged<"Bury">>) => ({
    crashes: list.map((s) => s.history.crashes),
    failures: list.map((s) => s.history.failures),
    errors: list.map((s) => s.history.errors),
    times: list.map((s) => s.history.failureTimes)
  })
  return (session, queue, settlements, { lapsedOnly, skipLocked }) =>
    Effect.gen(function* () {
      const { acks, burials, returns } = byTag(settlements)
      const pick = skipLocked ? ("skip" as const) : ("wait" as const)
      const common = { queue, lapsedOnly, channel: n.channel, topic: queueTopic(queue) }
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
      const done = new Set(rows.map((row) => int(row.id)))
      const missed = settlements.filter((s) => !done.has(s.id))
      const left = missed.length === 0 ? [] : yield* session.execute(look, { ids: missed.map((s) => s.id) })
      return outcomes(settlements, done, left)
    })
}

export const qualified = (alias: string, columns: string): string =>
  columns
    .split(", ")
    .map((column) => `${alias}.${column}`)
    .join(", ")

/** Job by job inside the write lock; nothing can be locked by somebody else. */
const sqlite: Settle = (n) => {
  const guard = `id = :id AND token = :token AND (NOT :lapsedOnly OR ${leaseOver(n, "")})`
  const ack = statement(n, "ack", `DELETE FROM ${n.jobs} WHERE ${guard} RETURNING id, dedupe_key`)
  const freeKey = statement(
    n,
    "settle_key",
    `DELETE FROM ${n.dedupeKeys} WHERE queue = :queue AND dedupe_key = :key AND job_id = :id AND free_at IS NULL`
  )
  const giveBack = statement(
    n,
    "give_back",
    `UPDATE ${n.jobs} SET token = NULL, worker = NULL, claimed_at = NULL, visibility_ms = NULL, attempt = :attempt,
      visible_at = coalesce(${n.now} + :delay, min(visible_at, ${n.now})), due_at = coalesce(${n.now} + :delay, min(visible_at, ${n.now})),
      undecodable_since = :undecodable, crashes = :crashes, failures = :failures, errors = :errors, failure_times = :times
    WHERE ${guard} RETURNING id`
  )
  const bury = statement(
    n,
    "bury",
    `INSERT INTO ${n.deadLetters} (id, attempt, crashes, failures, errors, failure_times, reason, died_at, token, ${keptColumns})
    SELECT id, attempt, :crashes, :failures, :errors, :times, :reason, ${n.now}, token, ${keptColumns} FROM ${n.jobs} WHERE ${guard}
    RETURNING id`
  )
  const look = statement(n, "settle_look", `SELECT id, token FROM ${n.jobs} WHERE id = :id`)
  return (session, queue, settlements, { lapsedOnly }) =>
    Effect.gen(function* () {
      const done = new Set<number>()
      const left: Array<Row> = []
      const lapsed = lapsedOnly ? 1 : 0
      for (const s of settlements) {
        const lease = { id: s.id, token: s.token, lapsedOnly: lapsed }
        const history =
          s._tag === "Ack"
            ? {}
            : {
                crashes: s.history.crashes,
                failures: s.history.failures,
                errors: s.history.errors,
                times: s.history.failureTimes
              }
        if (s._tag === "Return") {
          const rows = yield* session.execute(giveBack, {
            ...lease,
            ...history,
            attempt: s.attempt,
            delay: s.delayMillis,
            undecodable: s.undecodableSince
          })
          if (rows.length > 0) done.add(s.id)
        } else {
          const moved =
            s._tag === "Ack" || (yield* session.execute(bury, { ...lease, ...history, reason: s.reason })).length > 0
          const [gone] = moved ? yield* session.execute(ack, lease) : []
          if (gone !== undefined) done.add(s.id)
          if (gone !== undefined && gone.dedupe_key !== null)
            yield* session.execute(freeKey, { queue, key: gone.dedupe_key, id: s.id })
        }
        if (!done.has(s.id)) left.push(...(yield* session.execute(look, { id: s.id })))
      }
      return outcomes(settlements, done, left)
    })
}

export const settle: PerEngine<Settle> = { postgres, sqlite }
