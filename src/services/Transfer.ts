/**
 * Moving house: jobs, dead letters, schedules and settings from one namespace to another, on whichever engine. An
 * export changes nothing; an import can be interrupted and run again, and takes each thing over once.
 *
 * @since 0.1.0
 */
import { Context, Effect, Stream } from "effect"
import type { InvalidArgument, QueuesInUse, StoreError, TransactionOpen } from "./Errors.js"
import type { TransferRecord } from "./TransferRecord.js"

export {
  CompletedRecord,
  DeadRecord,
  Footer,
  Header,
  JobRecord,
  KeyRecord,
  QueueRecord,
  ScheduleRecord,
  TransferRecord
} from "./TransferRecord.js"
export { fromJsonLines, toJsonLines } from "./transferLines.js"

/**
 * @since 0.1.0
 * @category models
 */
export interface ExportOptions {
  /** Only these queues, which must exist, and their schedules. Default: all. */
  readonly queues?: ReadonlyArray<string> | undefined
  /** Completed jobs that are retained, too. Default: not. */
  readonly completed?: boolean | undefined
  /** Schedules, too (default). */
  readonly schedules?: boolean | undefined
  /** Export from queues that are not paused and jobs that are leased, too: they may run in both places. Default: not. */
  readonly force?: boolean | undefined
}

/**
 * How many records of a kind were taken over, how many had been before, and how many are left.
 *
 * @since 0.1.0
 * @category models
 */
export interface Tally {
  readonly imported: number
  readonly skipped: number
  readonly refused: number
}

/**
 * A record that was not taken over. It is still where it came from; when the reason is gone an import of the same
 * records takes it over. Or, for a queue, one that was taken over without its dead-letter queue.
 *
 * @since 0.1.0
 * @category models
 */
export interface Refusal {
  readonly type: "job" | "schedule" | "queue"
  /** The id or the name, where it came from. */
  readonly source: string
  readonly queue: string
  /**
   * `dedupeKey`: a job of the target holds it; `orderingKey`: a job before it of the same key was refused; `schedule`: the target
   * has one of this name that has fired; `deadLetterQueue`: in the target, dead letters would come back to their queue.
   */
  readonly reason: "dedupeKey" | "orderingKey" | "schedule" | "deadLetterQueue"
  readonly message: string
}

/**
 * What an import did.
 *
 * @since 0.1.0
 * @category models
 */
export interface Summary {
  /** The identity of the namespace that the records come from. */
  readonly origin: string
  /** All records were there: as many as the export says, to its end. */
  readonly complete: boolean
  readonly jobs: Tally
  readonly deadLetters: Tally
  readonly completed: Tally
  readonly queues: Tally
  readonly keys: Tally
  readonly schedules: Tally
  /** The first thousand. */
  readonly refusals: ReadonlyArray<Refusal>
}

/**
 * Neither is ever part of a transaction of the caller's.
 *
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /** The identity of this namespace. */
  readonly origin: Effect.Effect<string, TransactionOpen | StoreError>
  readonly export: (
    options?: ExportOptions
  ) => Stream.Stream<TransferRecord, QueuesInUse | InvalidArgument | TransactionOpen | StoreError>
  readonly import: <E, R>(
    records: Stream.Stream<TransferRecord, E, R>
  ) => Effect.Effect<Summary, E | InvalidArgument | TransactionOpen | StoreError, R>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class Transfer extends Context.Tag("alkstore/Transfer")<Transfer, Service>() {}

/**
 * Everything of the namespace, in an order in which it can be taken over. Fails with `QueuesInUse` when a queue with
 * jobs is not paused or a job is leased, unless it is forced. Nothing is deleted.
 */
const exportRecords = (
  options: ExportOptions = {}
): Stream.Stream<TransferRecord, QueuesInUse | InvalidArgument | TransactionOpen | StoreError, Transfer> =>
  Stream.unwrap(Effect.map(Transfer, (transfer) => transfer.export(options)))

/**
 * Takes records over, page by page, each page in one transaction with the note of what was taken: whatever has been
 * taken over before is skipped, also when it has been done since. Jobs get new ids, in the order of their old ones.
 */
const importRecords = <E, R>(
  records: Stream.Stream<TransferRecord, E, R>
): Effect.Effect<Summary, E | InvalidArgument | TransactionOpen | StoreError, R | Transfer> =>
  Effect.flatMap(Transfer, (transfer) => transfer.import(records))

export {
  /**
   * Everything of the namespace, in an order in which it can be taken over. Fails with `QueuesInUse` when a queue with
   * jobs is not paused or a job is leased, unless it is forced. Nothing is deleted.
   *
   * @since 0.1.0
   * @category operations
   */
  exportRecords as export,
  /**
   * Takes records over, page by page, each page in one transaction with the note of what was taken: whatever has been
   * taken over before is skipped, also when it has been done since. Jobs get new ids, in the order of their old ones.
   *
   * @since 0.1.0
   * @category operations
   */
  importRecords as import
}

/**
 * The identity of this namespace, by which another knows what it has taken over from it.
 *
 * @since 0.1.0
 * @category accessors
 */
export const origin: Effect.Effect<string, TransactionOpen | StoreError, Transfer> = Effect.flatMap(
  Transfer,
  (transfer) => transfer.origin
)
