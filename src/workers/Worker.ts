/**
 * Workers: a queue, a handler and a policy, as a supervised actor. A fetcher claims for all handlers, a lease keeper
 * renews what they hold, a watch minds deadlines, an acknowledger writes how jobs ended.
 *
 * @since 0.1.0
 */
import { Deferred, Effect, Fiber, Layer, Random, type Scope, type Stream } from "effect"
import { outageRetry } from "../schedule/Polling.js"
import type { Clock } from "../services/Clock.js"
import { type InvalidArgument, WorkerFailed } from "../services/Errors.js"
import { decoder } from "../services/encode.js"
import type { Job } from "../services/Job.js"
import type { Definition } from "../services/Queue.js"
import { Queue } from "../services/QueueStore.js"
import type { Wake } from "../services/Wake.js"
import { acknowledger } from "./acknowledger.js"
import { deadlines } from "./deadlines.js"
import { fetcher, makeStarter } from "./fetcher.js"
import type { WorkerState } from "./held.js"
import { makeJobFork } from "./jobFork.js"
import { leaseKeeper, progressKeeper } from "./leaseKeeper.js"
import { makeEvents, makeState } from "./makeState.js"
import { checkPolicy, type PolicyOptions } from "./policy.js"
import type { Dispatch } from "./runJob.js"
import { drain, handBack } from "./shutdown.js"
import { healthOf, statusOf } from "./status.js"
import { supervise } from "./supervise.js"
import type { Health, Status, WorkerEvent } from "./WorkerEvent.js"

export type { PolicyOptions } from "./policy.js"
export type { Health, JobRef, Status, WorkerEvent } from "./WorkerEvent.js"

/**
 * What a handler may need besides its own services is a Scope: it closes when the handler ends, or loses its lease.
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

/** What the handlers of a record fail with, and what they need. */
type ErrorOf<H> = H[keyof H] extends infer F ? (F extends Handler<never, infer E, infer _> ? E : never) : never
type NeedOf<H> = H[keyof H] extends infer F ? (F extends Handler<never, infer _, infer R> ? R : never) : never

/** No handler for a tag that the queue does not have. */
type Only<A, H> = [H] extends [never]
  ? unknown
  : Exclude<keyof H, Tag<A>> extends never
    ? unknown
    : { readonly handlers: { readonly [T in Exclude<keyof H, Tag<A>>]: never } }

/**
 * @since 0.1.0
 * @category models
 */
export type Options<A, E = never, R = never, H extends Handlers<A> = {}> = PolicyOptions<E | ErrorOf<H>> &
  (
    | { readonly handler: Handler<A, E, R>; readonly handlers?: never }
    | { readonly handlers: H & Handlers<A>; readonly handler?: never }
  ) &
  Only<A, H>

/**
 * A running worker.
 *
 * @since 0.1.0
 * @category models
 */
export interface Worker {
  readonly queue: string
  /** Unique for each start of a worker. */
  readonly id: string
  /** Stops claiming and hands back what was claimed ahead; running handlers go on. */
  readonly pause: Effect.Effect<void>
  readonly resume: Effect.Effect<void>
  readonly status: Effect.Effect<Status>
  readonly health: Effect.Effect<Health>
  /** Every transition from the subscription on; a slow reader loses the oldest of 10,000. */
  readonly events: Stream.Stream<WorkerEvent>
  /** Never succeeds; fails when the worker has given up. */
  readonly failure: Effect.Effect<never, WorkerFailed>
}

/** What a worker needs of its environment. */
type Needs<R> = Exclude<R, Scope.Scope> | Queue | Wake | Clock

const dispatchOf = <A, E, R, H extends Handlers<A>>(
  options: Options<A, E, R, H>
): ((payload: A) => Handler<A, unknown, unknown> | undefined) => {
  const { handler, handlers } = options
  if (handler !== undefined) return () => handler
  const byTag = new Map(
    Object.entries(handlers ?? {}) as ReadonlyArray<[string, Handler<A, unknown, unknown> | undefined]>
  )
  return (payload) => byTag.get(String((payload as { readonly _tag?: unknown })._tag))
}

const control = (state: WorkerState): Pick<Worker, "pause" | "resume"> => ({
  pause: Effect.sync(() => {
    if (state.state !== "running") return
    state.paused = true
    state.state = "paused"
    handBack(state)
    state.publish({ _tag: "Paused" })
  }),
  resume: Effect.sync(() => {
    if (state.state !== "paused") return
    state.paused = false
    state.state = "running"
    state.room.unsafeOpen()
    state.nudge.unsafeOpen()
    state.publish({ _tag: "Resumed" })
  })
})

/**
 * Starts a worker that lives until the scope closes: then it drains. Fails only when an option is invalid; a database
 * that is gone is waited for.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = <A, I, E = never, R = never, H extends Handlers<A> = {}>(
  queue: Definition<A, I>,
  options: Options<A, E, R, H>
): Effect.Effect<Worker, InvalidArgument, Needs<R | NeedOf<H>> | Scope.Scope> =>
  Effect.flatMap(Queue, (service) => service.detached(start(queue, options)))

const start = <A, I, E, R, H extends Handlers<A>>(queue: Definition<A, I>, options: Options<A, E, R, H>) =>
  Effect.gen(function* () {
    yield* queue.check
    const policy = yield* checkPolicy(options as PolicyOptions<never>)
    const id = `${options.name ?? queue.name}-${process.pid}-${(yield* Random.nextIntBetween(0, 2 ** 31)).toString(36)}`
    const { events, publish } = makeEvents()
    const state = yield* makeState(queue.name, id, policy, publish)
    const runtime = yield* Effect.runtime<Exclude<R | NeedOf<H>, Scope.Scope>>()
    const failure = yield* Deferred.make<never, WorkerFailed>()
    const reader = { decode: decoder(queue.payload), dispatch: dispatchOf(options) as Dispatch<A> }
    const starter = makeStarter(state, reader, makeJobFork(runtime))
    const fail = (reason: string) =>
      Effect.suspend(() => {
        state.state = "failed"
        state.publish({ _tag: "Failed", reason })
        const error = new WorkerFailed({
          queue: queue.name,
          message: `the worker of queue ${queue.name} has failed: ${reason}; restart its process`
        })
        return Effect.zipRight(Effect.logError(error.message), Deferred.fail(failure, error))
      }).pipe(
        Effect.when(() => state.state !== "failed"),
        Effect.asVoid
      )
    const died = (fiber: string, reason: string) => publish({ _tag: "Restarted", fiber, reason })
    // A statement under way on a connection that is dead is waited for by nobody: a closing scope only asks to end
    const supervised = (name: string, loop: Effect.Effect<never>) =>
      Effect.acquireRelease(
        Effect.forkDaemon(Effect.interruptible(supervise(`${queue.name}: ${name}`, loop, died))),
        (fiber) => Effect.sync(() => fiber.unsafeInterruptAsFork(fiber.id()))
      )

    // Closed in reverse: the fetcher first, what writes last
    yield* supervised("acknowledger", acknowledger(state))
    yield* supervised("lease keeper", leaseKeeper(state))
    yield* supervised("progress keeper", progressKeeper(state))
    yield* supervised("deadlines", deadlines(state, starter.start, fail))
    yield* Effect.addFinalizer(() => drain(state))
    yield* supervised("fetcher", defining(state, queue.maxCrashes, fetcher(state, starter)))
    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        state.draining = true
      })
    )
    return {
      queue: queue.name,
      id,
      ...control(state),
      status: Effect.sync(() => statusOf(state)),
      health: healthOf(state),
      events,
      failure: Deferred.await(failure)
    } satisfies Worker
  })

/** A worker's word on the queue's settings is given before its first claim. */
const defining = (state: WorkerState, maxCrashes: number, loop: Effect.Effect<never>): Effect.Effect<never> =>
  state.queue.define({ name: state.queueName, maxCrashes }, "worker").pipe(
    Effect.retry({ schedule: outageRetry, while: (error) => error.retryable }),
    Effect.catchAll((error) => Effect.logWarning(`queue ${state.queueName}: its settings could not be stored`, error)),
    Effect.zipRight(loop)
  )

/**
 * A worker as a Layer: it runs as long as the Layer is in use, and drains when it is closed (SIGTERM, with
 * `NodeRuntime.runMain`).
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = <A, I, E = never, R = never, H extends Handlers<A> = {}>(
  queue: Definition<A, I>,
  options: Options<A, E, R, H>
): Layer.Layer<never, InvalidArgument, Needs<R | NeedOf<H>>> =>
  Layer.scopedDiscard(make(queue, options)) as Layer.Layer<never, InvalidArgument, Needs<R | NeedOf<H>>>

/**
 * Starts a worker that lives as long as the calling fiber, and drains when that ends.
 *
 * @since 0.1.0
 * @category constructors
 */
export const fork = <A, I, E = never, R = never, H extends Handlers<A> = {}>(
  queue: Definition<A, I>,
  options: Options<A, E, R, H>
): Effect.Effect<Worker, InvalidArgument, Needs<R | NeedOf<H>>> =>
  Effect.gen(function* () {
    const started = yield* Deferred.make<Worker, InvalidArgument>()
    const life = Effect.scoped(
      Effect.matchCauseEffect(make(queue, options), {
        onFailure: (cause) => Deferred.failCause(started, cause),
        onSuccess: (worker) => Effect.zipRight(Deferred.succeed(started, worker), Effect.never)
      })
    ) as Effect.Effect<unknown, never, Needs<R | NeedOf<H>>>
    const fiber = yield* Effect.fork(life)
    return yield* Effect.onInterrupt(Deferred.await(started), () => Fiber.interrupt(fiber))
  })
