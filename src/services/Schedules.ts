/**
 * Schedules: named, stored recurrences that enqueue a job at each of their boundaries, exactly one for the whole fleet.
 *
 * @since 0.1.0
 */
import { type Duration, Effect, Either, Layer, type Option } from "effect"
import { type EnqueueOptions, placement } from "./EnqueueOptions.js"
import { InvalidArgument, type InvalidPayload, type ScheduleNotFound } from "./Errors.js"
import { encoder } from "./encode.js"
import { checkDuration, checkKey, checkOneOf } from "./input.js"
import type { JobInfo } from "./Job.js"
import type { Definition as QueueDefinition } from "./Queue.js"
import { Queue, type QueueSettings, type Receipt } from "./QueueStore.js"
import {
  boundaryHeader,
  type CatchUp,
  type NewSchedule,
  type Overlap,
  type Rule,
  type ScheduleError,
  type ScheduleInfo,
  Schedules,
  type Service,
  scheduleHeader
} from "./ScheduleStore.js"

export {
  boundaryHeader,
  type CatchUp,
  type NewSchedule,
  type Overlap,
  type PutOutcome,
  type Rule,
  type ScheduleError,
  type ScheduleInfo,
  Schedules,
  type Service,
  scheduleHeader
} from "./ScheduleStore.js"

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

/**
 * A schedule, to be put. What is invalid in it is reported when it is.
 *
 * @since 0.1.0
 * @category models
 */
export interface Definition {
  readonly name: string
  /** Of its queue, made known when it is put. */
  readonly settings: QueueSettings
  /** Encoded and checked, but for its rule. */
  readonly prepare: Effect.Effect<NewSchedule, InvalidArgument | InvalidPayload>
}

/** Headers of ours that every job gets, as long as they can be: they count towards the limit. */
const ours = (name: string) => ({ [scheduleHeader]: name, [boundaryHeader]: "9999-12-31T23:59:59.999Z" })

/** Durations become numbers: what is stored is JSON. */
const jobOptions = <A, I>(name: string, options: Options<A, I>): Either.Either<string, InvalidArgument> =>
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

/**
 * Defines a schedule. A payload that is not its queue's is refused by the types.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = <A, I>(name: string, options: Options<A, I>): Definition => {
  const { anchor, cron, every, queue, timeZone } = options
  const encode = encoder(queue.name, queue.payload)
  return {
    name,
    settings: queue.settings,
    prepare: Effect.gen(function* () {
      const checked = yield* checkKey("schedule name", name)
      yield* queue.check
      return {
        name: checked,
        queue: queue.name,
        rule: { ...defined({ anchor, cron, every, timeZone }) } as Rule,
        payload: yield* encode(options.payload, 0),
        options: yield* jobOptions(checked, options),
        catchUp: yield* checkOneOf("catchUp", options.catchUp ?? "latest", ["latest", "all", "skip"]),
        overlap: yield* checkOneOf("overlap", options.overlap ?? "allow", ["allow", "skip"]),
        declared: false
      }
    })
  }
}

const defined = (fields: Record<string, unknown>): object =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))

/**
 * Stores a schedule, or changes the one of this name; putting the same again changes nothing. It fires first at its
 * next boundary. A boundary that is due already is fired before a change takes effect; a paused one stays paused.
 *
 * @since 0.1.0
 * @category operations
 */
export const put = Effect.fn("Schedules.put")(function* (definition: Definition) {
  const schedules = yield* Schedules
  const queue = yield* Queue
  const schedule = yield* definition.prepare
  yield* queue.define(definition.settings, "producer")
  return yield* schedules.put(schedule)
})

/** What no schedule can be called is not looked for: the engines would not agree about it. */
const named = <A, E>(
  name: string,
  use: (schedules: Service, name: string) => Effect.Effect<A, E>
): Effect.Effect<A, E | InvalidArgument, Schedules> =>
  Effect.flatMap(checkKey("schedule name", name), (checked) =>
    Effect.flatMap(Schedules, (schedules) => use(schedules, checked))
  )

/**
 * @since 0.1.0
 * @category operations
 */
export const get = Effect.fn("Schedules.get")(
  (name: string): Effect.Effect<Option.Option<ScheduleInfo>, ScheduleError, Schedules> =>
    named(name, (schedules, checked) => schedules.get(checked))
)

/**
 * All schedules by name, with their errors.
 *
 * @since 0.1.0
 * @category operations
 */
export const list: Effect.Effect<ReadonlyArray<ScheduleInfo>, ScheduleError, Schedules> = Effect.flatMap(
  Schedules,
  (schedules) => schedules.list
).pipe(Effect.withSpan("Schedules.list"))

/**
 * No more boundaries are fired until `resume`; one that is due already is fired first.
 *
 * @since 0.1.0
 * @category operations
 */
export const pause = Effect.fn("Schedules.pause")(
  (name: string): Effect.Effect<void, ScheduleNotFound | ScheduleError, Schedules> =>
    named(name, (schedules, checked) => schedules.pause(checked))
)

/**
 * Goes on with the next boundary; those that passed meanwhile are not caught up.
 *
 * @since 0.1.0
 * @category operations
 */
export const resume = Effect.fn("Schedules.resume")(
  (name: string): Effect.Effect<void, ScheduleNotFound | ScheduleError, Schedules> =>
    named(name, (schedules, checked) => schedules.resume(checked))
)

/**
 * Removes a schedule; answers whether there was one. Jobs that it has enqueued stay.
 *
 * @since 0.1.0
 * @category operations
 */
export const remove = Effect.fn("Schedules.remove")(
  (name: string): Effect.Effect<boolean, ScheduleError, Schedules> =>
    named(name, (schedules, checked) => schedules.remove(checked))
)

/**
 * Enqueues one job now, paused or not. Boundaries come as before.
 *
 * @since 0.1.0
 * @category operations
 */
export const trigger = Effect.fn("Schedules.trigger")(
  (name: string): Effect.Effect<Receipt, ScheduleNotFound | ScheduleError, Schedules> =>
    named(name, (schedules, checked) => schedules.trigger(checked))
)

/**
 * Puts schedules when the program starts. One that a layer has put and that none of these replaces is left as it is,
 * or removed when `prune` says so: then this must be the only such layer of the namespace.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (
  definitions: ReadonlyArray<Definition>,
  { prune = false }: { readonly prune?: boolean | undefined } = {}
): Layer.Layer<never, ScheduleError | InvalidPayload, Schedules | Queue> =>
  Layer.effectDiscard(
    Effect.gen(function* () {
      const schedules = yield* Schedules
      const queue = yield* Queue
      const names = definitions.map(({ name }) => name)
      const twice = names.find((name, index) => names.indexOf(name) !== index)
      if (twice !== undefined) {
        return yield* new InvalidArgument({
          argument: "schedule name",
          message: `schedule name: ${JSON.stringify(twice)} is given twice`
        })
      }
      // All are checked before any is put
      const prepared = yield* Effect.forEach(definitions, ({ prepare }) => prepare)
      yield* Effect.forEach(definitions, ({ settings }) => queue.define(settings, "producer"), { discard: true })
      yield* Effect.forEach(prepared, (schedule) => schedules.put({ ...schedule, declared: true }), { discard: true })
      if (prune) yield* schedules.prune(names)
    })
  )

/**
 * The boundary for which a schedule has enqueued a job; undefined for one that was triggered, or is no schedule's.
 *
 * @since 0.1.0
 * @category accessors
 */
export const boundary = (job: Pick<JobInfo, "headers">): Date | undefined => {
  const text = job.headers[boundaryHeader]
  const at = text === undefined ? Number.NaN : Date.parse(text)
  return Number.isNaN(at) ? undefined : new Date(at)
}
