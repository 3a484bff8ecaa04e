/**
 * One run of a handler, in a fiber of its own, whose scope is the lease; then what became of its jobs goes to the
 * acknowledger and the slot to the next.
 */
import { Cause, Effect, Exit, Scope } from "effect"
import * as Settlement from "../services/Settlement.js"
import { conclude } from "./acknowledger.js"
import { decide } from "./decide.js"
import { arm, databaseNow, forget, type Held, offerSettle, type Run, type RunFiber, type WorkerState } from "./held.js"
import { giveWay } from "./interrupt.js"
import { endsOf, type Perform } from "./perform.js"

/** Ended jobs that are remembered for the next look at the event loop. */
const keptRecent = 20

/** What becomes of one job of a run. */
const settle = (state: WorkerState, held: Held, exit: Exit.Exit<unknown, unknown>) =>
  Effect.gen(function* () {
    const { retry, timeoutMillis, transactional } = state.policy
    // It has committed: nothing is left to write
    if (transactional && Exit.isSuccess(exit) && held.settledByHand !== undefined)
      return conclude(state, held, held.settledByHand)
    const now = yield* databaseNow(state, held.row)
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

/** How one job of a run ended. */
const endOf = (
  state: WorkerState,
  { row, stop }: Held,
  exit: Exit.Exit<unknown, unknown>
): Exit.Exit<unknown, unknown> => {
  // The others went on; what this one's handler says of it does not count any more
  if (state.policy.batched && stop === "cancelled") return Exit.failCause(Cause.empty)
  return endsOf(exit)?.get(row.token) ?? exit
}

const isDone = (held: Held, exit: Exit.Exit<unknown, unknown>): boolean =>
  Exit.isSuccess(exit) && held.stop !== "stuck" && held.settledByHand === undefined

/**
 * Each job goes to the acknowledger, and the slot to the next: by `goOn` where all went well, otherwise by `next`, at
 * once, since to decide what becomes of a failed job takes its time.
 */
const ended = (
  state: WorkerState,
  run: Run,
  exit: Exit.Exit<unknown, unknown>,
  next: () => void,
  goOn: Effect.Effect<void>,
  now: number
): Effect.Effect<void> => {
  run.fiber = undefined
  if (run.stuck) {
    // Given up before: its jobs were settled as failures then, and its slot freed
    state.stuck--
    state.room.unsafeOpen()
    return Effect.void
  }
  const took = now - run.startedAt
  state.telemetry.ran(took)
  state.meanRun = state.meanRun === undefined ? took : state.meanRun * 0.9 + took * 0.1
  state.running--
  const others: Array<Held> = []
  for (const held of run.members) {
    if (state.recent.push(held.ref) > 2 * keptRecent) state.recent.splice(0, keptRecent)
    const lost = held.phase === "lost"
    held.phase = "settling"
    if (lost) forget(state, held)
    else others.push(held)
  }
  state.room.unsafeOpen()
  const left = others.filter((held) => {
    const end = endOf(state, held, exit)
    if (!isDone(held, end)) return true
    offerSettle(state, held, Settlement.done(held.row))
    return false
  })
  if (left.length === 0) return goOn
  next()
  return Effect.forEach(left, (held) => settle(state, held, endOf(state, held, exit)), { discard: true })
}

/**
 * Marks a run as begun. A job whose lease is about to end, or has ended, is not begun: the answer to its claim was late,
 * or the process stood still, and somebody else may have it by now. An interrupt before its first step ends the handler.
 */
const begin = (state: WorkerState, run: Run, now: number): void => {
  const { marginMillis, timeoutMillis } = state.policy
  run.startedAt = now
  for (const held of run.members) {
    arm(state, Math.min(now + timeoutMillis, held.deadline - marginMillis))
    state.telemetry.started(held.row, now)
    state.publish({ _tag: "Started", job: held.ref })
    if (held.deadline - marginMillis <= now) giveWay(state, held, now)
  }
}

/**
 * The whole life of a started run, within the fiber that it has, which is uninterruptible (so that an interrupt before the first
 * step cannot lose the jobs); only the handler can be interrupted. `next` or `goOn` follows when the slot is free.
 * As few steps as can be: each is paid for with every job.
 */
export const runJob = (
  state: WorkerState,
  run: Run,
  fiber: RunFiber,
  perform: Perform,
  scope: Scope.CloseableScope,
  next: () => void,
  goOn: Effect.Effect<void>
): Effect.Effect<void, never, Scope.Scope> => {
  const over = (exit: Exit.Exit<unknown, unknown>) =>
    ended(state, run, exit, next, goOn, state.clock.monotonicOf(fiber))
  const close = (handled: Exit.Exit<unknown, unknown>) =>
    Effect.matchCauseEffect(Scope.close(scope, handled), {
      onFailure: (cause) => over(Exit.zipLeft(handled, Exit.failCause(cause))),
      onSuccess: () => over(handled)
    })
  begin(state, run, state.clock.monotonicOf(fiber))
  return state.telemetry.span(
    run,
    Effect.interruptibleMask(() => perform(state, run)),
    close
  )
}
