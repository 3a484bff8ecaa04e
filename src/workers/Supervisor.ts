/**
 * A supervisor: several workers under one restart policy. One that fails is started again by a Schedule; one that
 * keeps failing is stopped and reported, and the others go on.
 *
 * @since 0.1.0
 */
import {
  Context,
  Deferred,
  type Duration,
  Effect,
  Either,
  Fiber,
  Layer,
  type Schedule,
  Scope,
  type Stream
} from "effect"
import { reconnect } from "../schedule/Reconnect.js"
import type { Clock } from "../services/Clock.js"
import { InvalidArgument, type WorkerFailed } from "../services/Errors.js"
import { checkDuration, checkInteger, checkOptions } from "../services/input.js"
import type { Definition } from "../services/Queue.js"
import { Queue } from "../services/QueueStore.js"
import type { Wake } from "../services/Wake.js"
import { type Child, makeChild, runChild } from "./child.js"
import { makeEvents } from "./makeState.js"
import type { BatchAnswer, Handlers, NeedOf, Outcome, Options as WorkerOptions } from "./options.js"
import { start, type Worker } from "./start.js"
import type * as WorkerEvent from "./WorkerEvent.js"

/**
 * A worker to be supervised: what it needs is in its type.
 *
 * @since 0.1.0
 * @category models
 */
export interface Spec<out R> {
  /** Unlike that of every other worker of the supervisor. */
  readonly name: string
  readonly queue: string
  /** Starts it once, for as long as the scope is open. */
  readonly start: (
    observe: (event: WorkerEvent.WorkerEvent) => void
  ) => Effect.Effect<Worker, InvalidArgument, R | Scope.Scope>
}

/**
 * When and how often a worker that has failed is started again.
 *
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /**
   * The delay before each restart; a worker whose Schedule ends is given up. Each worker has its own. Default: from
   * 50 ms, doubling, at most 5 s apart with jitter, from the start again after a minute of peace.
   */
  readonly restart?: Schedule.Schedule<unknown, WorkerFailed> | undefined
  /** A worker that fails once more after so many restarts `within` the time is given up. Default 5. */
  readonly maxRestarts?: number | undefined
  /** Default 1 minute. */
  readonly within?: Duration.DurationInput | undefined
}

/**
 * - `starting`, then `running`; `restarting`: it has failed, and waits for its next start
 * - `gaveUp`: it failed too often and is not started again
 * - `stopped`: the supervisor was closed
 *
 * @since 0.1.0
 * @category models
 */
export interface WorkerState {
  readonly state: "starting" | "running" | "restarting" | "gaveUp" | "stopped"
  /** How often it was started again. */
  readonly restarts: number
  /** Why it failed last. */
  readonly lastFailure: string | undefined
  /** What the worker says of itself; of the last one, when none runs. */
  readonly worker: WorkerEvent.Status | undefined
}

/**
 * What the workers tell of themselves, each event with the name of its worker; and what the supervisor does:
 *
 * - `Restarting`: the worker has failed, and is started again after the delay
 * - `GaveUp`: it is not started again
 *
 * @since 0.1.0
 * @category models
 */
export type Event = { readonly worker: string } & (
  | WorkerEvent.WorkerEvent
  | { readonly _tag: "Restarting"; readonly reason: string; readonly delayMillis: number; readonly restarts: number }
  | { readonly _tag: "GaveUp"; readonly reason: string }
)

/**
 * A running supervisor.
 *
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /** The state of every worker, by name. */
  readonly status: Effect.Effect<Readonly<Record<string, WorkerState>>>
  /** From the subscription on; a slow reader loses the oldest of 10,000. */
  readonly events: Stream.Stream<Event>
  /** The worker of that name that runs now: for `pause`, `resume` and `health`. */
  readonly worker: (name: string) => Effect.Effect<Worker | undefined>
  /** Never succeeds; fails when the first worker has been given up. */
  readonly failure: Effect.Effect<never, WorkerFailed>
  /** Never succeeds; fails when all workers have been given up. */
  readonly allFailed: Effect.Effect<never, WorkerFailed>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class Supervisor extends Context.Tag("alkstore/Supervisor")<Supervisor, Service>() {}

/** What a list of workers needs of its environment. */
type NeedsOf<S> = S extends Spec<infer R> ? R : never

/**
 * A worker to be supervised. Its name is that of its options, or its queue's.
 *
 * @since 0.1.0
 * @category constructors
 */
export const worker = <
  A,
  I,
  E = never,
  R = never,
  H extends Handlers<A> = {},
  B extends BatchAnswer = void | ReadonlyArray<Outcome<E>>
>(
  queue: Definition<A, I>,
  options: WorkerOptions<A, E, R, H, B>
): Spec<Exclude<R | NeedOf<H>, Scope.Scope> | Queue | Wake | Clock> => ({
  name: options.name ?? queue.name,
  queue: queue.name,
  start: (observe) => start(queue, options, observe)
})

const checked = (specs: ReadonlyArray<Spec<unknown>>, options: Options) =>
  Either.gen(function* () {
    yield* checkOptions(options, ["restart", "maxRestarts", "within"])
    const { maxRestarts = 5, restart = reconnect, within } = options
    const names = new Set<string>()
    for (const { name } of specs) {
      if (names.has(name))
        yield* Either.left(
          new InvalidArgument({
            argument: "name",
            message: `name: two workers of a supervisor are called ${name}; give them names of their own`
          })
        )
      names.add(name)
    }
    return {
      restart,
      maxRestarts: yield* checkInteger("maxRestarts", maxRestarts, 0, 100_000),
      withinMillis: yield* checkDuration("within", within ?? "1 minute", { min: 1 })
    }
  })

/**
 * Starts the workers, which live until the scope closes: then all of them drain at once. Fails when an option is
 * invalid.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = <S extends Spec<unknown>>(
  specs: ReadonlyArray<S>,
  options: Options = {}
): Effect.Effect<Service, InvalidArgument, NeedsOf<S> | Queue | Clock | Scope.Scope> =>
  Effect.flatMap(Queue, (queue) => queue.detached(supervising(specs as ReadonlyArray<Spec<NeedsOf<S>>>, options)))

const supervising = <R>(specs: ReadonlyArray<Spec<R>>, options: Options) =>
  Effect.gen(function* () {
    const policy = yield* checked(specs, options)
    const { events, publish } = makeEvents<Event>()
    const failure = yield* Deferred.make<never, WorkerFailed>()
    const allFailed = yield* Deferred.make<never, WorkerFailed>()
    const children = new Map<string, Child>()
    const gaveUp = (error: WorkerFailed) =>
      Effect.zipRight(
        Deferred.fail(failure, error),
        [...children.values()].every(({ state }) => state === "gaveUp") ? Deferred.fail(allFailed, error) : Effect.void
      )
    for (const { name, queue } of specs) children.set(name, yield* makeChild(name, queue))
    const scope = yield* Effect.scope
    const fibers: Array<Fiber.Fiber<unknown, unknown>> = []
    // Each drains in its own fiber, and none waits for another
    yield* Scope.addFinalizer(
      scope,
      Effect.suspend(() => Fiber.interruptAll(fibers))
    )
    for (const spec of specs) {
      const child = children.get(spec.name) as Child
      fibers.push(yield* Effect.forkDaemon(Effect.interruptible(runChild(spec, child, policy, publish, gaveUp))))
    }
    yield* Effect.forEach([...children.values()], ({ started }) => Deferred.await(started), { discard: true })
    return {
      status: Effect.forEach([...children.values()], ({ name, status }) =>
        Effect.map(status, (is) => [name, is] as const)
      ).pipe(Effect.map((all) => Object.fromEntries(all))),
      events,
      worker: (name) => Effect.sync(() => children.get(name)?.worker),
      failure: Deferred.await(failure),
      allFailed: Deferred.await(allFailed)
    } satisfies Service
  })

/**
 * A supervisor as a Layer: its workers run as long as the Layer is in use, and drain when it is closed.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = <S extends Spec<unknown>>(
  specs: ReadonlyArray<S>,
  options: Options = {}
): Layer.Layer<Supervisor, InvalidArgument, NeedsOf<S> | Queue | Clock> =>
  Layer.scoped(Supervisor, make(specs, options)) as Layer.Layer<Supervisor, InvalidArgument, NeedsOf<S> | Queue | Clock>
