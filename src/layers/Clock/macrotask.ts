/**
 * One turn of the event loop: lets I/O and every fiber that is ready go first.
 */
import { Effect } from "effect"

export const macrotask: Effect.Effect<void> = Effect.async<void>((resume) => {
  const turn = setImmediate(() => resume(Effect.void))
  return Effect.sync(() => clearImmediate(turn))
})
