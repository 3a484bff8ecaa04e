/** Many lives: what came of them, added up; in this process, or spread over as many as there are cores. */
import { spawn } from "node:child_process"
import { createRequire } from "node:module"
import { availableParallelism } from "node:os"
import { createInterface } from "node:readline"
import { setImmediate } from "node:timers/promises"
import { fileURLToPath, pathToFileURL } from "node:url"
import { lifeOf, type Report, simulate } from "./simulate.js"

/** Lines of the trace that are shown of a life that went wrong. */
const shown = 60

export interface Total {
  lives: number
  /** Virtual ones, rest not counted. */
  days: number
  jobs: number
  boundaries: number
  calls: number
  readonly ends: Record<string, number>
  readonly faults: Record<string, number>
  /** Of the first life that went wrong, with what replays it. */
  failure: string | undefined
}

export const nothing = (): Total => ({
  lives: 0,
  days: 0,
  jobs: 0,
  boundaries: 0,
  calls: 0,
  ends: {},
  faults: {},
  failure: undefined
})

const addCounts = (to: Record<string, number>, counts: Iterable<readonly [string, number]>) => {
  for (const [kind, count] of counts) to[kind] = (to[kind] ?? 0) + count
}

const add = (to: Total, more: Total): void => {
  for (const key of ["lives", "days", "jobs", "boundaries", "calls"] as const) to[key] += more[key]
  addCounts(to.ends, Object.entries(more.ends))
  addCounts(to.faults, Object.entries(more.faults))
  to.failure ??= more.failure
}

const replay = (seed: number, long: boolean): string =>
  `Replay: npm run prove -- simulation --seed ${seed} --runs 1${long ? "" : " --short"}`

const told = ({ errors, trace }: Report, seed: number, long: boolean): string =>
  [`simulation: seed ${seed}: ${errors.join("; ")}`, replay(seed, long), ...trace.slice(-shown)].join("\n")

const attempt = (seed: number, long: boolean): Report => {
  try {
    return simulate(lifeOf(seed, long))
  } catch (error) {
    throw new Error(`simulation: seed ${seed} could not be lived. ${replay(seed, long)}`, { cause: error })
  }
}

/** One life. */
export const live = (seed: number, long: boolean): Total => {
  const report = attempt(seed, long)
  const total = nothing()
  const { boundaries, calls, jobs } = report
  Object.assign(total, { lives: 1, days: lifeOf(seed, long).days, jobs, boundaries, calls })
  addCounts(total.ends, report.ends)
  addCounts(total.faults, report.faults)
  if (report.errors.length > 0) total.failure = told(report, seed, long)
  return total
}

/** One after the other, up to the first that goes wrong. `each` is told of them. */
export const liveHere = async (
  seeds: Iterable<number>,
  long: boolean,
  each: (total: Total) => void
): Promise<Total> => {
  const total = nothing()
  for (const seed of seeds) {
    const one = live(seed, long)
    each(one)
    add(total, one)
    if (total.failure !== undefined) break
    await setImmediate()
  }
  return total
}

export const range = (from: number, count: number, step = 1): ReadonlyArray<number> =>
  Array.from({ length: Math.ceil(count / step) }, (_, at) => from + at * step)

const tsx = pathToFileURL(createRequire(import.meta.url).resolve("tsx")).href
const part = fileURLToPath(new URL("./part.ts", import.meta.url))

/** The same, of the long form, by a process for each core. */
export const liveSpread = async (from: number, count: number): Promise<Total> => {
  const total = nothing()
  const width = Math.min(count, availableParallelism())
  const every = Math.max(1, Math.floor(count / 20))
  const children = Array.from({ length: width }, (_, at) =>
    spawn(
      process.execPath,
      [...process.execArgv, "--import", tsx, part, String(from + at), String(count - at), String(width)],
      {
        stdio: ["ignore", "pipe", "inherit"]
      }
    )
  )
  const end = () => {
    for (const child of children) child.kill()
  }
  await Promise.all(
    children.map(async (child) => {
      const ended = new Promise<number | null>((resolve) => child.on("close", resolve))
      for await (const line of createInterface({ input: child.stdout })) {
        add(total, JSON.parse(line) as Total)
        if (total.lives % every === 0) console.log(`simulation: ${total.lives} of ${count} lives`)
        if (total.failure !== undefined) end()
      }
      const code = await ended
      if (code !== 0 && total.failure === undefined) {
        total.failure = `simulation: a process ended with ${code}`
        end()
      }
    })
  )
  return total
}
