/** Claimed rows, for what is decided without a database. */
import type { ClaimedRow } from "../../src/services/Settlement.js"

export const claimedRow = (row: Partial<ClaimedRow> = {}): ClaimedRow => ({
  id: 7,
  queue: "queue",
  token: 70,
  payload: "1",
  priority: 0,
  attempt: 1,
  maxAttempts: 20,
  crashes: 0,
  failures: 0,
  enqueuedAt: 0,
  dueAt: 0,
  expiresAt: null,
  headers: null,
  dedupeKey: null,
  orderingKey: null,
  progress: null,
  errors: null,
  failureTimes: null,
  history: null,
  undecodableSince: null,
  cancelRequested: false,
  claimedAt: 0,
  deadline: 30_000,
  visibilityMillis: 30_000,
  claimedMonotonic: 0,
  ...row
})
