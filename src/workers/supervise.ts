/**
 * A supervised loop: a defect ends one round of it, never the loop.
 */
import { Cause, Effect } from "effect"
import { reconnect } from "../schedule/Reconnect.js"
import { describe } from "../services/Job.js"

/** A defect may be hostile: a Proxy whose traps throw. */
export const reasonOf = (cause: Cause.Cause<unknown>): string => {
  try {
    return Cause.pretty(cause)
  } catch {
    return describe(Cause.squash(cause))
  }
}

/**
 * Runs a loop that should never end; started again, by a Schedule, when it dies, or when something in it interrupts itself: of its
 * own end, an interrupt from outside, it is not asked. Untraced.
 */
export const supervise = (
  name: string,
  loop: Effect.Effect<never>,
  died: (fiber: string, reason: string) => void
): Effect.Effect<void> =>
  Effect.sandbox(loop).pipe(
    Effect.tapError((cause) =>
      Effect.zipRight(
        Effect.sync(() => died(name, reasonOf(cause))),
        Effect.catchAllCause(Effect.logError(`${name} died and is started again`, cause), () => Effect.void)
      )
    ),
    Effect.retry(reconnect),
    // The Schedule has no end
    Effect.either,
    Effect.asVoid,
    Effect.withTracerEnabled(false)
  )
