/**
 * Typed, durable queues: a name, a payload Schema and defaults.
 *
 * @since 0.1.0
 */
import { type Duration, Effect, Either, type Schema } from "effect"
import { type Defaults, placement } from "./EnqueueOptions.js"
import type { InvalidArgument, QueueError, StoreError } from "./Errors.js"
import { decoder, encoder } from "./encode.js"
import { type EnqueueVerbs, makeEnqueue } from "./enqueue.js"
import { makeJob } from "./handle.js"
import { checkDuration, checkInteger, checkOptions, checkQueueName } from "./input.js"
import type { Job } from "./Job.js"
import type { Found } from "./Operations.js"
import { makeOperations, type QueueOperations } from "./operate.js"
import { Queue, type QueueSettings, type SweepResult, TransactionMode } from "./QueueStore.js"
import { plainSettings, settingsOf } from "./settings.js"
import { receiving } from "./telemetry.js"

export type { Defaults, EnqueueOptions } from "./EnqueueOptions.js"
export type { EnqueueVerbs } from "./enqueue.js"
export { deadEnvelope } from "./envelope.js"
export type { DeadLetterFilter, JobFilter, Reschedule } from "./filters.js"
export type { CompletedRow, DeadRow, LiveRow } from "./JobRows.js"
export type {
  CancelOutcome,
  ChangeOutcome,
  Count,
  Counts,
  Found,
  PastLife,
  Requeued
} from "./Operations.js"
export type { DeadLetters, QueueOperations, RequeueOptions, Tally } from "./operate.js"
export { Queue, type QueueSettings, type Receipt, type Service, type SweepResult } from "./QueueStore.js"

/**
 * @since 0.1.0
 * @category models
 */
export interface Options<A, I> {
  /** Of the payload; its encoded side must be JSON. A union of tagged classes makes the queue an actor's protocol. */
  readonly payload: Schema.Schema<A, I>
  /** Default for the queue's jobs, fixed on each at enqueue: 20. */
  readonly maxAttempts?: number | undefined
  /** Default for the queue's jobs: 0. */
  readonly priority?: number | undefined
  /** Default for the queue's jobs: they do not expire. */
  readonly expires?: Duration.DurationInput | undefined
  /** A job whose lease ended unsettled more often than this is dead-lettered (`crashed`). Default 5. */
  readonly maxCrashes?: number | undefined
  /** How long completed jobs are kept, outside of the live table. Default: they are not. */
  readonly retainCompleted?: Duration.DurationInput | undefined
  /** How long dead letters are kept. Default: until they are purged. */
  readonly retainDead?: Duration.DurationInput | undefined
  /**
   * Another queue, in which an envelope (see `deadEnvelope`) of each dead letter is enqueued, in the same transaction;
   * not of cancelled ones. It must not lead back here.
   */
  readonly deadLetterQueue?: string | { readonly name: string } | undefined
  /**
   * What becomes of an ordering key whose job is dead: `"continue"` (default) lets it go on, a requeued letter joins
   * the end; `"block"` holds it until the letter is requeued, at the head, or purged by hand.
   */
  readonly onDead?: "continue" | "block" | undefined
}

/**
 * @since 0.1.0
 * @category models
 */
export interface ClaimOptions {
  /** How many at most; 0 claims none. Default 1. */
  readonly limit?: number | undefined
  /** The length of the leases. Default 30 s, at least 100 ms. */
  readonly visibilityTimeout?: Duration.DurationInput | undefined
}

/**
 * A typed queue. What is invalid in its definition is reported by each of its operations.
 *
 * @since 0.1.0
 * @category models
 */
export interface Definition<A, I = unknown> extends QueueOperations, EnqueueVerbs<A> {
  readonly name: string
  readonly payload: Schema.Schema<A, I>
  /** What every process of the fleet goes by: stored when the queue is first used, a worker's word before others'. */
  readonly settings: QueueSettings
  /** What the queue's jobs have unless an enqueue says otherwise. */
  readonly defaults: Defaults
  /** What is wrong with the definition, if anything. */
  readonly check: Effect.Effect<void, InvalidArgument>
  /** Claims ready jobs for manual work; you renew and settle them yourself. */
  readonly claim: (options?: ClaimOptions) => Effect.Effect<ReadonlyArray<Job<A>>, QueueError, Queue>
  /** The maintenance of this queue, now: see `Service.sweepExpired`. */
  readonly sweepExpired: Effect.Effect<SweepResult, QueueError, Queue>
}

const optionNames = [
  "payload",
  "maxAttempts",
  "priority",
  "expires",
  "maxCrashes",
  "retainCompleted",
  "retainDead",
  "deadLetterQueue",
  "onDead"
] as const

/**
 * Defines a queue.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = <A, I>(name: string, options: Options<A, I>): Definition<A, I> => {
  const maxCrashes = options.maxCrashes ?? 5
  const defaults: Defaults = {
    maxAttempts: options.maxAttempts ?? 20,
    priority: options.priority ?? 0,
    expires: options.expires
  }
  const checked = Either.gen(function* () {
    yield* checkQueueName(name)
    yield* checkOptions(options, optionNames)
    yield* placement({}, defaults)
    yield* checkInteger("maxCrashes", maxCrashes, 0, 100_000)
    return yield* settingsOf(name, options, maxCrashes, defaults)
  })
  const check = Either.match(checked, { onLeft: Effect.fail, onRight: () => Effect.void })
  const settings = Either.getOrElse(checked, () => plainSettings(name, maxCrashes))
  const encode = encoder(name, options.payload)
  const decode = decoder(options.payload)

  const defined = (queue: Queue["Type"]) => Effect.zipRight(check, queue.define(settings, "producer"))

  return {
    name,
    payload: options.payload,
    settings,
    defaults,
    check,
    ...makeEnqueue({ name, settings, checked, defaults, encode }),
    claim: Effect.fnUntraced(function* (options = {}) {
      const queue = yield* Queue
      yield* check
      yield* checkOptions(options, ["limit", "visibilityTimeout"])
      const { limit = 1, visibilityTimeout = "30 seconds" } = options
      const count = yield* checkInteger("limit", limit, 0, 10_000)
      const visibilityMillis = yield* checkDuration("visibilityTimeout", visibilityTimeout, {
        min: 100,
        max: 86_400_000
      })
      if (count === 0) return []
      yield* defined(queue)
      const request = { queue: name, limit: count, prefetch: 0, visibilityMillis, worker: "manual", probe: true }
      const { jobs } = yield* receiving(name, queue.claim(request))
      const claimed: Array<Job<A>> = []
      for (const row of jobs) {
        const payload = yield* decode(row.payload, Effect.succeed)
        const job = makeJob(queue, row, Either.getOrUndefined(payload) as A)
        if (Either.isRight(payload)) claimed.push(job.handle)
        // What was claimed beside it is in hand, whatever becomes of this one
        else
          yield* Effect.catchAll(job.undecodable(payload.left), (error) =>
            Effect.logWarning(`queue ${name}: job ${row.id} cannot be decoded, and could not be given back`, error)
          )
      }
      return claimed
    }),
    sweepExpired: Effect.flatMap(Queue, (queue) => Effect.zipRight(check, queue.sweepExpired(name))),
    ...makeOperations({ settings, payload: options.payload as Schema.Schema.AnyNoContext, check })
  }
}

/**
 * Runs queue operations independently of the transaction they stand in: what they write stays when it rolls back.
 * On SQLite, whose client has one connection, they fail with `TransactionOpen` inside a transaction of that client.
 *
 * @since 0.1.0
 * @category combinators
 */
export const outsideTransaction = <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.provideService(self, TransactionMode, "outside")

/**
 * See `Service.transaction`.
 *
 * @since 0.1.0
 * @category combinators
 */
export const transaction = <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E | StoreError, R | Queue> =>
  Effect.flatMap(Queue, (queue) => queue.transaction(self))

/**
 * A job by id in whatever table it is: live, dead or completed.
 *
 * @since 0.1.0
 * @category accessors
 */
export const find = (id: number): Effect.Effect<Found | undefined, QueueError, Queue> =>
  Effect.flatMap(Queue, (queue) => Effect.flatMap(checkInteger("id", id, 0, Number.MAX_SAFE_INTEGER), queue.find))

/**
 * The names of all queues that are defined or have jobs.
 *
 * @since 0.1.0
 * @category accessors
 */
export const names: Effect.Effect<ReadonlyArray<string>, QueueError, Queue> = Effect.flatMap(
  Queue,
  (queue) => queue.queues
)

/**
 * The maintenance of all queues, now: see `Service.sweepExpired`.
 *
 * @since 0.1.0
 * @category accessors
 */
export const sweepExpired: Effect.Effect<SweepResult, QueueError, Queue> = Effect.flatMap(Queue, (queue) =>
  queue.sweepExpired()
)
