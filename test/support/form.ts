/**
 * How much a suite that tries to break the product does, and from which seed. `npm test` runs the short form, always from
 * the same seed, so that a change is judged by itself and not by luck; `npm run prove` the long one, from a new seed.
 */

const given = (name: string): number | undefined => {
  const text = process.env[name]
  return text === undefined ? undefined : Number(text)
}

/** The first seed. A suite prints the seed of what failed; `npm run prove -- <suite> --seed N --runs 1` replays it. */
export const seed = given("ALKSTORE_SEED") ?? 1

export const isLong = process.env.ALKSTORE_PROOF === "long"

/** How many runs, sequences or seeds: as asked for (`--runs`), or the form's own number. */
export const runs = (short: number, long: number): number => given("ALKSTORE_RUNS") ?? (isLong ? long : short)

/** How long one test of a suite may take, in milliseconds. */
export const timeout = (short: number, long: number): number => (isLong ? long : short)
