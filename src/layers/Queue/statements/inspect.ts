/**
 * inspect: what is running, a job wherever it is, and which queues there are; for people.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { LiveRow } from "../../../services/JobRows.js"
import type { Found } from "../../../services/Operations.js"
import { type Names, type PerEngine, type Session, statement } from "../../engine.js"
import { completedRow, deadRow, int, liveRow } from "./rows.js"
import type { Cursor } from "./sweep.js"

export interface Inspect {
  /** Leased jobs of a queue by the end of their lease. */
  readonly running: (
    session: Session,
    queue: string,
    after: Cursor,
    limit: number
  ) => Effect.Effect<ReadonlyArray<LiveRow>, StoreError>
  readonly find: (session: Session, id: number) => Effect.Effect<Found | undefined, StoreError>
  readonly queues: (session: Session) => Effect.Effect<ReadonlyArray<string>, StoreError>
}

/** One look-up per distinct queue name of an index that begins with it. */
const namesOf = (table: string, condition: string) =>
  `SELECT min(queue) FROM ${table} WHERE ${condition}
      UNION ALL SELECT (SELECT min(t.queue) FROM ${table} t WHERE t.queue > found.name AND ${condition}) FROM found WHERE found.name IS NOT NULL`

const make = (n: Names): Inspect => {
  const running = statement(
    n,
    "running",
    `SELECT j.*, ${n.now} AS now FROM ${n.jobs} j
    WHERE j.queue = :queue AND j.token IS NOT NULL AND (j.visible_at, j.id) > (:at, :id) ORDER BY j.visible_at, j.id LIMIT :limit`
  )
  const live = statement(n, "find", `SELECT j.*, ${n.now} AS now FROM ${n.jobs} j WHERE j.id = :id`)
  const dead = statement(n, "find_dead", `SELECT * FROM ${n.deadLetters} WHERE id = :id`)
  const completed = statement(n, "find_completed", `SELECT * FROM ${n.completedJobs} WHERE id = :id`)
  const queues = statement(
    n,
    "queues",
    `WITH RECURSIVE found (name) AS (${namesOf(n.jobs, "token IS NULL AND visible_at IS NOT NULL")})
    SELECT name FROM ${n.queues} UNION SELECT name FROM found WHERE name IS NOT NULL ORDER BY name`
  )
  return {
    running: (session, queue, { at, id }, limit) =>
      Effect.map(session.execute(running, { queue, at, id, limit }), (rows) =>
        rows.map((row) => liveRow(row, int(row.now)))
      ),
    find: (session, id) =>
      Effect.gen(function* () {
        const alive = Effect.map(session.execute(live, { id }), ([job]): Found | undefined =>
          job === undefined ? undefined : { _tag: "Live", job: liveRow(job, int(job.now)) }
        )
        const found = yield* alive
        if (found !== undefined) return found
        const [letter] = yield* session.execute(dead, { id })
        if (letter !== undefined) return { _tag: "Dead", job: deadRow(letter) }
        const [done] = yield* session.execute(completed, { id })
        if (done !== undefined) return { _tag: "Completed", job: completedRow(done) }
        // A letter that was requeued between the looks is live
        return yield* alive
      }),
    queues: (session) => Effect.map(session.execute(queues, {}), (rows) => rows.map((row) => String(row.name)))
  }
}

/** The two engines share these statements. */
export const inspect: PerEngine<(n: Names) => Inspect> = { postgres: make, sqlite: make }
