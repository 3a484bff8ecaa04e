/**
 * The controller: what is asked of a worker while it holds jobs. A pause of the queue hands back what was claimed ahead,
 * a cancellation interrupts the handler of its job; at once when the wake is live, with the next claim or heartbeat
 * otherwise.
 */
import { Effect } from "effect"
import * as Settlement from "../services/Settlement.js"
import { type Held, offerSettle, type WorkerState } from "./held.js"
import { stop } from "./interrupt.js"
import { handBack } from "./shutdown.js"

/** Between two looks, however many wakes come. */
const lookMillis = 20

/** Learns whether the queue is paused for the whole fleet. */
export const notePaused = (state: WorkerState, paused: boolean): void => {
  if (paused && state.buffer.length > 0) handBack(state)
  if (paused === state.queuePaused) return
  state.queuePaused = paused
  state.publish({ _tag: paused ? "QueuePaused" : "QueueResumed" })
  if (!paused) state.nudge.unsafeOpen()
}

/** A job that is to be cancelled: what runs is interrupted, what has not begun goes back, where it is cancelled. */
export const noteCancelled = (state: WorkerState, held: Held, now: number): void => {
  if (held.phase === "buffered") {
    state.buffer.splice(state.buffer.indexOf(held), 1)
    offerSettle(state, held, Settlement.givenBack(held.row, 0))
  } else stop(state, held, "cancelled", now)
}

const inHand = ({ phase }: Held) => phase === "buffered" || phase === "running"

/** Asks what is wanted of the jobs in hand; costs nothing when there are none. */
export const look = (state: WorkerState): Effect.Effect<void> =>
  Effect.suspend(() => {
    const held = [...state.held.values()].filter(inHand)
    if (held.length === 0) return Effect.void
    return Effect.gen(function* () {
      const ids = held.map(({ row }) => row.id)
      const { cancelled, paused } = yield* state.queue.signals(state.queueName, ids)
      const now = yield* state.clock.monotonic
      const asked = new Set(cancelled)
      for (const job of held) if (asked.has(job.row.id) && inHand(job)) noteCancelled(state, job, now)
      notePaused(state, paused)
    }).pipe(
      // Claims and heartbeats bring the same news
      Effect.catchAll((error) => Effect.logDebug(`queue ${state.queueName}: a look for requests failed`, error))
    )
  })

export const controller = (state: WorkerState): Effect.Effect<never> =>
  Effect.gen(function* () {
    yield* state.control.await
    yield* look(state)
    if (!state.clock.virtual) yield* Effect.sleep(lookMillis)
  }).pipe(Effect.forever)
