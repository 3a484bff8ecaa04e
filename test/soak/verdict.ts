/** What the measurements of all calm windows say together. */
import type { Sample } from "./measure.js"

/** One calm window. */
export interface Window {
  /** Jobs that had been accounted for until then. */
  readonly jobs: number
  readonly resident: Sample
  readonly producer: Sample
  readonly rows: Readonly<Record<string, number>>
  readonly tables: number
  readonly log: number
  readonly connections: Readonly<Record<string, number>>
  readonly processes: number
}

export interface Verdict {
  readonly name: string
  readonly pass: boolean
  readonly detail: string
}

const megabyte = 1024 * 1024
const mb = (bytes: number): string => `${(bytes / megabyte).toFixed(1)} MB`

const median = (values: ReadonlyArray<number>): number => {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor((sorted.length - 1) / 2)] ?? Number.NaN
}

/** The medians of the first and of the last third after the warm-up; with few windows these are one window each. */
const trend = (values: ReadonlyArray<number>) => {
  const warm = values.slice(values.length >= 6 ? Math.ceil(values.length / 5) : Math.min(1, values.length - 2))
  const third = Math.max(1, Math.floor(warm.length / 3))
  return { first: median(warm.slice(0, third)), last: median(warm.slice(-third)) }
}

const flat = (
  name: string,
  values: ReadonlyArray<number>,
  { factor, plus }: { readonly factor: number; readonly plus: number },
  show: (value: number) => string = String
): Verdict => {
  const { first, last } = trend(values)
  const limit = first * factor + plus
  return {
    name,
    pass: last <= limit,
    detail: `${show(first)} at first, ${show(last)} at last; at most ${show(limit)} (${factor} x + ${show(plus)})`
  }
}

/** What is kept of each job by mistake adds up; what is allowed besides is what a young heap still learns. */
const leastNoise = 2 * megabyte
const mostPerJob = 100

const perJob = (name: string, values: ReadonlyArray<number>, jobs: ReadonlyArray<number>): Verdict => {
  const { first, last } = trend(values)
  const done = trend(jobs)
  const limit = leastNoise + mostPerJob * (done.last - done.first)
  return {
    name,
    pass: last - first <= limit,
    detail: `${mb(last - first)} more after ${done.last - done.first} jobs more; at most ${mb(limit)}`
  }
}

const bounded = (name: string, values: ReadonlyArray<number>, limit: number): Verdict => {
  const most = Math.max(...values)
  return { name, pass: most <= limit, detail: `at most ${most}; allowed: ${limit}` }
}

/** SQLite: what other processes were told of; the oldest are forgotten. */
const mostWakes = 1_100

/** Tables that are empty when nothing is to be done. The rest may hold no more than at the first window. */
const emptied = /(^|_)(jobs|dead_letters|completed_jobs|dedupe_keys|lane_marks|lane_blocks|ended_locks|imports)$/

/** What is held for a moment, nothing to do or not: the locks of the sweep and of the scheduler. */
const mostLocks = 2

const limits = [
  [emptied, 0],
  [/(^|_)locks$/, mostLocks],
  [/wakes$/, mostWakes]
] as const

const tablesVerdict = (windows: ReadonlyArray<Window>): ReadonlyArray<Verdict> => {
  const names = Object.keys(windows[0]?.rows ?? {})
  return names.map((name) => {
    const counts = windows.map(({ rows }) => rows[name] ?? 0)
    const limit = limits.find(([table]) => table.test(name))?.[1] ?? counts[0] ?? 0
    return bounded(`rows of ${name.replace(/^_alkstore_/, "")}`, counts, limit)
  })
}

const processVerdicts = (name: string, samples: ReadonlyArray<Sample>, sockets: number): ReadonlyArray<Verdict> => [
  flat(
    `heap of the ${name}`,
    samples.map(({ heap }) => heap),
    { factor: 1.1, plus: 4 * megabyte },
    mb
  ),
  flat(
    `RSS of the ${name}`,
    samples.map(({ rss }) => rss),
    { factor: 1.3, plus: 40 * megabyte },
    mb
  ),
  flat(
    `fibers of the ${name}`,
    samples.map(({ fibers }) => fibers),
    { factor: 1, plus: 2 }
  ),
  flat(
    `timers of the ${name}`,
    samples.map(({ timers }) => timers),
    { factor: 1, plus: 2 }
  ),
  bounded(
    `sockets of the ${name}`,
    samples.map((sample) => sample.sockets),
    sockets
  )
]

/** Own connections of a process on PostgreSQL: two, and one that listens. */
const own = { alkstore: 2, "alkstore-wake": 1 }

const connectionVerdicts = (windows: ReadonlyArray<Window>): ReadonlyArray<Verdict> => [
  ...Object.entries(own).map(([name, each]) => {
    const most = Math.max(...windows.map(({ connections, processes }) => (connections[name] ?? 0) - each * processes))
    return { name: `connections: ${name}`, pass: most <= 0, detail: `${each} for each process; over that: ${most}` }
  }),
  bounded(
    "connections: the application's",
    windows.map(({ connections }) => connections.soak ?? 0),
    0
  )
]

export const judge = (engine: "postgres" | "sqlite", windows: ReadonlyArray<Window>): ReadonlyArray<Verdict> => {
  const sockets = engine === "postgres" ? 3 : 0
  // The producer's process is the proxy too, with two sockets for each connection
  const proxied = Math.max(...windows.map(({ processes }) => processes)) * sockets * 2
  return [
    ...processVerdicts(
      "resident worker",
      windows.map(({ resident }) => resident),
      sockets
    ),
    ...processVerdicts(
      "producer",
      windows.map(({ producer }) => producer),
      sockets + proxied
    ),
    ...tablesVerdict(windows),
    flat(
      "size of the tables",
      windows.map(({ tables }) => tables),
      { factor: 1.5, plus: 16 * megabyte },
      mb
    ),
    flat(
      "size of the log",
      windows.map(({ log }) => log),
      { factor: 1.5, plus: 16 * megabyte },
      mb
    ),
    perJob(
      "heap per job: resident worker",
      windows.map(({ resident }) => resident.heap),
      windows.map(({ jobs }) => jobs)
    ),
    perJob(
      "heap per job: producer",
      windows.map(({ producer }) => producer.heap),
      windows.map(({ jobs }) => jobs)
    ),
    ...(engine === "postgres" ? connectionVerdicts(windows) : [])
  ]
}

interface Closed {
  readonly resident: Sample | undefined
  readonly producer: Sample
  readonly rows: Readonly<Record<string, number>>
  readonly connections: Readonly<Record<string, number>>
}

/** After every scope has closed. */
export const closedVerdicts = ({ connections, producer, resident, rows }: Closed): ReadonlyArray<Verdict> => {
  const left = Object.entries(rows).filter(
    ([name, count]) => (emptied.test(name) || /(^|_)locks$/.test(name)) && count > 0
  )
  const open = Object.entries(connections).filter(([name]) => name !== "onlooker")
  return [
    // The one that waits for this measurement to be over
    bounded("closed: fibers of the resident", [resident?.fibers ?? Number.POSITIVE_INFINITY], 0),
    bounded("closed: timers of the resident", [resident?.timers ?? Number.POSITIVE_INFINITY], 1),
    bounded("closed: sockets of the resident", [resident?.sockets ?? Number.POSITIVE_INFINITY], 0),
    bounded("closed: fibers of the producer", [producer.fibers], 0),
    { name: "closed: tables", pass: left.length === 0, detail: JSON.stringify(Object.fromEntries(left)) },
    { name: "closed: connections", pass: open.length === 0, detail: JSON.stringify(Object.fromEntries(open)) }
  ]
}
