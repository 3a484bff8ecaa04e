/**
 * Reads of dead letters and completed jobs, by filter and page. By reason each reason is read on its own, in the order
 * of the index that begins with it, and the answers are merged: letters of another reason are not met.
 */
import { Effect } from "effect"
import type { DeadRow } from "../../../services/JobRows.js"
import type { DeadFilter } from "../../../services/Operations.js"
import { type Names, type PerEngine, type Session, statement } from "../../engine.js"
import type { Letters } from "./letters.js"
import { completedRow, deadRow, intOrNull } from "./rows.js"
import type { Cursor } from "./sweep.js"

/** Before every letter, as a cursor of a list that goes back in time. */
export const fromEnd: Cursor = { at: Number.MAX_SAFE_INTEGER, id: Number.MAX_SAFE_INTEGER }

const big: PerEngine<(name: string) => string> = {
  postgres: (name) => `:${name}::bigint`,
  sqlite: (name) => `:${name}`
}

/**
 * What an error says, not how it is stored: `:error` is the text as it looks inside JSON, which rules out most letters
 * without a parse; `:plain` is looked for in the texts themselves.
 */
const matches: PerEngine<string> = {
  postgres: `(:place::text IS NULL OR ordering_key = :place::text) AND (:error::text IS NULL OR (strpos(errors, :error::text) > 0 AND EXISTS (
        SELECT 1 FROM json_array_elements(errors::json) AS e
        WHERE strpos(e ->> 'message', :plain::text) > 0 OR strpos(e ->> 'tag', :plain::text) > 0 OR strpos(e ->> 'detail', :plain::text) > 0)))`,
  sqlite: `(:place IS NULL OR ordering_key = :place) AND (:error IS NULL OR (instr(errors, :error) > 0 AND EXISTS (
        SELECT 1 FROM json_each(errors) AS e
        WHERE instr(e.value ->> 'message', :plain) > 0 OR instr(e.value ->> 'tag', :plain) > 0 OR instr(e.value ->> 'detail', :plain) > 0)))`
}

const anyOf: PerEngine<string> = {
  postgres: "id = ANY (:ids::bigint[]) AND (:reasons::text[] IS NULL OR reason = ANY (:reasons::text[]))",
  sqlite:
    "id IN (SELECT value FROM json_each(:ids)) AND (:reasons IS NULL OR reason IN (SELECT value FROM json_each(:reasons)))"
}

const arrays: PerEngine<(values: ReadonlyArray<unknown> | null) => unknown> = {
  postgres: (values) => values,
  sqlite: (values) => (values === null ? null : JSON.stringify(values))
}

/** As errors are stored: without what no database takes. */
const storable = (text: string): string => text.replaceAll("\u0000", "\uFFFD").replace(/\p{Surrogate}/gu, "\uFFFD")

const parameters = (n: Names, queue: string, filter: DeadFilter) => {
  const plain = filter.error === null ? null : storable(filter.error)
  return {
    queue,
    ids: arrays[n.engine](filter.ids),
    reasons: arrays[n.engine](filter.reasons),
    from: filter.from ?? Number.MIN_SAFE_INTEGER,
    until: filter.until ?? Number.MAX_SAFE_INTEGER,
    error: plain === null ? null : JSON.stringify(plain).slice(1, -1),
    plain,
    place: filter.orderingKey
  }
}

type By = "time" | "reason" | "id"

const conditions = (n: Names): Readonly<Record<By, string>> => ({
  time: "",
  reason: " AND reason = :reason",
  id: ` AND ${anyOf[n.engine]}`
})

/** The two engines share these. */
export const letterReads = (n: Names): Pick<Letters, "list" | "lock" | "completed" | "latest"> => {
  const b = big[n.engine]
  const where = (by: By) =>
    `queue = :queue${conditions(n)[by]} AND died_at >= ${b("from")} AND died_at < ${b("until")} AND ${matches[n.engine]}`
  const texts = {
    list: (by: By) =>
      statement(
        n,
        `dead_letters_by_${by}`,
        `SELECT * FROM ${n.deadLetters} WHERE ${where(by)} AND (died_at, id) < (${b("at")}, ${b("id")})
        ORDER BY died_at DESC, id DESC LIMIT :limit`
      ),
    lock: (by: By) =>
      statement(
        n,
        `letters_lock_by_${by}`,
        `SELECT * FROM ${n.deadLetters} WHERE ${where(by)} AND (died_at, id) > (${b("at")}, ${b("id")})
        ORDER BY died_at, id LIMIT :limit${n.engine === "postgres" ? " FOR UPDATE SKIP LOCKED" : ""}`
      )
  }
  const each = (text: (by: By) => ReturnType<typeof statement>) => ({
    time: text("time"),
    reason: text("reason"),
    id: text("id")
  })
  const all = { list: each(texts.list), lock: each(texts.lock) }
  const order = { list: -1, lock: 1 }
  const read =
    (kind: "list" | "lock"): Letters["list"] =>
    (session, queue, filter, { at, id }, limit) => {
      const run = (by: By, extra: object = {}) =>
        Effect.map(
          session.execute(all[kind][by], { ...parameters(n, queue, filter), ...extra, at, id, limit }),
          (rows) => rows.map(deadRow)
        )
      if (filter.ids !== null) return run("id")
      if (filter.reasons === null) return run("time")
      const merge = (a: DeadRow, b: DeadRow) => order[kind] * (a.diedAt - b.diedAt || a.id - b.id)
      return Effect.map(
        Effect.forEach([...new Set(filter.reasons)], (reason) => run("reason", { reason })),
        (pages) => pages.flat().sort(merge).slice(0, limit)
      )
    }
  const completed = statement(
    n,
    "completed_jobs",
    `SELECT * FROM ${n.completedJobs} WHERE queue = :queue AND (completed_at, id) < (${b("at")}, ${b("id")})
    ORDER BY completed_at DESC, id DESC LIMIT :limit`
  )
  const latest = statement(
    n,
    "letters_latest",
    `SELECT died_at FROM ${n.deadLetters} WHERE queue = :queue ORDER BY died_at DESC, id DESC LIMIT 1`
  )
  return {
    list: read("list"),
    lock: read("lock"),
    latest: (session, queue) => Effect.map(session.execute(latest, { queue }), ([row]) => intOrNull(row?.died_at)),
    completed: (session: Session, queue: string, { at, id }: Cursor, limit: number) =>
      Effect.map(session.execute(completed, { queue, at, id, limit }), (rows) => rows.map(completedRow))
  }
}
