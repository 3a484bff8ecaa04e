/**
 * What a schedule is made of: its rule, the options of its jobs, and what becomes of missed boundaries.
 */
import { type Duration, Either } from "effect"
import { type EnqueueOptions, jobNames, placement } from "./EnqueueOptions.js"
import type { InvalidArgument } from "./Errors.js"
import { checkDuration } from "./input.js"
import type { Definition as QueueDefinition } from "./Queue.js"
import { boundaryHeader, type CatchUp, type Overlap, type Rule, scheduleHeader } from "./ScheduleStore.js"

/**
 * Of the jobs that a schedule enqueues: as for an enqueue. They are ready at once, and `expires` counts from then.
 *
 * @since 0.1.0
 * @category models
 */
export interface JobOptions extends Omit<EnqueueOptions, "delay" | "runAt" | "expires"> {
  readonly expires?: Duration.DurationInput | undefined
}

/**
 * @since 0.1.0
 * @category models
 */
export interface CronRule {
  /**
   * Five fields (minute, hour, day of the month, month, day of the week) or six with the second first; `@hourly`,
   * `@daily`, `@weekly`, `@monthly`, `@yearly`; or `@every` and a duration.
   */
  readonly cron: string
  /** An IANA time zone. Default: UTC. */
  readonly timeZone?: string | undefined
  readonly every?: undefined
  readonly anchor?: undefined
}

/**
 * @since 0.1.0
 * @category models
 */
export interface EveryRule {
  /** The period, a second or more: boundaries lie at the anchor and whole periods from it, whenever it is put. */
  readonly every: Duration.DurationInput
  /** Default: the Unix epoch. */
  readonly anchor?: Exclude<Rule, { readonly cron: string }>["anchor"]
  readonly cron?: undefined
  readonly timeZone?: undefined
}

/**
 * @since 0.1.0
 * @category models
 */
export type Options<A, I> = (CronRule | EveryRule) &
  JobOptions & {
    /** Where its jobs go. */
    readonly queue: QueueDefinition<A, I>
    /** The payload of each of its jobs. */
    readonly payload: NoInfer<A>
    /** What becomes of boundaries that passed while no scheduler ran. Default: `"latest"`. */
    readonly catchUp?: CatchUp | undefined
    /** Whether a boundary is skipped while a live job of this schedule exists. Default: `"allow"`. */
    readonly overlap?: Overlap | undefined
  }

export const names = [
  "cron",
  "timeZone",
  "every",
  "anchor",
  "queue",
  "payload",
  "catchUp",
  "overlap",
  ...jobNames
] as const

/** Headers of ours that every job gets, as long as they can be: they count towards the limit. */
const ours = (name: string) => ({ [scheduleHeader]: name, [boundaryHeader]: "9999-12-31T23:59:59.999Z" })

/** Durations become numbers: what is stored is JSON. */
export const jobOptions = <A, I>(name: string, options: Options<A, I>): Either.Either<string, InvalidArgument> =>
  Either.gen(function* () {
    const { defaults } = options.queue
    const { dedupeKey, dedupeScope, headers, onDuplicate, orderingKey } = options
    const { dedupeWindow, expires = defaults.expires, maxAttempts = defaults.maxAttempts } = options
    const { priority = defaults.priority } = options
    const job = {
      priority,
      maxAttempts,
      expires: expires === undefined ? undefined : yield* checkDuration("expires", expires),
      dedupeKey,
      dedupeScope,
      dedupeWindow: dedupeWindow === undefined ? undefined : yield* checkDuration("dedupeWindow", dedupeWindow),
      onDuplicate,
      orderingKey,
      headers
    }
    yield* placement({ ...job, headers: { ...headers, ...ours(name) } }, defaults)
    return JSON.stringify(job)
  })
