/** Chance, from a seed: everything that is drawn comes from here, in an order that the seed alone decides. */
import { PCGRandom } from "effect/Utils"

export interface Chance {
  /** A whole number from 0 up to, but not, `n`. */
  readonly below: (n: number) => number
  /** From `low` up to, but not, `high`. */
  readonly between: (low: number, high: number) => number
  readonly happens: (probability: number) => boolean
  readonly pick: <A>(list: ReadonlyArray<A>) => A
  /** One of them, each as often as its weight says. */
  readonly weighted: <A>(list: ReadonlyArray<readonly [weight: number, value: A]>) => A
}

export const makeChance = (seed: number): Chance => {
  const generator = new PCGRandom(seed)
  const below = (n: number) => Math.floor(generator.number() * n)
  const pick = <A>(list: ReadonlyArray<A>): A => {
    const found = list[below(list.length)]
    if (found === undefined) throw new Error("nothing to pick from")
    return found
  }
  return {
    below,
    pick,
    between: (low, high) => low + below(high - low),
    happens: (probability) => generator.number() < probability,
    weighted: (list) => {
      let left = generator.number() * list.reduce((sum, [weight]) => sum + weight, 0)
      const found = list.find(([weight]) => {
        left -= weight
        return left < 0
      })
      return (found ?? pick(list))[1]
    }
  }
}
