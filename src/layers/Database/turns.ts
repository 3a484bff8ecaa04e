/**
 * Turns at what only so many may use at once. A turn that is free is taken without an effect, which is nearly always;
 * who must wait comes in order, the modest and others by turns, and may be interrupted. Thousands may wait: each costs the same.
 */
import { Effect, Scope } from "effect"
import { atEnd } from "./atEnd.js"

interface Waiter {
  granted: boolean
  wake: () => void
}

/** What gives back the interruptibility that there was. */
export type Restore = <A, E, R>(self: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>

export interface Turns {
  /**
   * Runs `use` in a turn, uninterruptibly; only the wait for it can be interrupted. `modest` ones never take the last
   * turn from the others.
   */
  readonly take: <A, E>(use: () => Effect.Effect<A, E>, modest?: boolean) => Effect.Effect<A, E>
  /** Takes a turn that ends with the scope. */
  readonly hold: Effect.Effect<void, never, Scope.Scope>
  /** Whether a turn can be had without waiting. */
  readonly free: () => boolean
}

export const makeTurns = (count: number): Turns => {
  let taken = 0
  let takenByModest = 0
  const waiting = { modest: new Set<Waiter>(), others: new Set<Waiter>() }
  const mates = (modest: boolean) => (modest ? waiting.modest : waiting.others)

  const may = (modest: boolean): boolean => taken < count && (!modest || takenByModest < Math.max(1, count - 1))

  const grant = (modest: boolean) => {
    taken++
    if (modest) takenByModest++
  }

  /** Whether the last turn that was waited for went to a modest one: then others come first, and the other way round. */
  let last = true
  const isNext = (modest: boolean): boolean => mates(modest).size > 0 && may(modest)

  const release = (modest: boolean) => {
    taken--
    if (modest) takenByModest--
    const next = isNext(!last) ? !last : last
    const [first] = mates(next)
    if (first === undefined || !may(next)) return
    mates(next).delete(first)
    last = next
    first.granted = true
    grant(next)
    first.wake()
  }

  const waited = (waiter: Waiter): Effect.Effect<void> =>
    Effect.async((resume) => {
      waiter.wake = () => resume(Effect.void)
      if (waiter.granted) waiter.wake()
    })

  /** Each turn that ends goes to who waits, so that nobody is waiting for one that is free. */
  const enter = <A, E, R>(
    restore: Restore,
    modest: boolean,
    then: () => Effect.Effect<A, E, R>
  ): Effect.Effect<A, E, R> => {
    if (may(modest)) {
      grant(modest)
      return then()
    }
    const waiter: Waiter = { granted: false, wake: () => undefined }
    mates(modest).add(waiter)
    return Effect.matchCauseEffect(restore(waited(waiter)), {
      // A turn may have come with the interrupt
      onFailure: (cause) => {
        if (waiter.granted) release(modest)
        else mates(modest).delete(waiter)
        return Effect.failCause(cause)
      },
      onSuccess: then
    })
  }

  const within = <A, E>(modest: boolean, use: () => Effect.Effect<A, E>): Effect.Effect<A, E> =>
    atEnd(Effect.suspend(use), () => release(modest))

  const end = Effect.sync(() => release(false))

  return {
    take: (use, modest = false) =>
      Effect.uninterruptibleMask((restore) => enter(restore, modest, () => within(modest, use))),
    hold: Effect.uninterruptibleMask((restore) =>
      enter(restore, false, () => Effect.flatMap(Effect.scope, (scope) => Scope.addFinalizer(scope, end)))
    ),
    free: () => taken < count
  }
}
