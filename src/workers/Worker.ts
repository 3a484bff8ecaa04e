/**
 * Workers: a queue, a handler and a policy, as a supervised actor. A fetcher claims for all handlers, a lease keeper
 * renews what they hold, a watch minds deadlines, an acknowledger writes how jobs ended.
 *
 * @since 0.1.0
 */
import { Deferred, Effect, Fiber, Layer, Scope } from "effect"
import type { Clock } from "../services/Clock.js"
import type { InvalidArgument } from "../services/Errors.js"
import type { Definition } from "../services/Queue.js"
import { Queue } from "../services/QueueStore.js"
import type { Wake } from "../services/Wake.js"
import type { BatchAnswer, Handlers, NeedOf, Options, Outcome } from "./options.js"
import { start, type Worker } from "./start.js"

export type { BatchAnswer, BatchHandler, BatchOptions, Handler, Handlers, Options, Outcome } from "./options.js"
export type { PolicyOptions } from "./policy.js"
export type { Worker } from "./start.js"
export type { Health, JobRef, Status, WorkerEvent } from "./WorkerEvent.js"

/** What a worker needs of its environment. */
type Needs<R> = Exclude<R, Scope.Scope> | Queue | Wake | Clock

/**
 * Starts a worker that lives until the scope closes: then it drains. Fails only when an option is invalid; a database
 * that is gone is waited for.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = <
  A,
  I,
  E = never,
  R = never,
  H extends Handlers<A> = {},
  B extends BatchAnswer = void | ReadonlyArray<Outcome<E>>
>(
  queue: Definition<A, I>,
  options: Options<A, E, R, H, B>
): Effect.Effect<Worker, InvalidArgument, Needs<R | NeedOf<H>> | Scope.Scope> =>
  Effect.flatMap(Queue, (service) => service.detached(start(queue, options)))

/**
 * A worker as a Layer: it runs as long as the Layer is in use, and drains when it is closed (SIGTERM, with
 * `NodeRuntime.runMain`).
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = <
  A,
  I,
  E = never,
  R = never,
  H extends Handlers<A> = {},
  B extends BatchAnswer = void | ReadonlyArray<Outcome<E>>
>(
  queue: Definition<A, I>,
  options: Options<A, E, R, H, B>
): Layer.Layer<never, InvalidArgument, Needs<R | NeedOf<H>>> =>
  Layer.scopedDiscard(make(queue, options)) as Layer.Layer<never, InvalidArgument, Needs<R | NeedOf<H>>>

/**
 * Starts a worker that lives as long as the calling fiber and the engine's Layer: it drains when the first of both ends. What its
 * handlers need besides may be closed by then; a worker that is to outlive nothing of it is a `layer`.
 *
 * @since 0.1.0
 * @category constructors
 */
export const fork = <
  A,
  I,
  E = never,
  R = never,
  H extends Handlers<A> = {},
  B extends BatchAnswer = void | ReadonlyArray<Outcome<E>>
>(
  queue: Definition<A, I>,
  options: Options<A, E, R, H, B>
): Effect.Effect<Worker, InvalidArgument, Needs<R | NeedOf<H>>> =>
  Effect.gen(function* () {
    const { innerScope } = yield* Queue
    const started = yield* Deferred.make<Worker, InvalidArgument>()
    const life = Effect.acquireUseRelease(
      innerScope,
      (scope) =>
        Effect.matchCauseEffect(Scope.extend(make(queue, options), scope), {
          onFailure: (cause) => Deferred.failCause(started, cause),
          onSuccess: (worker) => Effect.zipRight(Deferred.succeed(started, worker), Effect.never)
        }),
      Scope.close
    ) as Effect.Effect<unknown, never, Needs<R | NeedOf<H>>>
    // Also in an uninterruptible region, whose fiber waits at its end for this one to end
    const fiber = yield* Effect.fork(Effect.interruptible(life))
    return yield* Effect.onInterrupt(Deferred.await(started), () => Fiber.interrupt(fiber))
  })
