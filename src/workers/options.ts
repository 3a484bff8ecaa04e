/**
 * What a worker is given: one handler, one per tag, or one for many jobs at once; and its policy.
 */
import type { Duration, Effect, Either, Exit } from "effect"
import type { NonEmptyReadonlyArray } from "effect/Array"
import type { Job } from "../services/Job.js"
import type { PolicyOptions } from "./policy.js"

/**
 * What a handler may need besides its own services is a Scope: it closes when the handler ends, or loses its lease.
 *
 * Its fiber is not its job's alone: it may go on with the next job when the handler has ended. To stop a job, cancel it.
 *
 * @since 0.1.0
 * @category models
 */
export type Handler<A, E, R> = (job: Job<A>) => Effect.Effect<unknown, E, R>

type Tag<A> = A extends { readonly _tag: infer T extends string } ? T : never

/**
 * One handler per message of a queue whose payload is a union of tagged messages. A job whose tag has none goes back,
 * its attempt not spent, for a worker that has.
 *
 * @since 0.1.0
 * @category models
 */
export type Handlers<A, E = unknown, R = unknown> = {
  readonly [T in Tag<A>]?: Handler<Extract<A, { readonly _tag: T }>, E, R> | undefined
}

/**
 * How one job of a batch ended: what `Effect.either` or `Effect.exit` answers. A failure goes through the retry
 * Schedule unless it is `Job.Fatal`, `Job.RetryAfter` or `Job.Snooze`.
 *
 * @since 0.1.0
 * @category models
 */
export type Outcome<E> = Either.Either<unknown, E> | Exit.Exit<unknown, E>

/**
 * One call for many jobs. Success with nothing acks them all; success with an array is the outcome of each, by
 * position; failure is the failure of each. A job that the handler has settled itself is settled.
 *
 * @since 0.1.0
 * @category models
 */
export type BatchHandler<A, E, R, B extends BatchAnswer = void | ReadonlyArray<Outcome<E>>> = (
  jobs: NonEmptyReadonlyArray<Job<A>>
) => Effect.Effect<B, E, R>

/**
 * What a batch handler may answer.
 *
 * @since 0.1.0
 * @category models
 */
export type BatchAnswer = void | ReadonlyArray<Outcome<unknown>>

/**
 * How large the batches of a `batchHandler` are.
 *
 * @since 0.1.0
 * @category models
 */
export interface BatchOptions {
  /** The most jobs of one call. Default 100, at most 1000. */
  readonly size?: number | undefined
  /**
   * How long jobs may wait for others to fill their batch. Default 0: what is there when a slot is free makes the
   * batch. At most a quarter of the visibility timeout.
   */
  readonly maxWait?: Duration.DurationInput | undefined
}

/** `unknown` is what a record of handlers may have that nobody has given: see `Handlers`. */
type Known<T> = unknown extends T ? never : T

/** What the handlers of a record fail with, and what they need. */
export type ErrorOf<H> = H[keyof H] extends infer F
  ? F extends Handler<never, infer E, infer _>
    ? Known<E>
    : never
  : never
export type NeedOf<H> = H[keyof H] extends infer F
  ? F extends Handler<never, infer _, infer R>
    ? Known<R>
    : never
  : never

/** What the jobs of a batch fail with. */
type OutcomeErrorOf<B> =
  B extends ReadonlyArray<infer O>
    ? O extends Either.Either<infer _, infer E>
      ? E
      : O extends Exit.Exit<infer _, infer E>
        ? E
        : never
    : never

/** No handler for a tag that the queue does not have. */
type Only<A, H> = [H] extends [never]
  ? unknown
  : Exclude<keyof H, Tag<A>> extends never
    ? unknown
    : { readonly handlers: { readonly [T in Exclude<keyof H, Tag<A>>]: never } }

/**
 * One of `handler`, `handlers` and `batchHandler`, and a policy.
 *
 * @since 0.1.0
 * @category models
 */
export type Options<
  A,
  E = never,
  R = never,
  H extends Handlers<A> = {},
  B extends BatchAnswer = void | ReadonlyArray<Outcome<E>>
> = PolicyOptions<E | ErrorOf<H> | OutcomeErrorOf<B>> &
  (
    | {
        readonly handler: Handler<A, E, R>
        readonly handlers?: undefined
        readonly batchHandler?: undefined
        readonly batch?: undefined
      }
    | {
        readonly handlers: H & Handlers<A>
        readonly handler?: undefined
        readonly batchHandler?: undefined
        readonly batch?: undefined
      }
    | {
        readonly batchHandler: BatchHandler<A, E, R, B>
        readonly batch?: BatchOptions | undefined
        readonly handler?: undefined
        readonly handlers?: undefined
        readonly transactional?: false | undefined
      }
  ) &
  Only<A, H>
