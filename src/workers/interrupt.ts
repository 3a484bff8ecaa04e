/**
 * Why and when the runtime itself interrupts a handler. One that has several jobs is interrupted when none of them
 * wants it any more: the loss of one job is not the others'.
 */
import { arm, forget, type Held, type WorkerState } from "./held.js"

const interrupt = (state: WorkerState, held: Held, now: number): void => {
  const { run } = held
  if (run === undefined || run.stuckAt !== Number.POSITIVE_INFINITY) return
  if (!run.members.every(({ phase, stop }) => phase === "lost" || stop !== undefined)) return
  run.stuckAt = now + state.policy.stuckMillis
  arm(state, run.stuckAt)
  run.fiber?.unsafeInterruptAsFork(run.fiber.id())
}

/** A running handler is not wanted any more for this job; says why. */
export const stop = (state: WorkerState, held: Held, reason: Held["stop"], now: number): void => {
  if (held.phase !== "running" || held.stop !== undefined) return
  held.stop = reason
  interrupt(state, held, now)
}

/** The lease is gone: the handler is not wanted any more for this job, and nothing of it will be written. */
export const lose = (state: WorkerState, held: Held, now: number): void => {
  const { phase } = held
  if (phase === "lost" || phase === "stuck") return
  state.counters.lost++
  state.publish({ _tag: "LeaseLost", job: held.ref })
  if (phase === "buffered") {
    state.buffer.splice(state.buffer.indexOf(held), 1)
    forget(state, held)
  } else if (phase === "running") {
    held.phase = "lost"
    interrupt(state, held, now)
  }
}

/** The lease could not be renewed in time: the handler has to end before it, and the job goes back if it still can. */
export const giveWay = (state: WorkerState, held: Held, now: number): void => {
  state.counters.lost++
  state.publish({ _tag: "LeaseLost", job: held.ref })
  stop(state, held, "unreachable", now)
}
