/**
 * Waits that the event loop ends, whatever Effect's Clock says.
 */
import { setImmediate } from "node:timers"
import { Effect, MutableQueue } from "effect"
import { turnMillis } from "../../schedule/Polling.js"
import type { Service } from "../../services/Clock.js"

/** One turn: lets I/O and every fiber that is ready go first. */
export const macrotask: Effect.Effect<void> = Effect.async<void>((resume) => {
  const turn = setImmediate(() => resume(Effect.void))
  return Effect.sync(() => clearImmediate(turn))
})

/**
 * For calls that answer at once, as SQLite's do: whoever makes one after the other never waits, and fibers follow each other by
 * microtasks, so that no timer, no answer and no signal would get through for seconds. Who has used up the time waits for a turn
 * of the event loop; each turn lets the one go on that has waited longest, with a time of its own.
 */
export const makeBreath = (): Service["breath"] => {
  /** When the first call after the last turn was made: a turn is planned then. */
  let since: number | undefined
  let planned = false
  /** Of those who were interrupted, too: they let their turn pass. */
  const waiting = MutableQueue.unbounded<() => void>()
  const plan = () => {
    if (!planned) setImmediate(turned)
    planned = true
  }
  const turned = () => {
    since = undefined
    planned = false
    const first = MutableQueue.poll(waiting, undefined)
    if (first === undefined) return
    plan()
    first()
  }
  const due = (): boolean => {
    const now = performance.now()
    if (since !== undefined) return now - since >= turnMillis
    since = now
    plan()
    return false
  }
  const turn = Effect.async<void>((resume) => {
    MutableQueue.offer(waiting, () => resume(Effect.void))
    plan()
  })
  // Looked at each time that the call is made: one that meets another writer is made again
  return (call) => Effect.suspend(() => (due() ? Effect.zipRight(turn, call) : call))
}

/** So many milliseconds of the machine's own time. */
export const lull = (millis: number): Effect.Effect<void> =>
  Effect.async<void>((resume) => {
    const timer = setTimeout(() => resume(Effect.void), millis)
    return Effect.sync(() => clearTimeout(timer))
  })
