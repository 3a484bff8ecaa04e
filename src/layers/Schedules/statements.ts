/**
 * The SQL of schedules, both engines. A schedule is changed and fired under its row's lock: on PostgreSQL the row is
 * locked by the look at it, on SQLite the write transaction is the lock.
 */
import { type Names, type PerEngine, type Statement, statement } from "../engine.js"

interface Differences {
  /** Locks the row that is looked at; waits for it. */
  readonly lock: string
  /** The same, passing over a row that somebody has locked. */
  readonly lockFree: string
  /** Whether a value is in a list, given as one parameter. */
  readonly within: (value: string, parameter: string, type: string) => string
  readonly least: string
  readonly most: string
  /** A parameter that may be null. */
  readonly big: (parameter: string) => string
}

const differences: PerEngine<Differences> = {
  postgres: {
    lock: "FOR UPDATE",
    lockFree: "FOR UPDATE SKIP LOCKED",
    within: (value, parameter, type) =>
      `${value} IN (SELECT v::${type} FROM json_array_elements_text(${parameter}::json) AS e (v))`,
    least: "least",
    most: "greatest",
    big: (parameter) => `${parameter}::bigint`
  },
  sqlite: {
    lock: "",
    lockFree: "",
    within: (value, parameter) => `${value} IN (SELECT value FROM json_each(${parameter}))`,
    least: "min",
    most: "max",
    big: (parameter) => parameter
  }
}

/** What a put sets; the rest is the engine's account of it. */
const given = ["queue", "cron", "time_zone", "every_ms", "anchor", "payload", "options", "catch_up", "overlap"] as const
const parameterOf = (column: string): string =>
  `:${column.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase())}`

export interface ScheduleStatements {
  readonly present: Statement
  readonly get: Statement
  readonly list: Statement
  readonly lock: Statement
  readonly lockDue: Statement
  readonly insert: Statement
  readonly change: Statement
  readonly declare: Statement
  readonly advance: Statement
  readonly fail: Statement
  readonly pause: Statement
  readonly resume: Statement
  readonly remove: Statement
  readonly prune: Statement
  readonly keepJobs: Statement
  readonly liveJobs: Statement
  readonly nextIn: Statement
  readonly due: Statement
  readonly notify: Statement
  /** How long what follows in its transaction waits for a lock; answers how long it did. None on SQLite, which waits for none. */
  readonly hurry: Statement | undefined
  /** Around what may fail without the rest of its transaction. */
  readonly savepoint: Statement
  readonly rollback: Statement
  readonly release: Statement
}

const selected = (n: Names) => `SELECT s.*, ${n.now} AS now FROM ${n.schedules} s`

/** For whoever is told that a schedule's job has another id. */
export const ownJobStatements = (n: Names): Pick<ScheduleStatements, "lock" | "keepJobs"> => ({
  lock: statement(n, "schedule_lock", `${selected(n)} WHERE name = :name ${differences[n.engine].lock}`),
  keepJobs: statement(n, "schedule_jobs", `UPDATE ${n.schedules} SET live_jobs = :liveJobs WHERE name = :name`)
})

/** Everything but the row locks is the same on both engines. */
export const scheduleStatements = (n: Names): ScheduleStatements => {
  const { big, least, lockFree, most, within } = differences[n.engine]
  const one = (name: string, text: string) => statement(n, name, text)
  const row = selected(n)
  return {
    ...ownJobStatements(n),
    present: one("present", `SELECT ${n.now} AS now`),
    get: one("schedule", `${row} WHERE name = :name`),
    list: one("schedules", `${row} ORDER BY name`),
    lockDue: one("schedule_due", `${row} WHERE name = :name AND fire_at <= ${n.now} ${lockFree}`),
    insert: one(
      "schedule_put",
      `INSERT INTO ${n.schedules} (name, ${given.join(", ")}, declared, next_at, fire_at, created_at, updated_at)
      VALUES (:name, ${given.map(parameterOf).join(", ")}, :declared, :nextAt, :nextAt, ${n.now}, ${n.now})
      ON CONFLICT (name) DO NOTHING
      RETURNING name`
    ),
    change: one(
      "schedule_change",
      `UPDATE ${n.schedules} SET ${given.map((column) => `${column} = ${parameterOf(column)}`).join(", ")},
        declared = :declared, previous_rule = :previousRule, next_at = :nextAt, fire_at = CASE WHEN paused_at IS NULL THEN ${most}(${big(":nextAt")}, ${n.now}) END,
        failures = 0, last_error = NULL, last_error_at = NULL, updated_at = ${n.now}
      WHERE name = :name`
    ),
    declare: one("schedule_declare", `UPDATE ${n.schedules} SET declared = :declared WHERE name = :name`),
    advance: one(
      "schedule_advance",
      `UPDATE ${n.schedules} SET next_at = :nextAt, fire_at = :nextAt, last_at = ${big(":lastAt")},
        fired = fired + ${big(":fired")}, skipped = skipped + ${big(":skipped")}, live_jobs = :liveJobs,
        failures = 0, last_error = NULL, last_error_at = NULL
      WHERE name = :name`
    ),
    // After 1 s, doubling, at most five minutes apart; one that somebody has fired meanwhile is left alone
    fail: one(
      "schedule_fail",
      `UPDATE ${n.schedules} SET failures = failures + 1, last_error = :error, last_error_at = ${n.now},
        fire_at = ${n.now} + ${least}(1000 << ${least}(failures, 9), 300000)
      WHERE name = :name AND fire_at <= ${n.now}`
    ),
    pause: one(
      "schedule_pause",
      `UPDATE ${n.schedules} SET paused_at = ${n.now}, fire_at = NULL, updated_at = ${n.now} WHERE name = :name`
    ),
    resume: one(
      "schedule_resume",
      `UPDATE ${n.schedules} SET paused_at = NULL, previous_rule = :previousRule, next_at = :nextAt, fire_at = ${most}(${big(":nextAt")}, ${n.now}), updated_at = ${n.now} WHERE name = :name`
    ),
    remove: one("schedule_remove", `DELETE FROM ${n.schedules} WHERE name = :name RETURNING name`),
    prune: one(
      "schedule_prune",
      `DELETE FROM ${n.schedules} WHERE declared = :declared AND NOT ${within("name", ":keep", "text")} RETURNING name`
    ),
    // What has expired runs no more, swept or not
    liveJobs: one(
      "schedule_live",
      `SELECT id FROM ${n.jobs} WHERE ${within("id", ":ids", "bigint")} AND (token IS NOT NULL OR expires_at IS NULL OR expires_at > ${n.now}) ORDER BY id`
    ),
    nextIn: one(
      "schedule_next",
      `SELECT fire_at - ${n.now} AS next_in FROM ${n.schedules} WHERE fire_at IS NOT NULL ORDER BY fire_at LIMIT 1`
    ),
    due: one(
      "schedules_due",
      `SELECT name FROM ${n.schedules} WHERE fire_at <= ${n.now} ORDER BY fire_at, name LIMIT :limit`
    ),
    notify: one("schedule_notify", "SELECT pg_notify(:channel, :topic)"),
    hurry:
      n.engine === "postgres"
        ? one(
            "schedule_hurry",
            "SELECT current_setting('lock_timeout') AS patience, set_config('lock_timeout', :patience, true)"
          )
        : undefined,
    savepoint: one("schedule_savepoint", "SAVEPOINT alkstore_owed"),
    rollback: one("schedule_rollback", "ROLLBACK TO SAVEPOINT alkstore_owed"),
    release: one("schedule_release", "RELEASE SAVEPOINT alkstore_owed")
  }
}
