/**
 * Fibers for runs: each starts uninterruptible, with a Scope of its own and its jobs in the log annotations. What costs
 * most is to make a fiber; so one goes on with the next run as long as the last has left nothing behind in it: it forked
 * nothing, was not interrupted, and its jobs were done. What a handler may have set is reset between two runs.
 */
import {
  Cause,
  Context,
  Effect,
  type Fiber,
  FiberId,
  FiberRef,
  FiberRefs,
  HashMap,
  Runtime,
  RuntimeFlags,
  Scope,
  Supervisor
} from "effect"
import type { Held, Run, RunFiber } from "./held.js"

/** What a fiber does with its runs. */
export interface Runs {
  /** One run; ends with `goOn` when all of it went well. */
  readonly life: (
    run: Run,
    fiber: RunFiber,
    scope: Scope.CloseableScope,
    goOn: Effect.Effect<void>
  ) => Effect.Effect<void, never, Scope.Scope>
  /** The next run for a free slot, if there are both. */
  readonly take: () => Run | undefined
  /** A fiber each for whatever else there is to run. */
  readonly start: () => void
  /** Whether others have to have their turn before the next run: handlers that need no time would leave them none. */
  readonly pressing: () => boolean
}

/** Performs a run, and others after it, in a fiber that belongs to no other: it ends by itself, or by an interrupt. */
export type JobFork = (first: Run) => void

/** Scopes are made by the hundred: running the effect that makes one costs more than the Scope. */
const makeScopes = () => {
  const some = Effect.replicateEffect(Scope.make(), 100)
  let ready: Array<Scope.CloseableScope> = []
  return (): Scope.CloseableScope => {
    if (ready.length === 0) ready = Effect.runSync(some)
    return ready.pop() as Scope.CloseableScope
  }
}

/** Knows whether a fiber has forked: its children end with it, and nobody else's run may be in it till then. */
class Forks extends Supervisor.AbstractSupervisor<void> {
  forked = false
  override readonly value = Effect.void
  override onStart(): void {
    this.forked = true
  }
}

const annotate = (
  outer: HashMap.HashMap<string, unknown>,
  members: ReadonlyArray<Held>
): HashMap.HashMap<string, unknown> => {
  const [first] = members
  return members.length > 1
    ? HashMap.set(outer, "jobs", members.map(({ row }) => row.id).join(", "))
    : HashMap.set(HashMap.set(outer, "job", first?.row.id), "attempt", first?.row.attempt)
}

/** Makes copies of a map with more in it: from a list, which costs half of what a copy of a Map does. */
const extending = <K, V>(map: ReadonlyMap<K, V>) => {
  const entries = [...map]
  return (...more: ReadonlyArray<readonly [K, V]>): Map<K, V> => new Map([...entries, ...more])
}

type Local = Readonly<Parameters<FiberRefs.FiberRefs["locals"]["set"]>>

/** The FiberRefs of a run; an interrupt that has come for it already is kept. */
const refsOf =
  (
    extended: (...more: ReadonlyArray<Local>) => FiberRefs.FiberRefs["locals"],
    context: Context.Context<Scope.Scope>,
    annotations: HashMap.HashMap<string, unknown>
  ) =>
  (id: FiberId.Runtime, before: FiberRefs.FiberRefs): FiberRefs.FiberRefs => {
    // Not by FiberRefs.updateAs, which compares each new value with the old one, part by part
    const locals = extended(
      [FiberRef.currentContext, [[id, context]]],
      [FiberRef.currentLogAnnotations, [[id, annotations]]]
    )
    const interrupted = before.locals.get(FiberRef.interruptedCause)
    if (interrupted !== undefined) locals.set(FiberRef.interruptedCause, interrupted)
    return FiberRefs.unsafeMake(locals)
  }

export const makeJobFork = <R>(
  runtime: Runtime.Runtime<R>,
  queue: string,
  worker: string,
  { life, pressing, start, take }: Runs
): JobFork => {
  const outer = FiberRefs.getOrDefault(runtime.fiberRefs, FiberRef.currentLogAnnotations).pipe(
    HashMap.set("worker", worker as unknown),
    HashMap.set("queue", queue as unknown)
  )
  const supervisor = FiberRefs.getOrDefault(runtime.fiberRefs, FiberRef.currentSupervisor)
  const runtimeFlags = RuntimeFlags.disable(runtime.runtimeFlags, RuntimeFlags.Interruption)
  const makeScope = makeScopes()
  const services = extending(runtime.context.unsafeMap)

  return (first) => {
    const forks = new Forks()
    const base = FiberRefs.updateAs(runtime.fiberRefs, {
      fiberId: FiberId.none,
      fiberRef: FiberRef.currentSupervisor,
      value: supervisor === Supervisor.none ? forks : supervisor.zip(forks)
    })
    const locals = extending(base.locals)
    let run: Run | undefined = first

    const isClean = (fiber: Fiber.RuntimeFiber<unknown, unknown>, flags: RuntimeFlags.RuntimeFlags) =>
      !forks.forked && flags === runtimeFlags && Cause.isEmpty(fiber.getFiberRef(FiberRef.interruptedCause))

    const goOn = Effect.withFiberRuntime<void>((fiber, status) => {
      if (isClean(fiber, status.runtimeFlags)) run = take()
      if (run !== undefined) run.fiber = fiber
      start()
      return run !== undefined && pressing() ? Effect.yieldNow() : Effect.void
    })

    const one = () => {
      const current = run as Run
      run = undefined
      const scope = makeScope()
      const context = Context.unsafeMake<R | Scope.Scope>(services([Scope.Scope.key, scope]))
      return Effect.flatMap(
        Effect.updateFiberRefs(refsOf(locals, context, annotate(outer, current.members))),
        // Its Scope has just been put in
        () => life(current, current.fiber as RunFiber, scope, goOn) as Effect.Effect<void>
      )
    }

    const all = Effect.whileLoop({ while: () => run !== undefined, body: one, step: () => {} })
    first.fiber = Runtime.runFork(Runtime.make({ context: runtime.context, runtimeFlags, fiberRefs: base }), all, {
      immediate: false
    })
    // Its own start is none of its forks
    forks.forked = false
  }
}
