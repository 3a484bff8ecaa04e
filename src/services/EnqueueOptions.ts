/**
 * The options of an enqueue, checked.
 *
 * @since 0.1.0
 */
import { type DateTime, type Duration, Either } from "effect"
import { InvalidArgument } from "./Errors.js"
import { checkDuration, checkHeaders, checkInstant, checkInteger, checkKey, checkOptions } from "./input.js"
import type { NewJob } from "./QueueStore.js"

/**
 * @since 0.1.0
 * @category models
 */
export interface EnqueueOptions {
  /** How long from now, by the database's clock, before the job is ready. Default: none. */
  readonly delay?: Duration.DurationInput | undefined
  /** The instant at which it is ready, instead of `delay`; one that has passed means now. */
  readonly runAt?: Date | DateTime.DateTime | undefined
  /** -32768 to 32767, higher first. Strict: a lower one waits as long as a higher one is ready. Default 0. */
  readonly priority?: number | undefined
  /** 1 to 100000. Default 20. */
  readonly maxAttempts?: number | undefined
  /** Dead-lettered (`expired`) instead of claimed from then on: a duration counts from when it is due. */
  readonly expires?: Duration.DurationInput | Date | DateTime.DateTime | undefined
  /** At most one live job of the queue has this key; a second enqueue answers the first job's receipt. 1 to 512 bytes. */
  readonly dedupeKey?: string | undefined
  /** Text by name, at most 16 KiB as JSON. */
  readonly headers?: Readonly<Record<string, string>> | undefined
  /**
   * What happens when a live job has the dedupeKey: `"keep"` (default) leaves it as it is; `"replace"` gives it this
   * one's payload, headers, priority and times, its attempts and errors starting afresh, unless it is leased.
   */
  readonly onDuplicate?: "keep" | "replace" | undefined
  /** How long the job holds its dedupeKey: as long as it is `"live"` (default), or `"waiting"`: until its first claim. */
  readonly dedupeScope?: "live" | "waiting" | undefined
  /** How long the dedupeKey is held on after the job has ended; cancelling the job frees it at once. Default: not. */
  readonly dedupeWindow?: Duration.DurationInput | undefined
  /**
   * Jobs of the queue with the same key run one at a time, in the order in which they became visible. Retried, delayed
   * and snoozed jobs keep their place. 1 to 512 bytes.
   */
  readonly orderingKey?: string | undefined
}

const oneOf = <A extends string>(argument: string, value: unknown, allowed: ReadonlyArray<A>) =>
  allowed.includes(value as A)
    ? Either.right(value as A)
    : Either.left(
        new InvalidArgument({
          argument,
          message: `${argument}: must be one of ${allowed.map((text) => JSON.stringify(text)).join(", ")}`
        })
      )

/** What is about the dedupe key makes no sense without one. */
const dedupe = (options: EnqueueOptions) =>
  Either.gen(function* () {
    const onDuplicate = yield* oneOf("onDuplicate", options.onDuplicate ?? "keep", ["keep", "replace"])
    const scope = yield* oneOf("dedupeScope", options.dedupeScope ?? "live", ["live", "waiting"])
    const window =
      options.dedupeWindow === undefined
        ? null
        : yield* checkDuration("dedupeWindow", options.dedupeWindow, { min: 1, max: maxDelay })
    const needless = onDuplicate !== "keep" || scope !== "live" || window !== null
    if (options.dedupeKey === undefined && needless) {
      return yield* Either.left(
        new InvalidArgument({
          argument: "dedupeKey",
          message: "dedupeKey: onDuplicate, dedupeScope and dedupeWindow need a dedupeKey; give one or leave them out"
        })
      )
    }
    return { replace: onDuplicate === "replace", scope: scope === "waiting" ? scope : null, window }
  })

/**
 * What a queue's jobs have unless an enqueue says otherwise.
 *
 * @since 0.1.0
 * @category models
 */
export interface Defaults {
  readonly maxAttempts: number
  readonly priority: number
  readonly expires: Duration.DurationInput | undefined
}

const isInstant = (value: unknown): value is Date | DateTime.DateTime =>
  value instanceof Date || (typeof value === "object" && value !== null && "epochMillis" in value)

/** Options that say nothing of when a job is due. */
export const jobNames = [
  "priority",
  "maxAttempts",
  "expires",
  "dedupeKey",
  "headers",
  "onDuplicate",
  "dedupeScope",
  "dedupeWindow",
  "orderingKey"
] as const

const names = ["delay", "runAt", ...jobNames] as const

/** Everything of a new job but its payload, checked. */
export const placement = (
  given: EnqueueOptions,
  defaults: Defaults
): Either.Either<Omit<NewJob, "payload">, InvalidArgument> =>
  Either.gen(function* () {
    yield* checkOptions(given, names)
    // What it inherits is no option
    const options: EnqueueOptions = Object.assign(Object.create(null), given)
    const { replace, scope, window } = yield* dedupe(options)
    if (options.delay !== undefined && options.runAt !== undefined) {
      return yield* Either.left(
        new InvalidArgument({ argument: "runAt", message: "runAt: give delay or runAt, not both" })
      )
    }
    const expires = options.expires ?? defaults.expires
    const runAt = options.runAt === undefined ? null : yield* checkInstant("runAt", options.runAt)
    const expiresAt = isInstant(expires) ? yield* checkInstant("expires", expires) : null
    if (runAt !== null && expiresAt !== null && expiresAt <= runAt) {
      return yield* Either.left(
        new InvalidArgument({
          argument: "expires",
          message: "expires: lies at or before runAt; the job could never run"
        })
      )
    }
    return {
      priority: yield* checkInteger("priority", options.priority ?? defaults.priority, -32_768, 32_767),
      maxAttempts: yield* checkInteger("maxAttempts", options.maxAttempts ?? defaults.maxAttempts, 1, 100_000),
      delayMillis: options.delay === undefined ? 0 : yield* checkDuration("delay", options.delay, { max: maxDelay }),
      runAt,
      expiresMillis:
        expires === undefined || isInstant(expires)
          ? null
          : yield* checkDuration("expires", expires, { min: 1, max: maxDelay }),
      expiresAt,
      dedupeKey: options.dedupeKey === undefined ? null : yield* checkKey("dedupeKey", options.dedupeKey),
      dedupeScope: scope,
      dedupeWindowMillis: window,
      replace,
      orderingKey: options.orderingKey === undefined ? null : yield* checkKey("orderingKey", options.orderingKey),
      headers: yield* checkHeaders(options.headers)
    }
  })

/** A thousand years: every due instant stays within four-digit years. */
const maxDelay = 1_000 * 366 * 86_400_000
