/**
 * Fibers for jobs: each starts uninterruptible, with a Scope of its own and its job in the log annotations. Set in the
 * fiber's beginnings instead of by wrapping effects, which would cost a job more than all else together.
 */
import { Context, Effect, FiberId, FiberRef, FiberRefs, HashMap, Runtime, RuntimeFlags, Scope } from "effect"
import type { Held } from "./held.js"

/** It belongs to no other fiber: it ends by its job's end or an interrupt. */
export type JobFork = (
  held: Held,
  life: (scope: Scope.CloseableScope) => Effect.Effect<void, never, Scope.Scope>
) => Held["fiber"]

export const makeJobFork = <R>(runtime: Runtime.Runtime<R>): JobFork => {
  const outer = FiberRefs.getOrDefault(runtime.fiberRefs, FiberRef.currentLogAnnotations)
  return ({ row }, life) => {
    const scope = Effect.runSync(Scope.make())
    const annotations = outer.pipe(
      HashMap.set("queue", row.queue as unknown),
      HashMap.set("job", row.id as unknown),
      HashMap.set("attempt", row.attempt as unknown)
    )
    const own = Runtime.make({
      context: Context.add(runtime.context, Scope.Scope, scope),
      runtimeFlags: RuntimeFlags.disable(runtime.runtimeFlags, RuntimeFlags.Interruption),
      fiberRefs: FiberRefs.updateAs(runtime.fiberRefs, {
        fiberId: FiberId.none,
        fiberRef: FiberRef.currentLogAnnotations,
        value: annotations
      })
    })
    return Runtime.runFork(own, life(scope), { immediate: false })
  }
}
