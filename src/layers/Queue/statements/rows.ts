/**
 * The one row codec: what the engines answer, in our types. int8 comes as text from one driver and as a number from
 * another, a boolean as 0 or 1 from SQLite.
 */

import { errorsOf, livesOf } from "../../../services/History.js"
import type { CompletedRow, DeadRow, LiveRow } from "../../../services/JobRows.js"
import type { DeadReason, JobState } from "../../../services/JobState.js"
import { stateOf } from "../../../services/JobState.js"
import type { ClaimedRow } from "../../../services/Settlement.js"
import type { Row } from "../../engine.js"

export const int = (value: unknown): number => Number(value)
export const intOrNull = (value: unknown): number | null =>
  value === null || value === undefined ? null : Number(value)
export const textOrNull = (value: unknown): string | null =>
  value === null || value === undefined ? null : String(value)
export const bool = (value: unknown): boolean =>
  value === true || value === 1 || value === "1" || value === "t" || value === "true"

/** Columns of a claimed row, unqualified. */
export const claimedColumns =
  "id, queue, token, payload, priority, attempt, max_attempts, crashes, failures, enqueued_at, due_at, expires_at, headers, dedupe_key, dedupe_scope, ordering_key, progress, history, errors, failure_times, undecodable_since, cancel_requested_at, claimed_at, visible_at, visibility_ms"

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
