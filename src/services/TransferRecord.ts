/**
 * What moves from one namespace to another, record by record, and its form as lines of JSON.
 *
 * @since 0.1.0
 */
import { Effect, Either, ParseResult, Schema, Stream } from "effect"
import { InvalidArgument } from "./Errors.js"
import { checkKey, checkQueueName } from "./input.js"
import { parseJson } from "./json.js"

/** What a check refuses, in its words. */
const checked = (check: (value: string) => Either.Either<unknown, InvalidArgument>) =>
  Schema.String.pipe(
    Schema.filter((value) => Either.match(check(value), { onLeft: ({ message }) => message, onRight: () => undefined }))
  )

const Text = Schema.NullOr(Schema.String)
const Whole = Schema.NullOr(Schema.Int)
const Name = checked(checkQueueName)
const Key = Schema.NullOr(checked((key) => checkKey("key", key)))

const kept = {
  /** In its own namespace. */
  id: Schema.Int,
  queue: Name,
  /** JSON text, as are headers, progress, errors, failureTimes and history. */
  payload: Schema.String,
  priority: Schema.Int,
  attempt: Schema.Int,
  maxAttempts: Schema.Int,
  crashes: Schema.Int,
  failures: Schema.Int,
  enqueuedAt: Schema.Int,
  dueAt: Schema.Int,
  expiresAt: Whole,
  expiresMillis: Whole,
  dedupeKey: Key,
  dedupeScope: Text,
  dedupeWindowMillis: Whole,
  orderingKey: Key,
  headers: Text,
  progress: Text,
  errors: Text,
  failureTimes: Text,
  history: Text
}

/**
 * The first record: whose they are.
 *
 * @since 0.1.0
 * @category models
 */
export const Header = Schema.Struct({
  type: Schema.Literal("alkstore"),
  /** Of this format. */
  version: Schema.Literal(1),
  /** The identity of the namespace, which its tables keep for ever. */
  origin: Schema.NonEmptyString,
  namespace: Schema.String,
  engine: Schema.String,
  exportedAt: Schema.Int
})

/**
 * A queue's stored settings, and whether it is paused.
 *
 * @since 0.1.0
 * @category models
 */
export const QueueRecord = Schema.Struct({
  type: Schema.Literal("queue"),
  name: Name,
  maxCrashes: Schema.Int,
  retainCompletedMillis: Whole,
  retainDeadMillis: Whole,
  deadLetterQueue: Text,
  onDead: Text,
  defaults: Text,
  definedBy: Schema.Literal("producer", "worker"),
  pausedAt: Whole
})

/**
 * A live job. One that is leased is given back, its attempts counted as they are.
 *
 * @since 0.1.0
 * @category models
 */
export const JobRecord = Schema.Struct({
  type: Schema.Literal("job"),
  ...kept,
  undecodableSince: Whole,
  cancelRequestedAt: Whole,
  /** Whether it has its dedupe key at present. */
  holdsKey: Schema.Boolean
})

/**
 * @since 0.1.0
 * @category models
 */
export const DeadRecord = Schema.Struct({
  type: Schema.Literal("dead"),
  ...kept,
  reason: Schema.String,
  diedAt: Schema.Int,
  /** Whether it holds its ordering key. */
  blocksKey: Schema.Boolean
})

/**
 * @since 0.1.0
 * @category models
 */
export const CompletedRecord = Schema.Struct({ type: Schema.Literal("completed"), ...kept, completedAt: Schema.Int })

/**
 * A dedupe key that is held on after its job has ended.
 *
 * @since 0.1.0
 * @category models
 */
export const KeyRecord = Schema.Struct({
  type: Schema.Literal("key"),
  queue: Name,
  dedupeKey: Schema.String,
  jobId: Schema.Int,
  freeAt: Schema.Int
})

/**
 * @since 0.1.0
 * @category models
 */
export const ScheduleRecord = Schema.Struct({
  type: Schema.Literal("schedule"),
  name: Schema.NonEmptyString,
  queue: Name,
  cron: Text,
  timeZone: Text,
  everyMillis: Whole,
  anchor: Whole,
  previousRule: Text,
  payload: Schema.String,
  options: Schema.String,
  catchUp: Schema.String,
  overlap: Schema.String,
  declared: Schema.Boolean,
  pausedAt: Whole,
  nextAt: Schema.Int,
  lastAt: Whole,
  fired: Schema.Int,
  skipped: Schema.Int,
  liveJobs: Text,
  failures: Schema.Int,
  lastError: Text,
  lastErrorAt: Whole,
  createdAt: Schema.Int
})

/**
 * The last record: without it, something is missing.
 *
 * @since 0.1.0
 * @category models
 */
export const Footer = Schema.Struct({ type: Schema.Literal("end"), records: Schema.Int })

/**
 * @since 0.1.0
 * @category models
 */
export const TransferRecord = Schema.Union(
  JobRecord,
  DeadRecord,
  CompletedRecord,
  KeyRecord,
  QueueRecord,
  ScheduleRecord,
  Header,
  Footer
)

/**
 * @since 0.1.0
 * @category models
 */
export type TransferRecord = typeof TransferRecord.Type

const decode = Schema.decodeUnknownEither(TransferRecord)

const recordOf = (line: string, index: number): Either.Either<TransferRecord, InvalidArgument> => {
  const value = parseJson(line)
  const refuse = (why: string) =>
    new InvalidArgument({
      argument: "records",
      message: `records: line ${index + 1} ${why}. What came before it has been imported; import the whole again`
    })
  if (typeof value !== "object" || value === null)
    return Either.left(refuse("is not an object in JSON: it was cut short, or is no export"))
  const { type, version } = value as { readonly type?: unknown; readonly version?: unknown }
  if (type === "alkstore" && version !== 1)
    return Either.left(refuse(`says version ${String(version)}, and this library reads version 1: upgrade it`))
  return Either.mapLeft(decode(value), (error) =>
    refuse(`is not as expected: ${ParseResult.TreeFormatter.formatErrorSync(error).slice(0, 1_000)}`)
  )
}

/**
 * One line of JSON for each record, with its line break.
 *
 * @since 0.1.0
 * @category conversions
 */
export const toJsonLines = <E, R>(records: Stream.Stream<TransferRecord, E, R>): Stream.Stream<string, E, R> =>
  Stream.map(records, (record) => `${JSON.stringify(record)}\n`)

/**
 * Records from text in pieces of any size.
 *
 * @since 0.1.0
 * @category conversions
 */
export const fromJsonLines = <E, R>(
  text: Stream.Stream<string, E, R>
): Stream.Stream<TransferRecord, E | InvalidArgument, R> =>
  text.pipe(
    Stream.splitLines,
    Stream.zipWithIndex,
    Stream.filter(([line]) => line !== ""),
    Stream.mapEffect(([line, index]) => Effect.suspend(() => recordOf(line, index)))
  )
