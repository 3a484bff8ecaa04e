/**
 * select: ids of live jobs of a queue, by filter and in the order of ids. There is no index by queue and id: a queue of
 * up to ten thousand waiting and as many leased jobs is read by the indexes of its states, whatever is beside it, and
 * sorted; a greater one by walking through the ids, of which many are its own then.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { LiveRow } from "../../../services/JobRows.js"
import type { JobState } from "../../../services/JobState.js"
import type { LiveFilter } from "../../../services/Operations.js"
import { type Names, type PerEngine, type Session, type Statement, statement } from "../../engine.js"
import { idAmong, listOf } from "./lists.js"
import { int, liveRow } from "./rows.js"

export interface Select {
  readonly ids: (
    session: Session,
    queue: string,
    filter: LiveFilter,
    after: number,
    limit: number
  ) => Effect.Effect<ReadonlyArray<number>, StoreError>
  /** Live jobs of a queue by id. */
  readonly list: (
    session: Session,
    queue: string,
    after: number,
    limit: number
  ) => Effect.Effect<ReadonlyArray<LiveRow>, StoreError>
}

/** Up to so many entries of an index are read for a page. */
const few = 10_000

const every: LiveFilter = { ids: null, dedupeKey: null, orderingKey: null, states: null, from: null, until: null }

const stateNames = ["blocked", "delayed", "leased", "ready"] as const

const stateCondition = (n: Names): Readonly<Record<JobState, string>> => ({
  ready: `(token IS NULL AND visible_at <= ${n.now})`,
  delayed: `(token IS NULL AND visible_at > ${n.now})`,
  blocked: "(token IS NULL AND visible_at IS NULL)",
  leased: "(token IS NOT NULL)"
})

const parameterOf: Readonly<Record<string, string>> = { queue: ":queue", ordering_key: ":place" }

/** After the cursor in the order of an index: see `paged` of the letters for why PostgreSQL is given rows. */
const inOrder: PerEngine<(by: ReadonlyArray<string>) => string> = {
  postgres: (by) => {
    const values = by.map((column) => parameterOf[column]).join(", ")
    return `(${by.join(", ")}, id) > (${values}, :after::bigint) AND (${by.join(", ")}) <= (${values})`
  },
  sqlite: (by) => `${by.map((column) => `${column} = ${parameterOf[column]}`).join(" AND ")} AND id > :after`
}

/** What finds the rows: their ids, given, of a dedupe key or in turn; their ordering key; their states. */
type By = "id" | "place" | "states"

const byOf = ({ dedupeKey, ids, orderingKey }: LiveFilter): By | undefined =>
  ids !== null || dedupeKey !== null ? "id" : orderingKey !== null ? "place" : undefined

const make = (n: Names): Select => {
  const conditions = stateCondition(n)
  const known = new Map<string, Statement>()
  const holders = `SELECT k.job_id FROM ${n.dedupeKeys} k WHERE k.queue = :queue AND k.dedupe_key = :key`
  const text = (by: By, filter: LiveFilter): Statement => {
    const { dedupeKey, ids, orderingKey } = filter
    // Out of ours, never out of the filter: they become part of the text
    const states = filter.states === null ? null : stateNames.filter((state) => filter.states?.includes(state))
    const wanted = states === null ? "" : states.join("_")
    const parts = `${ids === null ? "" : "i"}${dedupeKey === null ? "" : "k"}${orderingKey === null ? "" : "o"}`
    const name = `select_${by}_${parts}_${wanted}`
    const rest = [
      "enqueued_at >= :from AND enqueued_at < :until",
      ...(ids === null ? [] : [idAmong[n.engine]]),
      ...(dedupeKey === null ? [] : [`id IN (${holders}) AND dedupe_key = :key`]),
      ...(orderingKey === null || by === "place" ? [] : ["ordering_key = :place"]),
      ...(states === null
        ? []
        : [`(${states.length === 0 ? "false" : states.map((state) => conditions[state]).join(" OR ")})`])
    ].join(" AND ")
    const where = `queue = :queue AND id > :after AND ${rest}`
    // Not by id: a planner might find the ids after the cursor few, and walk through those of all queues
    const near = `queue = :queue AND id + 0 > :after AND ${rest}`
    const sources: Readonly<Record<By, string>> = {
      states: `WITH waiting AS MATERIALIZED (
        SELECT id FROM ${n.jobs} WHERE token IS NULL AND visible_at IS NOT NULL AND ${near}
      ), blocked AS MATERIALIZED (
        SELECT id FROM ${n.jobs} WHERE visible_at IS NULL AND ${inOrder[n.engine](["queue"])} AND ${rest} ORDER BY queue, id LIMIT :limit
      ), leased AS MATERIALIZED (
        SELECT id FROM ${n.jobs} WHERE token IS NOT NULL AND ${near}
      ), found AS MATERIALIZED (
        SELECT id FROM waiting UNION ALL SELECT id FROM blocked UNION ALL SELECT id FROM leased
      ) SELECT id FROM found ORDER BY id LIMIT :limit`,
      place: `SELECT id FROM ${n.jobs} WHERE ordering_key IS NOT NULL AND ${inOrder[n.engine](["queue", "ordering_key"])} AND ${rest}
      ORDER BY queue, ordering_key, id LIMIT :limit`,
      // By the ids or the key that are asked for, or through all
      id: `SELECT id FROM ${n.jobs} WHERE ${where} ORDER BY id LIMIT :limit`
    }
    const source = sources[by]
    const compiled = known.get(name) ?? statement(n, name, source)
    known.set(name, compiled)
    return compiled
  }
  const some = (condition: string, order: string) =>
    `(SELECT count(*) FROM (SELECT 1 FROM ${n.jobs} WHERE queue = :queue AND ${condition} ORDER BY ${order} LIMIT ${few + 1}) AS few_rows)`
  const size = statement(
    n,
    "select_size",
    `SELECT ${some("token IS NULL AND visible_at IS NOT NULL", "priority DESC, visible_at, id")} AS waiting,
      ${some("token IS NOT NULL", "visible_at")} AS leased`
  )
  const rows = statement(n, "list", `SELECT j.*, ${n.now} AS now FROM ${n.jobs} j WHERE ${idAmong[n.engine]}`)

  const ids: Select["ids"] = (session, queue, filter, after, limit) =>
    Effect.gen(function* () {
      // No state at all is none of them
      if (filter.states?.length === 0) return []
      let by = byOf(filter)
      if (by === undefined) {
        const [row] = yield* session.execute(size, { queue })
        by = int(row?.waiting) > few || int(row?.leased) > few ? "id" : "states"
      }
      const found = yield* session.execute(text(by, filter), {
        queue,
        after,
        limit,
        from: filter.from ?? Number.MIN_SAFE_INTEGER,
        until: filter.until ?? Number.MAX_SAFE_INTEGER,
        ids: listOf[n.engine](filter.ids ?? []),
        key: filter.dedupeKey,
        place: filter.orderingKey
      })
      return found.map((row) => int(row.id))
    })

  return {
    ids,
    list: (session, queue, after, limit) =>
      Effect.gen(function* () {
        const wanted = yield* ids(session, queue, every, after, limit)
        if (wanted.length === 0) return []
        const found = yield* session.execute(rows, { ids: listOf[n.engine](wanted) })
        return found
          .filter((row) => row.queue === queue)
          .map((row) => liveRow(row, int(row.now)))
          .sort((a, b) => a.id - b.id)
      })
  }
}

/** The two engines share these statements. */
export const select: PerEngine<(n: Names) => Select> = { postgres: make, sqlite: make }
