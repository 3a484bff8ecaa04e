/** The judgement over a history: what was lost, done twice, run at once, and how long it took to recover. */
import type { Run, Span } from "./history.js"

/** Something that was done to a process, or to the database: then there is no `pid`. */
export interface Fault {
  readonly kind: string
  readonly pid?: number
  readonly from: number
  /** When it was over: never, for a process that was killed. */
  readonly to: number
}

/** The life of a worker: from when it was ready to when it was ended. */
export interface Life {
  readonly pid: number
  readonly from: number
  readonly to: number
}

/** For so long nothing ran in a process: the machine is busy. */
export type Stall = Life

export interface History {
  readonly stalls: ReadonlyArray<Stall>
  readonly workers: ReadonlyArray<Life>
  readonly spans: ReadonlyArray<Span>
  readonly runs: ReadonlyArray<Run>
  readonly faults: ReadonlyArray<Fault>
  /** The names of the orders that were committed with their jobs. */
  readonly orders: ReadonlyArray<string>
  /** The orders whose receipt was answered. */
  readonly receipts: ReadonlyArray<string>
  /** One name for each effect that was committed. */
  readonly effects: ReadonlyArray<string>
  /** Jobs that are live or dead when everything is over. */
  readonly left: number
}

export interface Verdict {
  readonly orders: number
  readonly attempts: number
  /** Orders without an effect, receipts without an order, jobs that never ended. */
  readonly lost: number
  /** Orders with more than one effect, and effects of no order. */
  readonly repeated: number
  /** Attempts that nothing that was done explains. */
  readonly duplicated: number
  /** Two runs of one lease, or of one job while the leases of both were valid; and leases taken away before their end. */
  readonly concurrent: number
  /** Runs that began, or went on for more than a second, after their lease, in a process that could know. */
  readonly overrun: number
  /** Leases that ended by time. */
  readonly lapsed: number
  /** Leases that a fault took from their holder, and whose job ran again. */
  readonly recovered: number
  /** The longest time to that, from the fault, or from when there was a worker for it, without what it was held up by a busy machine. */
  readonly timeToRecoverMillis: number
}

const count = <A>(list: ReadonlyArray<A>, holds: (item: A) => boolean): number => list.filter(holds).length

const byJob = <A extends { readonly job: number }>(list: ReadonlyArray<A>): ReadonlyArray<ReadonlyArray<A>> => [
  ...list
    .reduce((jobs, item) => jobs.set(item.job, [...(jobs.get(item.job) ?? []), item]), new Map<number, Array<A>>())
    .values()
]

/** For so long after it is over, a fault explains another attempt: a process that comes back has to find out first. */
const aftermathMillis = 1_000

const hits = ({ from, pid, to }: Fault, run: { readonly pid: number }, since: number, until: number): boolean =>
  (pid === undefined || pid === run.pid) && from <= until && to + aftermathMillis >= since

/** Beyond what two clocks' readings can differ by. */
const togetherMillis = 5

const concurrentOf = ({ runs, spans }: History): number => {
  const leases = new Map(spans.map((span) => [span.token, span]))
  const valid = (run: Run) => ({
    from: Math.max(run.start, leases.get(run.token)?.from ?? run.start),
    to: Math.min(run.end, leases.get(run.token)?.until ?? run.end)
  })
  const together = (a: Run, b: Run) => {
    const [x, y] = [valid(a), valid(b)]
    return a.token === b.token || Math.min(x.to, y.to) - Math.max(x.from, y.from) > togetherMillis
  }
  const pairs = byJob(runs).map((mine) => {
    const others = (a: Run, n: number) => count(mine.slice(n + 1), (b) => together(a, b))
    return mine.reduce((sum, run, n) => sum + others(run, n), 0)
  })
  return pairs.reduce((sum, n) => sum + n, 0) + count(spans, ({ early }) => early)
}

const duplicatedOf = ({ faults, runs }: History): number =>
  byJob(runs)
    .flatMap((mine) => mine.slice(1).map((next, n) => [mine[n] as Run, next] as const))
    .filter(([previous, next]) => !faults.some((fault) => hits(fault, previous, previous.start, next.start))).length

const overrunOf = ({ faults, runs, spans }: History): number => {
  const leases = new Map(spans.map((span) => [span.token, span]))
  const held = faults.filter(({ kind }) => kind === "freeze" || kind === "stalled")
  const tooLong = (run: Run): boolean => {
    const lease = leases.get(run.token)
    if (lease?.ended?.how !== "lapsed" && run.start <= (lease?.until ?? 0)) return false
    // What could not run could not stop either
    const asleep = held.filter(({ from, pid, to }) => pid === run.pid && from <= run.end && to >= (lease?.until ?? 0))
    const since = Math.max(lease?.until ?? 0, ...asleep.map(({ to }) => to))
    return run.end - since > 1_000
  }
  return count(runs, tooLong)
}

/**
 * From when on the job of a lease that faults have broken could be recovered: from the first of them; but while the
 * database is away nobody can do anything, so then from its last return on.
 */
const brokenAt = (faults: ReadonlyArray<Fault>, span: Span, again: number): number | undefined => {
  const felt = faults.filter((fault) => hits(fault, span, span.from, Math.min(again, span.ended?.at ?? again)))
  if (felt.length === 0) return undefined
  const returns = faults.filter(
    ({ from, pid, to }) => pid === undefined && from >= span.from && to > from && from <= again
  )
  // It is back a moment before whoever brought it back can say so
  return Math.max(Math.min(...felt.map(({ from }) => from)), ...returns.map(({ to }) => Math.min(to, again)))
}

/** From when on there was somebody to recover it: a worker that takes a second to start is no part of the promise. */
const helpAt = (workers: ReadonlyArray<Life>, span: Span, since: number, again: number): number =>
  Math.min(
    again,
    ...workers.flatMap(({ from, pid, to }) => (pid !== span.pid && to >= again ? [Math.max(since, from)] : []))
  )

/** How long any of those who could have recovered it were not let run. */
const heldUp = (stalls: ReadonlyArray<Stall>, span: Span, from: number, to: number): number => {
  let [sum, until] = [0, from]
  for (const stall of stalls) {
    if (stall.pid === span.pid) continue
    const [start, end] = [Math.max(stall.from, until), Math.min(stall.to, to)]
    sum += Math.max(0, end - start)
    until = Math.max(until, end)
  }
  return sum
}

const recoveriesOf = ({ faults, runs, spans, stalls, workers }: History): ReadonlyArray<number> => {
  const inTime = [...stalls].sort((a, b) => a.from - b.from)
  return spans.flatMap((span) => {
    if (span.ended?.how === "done") return []
    const again = runs.find(({ job, start, token }) => job === span.job && token > span.token && start >= span.from)
    const since = again === undefined ? undefined : brokenAt(faults, span, again.start)
    if (again === undefined || since === undefined) return []
    const from = helpAt(workers, span, since, again.start)
    return [again.start - from - heldUp(inTime, span, from, again.start)]
  })
}

export const judge = (history: History): Verdict => {
  const { effects, left, orders, receipts } = history
  const [wanted, written] = [new Set(orders), new Set(effects)]
  const recoveries = recoveriesOf(history)
  return {
    orders: orders.length,
    attempts: history.runs.length,
    lost: count(orders, (name) => !written.has(name)) + count(receipts, (name) => !wanted.has(name)) + left,
    repeated: effects.length - written.size + count([...written], (name) => !wanted.has(name)),
    duplicated: duplicatedOf(history),
    concurrent: concurrentOf(history),
    overrun: overrunOf(history),
    lapsed: count(history.spans, ({ ended }) => ended?.how === "lapsed"),
    recovered: recoveries.length,
    timeToRecoverMillis: Math.round(Math.max(0, ...recoveries))
  }
}
