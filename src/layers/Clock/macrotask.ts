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
 * of the event loop, in order: who goes on first uses up the time of the next turn, and comes behind the others then.
 */
export const makeBreath = (): Service["breath"] => {
  /** When the first call after the last turn was made. */
  let since: number | undefined
  const waiting = new Set<() => void>()
  /** There has been a turn, and nobody who waited for it has gone on. */
  let fresh = false
  const turned = () => {
    since = undefined
    fresh = true
  }
  const due = (): boolean => {
    const now = performance.now()
    if (since !== undefined) return now - since >= turnMillis
    since = now
    setImmediate(turned)
    return false
  }
  const release = (): void => {
    const [first] = waiting
    if (first === undefined) return
    if (due() && !fresh) {
      setImmediate(release)
      return
    }
    fresh = false
    waiting.delete(first)
    first()
  }
  const turn = Effect.async<void>((resume) => {
    const go = () => resume(Effect.void)
    waiting.add(go)
    setImmediate(release)
    return Effect.sync(() => void waiting.delete(go))
  })
  return (call) => (due() ? Effect.zipRight(turn, call) : call)
}

/** So many milliseconds of the machine's own time. */
export const lull = (millis: number): Effect.Effect<void> =>
  Effect.async<void>((resume) => {
    const timer = setTimeout(() => resume(Effect.void), millis)
    return Effect.sync(() => clearTimeout(timer))
  })
