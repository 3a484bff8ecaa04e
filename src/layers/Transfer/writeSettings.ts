/**
 * import: the statements for what there is one of by its name, queues' settings and schedules, where the target may have its own.
 */
import { Effect } from "effect"
import { type Names, type Session, type Statement, same, statement } from "../engine.js"
import { textOrNull } from "../Queue/statements/rows.js"
import { type Columns, columns, namesOf, rowsFrom, text } from "./columns.js"
import type { Given, Writes } from "./write.js"

export const makeSettings = (
  n: Names
): Pick<Writes, "addQueues" | "addSchedules" | "moveSchedules" | "ownJobs" | "keepJobs"> => {
  const rows = rowsFrom[n.engine]
  const mine = columns.queue.map(([, column]) => column).filter((column) => column !== "name" && column !== "paused_at")
  const queues = statement(
    n,
    "import_queues",
    // A worker's word that was given here stands
    `INSERT INTO ${n.queues} AS q (${namesOf(columns.queue)}, updated_at) SELECT ${namesOf(columns.queue)}, ${n.now} FROM ${rows("rows", columns.queue)} AS r WHERE true
    ON CONFLICT (name) DO UPDATE SET ${mine.map((column) => `${column} = CASE WHEN q.defined_by = 'producer' THEN excluded.${column} ELSE q.${column} END`).join(", ")},
      paused_at = coalesce(q.paused_at, excluded.paused_at), updated_at = excluded.updated_at`
  )
  const fields = columns.schedule
    .map(([, column]) => column)
    .filter((column) => column !== "name" && column !== "paused_at")
  const schedules = statement(
    n,
    "import_schedules",
    // One that was just put here, and has not come to a boundary, gives way
    `INSERT INTO ${n.schedules} AS s (${namesOf(columns.schedule)}, fire_at, updated_at)
    SELECT ${namesOf(columns.schedule)}, CASE WHEN paused_at IS NULL THEN next_at END, ${n.now} FROM ${rows("rows", columns.schedule)} AS r WHERE true
    ON CONFLICT (name) DO UPDATE SET ${fields.map((column) => `${column} = excluded.${column}`).join(", ")}, updated_at = excluded.updated_at,
      paused_at = coalesce(s.paused_at, excluded.paused_at), fire_at = CASE WHEN s.paused_at IS NULL THEN excluded.fire_at END
    WHERE s.last_at IS NULL AND s.fired = 0
    RETURNING name`
  )
  const times = ["cron", "time_zone", "every_ms", "anchor"]
  const account = ["next_at", "last_at", "fired", "skipped", "live_jobs"]
  // Under another name: what is returned must be said so that both engines know whose name it is
  const moved: Columns = [
    ["name", "moved", "text"],
    ["noted", "noted", "big"],
    ...columns.schedule.filter(([, column]) => column !== "name")
  ]
  const move = statement(
    n,
    "import_schedules_moved",
    `UPDATE ${n.schedules} AS s SET ${account.map((column) => `${column} = r.${column}`).join(", ")},
      paused_at = coalesce(s.paused_at, r.paused_at),
      fire_at = CASE WHEN coalesce(s.paused_at, r.paused_at) IS NULL THEN r.next_at END, updated_at = ${n.now}
    FROM ${rows("rows", moved)} AS r
    WHERE s.name = r.moved AND coalesce(s.last_at, 0) = r.noted
      AND ${times.map((column) => same[n.engine](`s.${column}`, `r.${column}`)).join(" AND ")}
    RETURNING name`
  )
  const name = [["name", "name", "text"]] as const
  const own = statement(
    n,
    "import_schedules_own",
    `SELECT name, live_jobs FROM ${n.schedules} WHERE name IN (SELECT name FROM ${rows("rows", name)} AS r) ORDER BY name ${n.engine === "postgres" ? "FOR UPDATE" : ""}`
  )
  const keep = statement(
    n,
    "import_schedules_keep",
    `UPDATE ${n.schedules} AS s SET live_jobs = r.live_jobs FROM ${rows("rows", [...name, ["liveJobs", "live_jobs", "text"]])} AS r WHERE s.name = r.name`
  )
  const namesIn = (statement: Statement) => (session: Session, given: ReadonlyArray<Given>) =>
    Effect.map(session.execute(statement, text(given)), (found) => new Set(found.map((row) => String(row.name))))
  return {
    addQueues: (session, given) => Effect.asVoid(session.execute(queues, text(given))),
    addSchedules: namesIn(schedules),
    moveSchedules: namesIn(move),
    ownJobs: (session, names) =>
      names.length === 0
        ? Effect.succeed(new Map())
        : Effect.map(
            session.execute(own, text(names.map((name) => ({ name })))),
            (found) => new Map(found.map((row) => [String(row.name), textOrNull(row.live_jobs)]))
          ),
    keepJobs: (session, given) => (given.length === 0 ? Effect.void : Effect.asVoid(session.execute(keep, text(given))))
  }
}
