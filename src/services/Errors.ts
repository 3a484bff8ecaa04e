/**
 * The closed set of errors of this library. Every one is tagged, says what to do, and carries
 * `retryable`: whether the same call, unchanged, can succeed later.
 *
 * @since 0.1.0
 */
import { Data } from "effect"

/**
 * Something given to the library cannot be taken: a name, an option, a duration, a date. Nothing was written.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidArgument extends Data.TaggedError("InvalidArgument")<{
  /** The argument, as the caller wrote it: `delay`, `dedupeKey`, `queue name`. */
  readonly argument: string
  /** What is wrong and what would be right. */
  readonly message: string
}> {
  readonly retryable = false
}

/**
 * The payload cannot be encoded to JSON by the queue's Schema, or is too big. Nothing was written.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidPayload extends Data.TaggedError("InvalidPayload")<{
  readonly queue: string
  /** Position in the batch; 0 for a single enqueue. */
  readonly index: number
  readonly message: string
  readonly cause?: unknown
}> {
  readonly retryable = false
}

/**
 * The call was made inside a transaction of another SqlClient than the queue's own. Nothing was written.
 * Say `Queue.outsideTransaction` if the write is meant to be independent of that transaction.
 *
 * @since 0.1.0
 * @category errors
 */
export class ForeignTransaction extends Data.TaggedError("ForeignTransaction")<{
  readonly operation: string
  readonly message: string
}> {
  readonly retryable = false
}

/**
 * The call can never be part of a transaction (locks, heartbeats, `outsideTransaction`), and this SQLite
 * client, which has one connection, is inside one. Nothing was written. Make the call before or after it.
 *
 * @since 0.1.0
 * @category errors
 */
export class TransactionOpen extends Data.TaggedError("TransactionOpen")<{
  readonly operation: string
  readonly message: string
}> {
  readonly retryable = false
}

/**
 * The connection was lost after the enqueue was sent and before its answer came: the jobs may or may not
 * exist. It is never repeated by the library; repeat it yourself with a `dedupeKey`.
 *
 * @since 0.1.0
 * @category errors
 */
export class EnqueueUncertain extends Data.TaggedError("EnqueueUncertain")<{
  readonly queue: string
  readonly message: string
  readonly cause: unknown
}> {
  readonly retryable = false
}

/**
 * The lease named by a settle or heartbeat is no longer the job's: another claim took the job, or it was swept,
 * cancelled or removed. Nothing was changed.
 *
 * @since 0.1.0
 * @category errors
 */
export class LeaseLost extends Data.TaggedError("LeaseLost")<{
  readonly queue: string
  readonly jobId: number
  readonly token: number
  readonly message: string
}> {
  readonly retryable = false
}

/**
 * The named lock is no longer held under this token. Nothing was changed.
 *
 * @since 0.1.0
 * @category errors
 */
export class LockLost extends Data.TaggedError("LockLost")<{
  readonly lock: string
  readonly token: number
  readonly message: string
}> {
  readonly retryable = false
}

/**
 * The named lock was still held by somebody else when the time to wait for it had passed.
 *
 * @since 0.1.0
 * @category errors
 */
export class LockTimeout extends Data.TaggedError("LockTimeout")<{
  readonly lock: string
  readonly message: string
}> {
  readonly retryable = true
}

/**
 * Why the database could not do what was asked:
 *
 * - `connection`: not reachable, or the connection broke (a read-only server after a failover counts as this)
 * - `uncertain`: the connection broke after COMMIT was sent; the transaction may or may not have committed
 * - `busy`: somebody else holds the lock that was waited for
 * - `conflict`: deadlock or serialization failure; the transaction was rolled back
 * - `timeout`: the statement ran longer than it may
 * - `readonly`, `full`, `corrupt`: the state of the database or its disk
 * - `denied`: wrong password, missing database or missing rights
 * - `constraint`: a constraint was violated (at COMMIT of the caller's transaction, say)
 * - `schema`: tables are missing or not as expected
 * - `other`: anything else
 *
 * @since 0.1.0
 * @category models
 */
export type StoreErrorReason =
  | "connection"
  | "uncertain"
  | "busy"
  | "conflict"
  | "timeout"
  | "readonly"
  | "full"
  | "corrupt"
  | "denied"
  | "constraint"
  | "schema"
  | "other"

const passing: ReadonlySet<StoreErrorReason> = new Set([
  "connection",
  "busy",
  "conflict",
  "timeout",
  "readonly",
  "full"
])

/**
 * The database refused or failed. `retryable` says whether trying again later can help.
 *
 * @since 0.1.0
 * @category errors
 */
export class StoreError extends Data.TaggedError("StoreError")<{
  readonly reason: StoreErrorReason
  readonly operation: string
  readonly message: string
  readonly cause: unknown
}> {
  get retryable(): boolean {
    return passing.has(this.reason)
  }
}

/**
 * The tables in the database do not fit this version of the library: missing (`migrate: false`), older than it
 * needs, or newer and no longer readable by it; or something else has the name of one (`found` is 0 then).
 *
 * @since 0.1.0
 * @category errors
 */
export class SchemaMismatch extends Data.TaggedError("SchemaMismatch")<{
  readonly namespace: string
  readonly found: number
  readonly expected: number
  readonly message: string
}> {
  readonly retryable = false
}

/**
 * What an enqueue can fail with.
 *
 * @since 0.1.0
 * @category errors
 */
export type EnqueueError =
  | InvalidArgument
  | InvalidPayload
  | ForeignTransaction
  | TransactionOpen
  | EnqueueUncertain
  | StoreError

/**
 * What a settle or a heartbeat can fail with.
 *
 * @since 0.1.0
 * @category errors
 */
export type SettleError = InvalidArgument | LeaseLost | ForeignTransaction | TransactionOpen | StoreError

/**
 * What a read or a claim can fail with.
 *
 * @since 0.1.0
 * @category errors
 */
export type QueueError = InvalidArgument | ForeignTransaction | TransactionOpen | StoreError

/**
 * What a lock operation can fail with, besides `LockLost` and `LockTimeout`.
 *
 * @since 0.1.0
 * @category errors
 */
export type LockError = InvalidArgument | TransactionOpen | StoreError

/**
 * A worker has stopped because it cannot do its work any more: more of its handlers ignore their interruption than it
 * has slots. Its process should be restarted.
 *
 * @since 0.1.0
 * @category errors
 */
export class WorkerFailed extends Data.TaggedError("WorkerFailed")<{
  readonly queue: string
  readonly message: string
}> {
  readonly retryable = false
}

/**
 * There is no schedule of this name. Nothing was changed.
 *
 * @since 0.1.0
 * @category errors
 */
export class ScheduleNotFound extends Data.TaggedError("ScheduleNotFound")<{
  readonly schedule: string
  readonly message: string
}> {
  readonly retryable = false
}

/**
 * An export was asked of queues that are not paused, or whose jobs are held by workers: what it reads might run both
 * here and where it is taken. Nothing was read.
 *
 * @since 0.1.0
 * @category errors
 */
export class QueuesInUse extends Data.TaggedError("QueuesInUse")<{
  /** Queues with jobs that are not paused. */
  readonly unpaused: ReadonlyArray<string>
  /** Queues of which jobs are leased. */
  readonly leased: ReadonlyArray<string>
  readonly message: string
}> {
  readonly retryable = false
}
