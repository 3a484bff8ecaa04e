/**
 * Scopes within an engine's Layer: for fibers that end only after the Layer, as those do in which it was provided, and that need
 * the database to end.
 */
import { Effect, Exit, Fiber, Layer, Scope } from "effect"

export interface InnerScopes {
  /** A scope that is closed with the Layer, together with others, unless it was closed before. */
  readonly open: Effect.Effect<Scope.CloseableScope>
  /** To be built last of the Layer, so that it is closed first: it waits until all of them are closed. */
  readonly layer: Layer.Layer<never>
}

interface Inner {
  readonly scope: Scope.CloseableScope
  readonly closed: Effect.Latch
}

export const makeInnerScopes = (): InnerScopes => {
  const inner = new Set<Inner>()
  let over = false

  const open = Effect.gen(function* () {
    const scope = yield* Scope.make()
    const one: Inner = { scope, closed: yield* Effect.makeLatch(false) }
    inner.add(one)
    // The first of its finalizers, and so the last to run
    const closed = Effect.zipRight(
      Effect.sync(() => inner.delete(one)),
      one.closed.open
    )
    yield* Scope.addFinalizer(scope, closed)
    if (over) yield* Scope.close(scope, Exit.void)
    return scope
  })

  // Also for who is being closed by its own fiber already. One that dies keeps no other from its end
  const close = ({ closed, scope }: Inner) =>
    Effect.catchAllCause(Effect.zipRight(Scope.close(scope, Exit.void), closed.await), (cause) =>
      Effect.logError("what was forked could not be closed", cause)
    )

  const closeAll = Effect.suspend(() => {
    over = true
    return Effect.forEach([...inner], close, { concurrency: "unbounded", discard: true })
  })

  // In a fiber of its own: the one that closes the Layer may have been interrupted, and could wait for nothing
  const finalizer = Effect.flatMap(Effect.forkDaemon(Effect.interruptible(closeAll)), Fiber.await)

  return { open, layer: Layer.scopedDiscard(Effect.addFinalizer(() => finalizer)) }
}
