/**
 * Version 2: schedules. `next_at` is the boundary that is owed next, `fire_at` when the scheduler has to look at the
 * row: the same instant, or later after a failure, or null while the schedule is paused.
 */
import type { Names, PerEngine } from "../../engine.js"

interface Types {
  readonly int: string
  readonly big: string
  readonly text: string
  readonly bool: string
  readonly name: string
}

const types: PerEngine<Types> = {
  postgres: { int: "integer", big: "bigint", text: "text", bool: "boolean", name: 'text COLLATE "C"' },
  sqlite: { int: "INTEGER", big: "INTEGER", text: "TEXT", bool: "INTEGER", name: "TEXT" }
}

const tables = (n: Names, t: Types): ReadonlyArray<string> => [
  `CREATE TABLE ${n.schedules} (
  name ${t.name} NOT NULL PRIMARY KEY,
  queue ${t.name} NOT NULL,
  cron ${t.text},
  time_zone ${t.text},
  every_ms ${t.big},
  anchor ${t.big},
  previous_rule ${t.text},
  payload ${t.text} NOT NULL,
  options ${t.text} NOT NULL,
  catch_up ${t.text} NOT NULL,
  overlap ${t.text} NOT NULL,
  declared ${t.bool} NOT NULL,
  paused_at ${t.big},
  next_at ${t.big} NOT NULL,
  fire_at ${t.big},
  last_at ${t.big},
  fired ${t.big} NOT NULL DEFAULT 0,
  skipped ${t.big} NOT NULL DEFAULT 0,
  live_jobs ${t.text},
  failures ${t.int} NOT NULL DEFAULT 0,
  last_error ${t.text},
  last_error_at ${t.big},
  created_at ${t.big} NOT NULL,
  updated_at ${t.big} NOT NULL
)`,
  `CREATE INDEX ${n.index("schedules_firing")} ON ${n.schedules} (fire_at, name) WHERE fire_at IS NOT NULL`
]

export const schedules: PerEngine<(n: Names) => ReadonlyArray<string>> = {
  postgres: (n) => tables(n, types.postgres),
  sqlite: (n) => tables(n, types.sqlite)
}
