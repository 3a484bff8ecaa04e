/** Jobs and claimed rows as the services have them. */
import type { NewJob } from "../../src/services/QueueStore.js"
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

/** A job to enqueue, with nothing said of it. */
export const newJob: NewJob = {
  payload: "{}",
  priority: 0,
  maxAttempts: 20,
  delayMillis: 0,
  runAt: null,
  expiresMillis: null,
  expiresAt: null,
  dedupeKey: null,
  dedupeScope: null,
  dedupeWindowMillis: null,
  replace: false,
  orderingKey: null,
  headers: null
}
