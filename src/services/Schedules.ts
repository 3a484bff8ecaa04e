/**
 * Schedules: named, stored recurrences that enqueue a job at each of their boundaries, exactly one for the whole fleet.
 *
 * @since 0.1.0
 */
import { Effect, Layer, type Option } from "effect"
import { InvalidArgument, type InvalidPayload, type ScheduleNotFound } from "./Errors.js"
import { encoder } from "./encode.js"
import { checkKey, checkOneOf, checkOptions } from "./input.js"
import type { JobInfo } from "./Job.js"
import { Queue, type QueueSettings, type Receipt } from "./QueueStore.js"
import {
  boundaryHeader,
  type NewSchedule,
  type Rule,
  type ScheduleError,
  type ScheduleInfo,
  Schedules,
  type Service
} from "./ScheduleStore.js"
import { jobOptions, names, type Options } from "./scheduleOptions.js"

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
export type { CronRule, EveryRule, JobOptions, Options } from "./scheduleOptions.js"

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
      yield* checkOptions(options, names)
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
 * PostgreSQL: where an open transaction holds what such a boundary needs (its dedupe key, say), a change of the times waits for that
 * transaction and may fail with a `StoreError` (`timeout`), and nothing is changed; after any other change the boundary is owed on.
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
  options: { readonly prune?: boolean | undefined } = {}
): Layer.Layer<never, ScheduleError | InvalidPayload, Schedules | Queue> =>
  Layer.effectDiscard(
    Effect.gen(function* () {
      const schedules = yield* Schedules
      const queue = yield* Queue
      yield* checkOptions(options, ["prune"])
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
      if (options.prune === true) yield* schedules.prune(names)
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
