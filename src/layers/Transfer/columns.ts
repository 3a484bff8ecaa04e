/**
 * What a record has in which column, as data: read from rows and written from records by the same list.
 */
import type { PerEngine, Row } from "../engine.js"
import { bool, intOrNull, textOrNull } from "../Queue/statements/rows.js"

export type Kind = "text" | "big" | "int" | "small" | "bool"

/** Property, column, type. */
export type Columns = ReadonlyArray<readonly [property: string, column: string, kind: Kind]>

const kept: Columns = [
  ["queue", "queue", "text"],
  ["payload", "payload", "text"],
  ["priority", "priority", "small"],
  ["attempt", "attempt", "int"],
  ["maxAttempts", "max_attempts", "int"],
  ["crashes", "crashes", "int"],
  ["failures", "failures", "int"],
  ["enqueuedAt", "enqueued_at", "big"],
  ["dueAt", "due_at", "big"],
  ["expiresAt", "expires_at", "big"],
  ["expiresMillis", "expires_ms", "big"],
  ["dedupeKey", "dedupe_key", "text"],
  ["dedupeScope", "dedupe_scope", "text"],
  ["dedupeWindowMillis", "dedupe_window_ms", "big"],
  ["orderingKey", "ordering_key", "text"],
  ["headers", "headers", "text"],
  ["progress", "progress", "text"],
  ["errors", "errors", "text"],
  ["failureTimes", "failure_times", "text"],
  ["history", "history", "text"]
]

export const columns = {
  job: [...kept, ["undecodableSince", "undecodable_since", "big"], ["cancelRequestedAt", "cancel_requested_at", "big"]],
  dead: [...kept, ["reason", "reason", "text"], ["diedAt", "died_at", "big"]],
  completed: [...kept, ["completedAt", "completed_at", "big"]],
  queue: [
    ["name", "name", "text"],
    ["maxCrashes", "max_crashes", "int"],
    ["retainCompletedMillis", "retain_completed_ms", "big"],
    ["retainDeadMillis", "retain_dead_ms", "big"],
    ["deadLetterQueue", "dead_letter_queue", "text"],
    ["onDead", "on_dead", "text"],
    ["defaults", "defaults", "text"],
    ["definedBy", "defined_by", "text"],
    ["pausedAt", "paused_at", "big"]
  ],
  schedule: [
    ["name", "name", "text"],
    ["queue", "queue", "text"],
    ["cron", "cron", "text"],
    ["timeZone", "time_zone", "text"],
    ["everyMillis", "every_ms", "big"],
    ["anchor", "anchor", "big"],
    ["previousRule", "previous_rule", "text"],
    ["payload", "payload", "text"],
    ["options", "options", "text"],
    ["catchUp", "catch_up", "text"],
    ["overlap", "overlap", "text"],
    ["declared", "declared", "bool"],
    ["pausedAt", "paused_at", "big"],
    ["nextAt", "next_at", "big"],
    ["lastAt", "last_at", "big"],
    ["fired", "fired", "big"],
    ["skipped", "skipped", "big"],
    ["liveJobs", "live_jobs", "text"],
    ["failures", "failures", "int"],
    ["lastError", "last_error", "text"],
    ["lastErrorAt", "last_error_at", "big"],
    ["createdAt", "created_at", "big"]
  ]
} as const satisfies Record<string, Columns>

const valueOf = (value: unknown, kind: Kind): unknown =>
  kind === "text" ? textOrNull(value) : kind === "bool" ? bool(value) : intOrNull(value)

/** A row's values under their properties' names. */
export const propertiesOf = (row: Row, list: Columns): Record<string, unknown> =>
  Object.fromEntries(list.map(([property, column, kind]) => [property, valueOf(row[column], kind)]))

/** The names of the columns, for an INSERT. */
export const namesOf = (list: Columns): string => list.map(([, column]) => column).join(", ")

const sqlType: Record<Kind, string> = {
  text: "text",
  big: "bigint",
  int: "integer",
  small: "smallint",
  bool: "boolean"
}

/** The rows of the JSON array in a parameter, as a table with these columns. */
export const rowsFrom: PerEngine<(parameter: string, list: Columns) => string> = {
  postgres: (parameter, list) =>
    `(SELECT ${list.map(([property, column]) => `"${property}" AS ${column}`).join(", ")} FROM json_to_recordset(:${parameter}::json)
      AS given (${list.map(([property, , kind]) => `"${property}" ${sqlType[kind]}`).join(", ")}))`,
  sqlite: (parameter, list) =>
    `(SELECT ${list.map(([property, column]) => `value ->> '$.${property}' AS ${column}`).join(", ")} FROM json_each(:${parameter}))`
}

/** That parameter, called `rows`. */
export const text = (rows: ReadonlyArray<unknown>) => ({ rows: JSON.stringify(rows) })
