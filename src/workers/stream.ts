/**
 * When jobs come in a stream, each claim finds the few that came during the last one, and costs nearly as much as one of many.
 * Then those that come gather for a moment between two claims; but only while more are done so: not where the next ones come
 * of those at hand, as in a chain, and not for jobs with ordering keys, of which a key has one at a time. What is handed over to
 * the worker as it is enqueued (`receive`) comes at once, too: while jobs gather, none is.
 */
import { Effect } from "effect"
import { stream } from "../schedule/Polling.js"
import type { WorkerState } from "./held.js"

type Way = "waiting" | "atOnce"

export interface Stream {
  /** A claim has found so many jobs. */
  readonly found: (count: number) => void
  /** So many were handed over with one enqueue, which was sent at that instant. */
  readonly handed: (count: number, now: number) => void
  /** Jobs gather: to be handed over brings less. */
  readonly gathers: () => boolean
  /**
   * To be run before the claim that follows one which emptied the queue and found so many jobs without ordering keys. Answers
   * whether it has waited.
   */
  readonly gather: (count: number) => Effect.Effect<boolean>
}

export const makeStream = (state: Pick<WorkerState, "clock" | "lastClaim">): Stream => {
  /** What was found in which time, either way; the latest counts most. */
  const paces = { waiting: { jobs: 0, millis: 0 }, atOnce: { jobs: 0, millis: 0 } }
  let way: Way = "atOnce"
  /** Since when it has been so, if one such claim has followed another. */
  let since: number | undefined
  let jobs = 0
  /** Claims that are still to be made one way, to compare; and when others are. */
  let trial: Way = "atOnce"
  let left = 0
  let trialAt = Number.NEGATIVE_INFINITY

  const tried = (of: Way): boolean => paces[of].millis > 0
  const rate = (of: Way): number => paces[of].jobs / Math.max(1, paces[of].millis)
  const better = (): Way => (rate("waiting") >= stream.enough * rate("atOnce") ? "waiting" : "atOnce")
  /** What is to be tried next: first at once, then with a wait, then whatever is not done anyway. */
  const other = (): Way => (tried("atOnce") && (!tried("waiting") || better() === "atOnce") ? "waiting" : "atOnce")

  const note = (now: number): void => {
    // After a longer one the stream has begun anew
    if (since !== undefined && now - since <= stream.gapMillis) {
      const pace = paces[way]
      pace.jobs = pace.jobs * stream.memory + jobs
      pace.millis = pace.millis * stream.memory + Math.max(0, now - since)
    }
    jobs = 0
  }

  const choose = (now: number): Way => {
    if (left === 0 && now >= trialAt) {
      trialAt = tried("atOnce") ? now + stream.trialMillis : now
      trial = other()
      left = stream.trials
    }
    if (left === 0) return better()
    left--
    return trial
  }

  /** So many have come. */
  const came = (count: number, now: number): void => {
    note(now)
    since = count < stream.jobs ? undefined : now
    way = since === undefined ? "atOnce" : choose(now)
  }

  const wait = (now: number): Effect.Effect<boolean> => {
    const rest = (state.lastClaim ?? now) + stream.millis - now
    return rest > 0
      ? Effect.as(state.clock.lull(Math.min(stream.millis, Math.ceil(rest))), true)
      : Effect.succeed(false)
  }

  return {
    found: (count) => {
      jobs += count
    },
    handed: (count, now) => {
      jobs += count
      came(count, now)
    },
    gathers: () => way === "waiting",
    gather: (count) =>
      Effect.flatMap(state.clock.monotonic, (now) => {
        came(count, now)
        return way === "waiting" ? wait(now) : Effect.succeed(false)
      })
  }
}
