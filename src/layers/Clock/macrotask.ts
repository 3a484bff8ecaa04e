/**
 * Waits that the event loop ends, whatever Effect's Clock says.
 */
import { Effect } from "effect"

/** One turn: lets I/O and every fiber that is ready go first. */
export const macrotask: Effect.Effect<void> = Effect.async<void>((resume) => {
  const turn = setImmediate(() => resume(Effect.void))
  return Effect.sync(() => clearImmediate(turn))
})

/** So many milliseconds of the machine's own time. */
export const lull = (millis: number): Effect.Effect<void> =>
  Effect.async<void>((resume) => {
    const timer = setTimeout(() => resume(Effect.void), millis)
    return Effect.sync(() => clearTimeout(timer))
  })
