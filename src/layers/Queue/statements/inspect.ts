/**
 * inspect: live jobs and counts, for people and gauges. Every count stops at 10,000 rows of an index; beyond that the
 * planner's estimate (PostgreSQL) or the bound itself (SQLite) is answered, marked as not exact.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { Count, Counts, Found } from "../../../services/Operations.js"
import type { LiveRow } from "../../../services/QueueStore.js"
import { type Names, type PerEngine, type Session, statement } from "../../engine.js"
import { bool, completedRow, deadRow, int, intOrNull, liveRow } from "./rows.js"
import type { Cursor } from "./sweep.js"

/** Up to here counts are exact. */
const bound = 10_000

export interface Inspect {
  /** Live jobs of a queue by id. */
  readonly list: (
    session: Session,
    queue: string,
    after: number,
    limit: number
  ) => Effect.Effect<ReadonlyArray<LiveRow>, StoreError>
  /** Leased jobs of a queue by the end of their lease. */
  readonly running: (
    session: Session,
    queue: string,
    after: Cursor,
    limit: number
  ) => Effect.Effect<ReadonlyArray<LiveRow>, StoreError>
  readonly find: (session: Session, id: number) => Effect.Effect<Found | undefined, StoreError>
  readonly counts: (session: Session, queue: string) => Effect.Effect<Counts, StoreError>
  readonly queues: (session: Session) => Effect.Effect<ReadonlyArray<string>, StoreError>
}

const limited = (from: string) => `(SELECT count(*) FROM (SELECT 1 FROM ${from} LIMIT ${bound + 1}) AS few)`

/** One look-up per distinct queue name of an index that begins with it. */
const namesOf = (table: string, condition: string) =>
  `SELECT min(queue) FROM ${table} WHERE ${condition}
      UNION ALL SELECT (SELECT min(t.queue) FROM ${table} t WHERE t.queue > found.name AND ${condition}) FROM found WHERE found.name IS NOT NULL`

const make = (n: Names): Inspect => {
  const waiting = "queue = :queue AND token IS NULL AND visible_at IS NOT NULL"
  const list = statement(
    n,
    "list",
    `SELECT j.*, ${n.now} AS now FROM ${n.jobs} j WHERE j.queue = :queue AND j.id > :after ORDER BY j.id LIMIT :limit`
  )
  const running = statement(
    n,
    "running",
    `SELECT j.*, ${n.now} AS now FROM ${n.jobs} j
    WHERE j.queue = :queue AND j.token IS NOT NULL AND (j.visible_at, j.id) > (:at, :id) ORDER BY j.visible_at, j.id LIMIT :limit`
  )
  const live = statement(n, "find", `SELECT j.*, ${n.now} AS now FROM ${n.jobs} j WHERE j.id = :id`)
  const dead = statement(n, "find_dead", `SELECT * FROM ${n.deadLetters} WHERE id = :id`)
  const completed = statement(n, "find_completed", `SELECT * FROM ${n.completedJobs} WHERE id = :id`)
  const priorities = `priorities (priority) AS (
      SELECT (SELECT max(w.priority) FROM ${n.jobs} w WHERE ${waiting})
      UNION ALL
      SELECT (SELECT max(w.priority) FROM ${n.jobs} w WHERE ${waiting} AND w.priority < p.priority) FROM priorities p WHERE p.priority IS NOT NULL
    )`
  const extreme = (what: string, condition: string) =>
    `(SELECT min(at) FROM (SELECT (SELECT ${what} FROM ${n.jobs} w WHERE ${waiting} AND w.priority = p.priority AND ${condition}) AS at FROM priorities p WHERE p.priority IS NOT NULL) AS each_priority)`
  const counts = statement(
    n,
    "counts",
    `WITH RECURSIVE ${priorities}
    SELECT ${limited(`${n.jobs} WHERE ${waiting} AND visible_at <= ${n.now}`)} AS ready,
      ${limited(`${n.jobs} WHERE ${waiting} AND visible_at > ${n.now}`)} AS delayed,
      ${limited(`${n.jobs} WHERE queue = :queue AND visible_at IS NULL`)} AS blocked,
      ${limited(`${n.jobs} WHERE queue = :queue AND token IS NOT NULL`)} AS leased,
      ${limited(`${n.deadLetters} WHERE queue = :queue`)} AS dead,
      ${limited(`${n.completedJobs} WHERE queue = :queue`)} AS completed,
      EXISTS (SELECT 1 FROM ${n.queues} q WHERE q.name = :queue AND q.paused_at IS NOT NULL) AS paused,
      ${extreme("min(w.visible_at)", `w.visible_at <= ${n.now}`)} AS oldest,
      ${extreme("min(w.visible_at)", `w.visible_at > ${n.now}`)} AS next,
      ${n.now} AS now`
  )
  const queues = statement(
    n,
    "queues",
    `WITH RECURSIVE found (name) AS (${namesOf(n.jobs, "token IS NULL AND visible_at IS NOT NULL").replaceAll("found", "found")})
    SELECT name FROM ${n.queues} UNION SELECT name FROM found WHERE name IS NOT NULL ORDER BY name`
  )
  return {
    list: (session, queue, after, limit) =>
      Effect.map(session.execute(list, { queue, after, limit }), (rows) =>
        rows.map((row) => liveRow(row, int(row.now)))
      ),
    running: (session, queue, { at, id }, limit) =>
      Effect.map(session.execute(running, { queue, at, id, limit }), (rows) =>
        rows.map((row) => liveRow(row, int(row.now)))
      ),
    find: (session, id) =>
      Effect.gen(function* () {
        const [job] = yield* session.execute(live, { id })
        if (job !== undefined) return { _tag: "Live", job: liveRow(job, int(job.now)) }
        const [letter] = yield* session.execute(dead, { id })
        if (letter !== undefined) return { _tag: "Dead", job: deadRow(letter) }
        const [done] = yield* session.execute(completed, { id })
        return done === undefined ? undefined : { _tag: "Completed", job: completedRow(done) }
      }),
    counts: (session, queue) =>
      Effect.map(session.execute(counts, { queue }), ([row = {}]) => {
        const now = int(row.now)
        const oldest = intOrNull(row.oldest)
        const next = intOrNull(row.next)
        return {
          queue,
          ready: counted(row.ready),
          delayed: counted(row.delayed),
          blocked: counted(row.blocked),
          leased: counted(row.leased),
          dead: counted(row.dead),
          completed: counted(row.completed),
          paused: bool(row.paused),
          oldestReadyMillis: oldest === null ? undefined : Math.max(0, now - oldest),
          nextDueMillis: next === null ? undefined : Math.max(0, next - now)
        }
      }),
    queues: (session) => Effect.map(session.execute(queues, {}), (rows) => rows.map((row) => String(row.name)))
  }
}

const counted = (value: unknown): Count => {
  const count = int(value)
  return count > bound ? { count, exact: false } : { count, exact: true }
}

/** The two engines share these statements. */
export const inspect: PerEngine<(n: Names) => Inspect> = { postgres: make, sqlite: make }
