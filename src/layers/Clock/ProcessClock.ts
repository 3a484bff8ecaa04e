/**
 * This process's clock, by Effect's `Clock` (so that TestClock rules it), never backwards; and how long its event
 * loop stood still.
 */
import { monitorEventLoopDelay } from "node:perf_hooks"
import { Effect, Clock as EffectClock, type Scope } from "effect"
import type { Service } from "../../services/Clock.js"

/** How finely stalls of the event loop are seen. Each step is a wake-up of an idle process, so not finer. */
const resolutionMillis = 100

/**
 * `database`: rows are stamped by the server, `process`: by this process (SQLite, whose host is everybody's host; and
 * tests on any engine).
 */
export const makeClock = (source: Service["source"], virtual = false): Effect.Effect<Service, never, Scope.Scope> =>
  Effect.gen(function* () {
    const delays = yield* Effect.acquireRelease(
      Effect.sync(() => {
        const histogram = monitorEventLoopDelay({ resolution: resolutionMillis })
        histogram.enable()
        return histogram
      }),
      (histogram) => Effect.sync(() => histogram.disable())
    )
    let last = Number.NEGATIVE_INFINITY
    return {
      source,
      virtual,
      now: Effect.map(EffectClock.currentTimeMillis, (now) => {
        last = Math.max(last, now)
        return last
      }),
      monotonic: Effect.map(EffectClock.currentTimeNanos, (nanos) => Number(nanos / 1_000n) / 1_000),
      stall: Effect.sync(() => {
        const max = delays.max / 1e6 - resolutionMillis
        delays.reset()
        return Math.max(0, Math.floor(max))
      })
    }
  })
