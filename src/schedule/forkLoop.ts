/**
 * Loops that belong to a Layer.
 */
import { Effect, type Scope } from "effect"

/**
 * Forks a loop that ends with its scope. Whoever builds the Layer may be uninterruptible, as acquisitions are, and a fiber
 * is as its parent: the end of the scope has to end it all the same.
 */
export const forkLoop = <A, E, R>(loop: Effect.Effect<A, E, R>): Effect.Effect<unknown, never, R | Scope.Scope> =>
  Effect.forkScoped(Effect.interruptible(loop))
