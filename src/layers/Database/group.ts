/**
 * Group commit: calls that wait at the same moment share one run. The first of them leads: it lets every fiber that is
 * ready come first, runs all that has gathered, and hands the lead to whoever came meanwhile. Nothing waits for a timer:
 * a call that is alone runs at once, and what gathers while a run is under way is the next one.
 *
 * A call that is interrupted before its run begins has never been made; after that the interrupt waits for the run.
 */
import { Cause, Effect, Exit } from "effect"

export interface Call<I, A, E> {
  readonly input: I
  readonly end: (exit: Exit.Exit<A, E>) => void
}

/** The calls that wait. */
export interface Waiting<I, A, E> {
  /** Takes the first ones for a run, which ends each of them: at least one, and more as long as `fits` says so. */
  readonly take: (fits?: (input: I) => boolean) => ReadonlyArray<Call<I, A, E>>
  /** What has been taken and not ended waits again, before all others: it has not been done. */
  readonly giveBack: () => void
  readonly has: (input: I) => boolean
  /** Ends those that have waited long enough. */
  readonly drop: (which: (input: I) => boolean, exit: Exit.Exit<A, E>) => void
}

class Entry<I, A, E> implements Call<I, A, E> {
  taken = false
  /** It has been given the lead. */
  leads = false
  exit: Exit.Exit<A, E> | undefined
  /** Goes on with whoever waits for this: its exit is there, or it leads. */
  wake: (() => void) | undefined

  constructor(readonly input: I) {}

  readonly end = (exit: Exit.Exit<A, E>): void => {
    this.exit = exit
    this.wake?.()
  }
}

const changed = <I, A, E>(entry: Entry<I, A, E>, done: () => boolean): Effect.Effect<void> =>
  Effect.async((resume) => {
    if (done()) return resume(Effect.void)
    entry.wake = () => {
      if (done()) resume(Effect.void)
    }
  })

/**
 * `run` takes calls from those that wait, when it is ready for them, and ends each. From taking to ending it must not
 * be interruptible. When it fails, what it has taken fails with it, or its leader alone when it has taken nothing; the
 * others go on under another.
 */
export const makeGroup = <I, A, E>(run: (waiting: Waiting<I, A, E>, input: I) => Effect.Effect<unknown, E>) => {
  let queue: Array<Entry<I, A, E>> = []
  let current: ReadonlyArray<Entry<I, A, E>> = []
  let leading = false
  let last: number | undefined
  let lastSize = 0

  const waiting: Waiting<I, A, E> = {
    take: (fits = () => true) => {
      // The first is asked for too: it may have used up what there is room for
      const end = queue.findIndex(({ input }, index) => !fits(input) && index > 0)
      const count = end === -1 ? queue.length : end
      current = queue
      queue = []
      if (count < current.length) {
        queue = current.slice(count)
        current = current.slice(0, count)
      }
      for (const entry of current) entry.taken = true
      lastSize = current.length
      return current
    },
    giveBack: () => {
      const back = current.filter(({ exit }) => exit === undefined)
      for (const entry of back) {
        entry.taken = false
        entry.wake?.()
      }
      queue = [...back, ...queue]
      current = []
    },
    has: (input) => queue.some((entry) => entry.input === input),
    drop: (which, exit) => {
      const dropped = queue.filter((entry) => which(entry.input))
      queue = queue.filter((entry) => !which(entry.input))
      for (const entry of dropped) entry.end(exit)
    }
  }

  const passOn = () => {
    current = []
    const [next] = queue
    leading = next !== undefined
    if (next === undefined) return
    next.leads = true
    next.wake?.()
  }

  const give = (entry: Entry<I, A, E>, cause: Cause.Cause<E>): Effect.Effect<A, E> => {
    // Of its leader's interrupt nobody else fails: what is still to be done waits for another
    if (Cause.isInterrupted(cause)) waiting.giveBack()
    for (const other of current) if (other.exit === undefined) other.end(Exit.failCause(cause))
    queue = queue.filter((other) => other !== entry)
    passOn()
    return entry.exit ?? Effect.failCause(cause)
  }

  /** The same fiber alone, once more, has nobody to wait for. */
  const turn = (entry: Entry<I, A, E>, fiber: number) => {
    const alone = fiber === last && lastSize === 1 && queue.length === 1
    last = fiber
    return alone ? run(waiting, entry.input) : Effect.zipRight(Effect.yieldNow(), run(waiting, entry.input))
  }

  const lead = (entry: Entry<I, A, E>, fiber: number, restore: <B>(self: Effect.Effect<B, E>) => Effect.Effect<B, E>) =>
    Effect.matchCauseEffect(restore(turn(entry, fiber)), {
      onFailure: (cause) => give(entry, cause),
      onSuccess: () => {
        passOn()
        return entry.exit ?? Effect.dieMessage("a call was left without its end")
      }
    })

  const follow = (
    entry: Entry<I, A, E>,
    fiber: number,
    restore: <B>(self: Effect.Effect<B, E>) => Effect.Effect<B, E>
  ): Effect.Effect<A, E> =>
    Effect.matchCauseEffect(restore(changed(entry, () => entry.exit !== undefined || entry.leads)), {
      onFailure: (cause) => {
        const leave = (): Effect.Effect<never, E> => {
          if (entry.taken && entry.exit === undefined)
            return Effect.flatMap(
              changed(entry, () => entry.exit !== undefined || !entry.taken),
              leave
            )
          queue = queue.filter((other) => other !== entry)
          if (entry.leads) passOn()
          return Effect.failCause(cause)
        }
        return leave()
      },
      onSuccess: () => entry.exit ?? lead(entry, fiber, restore)
    })

  return (input: I): Effect.Effect<A, E> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.withFiberRuntime<A, E>((fiber) => {
        const entry = new Entry<I, A, E>(input)
        const id = fiber.id().id
        queue.push(entry)
        if (leading) return follow(entry, id, restore)
        leading = true
        return lead(entry, id, restore)
      })
    )
}
