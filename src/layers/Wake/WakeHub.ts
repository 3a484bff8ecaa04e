/**
 * The wakes of one process: topics and their subscriptions. Sources (NOTIFY, file events, commits of our own) call
 * `wake` or `wakeAll`; each subscription has a latch, so wakes coalesce and none is lost before its `await`.
 */
import { type Duration, Effect } from "effect"
import type { Service, WakeState } from "../../services/Wake.js"

export interface WakeHub {
  /** Answers whether anybody listens to one of them. */
  readonly wake: (topics: Iterable<string>) => boolean
  readonly wakeAll: () => void
  readonly setState: (state: WakeState) => void
  readonly service: Service
}

export const makeWakeHub = (
  initial: WakeState,
  pollInterval: Duration.Duration,
  liveInterval?: Duration.Duration
): WakeHub => {
  const subscriptions = new Map<string, Set<Effect.Latch>>()
  let state = initial

  const wake = (topics: Iterable<string>): boolean => {
    let heard = false
    for (const topic of topics) {
      for (const latch of subscriptions.get(topic) ?? []) {
        latch.unsafeOpen()
        heard = true
      }
    }
    return heard
  }

  const add = (topic: string) => {
    const latch = Effect.unsafeMakeLatch(false)
    const set = subscriptions.get(topic) ?? new Set()
    subscriptions.set(topic, set.add(latch))
    return latch
  }

  const remove = (topic: string, latch: Effect.Latch) => {
    const set = subscriptions.get(topic)
    set?.delete(latch)
    if (set?.size === 0) subscriptions.delete(topic)
  }

  return {
    wake,
    wakeAll: () => void wake([...subscriptions.keys()]),
    setState: (next) => {
      state = next
    },
    service: {
      subscribe: (topic) =>
        Effect.map(
          Effect.acquireRelease(
            Effect.sync(() => add(topic)),
            (latch) => Effect.sync(() => remove(topic, latch))
          ),
          (latch) => ({ await: Effect.zipRight(latch.await, latch.close) })
        ),
      wake: (topics) => Effect.sync(() => void wake(topics)),
      state: Effect.sync(() => state),
      pollInterval,
      liveInterval
    }
  }
}
