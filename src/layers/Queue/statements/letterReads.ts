/**
 * Reads of dead letters and completed jobs, by filter and page. By reason each reason is read on its own, in the order
 * of the index that begins with it, and the answers are merged: letters of another reason are not met.
 */
import { Effect } from "effect"
import type { DeadRow } from "../../../services/JobRows.js"
import type { DeadFilter } from "../../../services/Operations.js"
import { type Names, type PerEngine, type Session, type Statement, statement } from "../../engine.js"
import type { Letters } from "./letters.js"
import { idAmong, listOf } from "./lists.js"
import { completedRow, deadRow, intOrNull } from "./rows.js"
import type { Cursor } from "./sweep.js"

/** Before every letter, as a cursor of a list that goes back in time. */
export const fromEnd: Cursor = { at: Number.MAX_SAFE_INTEGER, id: Number.MAX_SAFE_INTEGER }

/**
 * What an error says, not how it is stored: `:error` is the text as it looks inside JSON, which rules out most letters
 * without a parse; `:plain` is looked for in the texts themselves.
 */
const matches: PerEngine<string> = {
  postgres: `strpos(errors, :error) > 0 AND EXISTS (SELECT 1 FROM json_array_elements(errors::json) AS e
        WHERE strpos(e ->> 'message', :plain) > 0 OR strpos(e ->> 'tag', :plain) > 0 OR strpos(e ->> 'detail', :plain) > 0)`,
  sqlite: `instr(errors, :error) > 0 AND EXISTS (SELECT 1 FROM json_each(errors) AS e
        WHERE instr(e.value ->> 'message', :plain) > 0 OR instr(e.value ->> 'tag', :plain) > 0 OR instr(e.value ->> 'detail', :plain) > 0)`
}

/** As errors are stored: without what no database takes. */
const storable = (text: string): string => text.replaceAll("\u0000", "\uFFFD").replace(/\p{Surrogate}/gu, "\uFFFD")

const parameters = (n: Names, queue: string, filter: DeadFilter) => {
  const plain = filter.error === null ? null : storable(filter.error)
  return {
    queue,
    ids: listOf[n.engine](filter.ids),
    reasons: listOf[n.engine](filter.reasons),
    error: plain === null ? null : JSON.stringify(plain).slice(1, -1),
    plain,
    place: filter.orderingKey
  }
}

type By = "time" | "reason" | "id"

/** The columns of the index that a list goes by, before `id`. */
const columns: Readonly<Record<By, ReadonlyArray<string>>> = {
  time: ["queue", "died_at"],
  reason: ["queue", "reason", "died_at"],
  id: ["queue", "died_at"]
}

/**
 * One page of an index: from a cursor on, in its order, up to `:stop`. PostgreSQL is given both ends as rows: where it
 * knows the first columns to be constant, it may find another index, or a sort, as good, and read all of it.
 */
const paged: PerEngine<(by: ReadonlyArray<string>, compare: "<" | ">") => string> = {
  postgres: (by, compare) => {
    const values = (last: string) =>
      by.map((column, index) => (index === by.length - 1 ? `:${last}::bigint` : `:${column}`)).join(", ")
    const order = [...by, "id"].map((column) => `${column}${compare === "<" ? " DESC" : ""}`).join(", ")
    return `(${by.join(", ")}, id) ${compare} (${values("at")}, :id::bigint) AND (${by.join(", ")}) ${compare === "<" ? ">=" : "<"} (${values("stop")}) REST
      ORDER BY ${order} LIMIT :limit`
  },
  sqlite: (by, compare) => {
    const at = by[by.length - 1]
    const first = by.slice(0, -1).map((column) => `${column} = :${column}`)
    const direction = compare === "<" ? " DESC" : ""
    return `${first.join(" AND ")} AND (${at}, id) ${compare} (:at, :id) AND ${at} ${compare === "<" ? ">=" : "<"} :stop REST
      ORDER BY ${at}${direction}, id${direction} LIMIT :limit`
  }
}

/** Where a page begins and may end: the cursor, or the end of the filter that comes after it. */
const ends = ({ from, until }: DeadFilter, { at, id }: Cursor) => ({
  list: {
    ...(until !== null && until <= at ? { at: until, id: Number.MIN_SAFE_INTEGER } : { at, id }),
    stop: from ?? Number.MIN_SAFE_INTEGER
  },
  lock: {
    ...(from !== null && from > at ? { at: from, id: Number.MIN_SAFE_INTEGER } : { at, id }),
    stop: until ?? Number.MAX_SAFE_INTEGER
  }
})

/** The two engines share these. */
export const letterReads = (n: Names): Pick<Letters, "list" | "lock" | "completed" | "latest"> => {
  const known = new Map<string, Statement>()
  /** With a criterion only where there is one: of others the planner of a cached plan would think that they rule out most. */
  const text = (kind: "list" | "lock", by: By, { error, orderingKey }: DeadFilter): Statement => {
    const name = `${kind === "list" ? "dead_letters" : "letters_lock"}_by_${by}${orderingKey === null ? "" : "_key"}${error === null ? "" : "_error"}`
    const rest = [
      ...(by === "id" ? [idAmong[n.engine]] : []),
      ...(orderingKey === null ? [] : ["ordering_key = :place"]),
      ...(error === null ? [] : [matches[n.engine]])
    ].map((condition) => ` AND ${condition}`)
    const where = paged[n.engine](columns[by], kind === "list" ? "<" : ">").replace(" REST", () => rest.join(""))
    const lockRows = kind === "lock" && n.engine === "postgres" ? " FOR UPDATE SKIP LOCKED" : ""
    const compiled = known.get(name) ?? statement(n, name, `SELECT * FROM ${n.deadLetters} WHERE ${where}${lockRows}`)
    known.set(name, compiled)
    return compiled
  }
  const order = { list: -1, lock: 1 }
  const read =
    (kind: "list" | "lock"): Letters["list"] =>
    (session, queue, filter, cursor, limit) => {
      const run = (by: By, extra: object = {}) =>
        Effect.map(
          session.execute(text(kind, by, filter), {
            ...parameters(n, queue, filter),
            ...extra,
            ...ends(filter, cursor)[kind],
            limit
          }),
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
    `SELECT * FROM ${n.completedJobs} WHERE ${paged[n.engine](["queue", "completed_at"], "<").replace(" REST", "")}`
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
      Effect.map(session.execute(completed, { queue, at, id, limit, stop: Number.MIN_SAFE_INTEGER }), (rows) =>
        rows.map(completedRow)
      )
  }
}
