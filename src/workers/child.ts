/**
 * One worker under a supervisor: started, watched, started again after a failure, given up when it fails too often.
 */
import {
  Cause,
  Deferred,
  Effect,
  Exit,
  Option,
  type Schedule,
  ScheduleDecision,
  ScheduleIntervals,
  type Scope
} from "effect"
import { longSleep } from "../schedule/Polling.js"
import { Clock } from "../services/Clock.js"
import { type InvalidArgument, WorkerFailed } from "../services/Errors.js"
import type * as Supervisor from "./Supervisor.js"
import type { Worker } from "./start.js"
import { reasonOf } from "./supervise.js"
import type { Status } from "./WorkerEvent.js"

export interface RestartPolicy {
  readonly restart: Schedule.Schedule<unknown, WorkerFailed>
  readonly maxRestarts: number
  readonly withinMillis: number
}

export interface Child {
  readonly name: string
  readonly queue: string
  /** Done when the first start has ended; fails when an option is invalid. */
  readonly started: Deferred.Deferred<void, InvalidArgument>
  state: Supervisor.WorkerState["state"]
  restarts: number
  lastFailure: string | undefined
  worker: Worker | undefined
  /** What the last worker said of itself when it ended. */
  last: Status | undefined
  readonly status: Effect.Effect<Supervisor.WorkerState>
}

export const makeChild = (name: string, queue: string) =>
  Effect.map(Deferred.make<void, InvalidArgument>(), (started): Child => {
    const child: Child = {
      name,
      queue,
      started,
      state: "starting",
      restarts: 0,
      lastFailure: undefined,
      worker: undefined,
      last: undefined,
      status: Effect.suspend(() =>
        Effect.map(child.worker?.status ?? Effect.succeed(child.last), (worker) => ({
          state: child.state,
          restarts: child.restarts,
          lastFailure: child.lastFailure,
          worker
        }))
      )
    }
    return child
  })

type Publish = (event: Supervisor.Event) => void

/** One life of the worker: ends with why it failed. Whatever ends it, it has drained when this is over. */
const life = <R>(spec: Supervisor.Spec<R>, child: Child, publish: Publish) =>
  Effect.gen(function* () {
    // The last in: closed first
    const worker = yield* spec.start((event) => publish({ ...event, worker: child.name }))
    child.worker = worker
    child.state = "running"
    yield* Deferred.succeed(child.started, undefined)
    yield* worker.failure
  }).pipe(
    Effect.scoped,
    Effect.ensuring(
      Effect.suspend(() =>
        Effect.map(child.worker?.status ?? Effect.succeed(child.last), (last) => {
          child.last = last
          child.worker = undefined
        })
      )
    ),
    Effect.exit
  )

/** A worker fails by itself, or its start does. */
const failureOf = ({ name, queue }: Child, cause: Cause.Cause<WorkerFailed | InvalidArgument>): WorkerFailed => {
  const error = Option.getOrUndefined(Cause.failureOption(cause))
  if (error?._tag === "WorkerFailed") return error
  const message = `the worker ${name} of queue ${queue} could not be started: ${error?.message ?? reasonOf(cause)}`
  return new WorkerFailed({ queue, message })
}

/** The delay before the next start, or undefined when there is none. */
const makeDelays = ({ maxRestarts, restart, withinMillis }: RestartPolicy) => {
  let state: unknown = restart.initial
  let recent: ReadonlyArray<number> = []
  return (error: WorkerFailed) =>
    Effect.gen(function* () {
      const clock = yield* Clock
      const monotonic = yield* clock.monotonic
      recent = recent.filter((at) => monotonic - at < withinMillis)
      if (recent.length >= maxRestarts) return undefined
      recent = [...recent, monotonic]
      const now = yield* clock.now
      const [next, , decision] = yield* restart.step(now, error, state)
      state = next
      return ScheduleDecision.isDone(decision)
        ? undefined
        : Math.max(0, ScheduleIntervals.start(decision.intervals) - now)
    }).pipe(
      Effect.catchAllDefect((defect) =>
        Effect.as(Effect.logError("a restart Schedule died; the worker is not started again", defect), undefined)
      )
    )
}

/** The whole life of a supervised worker. Interrupted, it drains. */
export const runChild = <R>(
  spec: Supervisor.Spec<R>,
  child: Child,
  policy: RestartPolicy,
  publish: Publish,
  gaveUp: (error: WorkerFailed) => Effect.Effect<unknown>
): Effect.Effect<void, never, Exclude<R, Scope.Scope> | Clock> => {
  const delayAfter = makeDelays(policy)
  const fallen = (error: WorkerFailed) =>
    Effect.gen(function* () {
      child.lastFailure = error.message
      const delayMillis = yield* delayAfter(error)
      if (delayMillis === undefined) {
        child.state = "gaveUp"
        publish({ _tag: "GaveUp", worker: child.name, reason: error.message })
        yield* Effect.logError(`the worker ${child.name} keeps failing and is not started again: ${error.message}`)
        yield* gaveUp(error)
        return false
      }
      child.state = "restarting"
      child.restarts++
      publish({ _tag: "Restarting", worker: child.name, reason: error.message, delayMillis, restarts: child.restarts })
      yield* Effect.logWarning(`the worker ${child.name} has failed and is started again: ${error.message}`)
      yield* longSleep(delayMillis)
      return true
    })
  const lives: Effect.Effect<void, never, Exclude<R, Scope.Scope> | Clock> = Effect.gen(function* () {
    for (;;) {
      const exit = yield* life(spec, child, publish)
      // A worker ends by failing, or by the end of the supervisor
      if (Exit.isSuccess(exit) || Cause.isInterrupted(exit.cause)) return
      const failure = Cause.failureOption(exit.cause)
      if (child.state === "starting" && failure._tag === "Some" && failure.value._tag === "InvalidArgument")
        return yield* Effect.asVoid(Deferred.fail(child.started, failure.value))
      // Whoever waits for the start is not kept waiting for the restarts
      yield* Deferred.succeed(child.started, undefined)
      if (!(yield* fallen(failureOf(child, exit.cause)))) return
    }
  })
  return Effect.ensuring(
    lives,
    Effect.sync(() => {
      if (child.state !== "gaveUp") child.state = "stopped"
    })
  )
}
