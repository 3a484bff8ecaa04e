/**
 * What moves from one namespace to another, record by record, and its form as lines of JSON.
 *
 * @since 0.1.0
 */
import { Either, ParseResult, Schema } from "effect"
import { InvalidArgument } from "./Errors.js"
import { checkKey, checkQueueName, maxInstant } from "./input.js"
import { parseJson } from "./json.js"

/** What a check refuses, in its words. */
const checked = (check: (value: string) => Either.Either<unknown, InvalidArgument>) =>
  Schema.String.pipe(
    Schema.filter((value) => Either.match(check(value), { onLeft: ({ message }) => message, onRight: () => undefined }))
  )

/** Text that both engines can store. */
const Text = Schema.String.pipe(
  Schema.filter((text) =>
    text.includes("\u0000") || /\p{Surrogate}/u.test(text) ? "contains a NUL character or a lone surrogate" : undefined
  )
)

/** JSON text of some kind. */
const json = (what: string, is: (value: unknown) => boolean) =>
  Text.pipe(Schema.filter((text) => (is(parseJson(text)) ? undefined : `is not the JSON text of ${what}`)))

const isMap = (value: unknown): boolean => typeof value === "object" && value !== null && !Array.isArray(value)
const isStrings = (value: unknown): boolean =>
  isMap(value) && Object.values(value as object).every((each) => typeof each === "string")

const Name = checked(checkQueueName)
const Key = checked((key) => checkKey("key", key))
const Json = json("a value", (value) => value !== undefined)
const List = Schema.NullOr(json("a list", Array.isArray))
/** What fits into the columns of both engines. */
const Small = Schema.Int.pipe(Schema.between(-32_768, 32_767))
const Count = Schema.Int.pipe(Schema.between(0, 2 ** 31 - 1))
const Total = Schema.Int.pipe(Schema.between(0, Number.MAX_SAFE_INTEGER))
const Id = Total
/** Milliseconds since the Unix epoch, and spans of them: a sum of both may lie beyond what either may be. */
const Instant = Total
const Span = Total

const kept = {
  /** In its own namespace. */
  id: Id,
  queue: Name,
  /** JSON text, as are headers, progress, errors, failureTimes and history. */
  payload: Json,
  priority: Small,
  attempt: Count,
  maxAttempts: Count.pipe(Schema.greaterThan(0)),
  crashes: Count,
  failures: Count,
  enqueuedAt: Instant,
  dueAt: Instant,
  expiresAt: Schema.NullOr(Instant),
  expiresMillis: Schema.NullOr(Span),
  dedupeKey: Schema.NullOr(Key),
  dedupeScope: Schema.NullOr(Schema.Literal("waiting")),
  dedupeWindowMillis: Schema.NullOr(Span),
  orderingKey: Schema.NullOr(Key),
  headers: Schema.NullOr(json("a map of strings", isStrings)),
  progress: Schema.NullOr(Json),
  errors: List,
  failureTimes: List,
  history: List
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
  exportedAt: Instant,
  /** The identities of the namespaces that it has taken over from. Default: none. */
  holds: Schema.optional(Schema.Array(Schema.String))
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
  maxCrashes: Count,
  retainCompletedMillis: Schema.NullOr(Span),
  retainDeadMillis: Schema.NullOr(Span),
  deadLetterQueue: Schema.NullOr(Name),
  onDead: Schema.NullOr(Schema.Literal("continue", "block")),
  defaults: Schema.NullOr(json("a map", isMap)),
  definedBy: Schema.Literal("producer", "worker"),
  pausedAt: Schema.NullOr(Instant)
}).pipe(
  Schema.filter(({ deadLetterQueue, name }) => (deadLetterQueue === name ? "is its own dead-letter queue" : undefined))
)

/**
 * A live job. One that is leased is given back, its attempts counted as they are.
 *
 * @since 0.1.0
 * @category models
 */
export const JobRecord = Schema.Struct({
  type: Schema.Literal("job"),
  ...kept,
  undecodableSince: Schema.NullOr(Instant),
  cancelRequestedAt: Schema.NullOr(Instant),
  /** Whether it has its dedupe key at present. */
  holdsKey: Schema.Boolean
}).pipe(
  Schema.filter(({ dedupeKey, holdsKey }) => (holdsKey && dedupeKey === null ? "holds a key, and has none" : undefined))
)

/**
 * @since 0.1.0
 * @category models
 */
export const DeadRecord = Schema.Struct({
  type: Schema.Literal("dead"),
  ...kept,
  reason: Schema.Literal("exhausted", "crashed", "failed", "expired", "undecodable", "cancelled"),
  diedAt: Instant,
  /** Whether it holds its ordering key. */
  blocksKey: Schema.Boolean
})

/**
 * @since 0.1.0
 * @category models
 */
export const CompletedRecord = Schema.Struct({ type: Schema.Literal("completed"), ...kept, completedAt: Instant })

/**
 * A dedupe key that is held on after its job has ended.
 *
 * @since 0.1.0
 * @category models
 */
export const KeyRecord = Schema.Struct({
  type: Schema.Literal("key"),
  queue: Name,
  dedupeKey: Key,
  jobId: Id,
  freeAt: Instant
})

/**
 * @since 0.1.0
 * @category models
 */
export const ScheduleRecord = Schema.Struct({
  type: Schema.Literal("schedule"),
  name: Key,
  queue: Name,
  cron: Schema.NullOr(Text),
  timeZone: Schema.NullOr(Text),
  everyMillis: Schema.NullOr(Span),
  anchor: Schema.NullOr(Schema.Int.pipe(Schema.between(-maxInstant, maxInstant))),
  previousRule: Schema.NullOr(json("a map", isMap)),
  payload: Json,
  options: json("a map", isMap),
  catchUp: Schema.Literal("latest", "all", "skip"),
  overlap: Schema.Literal("allow", "skip"),
  declared: Schema.Boolean,
  pausedAt: Schema.NullOr(Instant),
  nextAt: Instant,
  lastAt: Schema.NullOr(Instant),
  fired: Total,
  skipped: Total,
  liveJobs: List,
  failures: Count,
  lastError: Schema.NullOr(Text),
  lastErrorAt: Schema.NullOr(Instant),
  createdAt: Instant
}).pipe(
  Schema.filter(({ cron, everyMillis }) =>
    (cron === null) === (everyMillis === null) ? "has not one rule" : undefined
  )
)

/**
 * The last record: without it, or when there are not as many as it says, something is missing.
 *
 * @since 0.1.0
 * @category models
 */
export const Footer = Schema.Struct({
  type: Schema.Literal("end"),
  /** How many there are, with the first and this. */
  records: Total
})

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

/** Records that are as they should be: read from our own tables, or looked at before. */
const sound = new WeakSet<object>()

/** A record of our own tables. */
export const soundRecord = <A extends TransferRecord>(record: A): A => {
  sound.add(record)
  return record
}

/** A record, or what is wrong with it. `what`: a record or a line, and its place among all, from 0. */
export const checkedAt = (
  what: string,
  index: number,
  value: unknown
): Either.Either<TransferRecord, InvalidArgument> => {
  const refuse = (why: string) => {
    const before =
      index === 0 ? "Nothing was imported" : "What came before it has been imported; import the whole again"
    return new InvalidArgument({
      argument: "records",
      message: `records: ${what} ${index + 1} ${why}. ${before}`
    })
  }
  if (typeof value !== "object" || value === null)
    return Either.left(refuse("is not an object in JSON: it was cut short, or is no export"))
  if (sound.has(value)) return Either.right(value as TransferRecord)
  const { type, version } = value as { readonly type?: unknown; readonly version?: unknown }
  if (type === "alkstore" && version !== 1)
    return Either.left(refuse(`says version ${String(version)}, and this library reads version 1: upgrade it`))
  return Either.mapBoth(decode(value), {
    onLeft: (error) =>
      refuse(`is not as expected: ${ParseResult.TreeFormatter.formatErrorSync(error).slice(0, 1_000)}`),
    onRight: soundRecord
  })
}

/** A record, wherever it comes from, by its place among all. */
export const checkRecord = (record: unknown, index: number): Either.Either<TransferRecord, InvalidArgument> =>
  checkedAt("record", index, record)
