/**
 * This process's clock, by Effect's `Clock` (so that TestClock rules it), never backwards; and how long its event
 * loop stood still.
 */
import { monitorEventLoopDelay } from "node:perf_hooks"
import { Context, Effect, Clock as EffectClock, type Fiber, type Scope } from "effect"
import type { Service } from "../../services/Clock.js"
import { lull, makeBreath } from "./macrotask.js"

/** How finely stalls of the event loop are seen. Each step is a wake-up of an idle process, so not finer. */
const resolutionMillis = 100

/** Looks that are kept for those who ask less often than others. */
const keptStalls = 1_000

/**
 * The longest delay of the event loop since the last look. The histogram measures from one of its steps to the next, so not
 * what begins before its first, at the start and after each look: how late a timer is tells of that.
 */
const makeDelays = () => {
  const histogram = monitorEventLoopDelay({ resolution: resolutionMillis })
  histogram.enable()
  let late = 0
  const watch = () => {
    const due = performance.now() + resolutionMillis
    const note = () => {
      late = Math.max(late, performance.now() - due)
    }
    const timer = setTimeout(note, resolutionMillis).unref()
    return () => clearTimeout(timer)
  }
  let unwatch = watch()
  return {
    /** `latest`: for how long it stood still just now. */
    take: (latest: number): number => {
      const millis = Math.max(0, Math.floor(Math.max(histogram.max / 1e6 - resolutionMillis, late, latest)))
      unwatch()
      histogram.reset()
      late = 0
      unwatch = watch()
      return millis
    },
    stop: () => {
      unwatch()
      histogram.disable()
    }
  }
}

/** By whatever Clock a fiber has: time is read several times for each job. */
const reading =
  (time: (clock: EffectClock.Clock) => number) =>
  (fiber: Fiber.RuntimeFiber<unknown, unknown>): number =>
    time(Context.get(fiber.currentDefaultServices, EffectClock.Clock))

const read = (time: ReturnType<typeof reading>): Effect.Effect<number> =>
  Effect.withFiberRuntime((fiber) => Effect.succeed(time(fiber)))

/**
 * `database`: rows are stamped by the server, `process`: by this process (SQLite, whose host is everybody's host; and
 * tests on any engine).
 */
export const makeClock = (source: Service["source"], virtual = false): Effect.Effect<Service, never, Scope.Scope> =>
  Effect.gen(function* () {
    const delays = yield* Effect.acquireRelease(Effect.sync(makeDelays), ({ stop }) => Effect.sync(stop))
    let last = Number.NEGATIVE_INFINITY
    // One histogram for all who ask: each look is kept, so that nobody's look hides a stall from the others
    const stalls: Array<number> = []
    let offset = 0
    // A TestClock that stands between two milliseconds dies when it is asked for nanoseconds
    const monotonicOf = virtual
      ? reading((clock) => Math.floor(clock.unsafeCurrentTimeMillis()))
      : reading((clock) => Number(clock.unsafeCurrentTimeNanos() / 1_000n) / 1_000)
    return {
      source,
      virtual,
      // Whole, as rows are: a TestClock may stand between two milliseconds
      now: read(
        reading((clock) => {
          last = Math.max(last, Math.floor(clock.unsafeCurrentTimeMillis()))
          return last
        })
      ),
      monotonic: read(monotonicOf),
      monotonicOf,
      stall: (since) =>
        Effect.suspend(() => {
          const asked = performance.now()
          return Effect.map(virtual ? Effect.void : lull(1), () => {
            // Who asks may come before the timers that measure, overdue as they are after a stall: a new timer comes behind
            // them, and is late itself for one that has begun since
            stalls.push(delays.take(virtual ? 0 : performance.now() - asked - 1))
            const forgotten = Math.max(0, stalls.length - keptStalls)
            stalls.splice(0, forgotten)
            offset += forgotten
            return { millis: Math.max(0, ...stalls.slice(Math.max(0, since - offset))), mark: offset + stalls.length }
          })
        }),
      lull: virtual ? () => Effect.void : lull,
      breath: virtual ? (call) => call : makeBreath()
    }
  })
