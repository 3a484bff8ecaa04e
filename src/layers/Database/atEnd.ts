/**
 * `Effect.ensuring` with something that is no effect, in two steps of the runtime instead of ten. Only for what cannot be
 * interrupted from outside.
 */
import { Effect } from "effect"

export const atEnd = <A, E, R>(self: Effect.Effect<A, E, R>, after: () => void): Effect.Effect<A, E, R> =>
  Effect.matchCauseEffect(self, {
    onFailure: (cause) => {
      after()
      return Effect.failCause(cause)
    },
    onSuccess: (value) => {
      after()
      return Effect.succeed(value)
    }
  })
