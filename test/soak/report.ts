/** The end of a soak, as text. */
import type { Totals } from "./account.js"
import type { Verdict, Window } from "./verdict.js"

interface Report {
  readonly verdicts: ReadonlyArray<Verdict>
  readonly violations: ReadonlyArray<string>
  readonly totals: Totals
  readonly faults: Readonly<Record<string, number>>
  readonly windows: ReadonlyArray<Window>
}

/** Enough to see what is wrong. */
const mostViolations = 20

export const countsOf = (counts: Readonly<Record<string, number>>): string =>
  Object.entries(counts)
    .map(([name, count]) => `${name} ${count}`)
    .join(", ")

const megabytes = (bytes: number): string => (bytes / 1024 / 1024).toFixed(1).padStart(7)

/** One line for each calm window. */
const table = (windows: ReadonlyArray<Window>): ReadonlyArray<string> => [
  "  window    jobs  heap MB   rss MB fibers timers sockets | producer: heap  fibers timers | tables MB  log MB",
  ...windows.map(({ jobs, log, producer, resident, tables }, n) =>
    [
      `  ${String(n + 1).padStart(6)} ${String(jobs).padStart(7)}`,
      `${megabytes(resident.heap)}  ${megabytes(resident.rss)} ${String(resident.fibers).padStart(6)} ${String(resident.timers).padStart(6)} ${String(resident.sockets).padStart(7)} |`,
      `      ${megabytes(producer.heap)} ${String(producer.fibers).padStart(7)} ${String(producer.timers).padStart(6)} |`,
      `  ${megabytes(tables)} ${megabytes(log)}`
    ].join(" ")
  )
]

export const reportOf = ({ faults, totals, verdicts, violations, windows }: Report): ReadonlyArray<string> => [
  ...table(windows),
  `faults: ${countsOf(faults)}`,
  `jobs: ${countsOf({ ...totals })}`,
  ...violations.slice(0, mostViolations).map((violation) => `VIOLATION: ${violation}`),
  ...(violations.length > mostViolations ? [`… and ${violations.length - mostViolations} more`] : []),
  ...verdicts.map(({ detail, name, pass }) => `${pass ? "ok  " : "FAIL"}  ${name.padEnd(34)} ${detail}`),
  verdicts.every(({ pass }) => pass) ? "All is accounted for, and nothing has grown." : "NOT as it should be."
]
