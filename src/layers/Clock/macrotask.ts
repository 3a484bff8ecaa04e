/**
 * Waits that the event loop ends, whatever Effect's Clock says.
 */
import { setImmediate } from "node:timers"
import { Effect } from "effect"
import { turnMillis } from "../../schedule/Polling.js"
import type { Service } from "../../services/Clock.js"

/** One turn: lets I/O and every fiber that is ready go first. */
export const macrotask: Effect.Effect<void> = Effect.async<void>((resume) => {
  const turn = setImmediate(() => resume(Effect.void))
  return Effect.sync(() => clearImmediate(turn))
})

/**
 * For calls that answer at once, as SQLite's do: whoever makes one after the other never waits, and fibers follow each other by
 * microtasks, so that no timer, no answer and no signal would get through for seconds. Calls after such a time wait for a turn
 * of the event loop, and look again: there may be many of them.
 */
export const makeBreath = (): Service["breath"] => {
  let since: number | undefined
  const turned = () => {
    since = undefined
  }
  const due = (): boolean => {
    const now = performance.now()
    if (since !== undefined) return now - since >= turnMillis
    since = now
    setImmediate(turned)
    return false
  }
  const breath: Service["breath"] = (call) =>
    due()
      ? Effect.zipRight(
          macrotask,
          Effect.suspend(() => breath(call))
        )
      : call
  return breath
}

/** So many milliseconds of the machine's own time. */
export const lull = (millis: number): Effect.Effect<void> =>
  Effect.async<void>((resume) => {
    const timer = setTimeout(() => resume(Effect.void), millis)
    return Effect.sync(() => clearTimeout(timer))
  })
