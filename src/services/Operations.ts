/**
 * What operators and programs may ask of a queue besides enqueuing and claiming: dead letters, cancellation, pauses,
 * changes of waiting jobs, counts. Encoded; the typed surface is `Queue.make`.
 *
 * @since 0.1.0
 */
import type { Effect } from "effect"
import type { ForeignTransaction, StoreError, TransactionOpen } from "./Errors.js"
import type { JobError } from "./Job.js"
import type { CompletedRow, DeadRow, LiveRow } from "./JobRows.js"
import type { DeadReason, JobState } from "./JobState.js"

type Refused = ForeignTransaction | TransactionOpen | StoreError

/**
 * Which dead letters: all that fit every criterion given.
 *
 * @since 0.1.0
 * @category models
 */
export interface DeadFilter {
  readonly ids: ReadonlyArray<number> | null
  readonly reasons: ReadonlyArray<DeadReason> | null
  /** Died at or after; milliseconds since the Unix epoch. */
  readonly from: number | null
  /** Died before. */
  readonly until: number | null
  /** A text that one of the letter's errors contains. */
  readonly error: string | null
  readonly orderingKey: string | null
}

/**
 * @since 0.1.0
 * @category models
 */
export interface RequeueRequest {
  /** The queue of the new job; another one than the letter's, perhaps. */
  readonly to: string
  readonly delayMillis: number
  /** Whether that queue can read a payload. */
  readonly accepts: (payload: string) => Effect.Effect<boolean>
}

/**
 * What a requeue did: how many went back; how many stay because their dedupe key is held, by a live job or by the window of one
 * that has ended, and because the other queue's Schema does not accept their payload; and the ids of the first hundred that stay.
 *
 * @since 0.1.0
 * @category models
 */
export interface Requeued {
  readonly requeued: number
  readonly keyHeld: number
  readonly notAccepted: number
  readonly left: ReadonlyArray<number>
}

/**
 * Which live jobs: all that fit every criterion given.
 *
 * @since 0.1.0
 * @category models
 */
export interface LiveFilter {
  readonly ids: ReadonlyArray<number> | null
  readonly dedupeKey: string | null
  readonly orderingKey: string | null
  readonly states: ReadonlyArray<JobState> | null
  /** Enqueued at or after; milliseconds since the Unix epoch. */
  readonly from: number | null
  /** Enqueued before. */
  readonly until: number | null
}

/**
 * `cancelled`: it waited, and is a dead letter now; `requested`: it is leased, its handler will be interrupted, and an
 * ack that comes first wins; `tooLate`: there is no such live job (any more).
 *
 * @since 0.1.0
 * @category models
 */
export type CancelOutcome = "cancelled" | "requested" | "tooLate"

/**
 * A change of waiting jobs; what is null stays as it is.
 *
 * @since 0.1.0
 * @category models
 */
export interface Change {
  /** Due so many milliseconds from now. */
  readonly delayMillis: number | null
  /** Due at this instant; one that has passed means now. */
  readonly runAt: number | null
  readonly priority: number | null
}

/**
 * `changed`; `leased`: a worker holds it, nothing was changed; `tooLate`: there is no such live job (any more).
 *
 * @since 0.1.0
 * @category models
 */
export type ChangeOutcome = "changed" | "leased" | "tooLate"

/**
 * A number of rows: exact up to 10,000, then not, which it says. PostgreSQL: its planner's estimate, which follows the
 * last ANALYZE. SQLite: 10,001, for more than 10,000.
 *
 * @since 0.1.0
 * @category models
 */
export interface Count {
  readonly count: number
  readonly exact: boolean
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Counts {
  readonly queue: string
  readonly ready: Count
  readonly delayed: Count
  readonly blocked: Count
  readonly leased: Count
  readonly dead: Count
  readonly completed: Count
  readonly paused: boolean
  /** For how long the ready job that waits longest has been ready, in milliseconds; undefined when none is. */
  readonly oldestReadyMillis: number | undefined
  /** Milliseconds until the next delayed job is due, or has expired; undefined when there is none. */
  readonly nextDueMillis: number | undefined
}

/**
 * A job wherever it is.
 *
 * @since 0.1.0
 * @category models
 */
export type Found =
  | { readonly _tag: "Live"; readonly job: LiveRow }
  | { readonly _tag: "Dead"; readonly job: DeadRow }
  | { readonly _tag: "Completed"; readonly job: CompletedRow }

/**
 * What was asked of a worker while it holds jobs.
 *
 * @since 0.1.0
 * @category models
 */
export interface Signals {
  /** The queue is paused for the whole fleet. */
  readonly paused: boolean
  /** Those of the jobs asked about that are to be cancelled. */
  readonly cancelled: ReadonlyArray<number>
}

/**
 * A life of a job that ended in the dead letters and was requeued.
 *
 * @since 0.1.0
 * @category models
 */
export interface PastLife {
  readonly id: number
  readonly queue: string
  readonly reason: DeadReason
  readonly diedAt: number
  readonly attempts: number
  readonly crashes: number
  readonly failures: number
  readonly errors: ReadonlyArray<JobError>
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /** Dead letters of a queue, newest first, after the one with this time of death and id. */
  readonly listDead: (
    queue: string,
    options: {
      readonly limit: number
      readonly filter?: DeadFilter | undefined
      readonly after?: { readonly diedAt: number; readonly id: number } | undefined
    }
  ) => Effect.Effect<ReadonlyArray<DeadRow>, Refused>
  /** Moves dead letters back to the live jobs, page by page, each page in a transaction (or all in the caller's). */
  readonly requeue: (queue: string, filter: DeadFilter, request: RequeueRequest) => Effect.Effect<Requeued, Refused>
  /** Deletes dead letters, page by page; answers how many. */
  readonly purgeDead: (queue: string, filter: DeadFilter) => Effect.Effect<number, Refused>
  /** Completed jobs that the queue retains, newest first, after the one with this time and id. */
  readonly listCompleted: (
    queue: string,
    options: {
      readonly limit: number
      readonly after?: { readonly completedAt: number; readonly id: number } | undefined
    }
  ) => Effect.Effect<ReadonlyArray<CompletedRow>, Refused>
  /** Ends live jobs by id; answers in order. */
  readonly cancel: (queue: string, ids: ReadonlyArray<number>) => Effect.Effect<ReadonlyArray<CancelOutcome>, Refused>
  /** Changes waiting jobs by id; answers in order. */
  readonly change: (
    queue: string,
    ids: ReadonlyArray<number>,
    change: Change
  ) => Effect.Effect<ReadonlyArray<ChangeOutcome>, Refused>
  /** Ids of live jobs after the given one, by id. */
  readonly select: (
    queue: string,
    filter: LiveFilter,
    page: { readonly after: number; readonly limit: number }
  ) => Effect.Effect<ReadonlyArray<number>, Refused>
  /** Deletes waiting jobs, page by page, without dead letters; leased ones stay. Answers how many. */
  readonly clear: (queue: string) => Effect.Effect<number, Refused>
  /** Stops or resumes claims of a queue for the whole fleet; answers whether that changed anything. */
  readonly setPaused: (queue: string, paused: boolean) => Effect.Effect<boolean, Refused>
  readonly signals: (queue: string, ids: ReadonlyArray<number>) => Effect.Effect<Signals, TransactionOpen | StoreError>
  readonly counts: (queue: string) => Effect.Effect<Counts, Refused>
  /** Every queue that is defined or has jobs. */
  readonly queues: Effect.Effect<ReadonlyArray<string>, Refused>
  /** Leased jobs, by the end of their lease, after the one with this deadline and id. */
  readonly running: (
    queue: string,
    options: {
      readonly limit: number
      readonly after?: { readonly deadline: number; readonly id: number } | undefined
    }
  ) => Effect.Effect<ReadonlyArray<LiveRow>, Refused>
  /** A job by id, wherever it is. */
  readonly find: (id: number) => Effect.Effect<Found | undefined, Refused>
}
