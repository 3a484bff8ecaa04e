/**
 * The options of an enqueue, checked.
 *
 * @since 0.1.0
 */
import { type DateTime, type Duration, Either } from "effect"
import { InvalidArgument } from "./Errors.js"
import { checkDuration, checkHeaders, checkInstant, checkInteger, checkKey } from "./input.js"
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
  /** Only `"keep"` (the default) is accepted in this version. */
  readonly onDuplicate?: "keep" | "replace" | undefined
  /** Only `"live"` (the default) is accepted in this version. */
  readonly dedupeScope?: "live" | "waiting" | undefined
  /** Not accepted in this version. */
  readonly dedupeWindow?: Duration.DurationInput | undefined
  /** Not accepted in this version. */
  readonly orderingKey?: string | undefined
}

const notYet = (options: EnqueueOptions): Either.Either<void, InvalidArgument> => {
  const refused =
    options.orderingKey !== undefined
      ? "orderingKey"
      : options.dedupeWindow !== undefined
        ? "dedupeWindow"
        : options.onDuplicate !== undefined && options.onDuplicate !== "keep"
          ? "onDuplicate"
          : options.dedupeScope !== undefined && options.dedupeScope !== "live"
            ? "dedupeScope"
            : undefined
  return refused === undefined
    ? Either.void
    : Either.left(
        new InvalidArgument({ argument: refused, message: `${refused}: not supported by this version; leave it out` })
      )
}

export interface Defaults {
  readonly maxAttempts: number
  readonly priority: number
  readonly expires: Duration.DurationInput | undefined
}

const isInstant = (value: unknown): value is Date | DateTime.DateTime =>
  value instanceof Date || (typeof value === "object" && value !== null && "epochMillis" in value)

/** Everything of a new job but its payload, checked. */
export const placement = (
  options: EnqueueOptions,
  defaults: Defaults
): Either.Either<Omit<NewJob, "payload">, InvalidArgument> =>
  Either.gen(function* () {
    yield* notYet(options)
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
      headers: yield* checkHeaders(options.headers)
    }
  })

/** A thousand years: every due instant stays within four-digit years. */
const maxDelay = 1_000 * 366 * 86_400_000
