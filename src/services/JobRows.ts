/**
 * Jobs as they stand in the database, for people and programs that look.
 *
 * @since 0.1.0
 */
import type { JobError } from "./Job.js"
import type { DeadReason, JobState } from "./JobState.js"
import type { PastLife } from "./Operations.js"

/**
 * A live job, as it stands in the database.
 *
 * @since 0.1.0
 * @category models
 */
export interface LiveRow {
  readonly id: number
  readonly queue: string
  readonly state: JobState
  readonly payload: string
  readonly priority: number
  readonly attempt: number
  readonly maxAttempts: number
  readonly crashes: number
  readonly failures: number
  readonly enqueuedAt: number
  readonly dueAt: number
  readonly expiresAt: number | null
  readonly dedupeKey: string | null
  readonly orderingKey: string | null
  readonly headers: string | null
  readonly worker: string | null
  /** When it was claimed, while it is leased. */
  readonly claimedAt: number | null
  readonly deadline: number | null
  readonly cancelRequested: boolean
  readonly progress: string | null
  readonly errors: ReadonlyArray<JobError>
  /** Earlier lives of the job, which ended in the dead letters; the latest last, at most five. */
  readonly history: ReadonlyArray<PastLife>
}

/**
 * A dead letter, as it stands in the database.
 *
 * @since 0.1.0
 * @category models
 */
export interface DeadRow {
  readonly id: number
  readonly queue: string
  readonly reason: DeadReason
  readonly payload: string
  readonly priority: number
  readonly attempts: number
  readonly maxAttempts: number
  readonly crashes: number
  readonly failures: number
  readonly enqueuedAt: number
  readonly dueAt: number
  readonly diedAt: number
  readonly expiresAt: number | null
  readonly dedupeKey: string | null
  readonly orderingKey: string | null
  readonly headers: string | null
  readonly progress: string | null
  readonly errors: ReadonlyArray<JobError>
  /** Earlier lives of the job, which ended in the dead letters too; the latest last, at most five. */
  readonly history: ReadonlyArray<PastLife>
}

/**
 * A completed job that its queue retains, as it stands in the database.
 *
 * @since 0.1.0
 * @category models
 */
export interface CompletedRow {
  readonly id: number
  readonly queue: string
  readonly payload: string
  readonly priority: number
  readonly attempts: number
  readonly maxAttempts: number
  readonly crashes: number
  readonly failures: number
  readonly enqueuedAt: number
  readonly dueAt: number
  readonly completedAt: number
  readonly expiresAt: number | null
  readonly dedupeKey: string | null
  readonly orderingKey: string | null
  readonly headers: string | null
  readonly progress: string | null
  readonly errors: ReadonlyArray<JobError>
  readonly history: ReadonlyArray<PastLife>
}
