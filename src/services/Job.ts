/**
 * The job, as a handler or a manual consumer sees it, and the words a handler fails with.
 *
 * @since 0.1.0
 */
import { type Cause, Data, type Duration, Effect } from "effect"
import type { SettleError } from "./Errors.js"
import type { Lease } from "./Lease.js"
import type { PastLife } from "./Operations.js"

/**
 * One failed, timed-out or crashed attempt, as it is stored with the job: at most 10, each at most 8 KiB.
 *
 * @since 0.1.0
 * @category models
 */
export interface JobError {
  /** Milliseconds since the Unix epoch, by the database's clock. */
  readonly at: number
  readonly attempt: number
  /** `failure`: the error channel; `defect`: a throw; `timeout`, `stuck`, `crash`, `undecodable`: as named. */
  readonly kind: "failure" | "defect" | "timeout" | "stuck" | "crash" | "undecodable"
  readonly message: string
  /** The `_tag` or the class name of the error, when it has one. */
  readonly tag?: string
  /** The pretty-printed cause. */
  readonly detail?: string
}

/**
 * What is known of a job besides its payload.
 *
 * @since 0.1.0
 * @category models
 */
export interface JobInfo {
  readonly id: number
  readonly queue: string
  /** 1 on the first run. */
  readonly attempt: number
  readonly maxAttempts: number
  /** Leases that ended unsettled: a killed process, say. Counted among the attempts as well. */
  readonly crashes: number
  /** Attempts that failed, crashes not counted. */
  readonly failures: number
  readonly priority: number
  readonly enqueuedAt: Date
  readonly dueAt: Date
  readonly expiresAt: Date | undefined
  readonly headers: Readonly<Record<string, string>>
  readonly dedupeKey: string | undefined
  readonly orderingKey: string | undefined
  /** What the last heartbeat with progress of an earlier attempt recorded. */
  readonly progress: unknown
  /** The last ten failed attempts, oldest first. */
  readonly errors: ReadonlyArray<JobError>
  /** Earlier lives of the job: it was dead, and requeued. Oldest first, at most the last five. */
  readonly history: ReadonlyArray<PastLife>
}

/**
 * Options of `job.retry`.
 *
 * @since 0.1.0
 * @category models
 */
export interface RetryOptions {
  /** Default: 1 s, doubled with each failure of the job, at most 24 h. */
  readonly delay?: Duration.DurationInput | undefined
  /** Kept in the job's error history. */
  readonly error?: unknown
}

/**
 * A claimed job. Its settling operations are fenced by the lease: when the job is no longer this claim's they fail
 * with `LeaseLost` and change nothing. Inside a transaction of the queue's own client they commit or roll back with it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Job<A> extends JobInfo {
  readonly payload: A
  readonly lease: Lease
  /** The job is done; it leaves the live table. */
  readonly ack: Effect.Effect<void, SettleError>
  /** Gives the job back, ready after a delay; the attempt is spent. On the last attempt it is dead-lettered (`exhausted`). */
  readonly retry: (options?: RetryOptions) => Effect.Effect<void, SettleError>
  /** Dead-letters the job now (`failed`), whatever attempts are left. */
  readonly fail: (error?: unknown) => Effect.Effect<void, SettleError>
  /** Gives the job back now; the attempt is not spent. */
  readonly release: Effect.Effect<void, SettleError>
  /** Gives the job back after a delay; the attempt is not spent. */
  readonly snooze: (delay: Duration.DurationInput) => Effect.Effect<void, SettleError>
  /**
   * Renews the lease by its visibility timeout, and records how far the work is (any JSON, at most 8 KiB; handed
   * to the next attempt as `job.progress`). In a worker leases are renewed without it; there, progress is written at
   * most once a second, and once more when the handler ends. Never part of a transaction.
   */
  readonly heartbeat: (progress?: unknown) => Effect.Effect<void, SettleError>
}

/**
 * The input of a retry Schedule: the failure it decides about.
 *
 * @since 0.1.0
 * @category models
 */
export interface JobFailure<E = unknown> {
  readonly cause: Cause.Cause<E>
  /** The error, or the defect, that the cause squashes to. */
  readonly error: unknown
  /** How many times the job has failed, this time included; crashes are not counted. */
  readonly failures: number
  readonly attempt: number
  readonly job: JobInfo
}

/**
 * Fail with this to dead-letter the job now.
 *
 * @since 0.1.0
 * @category errors
 */
export class Fatal extends Data.TaggedError("Fatal")<{ readonly error: unknown }> {
  override get message(): string {
    return describe(this.error)
  }
}

/**
 * Fail with this to run the job again after exactly this delay. `maxAttempts` is obeyed, the retry Schedule is not asked.
 *
 * @since 0.1.0
 * @category errors
 */
export class RetryAfter extends Data.TaggedError("RetryAfter")<{
  readonly delay: Duration.DurationInput
  readonly error?: unknown
}> {
  override get message(): string {
    return this.error === undefined ? "retry requested" : describe(this.error)
  }
}

/**
 * Fail with this to run the job again after this delay without spending the attempt.
 *
 * @since 0.1.0
 * @category errors
 */
export class Snooze extends Data.TaggedError("Snooze")<{ readonly delay: Duration.DurationInput }> {
  override get message(): string {
    return "snooze requested"
  }
}

/**
 * Dead-letters the running job (`failed`) with this error.
 *
 * @since 0.1.0
 * @category constructors
 */
export const fatal = (error: unknown): Effect.Effect<never, Fatal> => Effect.fail(new Fatal({ error }))

/**
 * Runs the running job again after this delay; the attempt is spent.
 *
 * @since 0.1.0
 * @category constructors
 */
export const retryAfter = (delay: Duration.DurationInput, error?: unknown): Effect.Effect<never, RetryAfter> =>
  Effect.fail(new RetryAfter({ delay, error }))

/**
 * Runs the running job again after this delay; the attempt is not spent.
 *
 * @since 0.1.0
 * @category constructors
 */
export const snooze = (delay: Duration.DurationInput): Effect.Effect<never, Snooze> =>
  Effect.fail(new Snooze({ delay }))

/**
 * A text for any thrown value, however hostile: never throws.
 *
 * @since 0.1.0
 * @category conversions
 */
export const describe = (error: unknown): string => {
  try {
    if (typeof error === "string") return error
    if (error instanceof Error)
      return typeof error.message === "string" && error.message !== "" ? error.message : error.name
    if (typeof error === "object" && error !== null)
      return JSON.stringify(error) ?? Object.prototype.toString.call(error)
    return String(error)
  } catch {
    return "(an error that cannot be printed)"
  }
}
