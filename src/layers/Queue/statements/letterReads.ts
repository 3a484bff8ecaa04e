/**
 * Reads of dead letters and completed jobs, by filter and page.
 */
import { Effect } from "effect"
import type { DeadFilter } from "../../../services/Operations.js"
import { type Names, type PerEngine, type Session, statement } from "../../engine.js"
import type { Letters } from "./letters.js"
import { completedRow, deadRow } from "./rows.js"
import type { Cursor } from "./sweep.js"

/** Before every letter, as a cursor of a list that goes back in time. */
export const fromEnd: Cursor = { at: Number.MAX_SAFE_INTEGER, id: Number.MAX_SAFE_INTEGER }

const big: PerEngine<(name: string) => string> = {
  postgres: (name) => `:${name}::bigint`,
  sqlite: (name) => `:${name}`
}

const matches: PerEngine<string> = {
  postgres: `(:reasons::text[] IS NULL OR reason = ANY (:reasons::text[]))
      AND (:error::text IS NULL OR strpos(errors, :error::text) > 0) AND (:place::text IS NULL OR ordering_key = :place::text)`,
  sqlite: `(:reasons IS NULL OR reason IN (SELECT value FROM json_each(:reasons)))
      AND (:error IS NULL OR instr(errors, :error) > 0) AND (:place IS NULL OR ordering_key = :place)`
}

const anyOf: PerEngine<string> = {
  postgres: "id = ANY (:ids::bigint[])",
  sqlite: "id IN (SELECT value FROM json_each(:ids))"
}

const arrays: PerEngine<(values: ReadonlyArray<unknown> | null) => unknown> = {
  postgres: (values) => values,
  sqlite: (values) => (values === null ? null : JSON.stringify(values))
}

const parameters = (n: Names, queue: string, filter: DeadFilter) => ({
  queue,
  ids: arrays[n.engine](filter.ids),
  reasons: arrays[n.engine](filter.reasons),
  from: filter.from ?? Number.MIN_SAFE_INTEGER,
  until: filter.until ?? Number.MAX_SAFE_INTEGER,
  // Errors are stored as JSON: that is what a text looks like there
  error: filter.error === null ? null : JSON.stringify(filter.error).slice(1, -1),
  place: filter.orderingKey
})

/** The two engines share these. */
export const letterReads = (n: Names): Pick<Letters, "list" | "lock" | "completed"> => {
  const b = big[n.engine]
  const where = (ids: boolean) =>
    `queue = :queue AND died_at >= ${b("from")} AND died_at < ${b("until")} AND ${matches[n.engine]}${ids ? ` AND ${anyOf[n.engine]}` : ""}`
  const list = (ids: boolean) =>
    statement(
      n,
      ids ? "dead_letters_by_id" : "dead_letters",
      `SELECT * FROM ${n.deadLetters} WHERE ${where(ids)} AND (died_at, id) < (${b("at")}, ${b("id")})
      ORDER BY died_at DESC, id DESC LIMIT :limit`
    )
  const lock = (ids: boolean) =>
    statement(
      n,
      ids ? "letters_lock_by_id" : "letters_lock",
      `SELECT * FROM ${n.deadLetters} WHERE ${where(ids)} AND (died_at, id) > (${b("at")}, ${b("id")})
      ORDER BY died_at, id LIMIT :limit${n.engine === "postgres" ? " FOR UPDATE SKIP LOCKED" : ""}`
    )
  const both = { list: [list(false), list(true)], lock: [lock(false), lock(true)] } as const
  const read =
    (kind: "list" | "lock"): Letters["list"] =>
    (session, queue, filter, { at, id }, limit) =>
      Effect.map(
        session.execute(both[kind][filter.ids === null ? 0 : 1], { ...parameters(n, queue, filter), at, id, limit }),
        (rows) => rows.map(deadRow)
      )
  const completed = statement(
    n,
    "completed_jobs",
    `SELECT * FROM ${n.completedJobs} WHERE queue = :queue AND (completed_at, id) < (${b("at")}, ${b("id")})
    ORDER BY completed_at DESC, id DESC LIMIT :limit`
  )
  return {
    list: read("list"),
    lock: read("lock"),
    completed: (session: Session, queue: string, { at, id }: Cursor, limit: number) =>
      Effect.map(session.execute(completed, { queue, at, id, limit }), (rows) => rows.map(completedRow))
  }
}
