/**
 * Starts a worker: its state, its fibers, its end.
 */
import { Deferred, Effect, Random, type Scope, type Stream } from "effect"
import { outageRetry } from "../schedule/Polling.js"
import { WorkerFailed } from "../services/Errors.js"
import { reader } from "../services/encode.js"
import type { Definition } from "../services/Queue.js"
import { Queue, type QueueSettings } from "../services/QueueStore.js"
import { acknowledger } from "./acknowledger.js"
import { type AnyBatchHandler, performBatch } from "./batch.js"
import { controller } from "./controller.js"
import { deadlines } from "./deadlines.js"
import { fetcher, makeStarter } from "./fetcher.js"
import type { WorkerState } from "./held.js"
import { makeReceiver } from "./intake.js"
import { makeJobFork } from "./jobFork.js"
import { leaseKeeper, progressKeeper } from "./leaseKeeper.js"
import { makeEvents, makeState } from "./makeState.js"
import type { BatchAnswer, Handler, Handlers, NeedOf, Options } from "./options.js"
import { ceases, failing, works } from "./outage.js"
import { type Dispatch, type Perform, performOne } from "./perform.js"
import { checkPolicy, type PolicyOptions } from "./policy.js"
import { drain, handBack } from "./shutdown.js"
import { healthOf, statusOf } from "./status.js"
import { makeStream } from "./stream.js"
import { supervise } from "./supervise.js"
import type { Health, Status, WorkerEvent } from "./WorkerEvent.js"

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

const dispatchOf = <A, E, R, H extends Handlers<A>, B extends BatchAnswer>(
  options: Options<A, E, R, H, B>
): ((payload: A) => Handler<A, unknown, unknown> | undefined) => {
  const { handler, handlers } = options
  if (handler !== undefined) return () => handler
  const byTag = new Map(
    Object.entries(handlers ?? {}) as ReadonlyArray<[string, Handler<A, unknown, unknown> | undefined]>
  )
  return (payload) => byTag.get(String((payload as { readonly _tag?: unknown })._tag))
}

const performOf = <A, I, E, R, H extends Handlers<A>, B extends BatchAnswer>(
  queue: Definition<A, I>,
  options: Options<A, E, R, H, B>
): Perform => {
  const decode = reader(queue.payload)
  return options.batchHandler === undefined
    ? performOne(decode, dispatchOf(options) as Dispatch<A>)
    : performBatch(decode, options.batchHandler as AnyBatchHandler<A>)
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

/** `observe` is told of every event before anybody else. */
export const start = <A, I, E, R, H extends Handlers<A>, B extends BatchAnswer>(
  queue: Definition<A, I>,
  options: Options<A, E, R, H, B>,
  observe?: (event: WorkerEvent) => void
) =>
  Effect.gen(function* () {
    yield* queue.check
    const { singleWriter } = yield* Queue
    const policy = yield* checkPolicy(options as PolicyOptions<never>, singleWriter)
    const id = `${options.name ?? queue.name}-${process.pid}-${(yield* Random.nextIntBetween(0, 2 ** 31)).toString(36)}`
    const { events, publish } = makeEvents(observe)
    const state = yield* makeState(queue.name, id, policy, publish)
    const runtime = yield* Effect.runtime<Exclude<R | NeedOf<H>, Scope.Scope>>()
    const failure = yield* Deferred.make<never, WorkerFailed>()
    const starter = makeStarter(state, performOf(queue, options), (runs) => makeJobFork(runtime, queue.name, id, runs))
    const stream = makeStream(state)
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
    yield* supervised("controller", controller(state))
    yield* supervised("progress keeper", progressKeeper(state))
    yield* supervised("deadlines", deadlines(state, starter.start, fail))
    yield* Effect.addFinalizer(() => drain(state))
    yield* state.queue.receive(makeReceiver(state, starter, stream))
    yield* supervised("fetcher", defining(state, queue.settings, fetcher(state, starter, stream), fail))
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
const defining = (
  state: WorkerState,
  settings: QueueSettings,
  loop: Effect.Effect<never>,
  fail: (reason: string) => Effect.Effect<void>
): Effect.Effect<never> =>
  Effect.suspend(() => state.queue.define(settings, "worker")).pipe(
    Effect.tapError((error) => (error.retryable ? failing(state, "storing its settings", error) : Effect.void)),
    Effect.retry({ schedule: outageRetry, while: (error) => error.retryable }),
    Effect.matchEffect({
      onSuccess: () => {
        works(state, "storing its settings")
        return loop
      },
      onFailure: (error) => {
        ceases(state, "storing its settings")
        // Without what it was told about the queue (a circle of dead-letter queues, say) it must not run
        return error._tag === "InvalidArgument"
          ? Effect.zipRight(fail(error.message), Effect.never)
          : Effect.zipRight(
              Effect.logWarning(`queue ${state.queueName}: its settings could not be stored`, error),
              loop
            )
      }
    })
  )
