/**
 * One job: its handler in a fiber of its own, whose scope is the lease; then what became of it goes to the
 * acknowledger and the slot to the next.
 */
import { Effect, Either, Exit, Scope } from "effect"
import type { SettleError } from "../services/Errors.js"
import { leaseLost, makeJob } from "../services/handle.js"
import type { Job } from "../services/Job.js"
import * as Settlement from "../services/Settlement.js"
import { decide } from "./decide.js"
import { arm, databaseNow, forget, type Held, jobRef, offerSettle, type WorkerState } from "./held.js"

/** The handler for a payload, or undefined when there is none for its tag. */
export type Dispatch<A> = (payload: A) => ((job: Job<A>) => Effect.Effect<unknown, unknown, Scope.Scope>) | undefined

/** Ended jobs that are remembered for the next look at the event loop. */
const keptRecent = 20

class Unreadable {
  constructor(readonly reason: string) {}
}

const handleOf = <A>(state: WorkerState, held: Held, payload: A) =>
  makeJob(state.queue, held.row, payload, {
    heartbeat: (progress): Effect.Effect<void, SettleError> =>
      Effect.suspend(() => {
        if (held.phase !== "running" || held.stop !== undefined) return Effect.fail(leaseLost(held.row))
        if (progress !== undefined) held.progress = progress
        held.beat = true
        state.beats.unsafeOpen()
        return Effect.void
      }),
    onSettled: (settlement) => {
      held.settledByHand = settlement
    }
  })

/** How a worker reads payloads and whom it gives them to. */
export interface Reader<A> {
  readonly decode: (text: string) => Effect.Effect<Either.Either<A, string>>
  readonly dispatch: Dispatch<A>
}

/** Calls a handler. What it throws is caught here: there are values that the runtime itself cannot bear to catch. */
const call = <A, E, R>(handler: (job: Job<A>) => Effect.Effect<unknown, E, R>, job: Job<A>) => {
  try {
    return handler(job)
  } catch (error) {
    return Effect.die(error)
  }
}

/** Decodes and runs; what cannot be decoded ends as `Unreadable`. */
const work = <A>(state: WorkerState, held: Held, { decode, dispatch }: Reader<A>) =>
  Effect.flatMap(decode(held.row.payload), (payload): Effect.Effect<Unreadable | undefined, unknown, Scope.Scope> => {
    if (Either.isLeft(payload)) return Effect.succeed(new Unreadable(payload.left))
    const handler = dispatch(payload.right)
    if (handler === undefined) return Effect.succeed(new Unreadable("this worker has no handler for its tag"))
    return Effect.flatMap(handleOf(state, held, payload.right), ({ handle }) =>
      Effect.as(call(handler, handle), undefined)
    )
  })

const ended = (state: WorkerState, held: Held, exit: Exit.Exit<Unreadable | undefined, unknown>, next: () => void) =>
  Effect.gen(function* () {
    held.fiber = undefined
    if (held.phase === "stuck") {
      // Given up before: it was settled as a failure then, and its slot freed
      state.stuck--
      state.room.unsafeOpen()
      return
    }
    const monotonic = yield* state.clock.monotonic
    const took = monotonic - held.startedAt
    state.meanRun = state.meanRun === undefined ? took : state.meanRun * 0.9 + took * 0.1
    state.running--
    if (state.recent.push(jobRef(held.row)) > 2 * keptRecent) state.recent.splice(0, keptRecent)
    const lost = held.phase === "lost"
    held.phase = "settling"
    next()
    state.room.unsafeOpen()
    if (lost) return forget(state, held)
    const now = yield* databaseNow(state, held.row)
    if (Exit.isSuccess(exit) && exit.value instanceof Unreadable) {
      state.publish({ _tag: "Undecodable", job: jobRef(held.row), reason: exit.value.reason })
      return offerSettle(state, held, Settlement.undecodable(held.row, now, exit.value.reason))
    }
    const { retry, timeoutMillis } = state.policy
    const { settlement } = yield* decide({ row: held.row, exit, stop: held.stop, now, retry, timeoutMillis })
    offerSettle(state, held, settlement)
  }).pipe(
    // A defect here would take the slot and the job with it
    Effect.catchAllCause((cause) =>
      Effect.zipRight(
        Effect.sync(() => offerSettle(state, held, Settlement.givenBack(held.row, 1_000))),
        Effect.logError(`queue ${held.row.queue}: job ${held.row.id} could not be settled`, cause)
      )
    )
  )

/**
 * The whole life of a started job, for a fiber of its own that starts uninterruptible (so that an interrupt before its
 * first step cannot lose the job); only the handler can be interrupted. `next` is called as soon as the slot is free.
 */
export const runJob = <A>(
  state: WorkerState,
  held: Held,
  reader: Reader<A>,
  scope: Scope.CloseableScope,
  next: () => void
): Effect.Effect<void, never, Scope.Scope> =>
  Effect.gen(function* () {
    held.startedAt = yield* state.clock.monotonic
    arm(state, Math.min(held.startedAt + state.policy.timeoutMillis, held.deadline - state.policy.marginMillis))
    state.publish({ _tag: "Started", job: jobRef(held.row) })
    const handled = yield* Effect.exit(Effect.interruptible(work(state, held, reader)))
    const closed = yield* Effect.exit(Scope.close(scope, handled))
    yield* ended(state, held, Exit.zipLeft(handled, closed), next)
  })

/** Interrupts a running handler, and says why. */
export const stop = (state: WorkerState, held: Held, reason: Held["stop"], now: number): void => {
  if (held.phase !== "running" || held.stop !== undefined) return
  held.stop = reason
  held.stuckAt = now + state.policy.stuckMillis
  arm(state, held.stuckAt)
  held.fiber?.unsafeInterruptAsFork(held.fiber.id())
}

/** The lease is gone: the handler is interrupted, and nothing of it will be written. */
export const lose = (state: WorkerState, held: Held, now: number): void => {
  const { phase } = held
  if (phase === "lost" || phase === "stuck") return
  state.counters.lost++
  state.publish({ _tag: "LeaseLost", job: jobRef(held.row) })
  if (phase === "buffered") {
    state.buffer.splice(state.buffer.indexOf(held), 1)
    forget(state, held)
  } else if (phase === "running") {
    held.stuckAt = now + state.policy.stuckMillis
    held.phase = "lost"
    arm(state, held.stuckAt)
    held.fiber?.unsafeInterruptAsFork(held.fiber.id())
  }
}
