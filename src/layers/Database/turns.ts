/**
 * Turns at what only so many may use at once. A turn that is free is taken without an effect, which is nearly always;
 * who must wait comes in order, the lanes by turns, and may be interrupted. Thousands may wait: each costs the same.
 */
import { Effect, Scope } from "effect"
import { atEnd } from "./atEnd.js"

interface Waiter {
  granted: boolean
  wake: () => void
}

/**
 * Those of the lanes `many` (which come in any number) and `patient` (which may wait for somebody while they have their turn)
 * never have all turns: each lane leaves one to the others.
 */
export type Lane = "first" | "many" | "patient"

const lanes: ReadonlyArray<Lane> = ["first", "many", "patient"]

/** What gives back the interruptibility that there was. */
export type Restore = <A, E, R>(self: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>

export interface Turns {
  /** Runs `use` in a turn, uninterruptibly; only the wait for it can be interrupted. */
  readonly take: <A, E>(use: () => Effect.Effect<A, E>, lane?: Lane) => Effect.Effect<A, E>
  /** Takes a turn that ends with the scope. */
  readonly hold: Effect.Effect<void, never, Scope.Scope>
  /** Whether a turn can be had without waiting. */
  readonly free: () => boolean
}

export const makeTurns = (count: number): Turns => {
  let taken = 0
  const takenBy: Record<Lane, number> = { first: 0, many: 0, patient: 0 }
  const waiting: Record<Lane, Set<Waiter>> = { first: new Set(), many: new Set(), patient: new Set() }
  const shared = Math.max(1, count - 1)

  const may = (lane: Lane): boolean => taken < count && takenBy[lane] < (lane === "first" ? count : shared)

  const grant = (lane: Lane) => {
    taken++
    takenBy[lane]++
  }

  /** The lane whose turn it was last, among those that waited: the ones after it come next. */
  let last = 0

  const release = (lane: Lane) => {
    taken--
    takenBy[lane]--
    for (let step = 1; step <= lanes.length; step++) {
      const index = (last + step) % lanes.length
      const next = lanes[index] as Lane
      const [first] = waiting[next]
      if (first === undefined || !may(next)) continue
      waiting[next].delete(first)
      last = index
      first.granted = true
      grant(next)
      first.wake()
      return
    }
  }

  const waited = (waiter: Waiter): Effect.Effect<void> =>
    Effect.async((resume) => {
      waiter.wake = () => resume(Effect.void)
      if (waiter.granted) waiter.wake()
    })

  /** Each turn that ends goes to who waits, so that nobody is waiting for one that is free. */
  const enter = <A, E, R>(restore: Restore, lane: Lane, then: () => Effect.Effect<A, E, R>): Effect.Effect<A, E, R> => {
    if (may(lane)) {
      grant(lane)
      return then()
    }
    const waiter: Waiter = { granted: false, wake: () => undefined }
    waiting[lane].add(waiter)
    return Effect.matchCauseEffect(restore(waited(waiter)), {
      // A turn may have come with the interrupt
      onFailure: (cause) => {
        if (waiter.granted) release(lane)
        else waiting[lane].delete(waiter)
        return Effect.failCause(cause)
      },
      onSuccess: then
    })
  }

  const within = <A, E>(lane: Lane, use: () => Effect.Effect<A, E>): Effect.Effect<A, E> =>
    atEnd(Effect.suspend(use), () => release(lane))

  const end = Effect.sync(() => release("first"))

  return {
    take: (use, lane = "first") =>
      Effect.uninterruptibleMask((restore) => enter(restore, lane, () => within(lane, use))),
    hold: Effect.uninterruptibleMask((restore) =>
      enter(restore, "first", () => Effect.flatMap(Effect.scope, (scope) => Scope.addFinalizer(scope, end)))
    ),
    free: () => taken < count
  }
}
