/**
 * Fibers for jobs: each starts uninterruptible, with a Scope of its own and its job in the log annotations. Set in the
 * fiber's beginnings instead of by wrapping effects, which would cost a job more than all else together.
 */
import { Context, Effect, FiberId, FiberRef, FiberRefs, HashMap, Runtime, RuntimeFlags, Scope } from "effect"
import type { Held, Run } from "./held.js"

/** It belongs to no other fiber: it ends by its job's end or an interrupt. */
export type JobFork = (
  members: ReadonlyArray<Held>,
  life: (scope: Scope.CloseableScope) => Effect.Effect<void, never, Scope.Scope>
) => Run["fiber"]

export const makeJobFork = <R>(runtime: Runtime.Runtime<R>, worker: string): JobFork => {
  const outer = HashMap.set(
    FiberRefs.getOrDefault(runtime.fiberRefs, FiberRef.currentLogAnnotations),
    "worker",
    worker as unknown
  )
  return (members, life) => {
    const scope = Effect.runSync(Scope.make())
    const [first] = members
    let annotations = HashMap.set(outer, "queue", first?.row.queue as unknown)
    if (members.length > 1) annotations = HashMap.set(annotations, "jobs", members.map(({ row }) => row.id).join(", "))
    else
      annotations = annotations.pipe(
        HashMap.set("job", first?.row.id as unknown),
        HashMap.set("attempt", first?.row.attempt as unknown)
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
