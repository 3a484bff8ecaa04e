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

/** Scopes are made by the hundred: running the effect that makes one costs more than the Scope. */
const makeScopes = () => {
  const some = Effect.replicateEffect(Scope.make(), 100)
  let ready: Array<Scope.CloseableScope> = []
  return (): Scope.CloseableScope => {
    if (ready.length === 0) ready = Effect.runSync(some)
    return ready.pop() as Scope.CloseableScope
  }
}

export const makeJobFork = <R>(runtime: Runtime.Runtime<R>, queue: string, worker: string): JobFork => {
  const outer = FiberRefs.getOrDefault(runtime.fiberRefs, FiberRef.currentLogAnnotations).pipe(
    HashMap.set("worker", worker as unknown),
    HashMap.set("queue", queue as unknown)
  )
  const makeScope = makeScopes()
  return (members, life) => {
    const scope = makeScope()
    const [first] = members
    let annotations = outer
    if (members.length > 1) annotations = HashMap.set(annotations, "jobs", members.map(({ row }) => row.id).join(", "))
    else
      annotations = HashMap.set(
        HashMap.set(annotations, "job", first?.row.id as unknown),
        "attempt",
        first?.row.attempt as unknown
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
