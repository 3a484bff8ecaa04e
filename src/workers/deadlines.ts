/**
 * The watch over deadlines: one fiber per worker for all its jobs. Timeouts, leases that could not be renewed, handlers
 * that do not end, jobs that waited too long for a free handler.
 */
import { Effect, Exit } from "effect"
import { sleepMillis } from "../schedule/Polling.js"
import * as Settlement from "../services/Settlement.js"
import { decide } from "./decide.js"
import { databaseNow, forget, type Held, offerSettle, type Run, type WorkerState } from "./held.js"
import { giveWay, stop } from "./interrupt.js"

const never = Number.POSITIVE_INFINITY

/** When this job needs a look again. */
const nextLook = (state: WorkerState, held: Held): number => {
  const { marginMillis, maxWaitMillis, timeoutMillis, visibilityMillis } = state.policy
  const { phase, row, run } = held
  if (phase === "buffered")
    return row.claimedMonotonic + (held.ripe || maxWaitMillis === 0 ? visibilityMillis / 3 : maxWaitMillis)
  if (run === undefined || (phase !== "running" && phase !== "lost")) return never
  return phase === "running" && held.stop === undefined
    ? Math.min(run.startedAt + timeoutMillis, held.deadline - marginMillis)
    : run.stuckAt
}

/** The slot of a handler that ignores its interruption is given up. */
const freeSlot = (state: WorkerState, run: Run) => {
  if (run.stuck) return Effect.void
  run.stuck = true
  state.running--
  state.stuck++
  state.room.unsafeOpen()
  const jobs = run.members.map(({ row }) => row.id).join(", ")
  return Effect.logWarning(
    `queue ${state.queueName}: the handler of job ${jobs} ignores its interruption; its slot is given up`
  )
}

/** A job whose handler is stuck fails, unless its lease is gone anyway. */
const giveUp = (state: WorkerState, held: Held, run: Run) =>
  Effect.gen(function* () {
    const lost = held.phase === "lost"
    state.publish({ _tag: "Stuck", job: held.ref })
    yield* freeSlot(state, run)
    if (!lost && held.stop !== "unreachable") {
      const now = yield* databaseNow(state, held.row)
      const { retry, timeoutMillis } = state.policy
      const { settlement } = yield* decide({ row: held.row, exit: Exit.void, stop: "stuck", now, retry, timeoutMillis })
      // Another entry, so that the handler's own can say that the job is none of its any more
      const ghost: Held = { ...held }
      state.held.set(held.row.token, ghost)
      offerSettle(state, ghost, settlement)
    } else {
      forget(state, held)
    }
    held.phase = "stuck"
  })

const look = (state: WorkerState, held: Held, now: number, frozen: Effect.Effect<boolean>, next: () => void) =>
  Effect.gen(function* () {
    if (nextLook(state, held) > now) return
    const { run } = held
    if (held.phase === "buffered" || run === undefined) {
      if (now < held.row.claimedMonotonic + state.policy.visibilityMillis / 3) {
        held.ripe = true
        return next()
      }
      state.buffer.splice(state.buffer.indexOf(held), 1)
      return offerSettle(state, held, Settlement.givenBack(held.row, 0))
    }
    if (held.stop !== undefined || held.phase === "lost") {
      yield* giveUp(state, held, run)
      return next()
    }
    if (run.startedAt + state.policy.timeoutMillis <= now) {
      state.publish({ _tag: "TimedOut", job: held.ref })
      return stop(state, held, "timeout", now)
    }
    // The lease could not be renewed in time. While this process itself keeps everybody out, nobody can take the job
    if (yield* frozen) {
      held.deadline = now + state.policy.visibilityMillis / 3
      return
    }
    giveWay(state, held, now)
  })

/** `next` starts what waits for a slot; `failed` is told when more handlers are stuck than the worker has slots. */
export const deadlines = (
  state: WorkerState,
  next: () => void,
  failed: (reason: string) => Effect.Effect<void>
): Effect.Effect<never> =>
  Effect.gen(function* () {
    yield* state.rearm.close
    state.armedFor = never
    const now = yield* state.clock.monotonic
    // In one go, without a step of the runtime for each job: there may be thousands, and most passes find none due
    const due: Array<Held> = []
    let at = never
    for (const held of state.held.values()) {
      const next = nextLook(state, held)
      if (next <= now) due.push(held)
      else if (next < at) at = next
    }
    for (const held of due) yield* look(state, held, now, state.queue.holdsWriteLock, next)
    if (state.stuck > state.policy.concurrency) yield* failed(`${state.stuck} handlers ignore their interruption`)
    if (due.length > 0) return
    state.armedFor = at
    const wait = at === never ? Effect.never : Effect.sleep(sleepMillis(at - (yield* state.clock.monotonic)))
    yield* Effect.raceFirst(state.rearm.await, wait)
  }).pipe(Effect.forever)
