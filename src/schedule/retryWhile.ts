/**
 * `Effect.retry` while errors are such, that costs nothing until there is something to repeat: the runtime's own sets its schedule up first.
 */
import { Effect, type Schedule } from "effect"

export const retryWhile = <A, E, R>(
  self: Effect.Effect<A, E, R>,
  schedule: Schedule.Schedule<unknown>,
  again: (error: E) => boolean
): Effect.Effect<A, E, R> =>
  Effect.catchIf(self, again, (error) => {
    let met = true
    const next = Effect.suspend(() => {
      if (!met) return self
      met = false
      return Effect.fail(error)
    })
    return Effect.retry(next, { schedule, while: again })
  })
