/**
 * Rows beside the jobs to be drained, straight into the library's tables.
 */
import type { Clutter, Engine } from "../contender.js"
import { numbers, runPostgres, runSqlite, text } from "./clutter.js"

interface Dialect {
  readonly engine: Engine
  readonly prefix: string
  readonly now: string
}

const postgres: Dialect = {
  engine: "postgres",
  prefix: "alkstore.",
  now: "floor(extract(epoch from now()) * 1000)::bigint"
}

const sqlite: Dialect = {
  engine: "sqlite",
  prefix: "_alkstore_",
  now: "cast(unixepoch('subsec') * 1000 AS INTEGER)"
}

/** What comes in later is due later: ready clutter stands behind the jobs that are there. */
const statements = ({ engine, now, prefix }: Dialect, clutter: Clutter): ReadonlyArray<string> => {
  const queue = clutter.where === "same queue" ? "'bench'" : "'beside'"
  const live = (count: number, due: string) =>
    `INSERT INTO ${prefix}jobs (queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, visible_at)
    SELECT ${queue}, ${text}, 0, 0, 20, ${now}, ${due}, ${due} FROM ${numbers(engine, count)}`
  const kept = (table: string, columns: string, values: string, first: number) =>
    `INSERT INTO ${prefix}${table} (id, queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, ${columns})
    SELECT ${first} + g.n, ${queue}, ${text}, 0, 1, 20, ${now}, ${now}, ${values}
    FROM ${numbers(engine, Math.floor(clutter.finished / 2))}`
  return [
    ...(clutter.delayed > 0 ? [live(clutter.delayed, `${now} + 86400000`)] : []),
    ...(clutter.ready > 0 ? [live(clutter.ready, now)] : []),
    ...(clutter.finished > 0
      ? [
          kept("dead_letters", "reason, died_at, token", `'exhausted', ${now}, 1`, 1_000_000_000),
          kept("completed_jobs", "completed_at, token", `${now}, 1`, 2_000_000_000)
        ]
      : [])
  ]
}

export const clutterPostgres = (url: string, clutter: Clutter) => runPostgres(url, statements(postgres, clutter))

export const clutterSqlite = (file: string, clutter: Clutter) => runSqlite(file, statements(sqlite, clutter))
