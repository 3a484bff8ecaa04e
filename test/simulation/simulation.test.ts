/**
 * Ten hosts of one fleet in one process: workers, schedulers and sweepers under virtual time and seeded chance, over the
 * product's real SQLite statements in memory, through nights in which clocks change, with everything that can go wrong.
 * Nothing but the oracle knows what a queue is to do.
 */
import { setImmediate } from "node:timers/promises"
import { afterAll, beforeAll, expect, test, vi } from "vitest"
import { seed as first, isLong, runs, timeout } from "../support/form.js"
import { faultKinds } from "./faults.js"
import { hostCount } from "./fleet.js"
import { type Life, type Report, simulate } from "./simulate.js"

const days = isLong ? 1 : 0.06
const life = (seed: number): Life =>
  isLong ? { seed, days, calls: 180, troubles: 60 } : { seed, days, calls: 60, troubles: 20 }
const seeds = runs(200, 1_000)

/** Lines of the trace that are shown of a life that went wrong. */
const shown = 60

/** `Effect.never` keeps its process alive by an interval of real time, and for a process that was killed here nobody ends it. */
beforeAll(() => void vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] }))
afterAll(() => void vi.useRealTimers())

const live = (seed: number): Report => {
  const report = simulate(life(seed))
  vi.clearAllTimers()
  return report
}

const sum = (reports: ReadonlyArray<Report>, of: (report: Report) => number) =>
  reports.reduce((total, report) => total + of(report), 0)

const tally = <K extends string>(reports: ReadonlyArray<Report>, of: (report: Report) => ReadonlyMap<K, number>) => {
  const all = new Map<K, number>()
  for (const report of reports) for (const [kind, count] of of(report)) all.set(kind, (all.get(kind) ?? 0) + count)
  return all
}

const list = (counts: ReadonlyMap<string, number>) => [...counts].map(([kind, count]) => `${count} ${kind}`).join(", ")

const check = ({ errors, trace }: Report, seed: number): void => {
  if (errors.length === 0) return
  expect.fail(
    [
      `simulation: seed ${seed}: ${errors.join("; ")}`,
      `Replay: npm run prove -- simulation --seed ${seed} --runs 1${isLong ? "" : " --short"}`,
      ...trace.slice(-shown)
    ].join("\n")
  )
}

test(
  "whatever befalls a fleet, each job has one lease at a time and one end, in its place, and each boundary its jobs (G9, G10, G19, G28, G101, G102, G112, G120, G160, G164)",
  async () => {
    const reports: Array<Report> = []
    for (let seed = first; seed < first + seeds; seed++) {
      const report = live(seed)
      check(report, seed)
      reports.push({ ...report, trace: [] })
      await setImmediate()
    }
    const faults = tally(reports, (report) => report.faults)
    const ends = tally(reports, (report) => report.ends)
    console.log(
      [
        `simulation: ${seeds} seeds (from ${first}), ${hostCount} hosts, ${Math.round(seeds * days)} days of life`,
        `${sum(reports, ({ jobs }) => jobs)} jobs (${list(ends)}), lost 0`,
        `${sum(reports, ({ boundaries }) => boundaries)} boundaries fired`,
        `${sum(reports, ({ calls }) => calls)} calls`,
        `${[...faults.values()].reduce((a, b) => a + b, 0)} faults (${list(faults)})`
      ].join("; ")
    )
    if (seeds < 20) return
    expect(faultKinds.filter((kind) => (faults.get(kind) ?? 0) === 0)).toEqual([])
    const reasons = [
      "acked",
      "dead (exhausted)",
      "dead (crashed)",
      "dead (failed)",
      "dead (expired)",
      "dead (cancelled)"
    ]
    expect(reasons.filter((end) => (ends.get(end) ?? 0) === 0)).toEqual([])
  },
  timeout(1_200_000, 3_600_000)
)

test("the same seed gives a byte-identical trace", () => {
  for (let seed = first; seed < first + Math.min(seeds, 5); seed++) {
    const trace = live(seed).trace.join("\n")
    expect(live(seed).trace.join("\n") === trace).toBe(true)
    expect(trace.length).toBeGreaterThan(5_000)
  }
})
