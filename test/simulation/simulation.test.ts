/**
 * Ten hosts of one fleet in one process: workers, schedulers and sweepers under virtual time and seeded chance, over the
 * product's real SQLite statements in memory, through nights in which clocks change, with everything that can go wrong.
 * Nothing but the oracle knows what a queue is to do.
 */
import { setImmediate } from "node:timers/promises"
import { setFlagsFromString } from "node:v8"
import { runInNewContext } from "node:vm"
import { expect, test } from "vitest"
import { seed as first, isLong, runs, timeout } from "../support/form.js"
import { faultKinds } from "./faults.js"
import { hostCount } from "./fleet.js"
import { liveHere, liveSpread, range, type Total } from "./lives.js"
import { lifeOf, simulate } from "./simulate.js"

const seeds = runs(200, 1_000)

const list = (counts: Record<string, number>) =>
  Object.entries(counts)
    .map(([kind, count]) => `${count} ${kind}`)
    .join(", ")

const summary = ({ boundaries, calls, days, ends, faults, jobs, lives }: Total) =>
  [
    `simulation: ${lives} seeds (from ${first}), ${hostCount} hosts, ${Math.round(days)} days of life`,
    `${jobs} jobs (${list(ends)}), lost 0`,
    `${boundaries} boundaries fired`,
    `${calls} calls`,
    `${Object.values(faults).reduce((a, b) => a + b, 0)} faults (${list(faults)})`
  ].join("; ")

setFlagsFromString("--expose-gc")
const collect = runInNewContext("gc") as () => void

/** Megabytes that are left after a collection. */
const heap = (): number => {
  collect()
  return process.memoryUsage().heapUsed / 2 ** 20
}

test(
  "whatever befalls a fleet, each job has one lease at a time and one end, in its place, and each boundary its jobs (G9, G10, G19, G20, G27, G28, G31, G33, G72, G81, G101, G102, G109, G112, G120, G151, G160, G164, G185)",
  async () => {
    const heaps: Array<number> = []
    let lives = 0
    const total =
      isLong && seeds > 1
        ? await liveSpread(first, seeds)
        : await liveHere(range(first, seeds), isLong, () => {
            if (++lives % 50 === 0) heaps.push(heap())
          })
    if (total.failure !== undefined) expect.fail(total.failure)
    console.log(summary(total))
    // Lives leave nothing behind: no fiber, no world
    if (heaps.length > 1) expect((heaps.at(-1) as number) - (heaps[0] as number)).toBeLessThan(10)
    if (seeds < 20) return
    expect(faultKinds.filter((kind) => (total.faults[kind] ?? 0) === 0)).toEqual([])
    const reasons = ["exhausted", "crashed", "failed", "expired", "cancelled"].map((reason) => `dead (${reason})`)
    expect(["acked", ...reasons].filter((end) => (total.ends[end] ?? 0) === 0)).toEqual([])
  },
  timeout(1_200_000, 3 * 3_600_000)
)

test(
  "the same seed gives a byte-identical trace",
  async () => {
    const traceOf = async (seed: number): Promise<string> => {
      await setImmediate()
      return simulate(lifeOf(seed, isLong)).trace.join("\n")
    }
    for (let seed = first; seed < first + Math.min(seeds, 3); seed++) {
      const trace = await traceOf(seed)
      expect((await traceOf(seed)) === trace).toBe(true)
      expect(trace.length).toBeGreaterThan(5_000)
    }
  },
  timeout(600_000, 1_200_000)
)
