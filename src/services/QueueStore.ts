/**
 * The Queue service: what an engine does for queues. Encoded rows in, encoded rows out; the typed surface is
 * `Queue.make`.
 *
 * @since 0.1.0
 */
import { Context, type Effect, type Scope } from "effect"
import type { EnqueueUncertain, ForeignTransaction, InvalidArgument, StoreError, TransactionOpen } from "./Errors.js"
import type { LiveRow } from "./JobRows.js"
import type { JobState } from "./JobState.js"
import type { Service as Operations } from "./Operations.js"
import type { ClaimedRow, Settlement, SettleOutcome } from "./Settlement.js"

/**
 * A job to enqueue, encoded and checked.
 *
 * @since 0.1.0
 * @category models
 */
export interface NewJob {
  /** JSON text. */
  readonly payload: string
  readonly priority: number
  readonly maxAttempts: number
  /** From the database's now, in milliseconds; with `runAt` null. */
  readonly delayMillis: number
  /** An instant in milliseconds since the Unix epoch; one that has passed means now. */
  readonly runAt: number | null
  /** Counted from dueAt, in milliseconds. */
  readonly expiresMillis: number | null
  /** An instant in milliseconds since the Unix epoch. */
  readonly expiresAt: number | null
  readonly dedupeKey: string | null
  /** `waiting`: the key is free at the first claim; null: as long as the job is live. */
  readonly dedupeScope: "waiting" | null
  /** How long the key is held on after the job has ended. */
  readonly dedupeWindowMillis: number | null
  /** Whether a waiting job that holds the dedupe key is replaced by this one. */
  readonly replace: boolean
  readonly orderingKey: string | null
  /** JSON text of a map of strings. */
  readonly headers: string | null
}

/**
 * What became of an enqueued job.
 *
 * @since 0.1.0
 * @category models
 */
export interface Receipt {
  readonly id: number
  /** `ended`: the first job has ended, and its dedupe window has not. */
  readonly state: JobState | "ended"
  /** A live job held the dedupe key already: `id` and `state` are that job's, nothing was added. */
  readonly deduplicated: boolean
  /** The live job's payload, priority and due time were replaced by this one's (`onDuplicate: "replace"`). */
  readonly replaced: boolean
}

/**
 * The stored settings of a queue, which every process of the fleet goes by.
 *
 * @since 0.1.0
 * @category models
 */
export interface QueueSettings {
  readonly name: string
  /** More crashes than this dead-letter a job. */
  readonly maxCrashes: number
  /** How long completed jobs are kept, in milliseconds; null: not at all. */
  readonly retainCompletedMillis: number | null
  /** How long dead letters are kept, in milliseconds; null: until they are purged. */
  readonly retainDeadMillis: number | null
  /** The queue in which an envelope of each dead letter is enqueued. */
  readonly deadLetterQueue: string | null
  /** Whether a dead letter holds its ordering key (`block`) or lets it go on. */
  readonly onDead: "continue" | "block"
  /** JSON text: priority and maxAttempts of jobs that the store itself enqueues there. */
  readonly defaults: string | null
}

/**
 * @since 0.1.0
 * @category models
 */
export interface ClaimRequest {
  readonly queue: string
  /** Jobs for free handlers: whichever are ready. */
  readonly limit: number
  /** Jobs beyond `limit` that are claimed ahead; none that crashed before or is on its last attempt is among them. */
  readonly prefetch: number
  /**
   * How many free handlers that is, where one takes several jobs: no more of those that crashed before are claimed, since each has
   * a handler to itself, and none on its last attempt from behind one. Default: `limit`.
   */
  readonly handlers?: number | undefined
  readonly visibilityMillis: number
  /** Who claims: kept with the row while it is leased. */
  readonly worker: string
  /** Look for lapsed leases even when enough jobs are ready. */
  readonly probe: boolean
  /**
   * Where an earlier claim of the same drain has come to: what lies before it, and higher priorities, are not looked at.
   * An open snapshot somewhere in the database keeps the entries of what has gone, and walking through them again for
   * each claim would be most of its cost. Means nothing on SQLite, which keeps none.
   */
  readonly after?: ClaimPosition | undefined
}

/**
 * A place in the order of a queue's jobs.
 *
 * @since 0.1.0
 * @category models
 */
export interface ClaimPosition {
  readonly priority: number
  readonly visibleAt: number
  readonly id: number
}

/**
 * @since 0.1.0
 * @category models
 */
export interface ClaimResult {
  /** In order: priority (highest first), the instant they became visible, id. */
  readonly jobs: ReadonlyArray<ClaimedRow>
  /** There may be more to claim right now. */
  readonly more: boolean
  /** Ready jobs were left for free handlers: the next claim should be for those alone, or they are passed for ever. */
  readonly left?: boolean | undefined
  /** The queue is paused for the whole fleet. */
  readonly paused: boolean
  /** Milliseconds until the next job is due or the next lease ends; undefined when none is known. */
  readonly nextInMillis: number | undefined
  /** Where it has come to, if it may go on from there. */
  readonly last?: ClaimPosition | undefined
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Renewal {
  readonly id: number
  readonly token: number
  readonly visibilityMillis: number
  /** JSON text; undefined leaves the stored progress as it is. */
  readonly progress: string | undefined
}

/**
 * `renewed`; `gone`: there is no such live job any more; `lost`: it is live, but not under this token; `busy`: the row is locked by somebody at this moment,
 * the lease stands as it was; `cancelled`: renewed, but the job is to be cancelled.
 *
 * @since 0.1.0
 * @category models
 */
export type RenewOutcome = "renewed" | "gone" | "lost" | "busy" | "cancelled"

/**
 * What a sweep did.
 *
 * @since 0.1.0
 * @category models
 */
export interface SweepResult {
  /** Jobs dead-lettered because their `expiresAt` had passed. */
  readonly expired: number
  /** Jobs given back because their lease had ended. */
  readonly recovered: number
  /** Jobs dead-lettered because attempts or crashes were spent. */
  readonly crashed: number
  /** Dead letters and completed jobs deleted because their retention had passed. */
  readonly purged: number
}

/**
 * A worker of this process, for jobs that are enqueued while it has nothing to do: they are stored as claimed by it at once.
 *
 * @since 0.1.0
 * @category models
 */
export interface Receiver {
  readonly queue: string
  /** As in `ClaimRequest`. */
  readonly worker: string
  readonly visibilityMillis: number
  /** Whether it waits for jobs and has free handlers for so many: they are kept for them then, until `take`. */
  readonly reserve: (jobs: number) => boolean
  /** Gives back what was reserved, and hands over what has been claimed instead, if anything. */
  readonly take: (reserved: number, jobs: ReadonlyArray<ClaimedRow>) => void
}

type Refused = ForeignTransaction | TransactionOpen | StoreError

/**
 * Every call joins the ambient transaction of the queue's own client, except where it says otherwise.
 *
 * @since 0.1.0
 * @category models
 */
export interface Service extends Operations {
  /**
   * Makes the settings known to the fleet; a worker's word beats a producer's. Never part of a transaction. Fails with
   * `InvalidArgument` when the dead-letter queue leads back to the queue.
   */
  readonly define: (
    settings: QueueSettings,
    by: "producer" | "worker"
  ) => Effect.Effect<void, InvalidArgument | StoreError>
  /** All or none; receipts in the order of the jobs. */
  readonly enqueue: (
    queue: string,
    jobs: ReadonlyArray<NewJob>
  ) => Effect.Effect<ReadonlyArray<Receipt>, Refused | EnqueueUncertain | InvalidArgument>
  readonly claim: (request: ClaimRequest) => Effect.Effect<ClaimResult, Refused>
  /**
   * Until its scope is closed, a receiver may be handed what this process enqueues outside of every transaction: plain jobs that
   * are due, stored as claimed by it in the statement that enqueues them, when that claim would find nothing before them.
   */
  readonly receive: (receiver: Receiver) => Effect.Effect<void, never, Scope.Scope>
  /**
   * Each is settled on its own: outcomes in the order of the settlements. With `skipLocked` a row that somebody has
   * locked at this moment is answered `busy`; without, it is waited for.
   */
  readonly settle: (
    queue: string,
    settlements: ReadonlyArray<Settlement>,
    options?: { readonly skipLocked: boolean }
  ) => Effect.Effect<ReadonlyArray<SettleOutcome>, Refused>
  /** Outcomes in the order of the renewals. Never part of a transaction. */
  readonly renew: (
    renewals: ReadonlyArray<Renewal>
  ) => Effect.Effect<ReadonlyArray<RenewOutcome>, TransactionOpen | StoreError>
  /** The same as a part of the transaction that the caller is in. */
  readonly renewWithin: (renewals: ReadonlyArray<Renewal>) => Effect.Effect<ReadonlyArray<RenewOutcome>, Refused>
  /**
   * Expires what has expired, gives back or dead-letters what has a lapsed lease, and deletes what has been retained
   * long enough, of one queue or of all, in pages, until none is left. Safe to run anywhere, at any time, by several at once. Never part of a transaction.
   */
  readonly sweepExpired: (queue?: string) => Effect.Effect<SweepResult, TransactionOpen | StoreError>
  /** Live jobs of a queue by id. */
  readonly list: (
    queue: string,
    options: { readonly limit: number; readonly after: number }
  ) => Effect.Effect<ReadonlyArray<LiveRow>, Refused>
  /**
   * Runs an effect in a transaction of the queue's client; inside one, in a nested one. Unlike the stock
   * `withTransaction` it takes the write lock first and waits for it without blocking (SQLite), failures of BEGIN
   * and COMMIT are typed, a failed COMMIT leaves no open transaction behind, and a wait for a connection can be
   * interrupted. Do not run nested ones in parallel.
   */
  readonly transaction: <A, E, R>(self: Effect.Effect<A, E, R>) => Effect.Effect<A, E | StoreError, R>
  /** Runs an effect as if it had been started outside any transaction: for fibers that outlive their parent. */
  readonly detached: <A, E, R>(self: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  /**
   * Whether this process itself keeps everybody else from claiming at this moment: a transaction is open on the one
   * SQLite connection. Always false on PostgreSQL.
   */
  readonly holdsWriteLock: Effect.Effect<boolean>
  /**
   * Whether an open transaction keeps everybody else from writing: claims, renewals and settles of this process wait
   * until it has ended. True on SQLite, whose client has one connection; false on PostgreSQL.
   */
  readonly singleWriter: boolean
  /** Opens a scope that is closed with the engine's Layer, before anything of it is, unless it was closed before. */
  readonly innerScope: Effect.Effect<Scope.CloseableScope>
  /** Milliseconds on this process's monotonic clock: see `ClaimedRow.claimedMonotonic`. */
  readonly monotonic: Effect.Effect<number>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class Queue extends Context.Tag("alkstore/Queue")<Queue, Service>() {}

/**
 * How calls relate to an ambient transaction: `join` it, or stand `outside` of it.
 *
 * @since 0.1.0
 * @category models
 */
export class TransactionMode extends Context.Reference<TransactionMode>()("alkstore/TransactionMode", {
  defaultValue: (): "join" | "outside" => "join"
}) {}
