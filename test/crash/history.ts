/** What has happened: the leases, as the database has it, and the runs of handlers, as their processes have it. */
import type { Entry } from "./config.js"

/** The time of one lease. Times are the database's. */
export interface Span {
  readonly job: number
  readonly token: number
  readonly pid: number
  readonly from: number
  /** Until when it was valid: to its end by time, or until it was given up before. */
  until: number
  /** When and how the job left it; `undefined` while it has it. */
  ended: { readonly at: number; readonly how: "done" | "returned" | "lapsed" } | undefined
  /** It was taken away before its time was over. */
  early: boolean
}

/** One call of a handler: from its start to the end of its own work. */
export interface Run {
  readonly job: number
  readonly attempt: number
  readonly token: number
  readonly pid: number
  readonly start: number
  end: number
}

export type Row = Readonly<Record<string, unknown>>

const numberOr = (value: unknown): number | undefined =>
  value === null || value === undefined ? undefined : Number(value)

export const spansOf = (rows: ReadonlyArray<Row>): ReadonlyArray<Span> => {
  const spans = new Map<number, Span>()
  for (const row of rows) {
    const [at, old, token] = [Number(row.at), numberOr(row.old_token), numberOr(row.token)]
    const before = old === undefined ? undefined : spans.get(old)
    if (before !== undefined && token !== old) {
      const lapsed = Number(row.lapsed) === 1
      before.ended = { at, how: lapsed ? "lapsed" : Number(row.gone) === 1 ? "done" : "returned" }
      // One millisecond for the rounding of two clocks' readings
      before.early = (lapsed || token !== undefined) && before.until > at + 1
      before.until = Math.min(before.until, at)
    }
    if (token === undefined) continue
    if (token === old) {
      if (before !== undefined) before.until = Number(row.until)
    } else {
      const pid = Number(/\d+/.exec(String(row.worker))?.[0])
      const until = Number(row.until)
      spans.set(token, { job: Number(row.job), token, pid, from: at, until, ended: undefined, early: false })
    }
  }
  return [...spans.values()]
}

/** `died`: when a process was killed. `skew`: how far the database's clock is ahead of the processes'. */
export const runsOf = (
  entries: ReadonlyArray<Entry>,
  died: (pid: number) => number,
  skew: number
): ReadonlyArray<Run> => {
  const runs: Array<Run> = []
  const open = new Map<string, Run>()
  for (const { attempt = 0, at, event, job = 0, pid, token = 0 } of entries) {
    const key = `${pid}:${token}`
    if (event === "start") {
      const run = { job, attempt, token, pid, start: at + skew, end: died(pid) + skew }
      runs.push(run)
      open.set(key, run)
    }
    if (event === "worked" || event === "interrupted") {
      const run = open.get(key)
      if (run !== undefined) run.end = at + skew
      open.delete(key)
    }
  }
  return runs.sort((a, b) => a.start - b.start)
}
