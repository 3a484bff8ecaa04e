/**
 * The typed operations of a queue on its dead letters, its live jobs and itself.
 */
import { type Duration, Effect, Either, type Schema } from "effect"
import type { InvalidArgument, QueueError } from "./Errors.js"
import { decoder } from "./encode.js"
import { type DeadLetterFilter, deadFilter, type JobFilter, liveFilter, newTime, type Reschedule } from "./filters.js"
import { checkDuration, checkInteger, checkOptions } from "./input.js"
import type { CompletedRow, DeadRow, LiveRow } from "./JobRows.js"
import { countDied } from "./metrics.js"
import type { CancelOutcome, Change, ChangeOutcome, Counts, Requeued } from "./Operations.js"
import { Queue, type QueueSettings } from "./QueueStore.js"

/** A queue that dead letters may be moved to. */
interface Target {
  readonly settings: QueueSettings
  readonly payload: Schema.Schema.AnyNoContext
  readonly check: Effect.Effect<void, InvalidArgument>
}

/**
 * @since 0.1.0
 * @category models
 */
export interface RequeueOptions {
  /** Another queue than the letter's own; letters whose payload its Schema does not accept stay where they are. */
  readonly to?: Target | undefined
  /** Before they are ready. Default: none. */
  readonly delay?: Duration.DurationInput | undefined
}

/**
 * How many of the selected jobs met which end.
 *
 * @since 0.1.0
 * @category models
 */
export type Tally<Outcome extends string> = Readonly<Record<Outcome, number>>

/**
 * The dead letters of a queue.
 *
 * @since 0.1.0
 * @category models
 */
export interface DeadLetters {
  /** Newest first; 100 by default, at most 1000. The next page begins `after` the last letter of this one. */
  readonly list: (
    options?: DeadLetterFilter & {
      readonly limit?: number | undefined
      readonly after?: Pick<DeadRow, "diedAt" | "id"> | undefined
    }
  ) => Effect.Effect<ReadonlyArray<DeadRow>, QueueError, Queue>
  /** One letter, or undefined when the queue has none of this id (any more). */
  readonly get: (id: number) => Effect.Effect<DeadRow | undefined, QueueError, Queue>
  /**
   * Back to the live jobs: attempts and errors are kept as history and counted afresh, an `expires` duration starts
   * again, an instant is dropped. Twice, or twice at once, makes one job. A letter whose dedupe key a live job holds
   * stays. Cancelled ones are left out unless their reason or their id is named. Page by page, each in a transaction.
   */
  readonly requeue: (filter: DeadLetterFilter, options?: RequeueOptions) => Effect.Effect<Requeued, QueueError, Queue>
  /** Deletes letters for good, page by page; answers how many. */
  readonly purge: (filter: DeadLetterFilter) => Effect.Effect<number, QueueError, Queue>
}

/**
 * What is done to live jobs and to the queue itself.
 *
 * @since 0.1.0
 * @category models
 */
export interface QueueOperations {
  readonly deadLetters: DeadLetters
  /** Completed jobs that the queue retains, newest first; 100 by default, at most 1000. */
  readonly completed: (options?: {
    readonly limit?: number | undefined
    readonly after?: Pick<CompletedRow, "completedAt" | "id"> | undefined
  }) => Effect.Effect<ReadonlyArray<CompletedRow>, QueueError, Queue>
  /** Live jobs by id; 100 by default, at most 1000. */
  readonly list: (options?: {
    readonly limit?: number | undefined
    readonly after?: Pick<LiveRow, "id"> | undefined
  }) => Effect.Effect<ReadonlyArray<LiveRow>, QueueError, Queue>
  /** Leased jobs with their worker, by the end of their lease; 100 by default, at most 1000. */
  readonly running: (options?: {
    readonly limit?: number | undefined
    readonly after?: Pick<LiveRow, "deadline" | "id"> | undefined
  }) => Effect.Effect<ReadonlyArray<LiveRow>, QueueError, Queue>
  readonly counts: Effect.Effect<Counts, QueueError, Queue>
  /**
   * Ends a live job: one that waits at once, a leased one by interrupting its handler, wherever it runs (`requested`).
   * Its dedupe key is free, and the next of its ordering key goes on, when it is dead: until then an enqueue with the key
   * still answers its receipt.
   */
  readonly cancel: (id: number) => Effect.Effect<CancelOutcome, QueueError, Queue>
  readonly cancelMany: (filter: JobFilter) => Effect.Effect<Tally<CancelOutcome>, QueueError, Queue>
  /** Due now instead of later. */
  readonly runNow: (filter: JobFilter) => Effect.Effect<Tally<ChangeOutcome>, QueueError, Queue>
  /** Due at another time; a job that is leased is left alone. */
  readonly reschedule: (filter: JobFilter, to: Reschedule) => Effect.Effect<Tally<ChangeOutcome>, QueueError, Queue>
  readonly setPriority: (filter: JobFilter, priority: number) => Effect.Effect<Tally<ChangeOutcome>, QueueError, Queue>
  /** Deletes every waiting job, without dead letters; leased ones stay. Answers how many. */
  readonly clear: Effect.Effect<number, QueueError, Queue>
  /**
   * Stops claims of this queue for the whole fleet until `resume`; jobs claimed ahead are handed back. Enqueues,
   * expiry and running handlers go on. Answers whether it was not paused already.
   */
  readonly pause: Effect.Effect<boolean, QueueError, Queue>
  readonly resume: Effect.Effect<boolean, QueueError, Queue>
}

const page = 500

const pageNames = ["limit", "after"] as const

const limitOf = (limit = 100) => checkInteger("limit", limit, 0, 1_000)

/** Where a page begins: these fields of the last row of the one before. */
const afterOf = <K extends string>(
  after: { readonly [key in K]?: unknown } | undefined,
  ...fields: ReadonlyArray<K>
): Either.Either<{ readonly [key in K]: number } | undefined, InvalidArgument> => {
  if (after === undefined) return Either.right(undefined)
  const checked = fields.map(
    (field) => [field, checkInteger(`after.${field}`, after?.[field], 0, Number.MAX_SAFE_INTEGER)] as const
  )
  return Either.all(Object.fromEntries(checked)) as Either.Either<{ readonly [key in K]: number }, InvalidArgument>
}

/** Filters without a reason or an id do not mean what was ended on purpose. */
const unlessNamed = (filter: DeadLetterFilter): DeadLetterFilter =>
  filter.reason !== undefined || filter.id !== undefined
    ? filter
    : { ...filter, reason: ["exhausted", "crashed", "failed", "expired", "undecodable"] }

export const makeDeadLetters = ({ check, payload, settings }: Target): DeadLetters => {
  const { name } = settings
  return {
    list: Effect.fn("Queue.deadLetters.list")(function* ({ after, limit, ...filter } = {}) {
      const queue = yield* Queue
      yield* check
      return yield* queue.listDead(name, {
        limit: yield* limitOf(limit),
        filter: yield* deadFilter(filter, false),
        after: yield* afterOf(after, "diedAt", "id")
      })
    }),
    get: Effect.fn("Queue.deadLetters.get")(function* (id) {
      const queue = yield* Queue
      yield* check
      const [letter] = yield* queue.listDead(name, { limit: 1, filter: yield* deadFilter({ id }, true) })
      return letter
    }),
    requeue: Effect.fn("Queue.deadLetters.requeue")(function* (filter, options = {}) {
      const queue = yield* Queue
      yield* check
      yield* checkOptions(options, ["delay", "to"])
      const { delay, to } = options
      const wanted = yield* Either.flatMap(deadFilter(filter, true), () => deadFilter(unlessNamed(filter), true))
      const delayMillis = delay === undefined ? 0 : yield* checkDuration("delay", delay)
      if (to !== undefined) yield* Effect.zipRight(to.check, queue.define(to.settings, "producer"))
      const decode = decoder((to?.payload ?? payload) as Schema.Schema<unknown, unknown>)
      return yield* queue.requeue(name, wanted, {
        to: to?.settings.name ?? name,
        delayMillis,
        accepts: (text) =>
          to === undefined || to.settings.name === name
            ? Effect.succeed(true)
            : decode(text, (payload) => Effect.succeed(Either.isRight(payload)))
      })
    }),
    purge: Effect.fn("Queue.deadLetters.purge")(function* (filter) {
      const queue = yield* Queue
      yield* check
      return yield* queue.purgeDead(name, yield* deadFilter(filter, true))
    })
  }
}

const noChange: Change = { delayMillis: null, runAt: null, priority: null }

export const makeOperations = (target: Target): QueueOperations => {
  const { check, settings } = target
  const { name } = settings
  /** Everything that a filter selects, page by page: all of it is looked up before, since what is done to one may free the next. */
  const each = <Outcome extends string, E>(
    filter: JobFilter,
    none: Tally<Outcome>,
    act: (queue: Queue["Type"], ids: ReadonlyArray<number>) => Effect.Effect<ReadonlyArray<Outcome>, E>
  ) =>
    Effect.gen(function* () {
      const queue = yield* Queue
      yield* check
      const wanted = yield* liveFilter(filter)
      const pages: Array<ReadonlyArray<number>> = []
      for (let after: number | undefined = 0; after !== undefined; ) {
        const ids: ReadonlyArray<number> = yield* queue.select(name, wanted, { after, limit: page })
        if (ids.length > 0) pages.push(ids)
        after = ids.length < page ? undefined : ids.at(-1)
      }
      const tally: Record<string, number> = { ...none }
      for (const ids of pages) for (const outcome of yield* act(queue, ids)) tally[outcome] = (tally[outcome] ?? 0) + 1
      return tally as Tally<Outcome>
    })
  const change = (filter: JobFilter, how: Change) =>
    each<ChangeOutcome, QueueError>(filter, { changed: 0, leased: 0, tooLate: 0 }, (queue, ids) =>
      queue.change(name, ids, how)
    )
  const cancel = (queue: Queue["Type"], ids: ReadonlyArray<number>) =>
    Effect.map(queue.cancel(name, ids), (outcomes) => {
      countDied(
        name,
        outcomes.flatMap((outcome) => (outcome === "cancelled" ? [outcome] : []))
      )
      return outcomes
    })
  const setPaused = (paused: boolean) =>
    Effect.gen(function* () {
      const queue = yield* Queue
      yield* check
      // Outside of a transaction that this may stand in: else the first enqueue in it would wait for its row
      yield* queue.define(settings, "producer")
      return yield* queue.setPaused(name, paused)
    })
  return {
    deadLetters: makeDeadLetters(target),
    completed: Effect.fn("Queue.completed")(function* (options = {}) {
      const queue = yield* Queue
      yield* check
      yield* checkOptions(options, pageNames)
      const { after, limit } = options
      return yield* queue.listCompleted(name, {
        limit: yield* limitOf(limit),
        after: yield* afterOf(after, "completedAt", "id")
      })
    }),
    list: Effect.fn("Queue.list")(function* (options = {}) {
      const queue = yield* Queue
      yield* check
      yield* checkOptions(options, pageNames)
      const { after, limit } = options
      const from = yield* afterOf(after, "id")
      return yield* queue.list(name, { limit: yield* limitOf(limit), after: from?.id ?? 0 })
    }),
    running: Effect.fn("Queue.running")(function* (options = {}) {
      const queue = yield* Queue
      yield* check
      yield* checkOptions(options, pageNames)
      const { after, limit } = options
      const from = yield* afterOf(after && { deadline: after.deadline ?? 0, id: after.id }, "deadline", "id")
      return yield* queue.running(name, { limit: yield* limitOf(limit), after: from })
    }),
    counts: Effect.withSpan(
      Effect.flatMap(Queue, (queue) => Effect.zipRight(check, queue.counts(name))),
      "Queue.counts"
    ),
    cancel: Effect.fn("Queue.cancel")(function* (id) {
      const queue = yield* Queue
      yield* check
      const [outcome = "tooLate"] = yield* cancel(queue, [yield* checkInteger("id", id, 0, Number.MAX_SAFE_INTEGER)])
      return outcome
    }),
    cancelMany: Effect.fn("Queue.cancelMany")((filter) =>
      each<CancelOutcome, QueueError>(filter, { cancelled: 0, requested: 0, tooLate: 0 }, cancel)
    ),
    runNow: Effect.fn("Queue.runNow")((filter) => change(filter, { ...noChange, delayMillis: 0 })),
    reschedule: Effect.fn("Queue.reschedule")((filter, to) =>
      Effect.flatMap(newTime(to), (how) => change(filter, how))
    ),
    setPriority: Effect.fn("Queue.setPriority")((filter, priority) =>
      Effect.flatMap(checkInteger("priority", priority, -32_768, 32_767), (to) =>
        change(filter, { ...noChange, priority: to })
      )
    ),
    clear: Effect.withSpan(
      Effect.flatMap(Queue, (queue) => Effect.zipRight(check, queue.clear(name))),
      "Queue.clear"
    ),
    pause: Effect.withSpan(setPaused(true), "Queue.pause"),
    resume: Effect.withSpan(setPaused(false), "Queue.resume")
  }
}
