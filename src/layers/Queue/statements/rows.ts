/**
 * The one row codec: what the engines answer, in our types. int8 comes as text from one driver and as a number from
 * another, a boolean as 0 or 1 from SQLite.
 */

import { errorsOf, livesOf } from "../../../services/History.js"
import type { CompletedRow, DeadRow, LiveRow } from "../../../services/JobRows.js"
import type { DeadReason, JobState } from "../../../services/JobState.js"
import { stateOf } from "../../../services/JobState.js"
import type { ClaimedRow } from "../../../services/Settlement.js"
import type { Engine, PerEngine, Row } from "../../engine.js"

export const int = (value: unknown): number => Number(value)
export const intOrNull = (value: unknown): number | null =>
  value === null || value === undefined ? null : Number(value)
export const textOrNull = (value: unknown): string | null =>
  value === null || value === undefined ? null : String(value)
export const bool = (value: unknown): boolean =>
  value === true || value === 1 || value === 1n || value === "1" || value === "t" || value === "true"

/** Columns of a claimed row, unqualified. */
export const claimedColumns =
  "id, queue, token, payload, priority, attempt, max_attempts, crashes, failures, enqueued_at, due_at, expires_at, headers, dedupe_key, dedupe_scope, ordering_key, progress, history, errors, failure_times, undecodable_since, cancel_requested_at, claimed_at, visible_at, visibility_ms"

/** What most jobs have nothing of: sent as one column, which is null for most. */
const rare = [
  "crashes",
  "failures",
  "expires_at",
  "dedupe_key",
  "dedupe_scope",
  "ordering_key",
  "progress",
  "history",
  "errors",
  "failure_times",
  "undecodable_since",
  "cancel_requested_at"
]

const json: PerEngine<(list: string) => string> = {
  postgres: (list) => `json_build_array(${list})::text`,
  sqlite: (list) => `json_array(${list})`
}

const common = ["payload", "priority", "attempt", "max_attempts", "enqueued_at", "due_at", "headers"]

/**
 * What a claim answers of each row beside its id and token: a row of 25 columns, nearly all null, costs more to send and
 * to read than all else about it.
 */
export const takenColumns = (engine: Engine, alias = ""): string => {
  const of = (column: string) => `${alias}${column}`
  const [crashes, failures, ...others] = rare.map(of)
  const texts = others.filter((column) => !/_(at|since)$/.test(column))
  const instants = others.filter((column) => /_(at|since)$/.test(column))
  const none = `${crashes} = 0 AND ${failures} = 0 AND coalesce(${texts.join(", ")}) IS NULL AND coalesce(${instants.join(", ")}) IS NULL`
  return `${common.map(of).join(", ")}, CASE WHEN ${none} THEN NULL ELSE ${json[engine](rare.map(of).join(", "))} END AS rare`
}

/** The names of what `takenColumns` answers, from a source that has them. */
export const takenNames = (alias: string): string => [...common, "rare"].map((column) => `${alias}${column}`).join(", ")

type Rare = readonly [
  crashes: number,
  failures: number,
  expiresAt: number | null,
  dedupeKey: string | null,
  dedupeScope: string | null,
  orderingKey: string | null,
  progress: string | null,
  history: string | null,
  errors: string | null,
  failureTimes: string | null,
  undecodableSince: number | null,
  cancelRequestedAt: number | null
]

const noneRare: Rare = [0, 0, null, null, null, null, null, null, null, null, null, null]

/** Read once: what is rare has replaced its text in the row then. */
export const rareOf = (row: Row): Rare => {
  if (typeof row.rare !== "string") return (row.rare ?? noneRare) as Rare
  const parsed = JSON.parse(row.rare) as Rare
  ;(row as Record<string, unknown>).rare = parsed
  return parsed
}

/** The lease that a claim has given, for all of its rows. */
export interface Taken {
  readonly queue: string
  readonly now: number
  readonly visibilityMillis: number
  readonly monotonic: number
}

/** `attempt` is the one that begins with the claim. */
export const takenRow = (row: Row, token: number, attempt: number, taken: Taken): ClaimedRow => {
  const more = rareOf(row)
  return {
    id: int(row.id),
    queue: taken.queue,
    token,
    payload: row.payload as string,
    priority: int(row.priority),
    attempt,
    maxAttempts: int(row.max_attempts),
    crashes: more[0],
    failures: more[1],
    enqueuedAt: int(row.enqueued_at),
    dueAt: int(row.due_at),
    expiresAt: more[2],
    headers: textOrNull(row.headers),
    dedupeKey: more[3],
    orderingKey: more[5],
    progress: more[6],
    errors: more[8],
    failureTimes: more[9],
    history: more[7],
    undecodableSince: more[10],
    cancelRequested: more[11] !== null,
    claimedAt: taken.now,
    deadline: taken.now + taken.visibilityMillis,
    visibilityMillis: taken.visibilityMillis,
    claimedMonotonic: taken.monotonic
  }
}

const counted = (row: Row) => ({
  id: int(row.id),
  queue: String(row.queue),
  payload: String(row.payload),
  priority: int(row.priority),
  maxAttempts: int(row.max_attempts),
  crashes: int(row.crashes),
  failures: int(row.failures),
  enqueuedAt: int(row.enqueued_at),
  dueAt: int(row.due_at),
  expiresAt: intOrNull(row.expires_at),
  dedupeKey: textOrNull(row.dedupe_key),
  orderingKey: textOrNull(row.ordering_key),
  headers: textOrNull(row.headers),
  progress: textOrNull(row.progress),
  errors: errorsOf({ errors: textOrNull(row.errors) }),
  history: livesOf(textOrNull(row.history))
})

/** Without a spread: in a literal with as many fields it would cost more than the whole claim. */
export const claimedRow = (row: Row, claimedMonotonic: number): ClaimedRow => ({
  id: int(row.id),
  queue: String(row.queue),
  token: int(row.token),
  payload: String(row.payload),
  priority: int(row.priority),
  attempt: int(row.attempt),
  maxAttempts: int(row.max_attempts),
  crashes: int(row.crashes),
  failures: int(row.failures),
  enqueuedAt: int(row.enqueued_at),
  dueAt: int(row.due_at),
  expiresAt: intOrNull(row.expires_at),
  headers: textOrNull(row.headers),
  dedupeKey: textOrNull(row.dedupe_key),
  orderingKey: textOrNull(row.ordering_key),
  progress: textOrNull(row.progress),
  errors: textOrNull(row.errors),
  failureTimes: textOrNull(row.failure_times),
  history: textOrNull(row.history),
  undecodableSince: intOrNull(row.undecodable_since),
  cancelRequested: row.cancel_requested_at !== null && row.cancel_requested_at !== undefined,
  claimedAt: int(row.claimed_at),
  deadline: int(row.visible_at),
  visibilityMillis: int(row.visibility_ms),
  claimedMonotonic
})

export const liveRow = (row: Row, now: number): LiveRow => {
  const token = intOrNull(row.token)
  const visibleAt = intOrNull(row.visible_at)
  const state: JobState = stateOf({ token, visibleAt }, now)
  return {
    ...counted(row),
    state,
    attempt: int(row.attempt),
    worker: textOrNull(row.worker),
    claimedAt: intOrNull(row.claimed_at),
    deadline: state === "leased" ? visibleAt : null,
    cancelRequested: intOrNull(row.cancel_requested_at) !== null
  }
}

export const deadRow = (row: Row): DeadRow => ({
  ...counted(row),
  reason: String(row.reason) as DeadReason,
  attempts: int(row.attempt),
  diedAt: int(row.died_at)
})

export const completedRow = (row: Row): CompletedRow => ({
  ...counted(row),
  attempts: int(row.attempt),
  completedAt: int(row.completed_at)
})
