/** Which members of a service are calls: they have cases, all of them, or the compiler and the suite refuse. */
import { Effect, Schema, Stream } from "effect"
import type { Case } from "../world.js"

type Call = Effect.Effect<unknown, unknown, unknown> | ((...given: never) => unknown)

/** A case at least for each call of a service. */
export type CasesOf<S> = {
  readonly [K in keyof S as S[K] extends Call ? K : never]-?: readonly [Case, ...ReadonlyArray<Case>]
}

export type Cases = Readonly<Record<string, ReadonlyArray<Case>>>

/** The same at run time, where members may have come that no type tells of. */
export const callsOf = (service: object): ReadonlyArray<string> =>
  Object.entries(service)
    .filter(([, member]) => Effect.isEffect(member) || (typeof member === "function" && !Schema.isSchema(member)))
    .map(([name]) => name)
    .sort()

export const drained = <A, E, R>(stream: Stream.Stream<A, E, R>) => Stream.runCollect(stream)

/** It asks nothing of the database. */
export const silent = (prepare: Case["prepare"]): readonly [Case] => [
  { name: "asks nothing of the database", prepare, silent: true, alone: true }
]
