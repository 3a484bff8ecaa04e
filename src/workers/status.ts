/**
 * What a worker's state looks like from outside.
 */
import { Effect } from "effect"
import { restMillis } from "../schedule/Polling.js"
import type { WakeState } from "../services/Wake.js"
import type { Held, WorkerState } from "./held.js"
import type { Health, Status } from "./WorkerEvent.js"

const count = (state: WorkerState, of: Held["phase"]): number =>
  [...state.held.values()].filter(({ phase }) => phase === of).length

export const statusOf = (state: WorkerState): Status => ({
  state: state.state,
  queuePaused: state.queuePaused,
  running: count(state, "running") + count(state, "lost"),
  buffered: state.buffer.length,
  settling: count(state, "settling"),
  stuck: state.stuck,
  ...state.counters
})

/** A fetcher that is not busy claims at least once per poll interval; three missed ones are a problem. */
const staleClaim = (state: WorkerState, now: number, wakes: WakeState): boolean =>
  state.state === "running" &&
  state.running < state.policy.concurrency &&
  now - (state.lastClaim ?? state.startedAt) > 3 * restMillis(state.wake, wakes, false) + 1_000

export const healthOf = (state: WorkerState): Effect.Effect<Health> =>
  Effect.gen(function* () {
    const now = yield* state.clock.monotonic
    const ago = (at: number | undefined) => (at === undefined ? undefined : Math.round(now - at))
    const lastClaimMillisAgo = ago(state.lastClaim)
    const wakes = yield* state.wake.state
    const problems = [
      ...(state.state === "failed" || state.state === "stopped" ? [`the worker has ${state.state}`] : []),
      ...[...state.failing].map(([doing, { message }]) => `${doing} fails: ${message}`),
      ...(staleClaim(state, now, wakes) ? ["the fetcher has not claimed for three poll intervals"] : []),
      ...(state.stuck === 0 ? [] : [`${state.stuck} handlers ignore their interruption`])
    ]
    return {
      healthy: problems.length === 0,
      problems,
      wake: wakes,
      stuck: state.stuck,
      lastClaimMillisAgo,
      lastRenewalMillisAgo: ago(state.lastRenewal)
    }
  })
