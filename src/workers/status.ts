/**
 * What a worker's state looks like from outside.
 */
import { Duration, Effect } from "effect"
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
const staleClaim = (state: WorkerState, ago: number | undefined): boolean =>
  state.state === "running" &&
  state.running < state.policy.concurrency &&
  ago !== undefined &&
  ago > 3 * Duration.toMillis(state.wake.pollInterval) + 1_000

export const healthOf = (state: WorkerState): Effect.Effect<Health> =>
  Effect.gen(function* () {
    const now = yield* state.clock.monotonic
    const ago = (at: number | undefined) => (at === undefined ? undefined : Math.round(now - at))
    const lastClaimMillisAgo = ago(state.lastClaim)
    const problems = [
      ...(state.state === "failed" || state.state === "stopped" ? [`the worker has ${state.state}`] : []),
      ...(state.claimError === undefined ? [] : [`claiming fails: ${state.claimError}`]),
      ...(state.renewalError === undefined ? [] : [`renewing leases fails: ${state.renewalError}`]),
      ...(staleClaim(state, lastClaimMillisAgo) ? ["the fetcher has not claimed for three poll intervals"] : []),
      ...(state.stuck === 0 ? [] : [`${state.stuck} handlers ignore their interruption`])
    ]
    return {
      healthy: problems.length === 0,
      problems,
      wake: yield* state.wake.state,
      stuck: state.stuck,
      lastClaimMillisAgo,
      lastRenewalMillisAgo: ago(state.lastRenewal)
    }
  })
