/**
 * counts: how many jobs of a queue are in each state, for people and gauges. Each count stops at 10,000 entries of an
 * index, found without meeting the other states' entries. Beyond that PostgreSQL answers its planner's estimate; SQLite,
 * which has none of a single queue, that there are more.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { Count, Counts } from "../../../services/Operations.js"
import { type Names, type PerEngine, type Session, statement } from "../../engine.js"
import { bool, int, intOrNull } from "./rows.js"

/** Up to here counts are exact. */
const bound = 10_000

type CountOf = (n: Names) => (session: Session, queue: string) => Effect.Effect<Counts, StoreError>

const states = ["ready", "delayed", "blocked", "leased", "dead", "completed"] as const
type State = (typeof states)[number]

const waiting = "queue = :queue AND token IS NULL AND visible_at IS NOT NULL"

/** Rows of each state: where they are, and by which order an index finds them. */
const sources = (n: Names): Readonly<Record<State, { from: string; order: string }>> => ({
  ready: { from: `${n.jobs} WHERE ${waiting} AND visible_at <= ${n.now}`, order: "visible_at, id" },
  delayed: { from: `${n.jobs} WHERE ${waiting} AND visible_at > ${n.now}`, order: "visible_at, id" },
  blocked: { from: `${n.jobs} WHERE queue = :queue AND visible_at IS NULL`, order: "id" },
  leased: { from: `${n.jobs} WHERE queue = :queue AND token IS NOT NULL`, order: "visible_at" },
  dead: { from: `${n.deadLetters} WHERE queue = :queue`, order: "died_at, id" },
  completed: { from: `${n.completedJobs} WHERE queue = :queue`, order: "completed_at, id" }
})

/** Rows of the index of waiting jobs lie by priority first: each is looked at on its own, as a claim does. */
const eachPriority: PerEngine<(n: Names, condition: string) => string> = {
  postgres: (n, condition) => `priorities p CROSS JOIN LATERAL (
        SELECT 1 FROM ${n.jobs} w WHERE ${waiting} AND w.priority = p.priority AND ${condition} ORDER BY w.visible_at, w.id LIMIT ${bound + 1}
      ) AS each WHERE p.priority IS NOT NULL`,
  // `unlikely`: see `claim_next`
  sqlite: (n, condition) =>
    `priorities p CROSS JOIN ${n.jobs} w WHERE p.priority IS NOT NULL AND unlikely(w.queue = :queue) AND w.token IS NULL AND w.visible_at IS NOT NULL AND w.priority = p.priority AND ${condition}`
}

const counting = (n: Names) => {
  const of = sources(n)
  const limited = (from: string) => `(SELECT count(*) FROM (SELECT 1 FROM ${from} LIMIT ${bound + 1}) AS few_rows)`
  const byState = (state: State) => limited(`${of[state].from} ORDER BY ${of[state].order}`)
  const top = (below: string) =>
    `(SELECT w.priority FROM ${n.jobs} w WHERE ${waiting}${below} ORDER BY w.priority DESC LIMIT 1)`
  const first = (condition: string) =>
    `(SELECT min(at) FROM (SELECT (SELECT w.visible_at FROM ${n.jobs} w WHERE ${n.engine === "sqlite" ? waiting.replace("queue = :queue", "unlikely(queue = :queue)") : waiting} AND w.priority = p.priority AND ${condition} ORDER BY w.visible_at LIMIT 1) AS at FROM priorities p WHERE p.priority IS NOT NULL) AS firsts)`
  const visible = eachPriority[n.engine]
  return statement(
    n,
    "counts",
    `WITH RECURSIVE priorities (priority) AS (
      SELECT ${top("")} UNION ALL SELECT ${top(" AND w.priority < p.priority")} FROM priorities p WHERE p.priority IS NOT NULL
    ) SELECT ${limited(visible(n, `w.visible_at <= ${n.now}`))} AS ready,
      ${limited(visible(n, `w.visible_at > ${n.now}`))} AS delayed,
      ${byState("blocked")} AS blocked, ${byState("leased")} AS leased, ${byState("dead")} AS dead, ${byState("completed")} AS completed,
      EXISTS (SELECT 1 FROM ${n.queues} q WHERE q.name = :queue AND q.paused_at IS NOT NULL) AS paused,
      ${first(`w.visible_at <= ${n.now}`)} AS oldest, ${first(`w.visible_at > ${n.now}`)} AS next, ${n.now} AS now`
  )
}

/** The rows that a plan expects. */
const planRows = (plan: unknown): number => {
  const [top] = (typeof plan === "string" ? JSON.parse(plan) : plan) as ReadonlyArray<{ Plan: { "Plan Rows": number } }>
  return int(top?.Plan["Plan Rows"])
}

const make =
  (estimated: (n: Names) => (session: Session, queue: string, state: State) => Effect.Effect<number, StoreError>) =>
  (n: Names): ReturnType<CountOf> => {
    const counts = counting(n)
    const estimate = estimated(n)
    return (session, queue) =>
      Effect.gen(function* () {
        const [row = {}] = yield* session.execute(counts, { queue })
        const counted = {} as Record<State, Count>
        for (const state of states) {
          const count = int(row[state])
          counted[state] =
            count <= bound
              ? { count, exact: true }
              : { count: Math.max(count, Math.round(yield* estimate(session, queue, state))), exact: false }
        }
        const now = int(row.now)
        const oldest = intOrNull(row.oldest)
        const next = intOrNull(row.next)
        return {
          queue,
          ...counted,
          paused: bool(row.paused),
          oldestReadyMillis: oldest === null ? undefined : Math.max(0, now - oldest),
          nextDueMillis: next === null ? undefined : Math.max(0, next - now)
        }
      })
  }

export const counts: PerEngine<CountOf> = {
  postgres: make((n) => {
    const of = sources(n)
    const texts = Object.fromEntries(
      states.map((state) => [
        state,
        statement(n, `counts_${state}`, `EXPLAIN (FORMAT JSON) SELECT 1 FROM ${of[state].from}`)
      ])
    )
    return (session, queue, state) =>
      Effect.map(session.execute(texts[state] as (typeof texts)[string], { queue }), ([row]) =>
        planRows(row?.["QUERY PLAN"])
      )
  }),
  sqlite: make(() => () => Effect.succeed(bound + 1))
}
