/**
 * An outbox: messages for the world outside, written in the transaction that makes them true, and delivered by a
 * supervised relay, in order per key, at least once. A queue with an id for each message, and a worker; no table more.
 *
 * @since 0.1.0
 */
import { type Duration, Effect, Either, type Layer, type Schema, type Scope } from "effect"
import type { Clock } from "../services/Clock.js"
import type { EnqueueOptions } from "../services/EnqueueOptions.js"
import type { EnqueueError, InvalidArgument } from "../services/Errors.js"
import { checkHeaders, checkOptions, checkThrows } from "../services/input.js"
import { Fatal, type Job } from "../services/Job.js"
import { parseJson } from "../services/json.js"
import { makeOperations, type QueueOperations } from "../services/operate.js"
import { type Definition, make as makeQueue, type Options as QueueOptions } from "../services/Queue.js"
import type { Queue } from "../services/QueueStore.js"
import type { Wake } from "../services/Wake.js"
import type { PolicyOptions } from "./policy.js"
import * as Worker from "./Worker.js"

/**
 * The header that carries a message's id. It goes with the job wherever that goes: through retries, the dead letters, a
 * requeue, another database.
 *
 * @since 0.1.0
 * @category constants
 */
export const messageIdHeader = "alkstore-message-id"

/**
 * The message, its key, and the options of the queue beneath.
 *
 * @since 0.1.0
 * @category models
 */
export interface Options<A, I> extends Omit<QueueOptions<A, I>, "payload"> {
  /** Its encoded side must be JSON. */
  readonly message: Schema.Schema<A, I>
  /**
   * Messages with the same key are delivered one after another, in the order in which they were committed; those for
   * which it answers `undefined`, and all without it, in no order. 1 to 512 bytes.
   */
  readonly key?: ((message: A) => string | undefined) | undefined
  /**
   * What becomes of a key whose message is dead: `"block"` (default) holds it until the letter is requeued, at the
   * head, or purged by hand; `"continue"` goes on without it.
   */
  readonly onDead?: "continue" | "block" | undefined
}

/**
 * A publish has no options about duplicates: what was published is delivered, and its id tells the receiver what it
 * knows already.
 *
 * @since 0.1.0
 * @category models
 */
export type PublishOptions = Pick<
  EnqueueOptions,
  "delay" | "runAt" | "priority" | "maxAttempts" | "expires" | "headers"
>

/**
 * A typed outbox, with the operations of the queue beneath it (`deadLetters`, `pause`, `counts`, …).
 *
 * @since 0.1.0
 * @category models
 */
export interface Outbox<A, I = unknown> extends QueueOperations {
  readonly name: string
  /** The queue beneath: a job is a message, its ordering key the message's key, its headers have the id. */
  readonly queue: Definition<A, I>
  /** Writes a message, in the transaction of the queue's client if the call stands in one. Answers its id, a UUID. */
  readonly publish: (message: A, options?: PublishOptions) => Effect.Effect<string, EnqueueError, Queue>
  /** Writes all in one transaction, or none; ids in order. */
  readonly publishMany: (
    messages: Iterable<A>,
    options?: PublishOptions | ((message: A, index: number) => PublishOptions)
  ) => Effect.Effect<ReadonlyArray<string>, EnqueueError, Queue>
}

const names = ["delay", "runAt", "priority", "maxAttempts", "expires", "headers"] as const

/** What a job of the outbox is enqueued with. */
const placed = <A>(
  keyOf: (message: A) => string | undefined,
  message: A,
  id: string,
  options: PublishOptions = {}
): Either.Either<EnqueueOptions, InvalidArgument> =>
  Either.gen(function* () {
    // Callers may not be typed
    yield* checkOptions(options, names)
    yield* checkHeaders(options.headers)
    const orderingKey = yield* checkThrows("key", "the function", () => keyOf(message))
    return { ...options, orderingKey, headers: { ...options.headers, [messageIdHeader]: id } }
  })

/**
 * Defines an outbox. Its queue has the same name.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = <A, I>(
  name: string,
  { key = () => undefined, message: payload, onDead = "block", ...rest }: Options<A, I>
): Outbox<A, I> => {
  const queue = makeQueue(name, { ...rest, payload, onDead })
  return {
    ...makeOperations({ settings: queue.settings, payload: payload as Schema.Schema.AnyNoContext, check: queue.check }),
    name,
    queue,
    publish: (message, options = {}) =>
      Effect.suspend(() => {
        const id = crypto.randomUUID()
        return Effect.flatMap(placed(key, message, id, options), (job) => Effect.as(queue.enqueue(message, job), id))
      }),
    publishMany: (messages, options = {}) =>
      Effect.gen(function* () {
        const all = yield* checkThrows("messages", "the iterable", () => [...messages])
        const ids = all.map(() => crypto.randomUUID() as string)
        const jobs = yield* Effect.forEach(all, (message, index) =>
          Either.flatMap(
            typeof options === "function"
              ? checkThrows("options", "the function", () => options(message, index))
              : Either.right(options),
            (job) => placed(key, message, ids[index] as string, job)
          )
        )
        yield* queue.enqueueMany(all, (_, index) => jobs[index] as EnqueueOptions)
        return ids
      })
  }
}

/**
 * The id of a message, from the stored headers of its job or dead letter; undefined when it was not published by an
 * outbox.
 *
 * @since 0.1.0
 * @category conversions
 */
export const messageId = (row: { readonly headers: string | null }): string | undefined => {
  const headers = parseJson(row.headers)
  const id =
    typeof headers === "object" && headers !== null ? (headers as Record<string, unknown>)[messageIdHeader] : undefined
  return typeof id === "string" ? id : undefined
}

/**
 * One attempt to deliver a message.
 *
 * @since 0.1.0
 * @category models
 */
export interface Delivery<A> {
  /**
   * The same for every attempt, after crashes, requeues and moves too, and no other message's: what the receiver knows
   * a repetition by.
   */
  readonly id: string
  readonly message: A
  readonly key: string | undefined
  /** 1 for the first; counts afresh when a dead message is requeued. */
  readonly attempt: number
  readonly publishedAt: Date
  /** The publisher's own, and the trace context. */
  readonly headers: Readonly<Record<string, string>>
}

/**
 * How messages are delivered: the policy of the worker beneath. An interrupted delivery may have arrived: it is repeated.
 *
 * @since 0.1.0
 * @category models
 */
export interface RelayOptions<A, E = never, R = never> extends Omit<PolicyOptions<E>, "transactional" | "timeout"> {
  /**
   * Success is an acknowledgement. A failure is repeated by the `retry` Schedule, unless it is `Job.Fatal`,
   * `Job.RetryAfter` or `Job.Snooze`; later messages of its key wait. It may need a Scope: one closes after each attempt.
   */
  readonly deliver: (delivery: Delivery<A>) => Effect.Effect<unknown, E, R>
  /** How long one attempt may take before it is interrupted; a failure. Default 30 s. */
  readonly timeout?: Duration.DurationInput | undefined
}

const deliveryOf = <A>(job: Job<A>): Effect.Effect<Delivery<A>, Fatal> => {
  const { [messageIdHeader]: id, ...headers } = job.headers
  return id === undefined
    ? Effect.fail(
        new Fatal({
          error: `job ${job.id} of outbox ${job.queue} has no message id: it was enqueued past Outbox.publish`
        })
      )
    : Effect.succeed({
        id,
        message: job.payload,
        key: job.orderingKey,
        attempt: job.attempt,
        publishedAt: job.enqueuedAt,
        headers
      })
}

/**
 * The options of the worker that a relay is, for `Supervisor.worker(outbox.queue, Outbox.relay(…))` and the like.
 *
 * @since 0.1.0
 * @category constructors
 */
export const relay = <A, E = never, R = never>({
  deliver,
  timeout = "30 seconds",
  ...policy
}: RelayOptions<A, E, R>): PolicyOptions<E | Fatal> & {
  readonly handler: (job: Job<A>) => Effect.Effect<unknown, E | Fatal, R>
} => ({
  ...(policy as PolicyOptions<E | Fatal>),
  timeout,
  handler: (job) => Effect.flatMap(deliveryOf(job), deliver)
})

type Needs<R> = Exclude<R, Scope.Scope> | Queue | Wake | Clock

/**
 * The relay as a Layer: it delivers as long as the Layer is in use, and drains when it is closed. Any number of
 * processes may have it: the order per key holds across them.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = <A, I, E = never, R = never>(
  outbox: Outbox<A, I>,
  options: RelayOptions<A, E, R>
): Layer.Layer<never, InvalidArgument, Needs<R>> =>
  Worker.layer<A, I, E | Fatal, R>(outbox.queue, relay(options) as Worker.Options<A, E | Fatal, R>)

/**
 * Starts a relay that lives as long as the calling fiber, and drains when that ends.
 *
 * @since 0.1.0
 * @category constructors
 */
export const fork = <A, I, E = never, R = never>(
  outbox: Outbox<A, I>,
  options: RelayOptions<A, E, R>
): Effect.Effect<Worker.Worker, InvalidArgument, Needs<R>> =>
  Worker.fork<A, I, E | Fatal, R>(outbox.queue, relay(options) as Worker.Options<A, E | Fatal, R>)
