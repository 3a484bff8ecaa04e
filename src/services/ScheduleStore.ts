/**
 * The Schedules service: what an engine does for schedules. Encoded rows in, rows out; the typed surface is
 * `Schedules.make`.
 *
 * @since 0.1.0
 */
import { Context, type DateTime, type Duration, type Effect, type Option } from "effect"
import type { ForeignTransaction, InvalidArgument, ScheduleNotFound, StoreError, TransactionOpen } from "./Errors.js"
import type { Receipt } from "./QueueStore.js"

/**
 * When a schedule fires: a cron expression in a time zone (UTC unless given), or a period from an anchor (the Unix
 * epoch unless given).
 *
 * @since 0.1.0
 * @category models
 */
export type Rule =
  | { readonly cron: string; readonly timeZone?: string | undefined }
  | { readonly every: Duration.DurationInput; readonly anchor?: Date | DateTime.DateTime | undefined }

/**
 * What becomes of boundaries that passed while no scheduler ran: the `latest` gives one job, `all` one each (the last
 * 100 at most), or they are left out (`skip`).
 *
 * @since 0.1.0
 * @category models
 */
export type CatchUp = "latest" | "all" | "skip"

/**
 * Whether a boundary is skipped while a live job of its schedule exists.
 *
 * @since 0.1.0
 * @category models
 */
export type Overlap = "allow" | "skip"

/**
 * A schedule to put, encoded; all but its rule is checked.
 *
 * @since 0.1.0
 * @category models
 */
export interface NewSchedule {
  readonly name: string
  readonly queue: string
  readonly rule: Rule
  /** JSON text. */
  readonly payload: string
  /** JSON text of the options of its jobs' enqueue. */
  readonly options: string
  readonly catchUp: CatchUp
  readonly overlap: Overlap
  /** Put by a layer, which may prune it. */
  readonly declared: boolean
}

/**
 * A schedule as it stands in the database.
 *
 * @since 0.1.0
 * @category models
 */
export interface ScheduleInfo {
  readonly name: string
  readonly queue: string
  readonly cron: string | undefined
  readonly timeZone: string | undefined
  readonly everyMillis: number | undefined
  readonly anchor: Date | undefined
  /** The payload of its jobs, encoded. */
  readonly payload: unknown
  /** The options with which its jobs are enqueued. */
  readonly options: unknown
  readonly catchUp: CatchUp
  readonly overlap: Overlap
  /** Put by a layer. */
  readonly declared: boolean
  /** Since when it is paused. */
  readonly pausedAt: Date | undefined
  /** The boundary that comes next, or is owed; undefined while it is paused. */
  readonly nextAt: Date | undefined
  /** The last boundary that came, whatever became of it. */
  readonly lastAt: Date | undefined
  /** How many jobs its boundaries have enqueued. */
  readonly fired: number
  /** How many boundaries were skipped because a live job of it existed. */
  readonly skipped: number
  /** Why it cannot fire: it is tried again with a backoff of its own. Gone when it has fired or was changed. */
  readonly lastError: { readonly message: string; readonly at: Date; readonly failures: number } | undefined
  readonly createdAt: Date
  readonly updatedAt: Date
}

/**
 * @since 0.1.0
 * @category models
 */
export type PutOutcome = "created" | "changed" | "unchanged"

/**
 * What an operation on schedules can fail with, besides `ScheduleNotFound`.
 *
 * @since 0.1.0
 * @category errors
 */
export type ScheduleError = InvalidArgument | ForeignTransaction | TransactionOpen | StoreError

type Refused = ForeignTransaction | TransactionOpen | StoreError

/**
 * Every call but `nextInMillis` and `fireDue` joins the ambient transaction of the queues' own client.
 *
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /**
   * Creates or changes a schedule; putting the same again changes nothing. A boundary that is due already is fired
   * before a change takes effect, by what was there before. A paused one stays paused.
   */
  readonly put: (schedule: NewSchedule) => Effect.Effect<PutOutcome, ScheduleError>
  readonly get: (name: string) => Effect.Effect<Option.Option<ScheduleInfo>, Refused>
  /** By name. */
  readonly list: Effect.Effect<ReadonlyArray<ScheduleInfo>, Refused>
  /** Fires no more boundaries until `resume`; one that is due already is fired first. */
  readonly pause: (name: string) => Effect.Effect<void, ScheduleNotFound | Refused>
  /** Goes on with the next boundary; those that passed meanwhile are not caught up. */
  readonly resume: (name: string) => Effect.Effect<void, ScheduleNotFound | Refused>
  /** Whether there was one. Jobs that it has enqueued stay. */
  readonly remove: (name: string) => Effect.Effect<boolean, Refused>
  /** Removes those that a layer has put, but for the named ones; answers the names of the removed. */
  readonly prune: (keep: ReadonlyArray<string>) => Effect.Effect<ReadonlyArray<string>, Refused>
  /** Enqueues one job now, paused or not; boundaries come as before. */
  readonly trigger: (name: string) => Effect.Effect<Receipt, ScheduleNotFound | ScheduleError>
  /** Milliseconds until a schedule has to be fired, 0 or less when one is due; undefined when there is none. */
  readonly nextInMillis: Effect.Effect<number | undefined, TransactionOpen | StoreError>
  /**
   * Fires all that are due, each in a transaction of its own that enqueues and advances; answers how many it has dealt
   * with. One that fails keeps its error and its boundary, and stops no other. Safe to run by several at once.
   */
  readonly fireDue: Effect.Effect<number, TransactionOpen | StoreError>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class Schedules extends Context.Tag("alkstore/Schedules")<Schedules, Service>() {}

/**
 * The header with the name of the schedule that enqueued a job.
 *
 * @since 0.1.0
 * @category constants
 */
export const scheduleHeader = "alkstore-schedule"

/**
 * The header with the boundary, as an ISO 8601 instant, for which a schedule enqueued a job.
 *
 * @since 0.1.0
 * @category constants
 */
export const boundaryHeader = "alkstore-boundary"
