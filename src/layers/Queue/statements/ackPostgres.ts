/**
 * ack, on PostgreSQL. Nearly every job has neither a dedupe nor an ordering key, and its queue keeps no completed jobs: then
 * nothing is left to be done but to delete it. The statement for all cases has a dozen parts, which are started and
 * ended however few the jobs are: it takes three times as long for one.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { Settlement } from "../../../services/Settlement.js"
import { type Names, type Row, type Session, type Statement, statement } from "../../engine.js"
import { addDone, isDone } from "./byToken.js"
import { keptColumns, leaveFacts, qualified, released } from "./leave.js"
import { leaseOver } from "./lists.js"
import { int } from "./rows.js"

type Ack = Extract<Settlement, { readonly _tag: "Ack" }>

/** Waiting for rows that somebody has locked, or passing them by. */
export interface Both {
  readonly wait: Statement
  readonly skip: Statement
}

export const both = (n: Names, name: string, make: (skip: boolean) => string): Both => ({
  wait: statement(n, name, make(false)),
  skip: statement(n, `${name}_free`, make(true))
})

/** The rows that are under their lease, locked in the order of their ids. */
export const held = (n: Names, skip: boolean): string => `held AS MATERIALIZED (
      SELECT j.id FROM ${n.jobs} j JOIN input i ON i.id = j.id AND i.token = j.token
      WHERE j.id = ANY (:ids::bigint[]) AND (NOT :lapsedOnly::boolean OR ${leaseOver(n, "j.")})
      ORDER BY j.id FOR UPDATE OF j${skip ? " SKIP LOCKED" : ""}
    )`

export const gone = (n: Names): string => `gone AS (
      DELETE FROM ${n.jobs} WHERE id = ANY (ARRAY(SELECT id FROM held)) RETURNING *
    )`

export const leases = (list: ReadonlyArray<Settlement>) => ({
  ids: list.map((s) => s.id),
  tokens: list.map((s) => s.token)
})

/** What was acked: these; or `whole`, all that was asked for. */
interface Acked {
  readonly rows: ReadonlyArray<Row>
  readonly whole: boolean
}

export const makeAck = (n: Names, notify: boolean) => {
  const all = both(
    n,
    "ack",
    (skip) =>
      `WITH input AS (SELECT * FROM unnest(:ids::bigint[], :tokens::bigint[]) AS i (id, token)), ${held(n, skip)}, ${gone(n)}, ${released(n, notify)}, kept AS (
      INSERT INTO ${n.completedJobs} (id, attempt, crashes, failures, errors, failure_times, completed_at, token, ${keptColumns})
      SELECT g.id, g.attempt, g.crashes, g.failures, g.errors, g.failure_times, ${n.now}, g.token, ${qualified("g", keptColumns)}
      FROM gone g JOIN ${n.queues} q ON q.name = g.queue WHERE q.retain_completed_ms IS NOT NULL
    ) SELECT id, token, ${leaveFacts(notify, "released")} FROM gone`
  )
  const remove = (lease: string, skip: boolean) => `DELETE FROM ${n.jobs} WHERE id = ANY (ARRAY(
      SELECT j.id FROM ${n.jobs} j
      WHERE j.id = ANY (:ids::bigint[]) AND ${lease} AND j.queue = :queue
        AND j.dedupe_key IS NULL AND j.ordering_key IS NULL
        AND NOT EXISTS (SELECT 1 FROM ${n.queues} q WHERE q.name = :queue AND q.retain_completed_ms IS NOT NULL)
      ORDER BY j.id FOR UPDATE${skip ? " SKIP LOCKED" : ""}
    )) RETURNING id, token`
  // `coalesce`: a planner that knew that the rows are leased might walk through all that are
  const one = both(n, "ack_one", (skip) => remove("coalesce(j.token, 0) = ANY (:tokens::bigint[])", skip))
  // `IS TRUE` keeps the leases a hash that is looked into, and no join. A number says all where all went well
  const many = both(
    n,
    "ack_many",
    (skip) => `WITH gone AS (
      ${remove("((j.id, j.token) IN (SELECT i.id, i.token FROM unnest(:ids::bigint[], :tokens::bigint[]) AS i (id, token))) IS TRUE", skip)}
    )
    SELECT count(*)::integer AS count, CASE WHEN count(*) < :count::integer THEN json_agg(json_build_array(id, token))::text END AS some FROM gone`
  )
  /** Queues of which it is known that they keep, or kept, completed jobs. */
  const keeping = new Set<string>()

  return (
    session: Session,
    acks: ReadonlyArray<Ack>,
    common: { readonly queue: string; readonly lapsedOnly: boolean; readonly channel: string },
    pick: keyof Both
  ): Effect.Effect<Acked, StoreError> => {
    const { lapsedOnly, queue } = common
    const rest = (some: ReadonlyArray<Ack>) => session.execute(all[pick], { ...common, ...leases(some) })
    const partly = (rows: ReadonlyArray<Row>): Effect.Effect<Acked, StoreError> => {
      const done = addDone(new Map(), rows)
      const left = acks.filter((one) => !isDone(done, one))
      if (left.length === 0) return Effect.succeed({ rows, whole: false })
      return Effect.map(rest(left), (more) => {
        if (more.length > 0) keeping.add(queue)
        return { rows: [...rows, ...more], whole: false }
      })
    }
    if (acks.length === 0) return Effect.succeed({ rows: [], whole: false })
    if (lapsedOnly || keeping.has(queue) || !acks.every(({ plain }) => plain === true))
      return Effect.map(rest(acks), (rows) => ({ rows, whole: false }))
    if (acks.length === 1) return Effect.flatMap(session.execute(one[pick], { queue, ...leases(acks) }), partly)
    const count = acks.length
    return Effect.flatMap(session.execute(many[pick], { queue, count, ...leases(acks) }), ([row]) => {
      if (int(row?.count) === count) return Effect.succeed({ rows: [], whole: true })
      const some = JSON.parse(String(row?.some ?? "[]")) as ReadonlyArray<readonly [number, number]>
      return partly(some.map(([id, token]) => ({ id, token })))
    })
  }
}
