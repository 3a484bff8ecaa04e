/**
 * Every order in which the steps of a program can be taken: each step waits until it is chosen, and the program is run
 * again and again, until every choice that there was has been made.
 */
import { setImmediate } from "node:timers/promises"
import { Effect, FiberRef } from "effect"

/** Which of the steps that wait is the next, by their names. */
export type Choose = (names: ReadonlyArray<string>) => number

/** What is part of a step: runs when it comes, and is waited for. */
type Part = <A, E, R>(self: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>

type Ready = (others: number) => boolean

/** Whose steps a fiber and its children take. */
export const actor = FiberRef.unsafeMake("")

export interface Stage {
  /**
   * A step: begins when it is chosen, which it can be while it is `ready` beside so many others that wait, and ends with
   * `self`. Before `close` and after `open`, nothing waits.
   */
  readonly step: <A, E, R>(name: string, self: Effect.Effect<A, E, R>, ready?: Ready) => Effect.Effect<A, E, R>
  readonly part: Part
  /** From now on steps wait. */
  readonly close: () => void
  /** Takes one step after the other, until none waits; answers their names. */
  readonly play: (choose: Choose) => Promise<ReadonlyArray<string>>
  /** From now on nothing waits. */
  readonly open: () => void
}

/** No step takes long, unless it waits for another. */
const patienceMillis = 20_000

/** A fiber goes on in the turn of the event loop in which its answer comes; this is one more. */
const quietTurns = 2

/** `arrived`: ends when all that the last step has sent out has come back. */
export const makeStage = (arrived: () => Promise<unknown>): Stage => {
  let waiting: ReadonlyArray<{ readonly name: string; readonly go: () => void; readonly ready: Ready }> = []
  let closed = false
  let under = 0
  let begun = 0
  let rested = () => {}

  const part: Part = (self) =>
    Effect.suspend(() => {
      under++
      begun++
      return Effect.ensuring(
        self,
        Effect.sync(() => {
          if (--under === 0) rested()
        })
      )
    })

  const chosen = (name: string, ready: Ready) =>
    Effect.flatMap(FiberRef.get(actor), (who) =>
      Effect.async<void>((resume) => {
        if (!closed) return resume(Effect.void)
        begun++
        waiting = [...waiting, { name: `${who} ${name}`, go: () => resume(Effect.void), ready }]
      })
    )

  const parts = (last: string) =>
    under === 0
      ? Promise.resolve()
      : new Promise<void>((resolve, reject) => {
          const late = setTimeout(() => reject(new Error(`"${last}" waits for another step`)), patienceMillis)
          rested = () => {
            clearTimeout(late)
            resolve()
          }
        })

  /** All that goes on by itself has come to where it waits. */
  const rest = async (last: string) => {
    for (let seen = -1; under > 0 || begun !== seen; ) {
      for (let quiet = 0; quiet < quietTurns; ) {
        await parts(last)
        await setImmediate()
        quiet = under === 0 && begun === seen ? quiet + 1 : 0
        seen = begun
      }
      await arrived()
      await setImmediate()
    }
  }

  return {
    part,
    step: (name, self, ready = () => true) => Effect.zipRight(chosen(name, ready), part(self)),
    close: () => {
      closed = true
    },
    play: async (choose) => {
      const taken: Array<string> = []
      for (;;) {
        await rest(taken.at(-1) ?? "the beginning")
        if (waiting.length === 0) return taken
        const sorted = waiting
          .filter(({ ready }) => ready(waiting.length - 1))
          .sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0))
        const next = sorted[choose(sorted.map(({ name }) => name))]
        if (next === undefined) throw new Error(`there is no such step after ${taken.join(", ")}`)
        waiting = waiting.filter((one) => one !== next)
        taken.push(next.name)
        next.go()
      }
    },
    open: () => {
      closed = false
      const left = waiting
      waiting = []
      for (const { go } of left) go()
    }
  }
}

/**
 * Runs it once for each series of choices, or until a result is `enough`. The same choices must lead to the same steps.
 */
export const everyOrder = async <A>(
  run: (choose: Choose) => Promise<A>,
  enough: (result: A) => boolean = () => false
): Promise<ReadonlyArray<A>> => {
  const path: Array<{ readonly names: ReadonlyArray<string>; chosen: number }> = []
  const results: Array<A> = []
  for (;;) {
    let depth = 0
    const result = await run((names) => {
      const known = path[depth++]
      if (known === undefined) path.push({ names, chosen: 0 })
      else if (known.names.join() !== names.join())
        throw new Error(`the same choices led to [${names.join()}], and before to [${known.names.join()}]`)
      return known?.chosen ?? 0
    })
    if (depth < path.length) throw new Error("the same choices led to fewer steps than before")
    results.push(result)
    if (enough(result)) return results
    let last = path.at(-1)
    while (last !== undefined && last.chosen === last.names.length - 1) {
      path.pop()
      last = path.at(-1)
    }
    if (last === undefined) return results
    last.chosen++
  }
}
