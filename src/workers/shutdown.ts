/**
 * Shutdown: no new claims, what was claimed ahead is handed back, handlers get the grace, then they are interrupted and
 * their jobs released; what has ended is written. Each step has its own limit: it ends also when the database is gone
 * or a handler ignores its interruption.
 */
import { Effect, Fiber } from "effect"
import { sleepMillis } from "../schedule/Polling.js"
import * as Settlement from "../services/Settlement.js"
import { type Held, offerSettle, type WorkerState } from "./held.js"
import { stop } from "./interrupt.js"

/** After the grace: for finalizers and the last writes. */
const lastMillis = 1_000

const until = (state: WorkerState, done: () => boolean, millis: number) =>
  Effect.gen(function* () {
    const end = (yield* state.clock.monotonic) + millis
    for (;;) {
      if (done()) return
      const left = end - (yield* state.clock.monotonic)
      if (left <= 0) return
      yield* state.room.close
      yield* state.idle.close
      if (done()) return
      yield* Effect.raceFirst(Effect.raceFirst(state.room.await, state.idle.await), Effect.sleep(sleepMillis(left)))
    }
  })

/** Where time is virtual nothing would end a wait: let fibers run instead. */
const untilQuiet = (done: () => boolean) =>
  Effect.repeat(Effect.yieldNow({ priority: 1 }), { until: done, times: 10_000 })

export const handBack = (state: WorkerState): void => {
  for (const held of state.buffer.splice(0)) offerSettle(state, held, Settlement.givenBack(held.row, 0))
}

/** In a fiber of its own: the one that closes the scope has been interrupted, and could wait for nothing. */
export const drain = (state: WorkerState): Effect.Effect<void> =>
  Effect.flatMap(Effect.forkDaemon(Effect.interruptible(draining(state))), (fiber) => Effect.asVoid(Fiber.await(fiber)))

const draining = (state: WorkerState): Effect.Effect<void> =>
  Effect.gen(function* () {
    state.draining = true
    state.state = "draining"
    state.publish({ _tag: "Draining" })
    state.room.unsafeOpen()
    handBack(state)
    const { virtual } = state.clock
    const busy = ({ phase }: Held) => phase === "running" || phase === "settling"
    const done = () => !state.claiming && state.reserved === 0 && ![...state.held.values()].some(busy)
    if (!virtual) yield* until(state, done, state.policy.graceMillis)
    const now = yield* state.clock.monotonic
    for (const held of state.held.values()) stop(state, held, "shutdown", now)
    yield* virtual ? untilQuiet(done) : until(state, done, lastMillis)
    state.state = "stopped"
    state.publish({ _tag: "Stopped" })
  })
