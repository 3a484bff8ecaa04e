/**
 * Filters of dead letters and live jobs, checked.
 */
import { type DateTime, type Duration, Either } from "effect"
import { InvalidArgument } from "./Errors.js"
import { checkDuration, checkInstant, checkInteger, checkKey, checkNames, checkOptions } from "./input.js"
import type { DeadReason, JobState } from "./JobState.js"
import type { Change, DeadFilter, LiveFilter } from "./Operations.js"

type Instant = Date | DateTime.DateTime
type OneOrMore<A> = A | ReadonlyArray<A>

/**
 * Which dead letters: all that fit every criterion given. At least one must be given where something is done to them.
 *
 * @since 0.1.0
 * @category models
 */
export interface DeadLetterFilter {
  readonly id?: OneOrMore<number> | undefined
  readonly reason?: OneOrMore<DeadReason> | undefined
  /** Died at or after. */
  readonly diedAfter?: Instant | undefined
  /** Died before. */
  readonly diedBefore?: Instant | undefined
  /** A text that one of its errors contains; case matters. */
  readonly error?: string | undefined
  readonly orderingKey?: string | undefined
  /** Every letter of the queue that fits the rest; to be said when nothing else is. */
  readonly all?: true | undefined
}

/**
 * Which live jobs: all that fit every criterion given, of which there must be one.
 *
 * @since 0.1.0
 * @category models
 */
export interface JobFilter {
  readonly id?: OneOrMore<number> | undefined
  /** The one that holds it: with the scope `"waiting"` a job does so until its first claim. */
  readonly dedupeKey?: string | undefined
  readonly orderingKey?: string | undefined
  readonly state?: OneOrMore<JobState> | undefined
  /** Enqueued at or after. */
  readonly enqueuedAfter?: Instant | undefined
  /** Enqueued before. */
  readonly enqueuedBefore?: Instant | undefined
  /** Every job of the queue that fits the rest; to be said when nothing else is. */
  readonly all?: true | undefined
}

const reasons: ReadonlyArray<DeadReason> = ["exhausted", "crashed", "failed", "expired", "cancelled", "undecodable"]
const states: ReadonlyArray<JobState> = ["ready", "delayed", "blocked", "leased"]

const listOf = <A>(value: OneOrMore<A>): ReadonlyArray<A> => (Array.isArray(value) ? value : [value as A])

const ids = (value: OneOrMore<number> | undefined) =>
  value === undefined
    ? Either.right(null)
    : Either.all(listOf(value).map((id) => checkInteger("id", id, 0, Number.MAX_SAFE_INTEGER)))

const among = <A extends string>(argument: string, value: OneOrMore<A> | undefined, allowed: ReadonlyArray<A>) => {
  if (value === undefined) return Either.right(null)
  const list = listOf(value)
  const strange = list.find((item) => !allowed.includes(item))
  return strange === undefined
    ? Either.right(list)
    : refuse(argument, `${String(strange)} is none of ${allowed.join(", ")}`)
}

const instant = (argument: string, value: Instant | undefined) =>
  value === undefined ? Either.right(null) : checkInstant(argument, value)

const key = (argument: string, value: string | undefined) =>
  value === undefined ? Either.right(null) : checkKey(argument, value)

const refuse = (argument: string, message: string) =>
  Either.left(new InvalidArgument({ argument, message: `${argument}: ${message}` }))

/** What is not a criterion would select everything: a misspelled one, say, or one of another kind of filter. */
const known = (filter: object, criteria: ReadonlyArray<string>) => checkNames("filter", "criterion", filter, criteria)

/** A criterion that is there but undefined is a slip, not a wish for everything. */
const someCriterion = (filter: { readonly all?: true | undefined }): Either.Either<void, InvalidArgument> =>
  filter.all !== undefined && filter.all !== true
    ? refuse("all", "must be true, or left out")
    : Object.values(filter).some((value) => value !== undefined)
      ? Either.void
      : refuse("filter", "give a criterion, or all: true to mean every one")

const errorText = (value: unknown): Either.Either<string | null, InvalidArgument> =>
  value === undefined
    ? Either.right(null)
    : typeof value === "string" && value !== ""
      ? Either.right(value)
      : refuse("error", "must be a text that is not empty")

const deadCriteria = ["id", "reason", "diedAfter", "diedBefore", "error", "orderingKey", "all"]
const liveCriteria = ["id", "dedupeKey", "orderingKey", "state", "enqueuedAfter", "enqueuedBefore", "all"]

/** A filter of dead letters; `required` where something is done to them. */
export const deadFilter = (filter: DeadLetterFilter, required: boolean): Either.Either<DeadFilter, InvalidArgument> =>
  Either.gen(function* () {
    yield* known(filter, deadCriteria)
    if (required) yield* someCriterion(filter)
    return {
      ids: yield* ids(filter.id),
      reasons: yield* among("reason", filter.reason, reasons),
      from: yield* instant("diedAfter", filter.diedAfter),
      until: yield* instant("diedBefore", filter.diedBefore),
      error: yield* errorText(filter.error),
      orderingKey: yield* key("orderingKey", filter.orderingKey)
    }
  })

export const liveFilter = (filter: JobFilter): Either.Either<LiveFilter, InvalidArgument> =>
  Either.gen(function* () {
    yield* known(filter, liveCriteria)
    yield* someCriterion(filter)
    return {
      ids: yield* ids(filter.id),
      dedupeKey: yield* key("dedupeKey", filter.dedupeKey),
      orderingKey: yield* key("orderingKey", filter.orderingKey),
      states: yield* among("state", filter.state, states),
      from: yield* instant("enqueuedAfter", filter.enqueuedAfter),
      until: yield* instant("enqueuedBefore", filter.enqueuedBefore)
    }
  })

/**
 * When a waiting job is to be due instead.
 *
 * @since 0.1.0
 * @category models
 */
export interface Reschedule {
  /** From now, by the database's clock. */
  readonly delay?: Duration.DurationInput | undefined
  /** The instant, instead of `delay`; one that has passed means now. */
  readonly runAt?: Instant | undefined
}

/** A new due time, checked. */
export const newTime = (to: Reschedule): Either.Either<Change, InvalidArgument> =>
  Either.gen(function* () {
    yield* checkOptions(to, ["delay", "runAt"])
    const { delay, runAt } = to
    if ((delay === undefined) === (runAt === undefined))
      return yield* refuse("runAt", "give delay or runAt, one of the two")
    return {
      delayMillis: delay === undefined ? null : yield* checkDuration("delay", delay),
      runAt: runAt === undefined ? null : yield* checkInstant("runAt", runAt),
      priority: null
    }
  })
