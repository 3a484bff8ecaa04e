/**
 * The table at the end: medians, our ratios, the targets.
 */
import type { Contender, Engine } from "./contender.js"
import type { Line, Unit } from "./figure.js"
import { inWords, limitOf, type Target, targetOf } from "./targets.js"

const median = (values: ReadonlyArray<number>): number | undefined => {
  const sorted = [...values].sort((a, b) => a - b)
  const [low, high] = [sorted[Math.floor((sorted.length - 1) / 2)], sorted[Math.floor(sorted.length / 2)]]
  return low === undefined || high === undefined ? undefined : (low + high) / 2
}

const digits: Readonly<Record<Unit, number>> = { "jobs/s": 0, ms: 2, "% of a core": 2, MB: 1 }

const shown = (value: number | undefined, unit: Unit): string =>
  value?.toLocaleString("en-US", { minimumFractionDigits: digits[unit], maximumFractionDigits: digits[unit] }) ?? "–"

interface Cell {
  readonly contender: Contender
  readonly value: number | undefined
  /** Of the clean rate of the same round. */
  readonly ofClean: number | undefined
}

const cellOf = (contender: Contender, lines: ReadonlyArray<Line>): Cell => {
  const own = lines.filter((line) => line.contender === contender.name)
  const ratios = own.flatMap(({ ofClean }) => (typeof ofClean === "number" ? [ofClean] : []))
  return { contender, value: median(own.map(({ value }) => value)), ofClean: median(ratios) }
}

const bestOf = (cells: ReadonlyArray<Cell>, lower: boolean) =>
  cells
    .filter(({ contender, value }) => contender.raw !== true && contender.ours !== true && value !== undefined)
    .sort((a, b) => ((a.value ?? 0) - (b.value ?? 0)) * (lower ? 1 : -1))[0]

/** Whether it is met; `undefined` if there is nothing to compare. */
const isMet = (target: Target, ours: Cell, limit: number | undefined): boolean | undefined => {
  if (target.clean !== undefined) return ours.ofClean === undefined ? undefined : ours.ofClean >= target.clean
  if (limit === undefined || ours.value === undefined) return undefined
  return target.lower === true ? ours.value <= limit : ours.value >= limit
}

const ratio = (ours: number | undefined, other: number | undefined) =>
  ours === undefined || other === undefined || other <= 0 ? "–" : (ours / other).toFixed(2)

const row = (engine: Engine, workload: string, lines: ReadonlyArray<Line>, contenders: ReadonlyArray<Contender>) => {
  const unit = lines[0]?.unit ?? "ms"
  const cells = contenders.map((contender) => cellOf(contender, lines))
  const ours = cells.find(({ contender }) => contender.ours === true)
  const raw = cells.find(({ contender }) => contender.raw === true)?.value
  const best = bestOf(cells, unit !== "jobs/s")
  const target = targetOf(engine, workload)
  const limit = target === undefined ? undefined : limitOf(target, raw, best?.value)
  const met = target === undefined || ours === undefined ? undefined : isMet(target, ours, limit)
  const values = cells.map(
    ({ ofClean, value }) => shown(value, unit) + (ofClean === undefined ? "" : ` (${ofClean.toFixed(2)})`)
  )
  const peer = best === undefined ? "–" : `${ratio(ours?.value, best.value)} (${best.contender.name})`
  const goal =
    target === undefined
      ? ""
      : inWords(target) + (limit === undefined || target.atMost !== undefined ? "" : ` = ${shown(limit, unit)}`)
  const verdict = met === undefined ? "" : met ? "yes" : "NO"
  return [`${workload}, ${unit}`, ...values, ratio(ours?.value, raw), peer, goal, verdict]
}

const table = (rows: ReadonlyArray<ReadonlyArray<string>>): string => {
  const [head = [], ...body] = rows
  const line = (cells: ReadonlyArray<string>) => `| ${cells.join(" | ")} |`
  return [line(head), line(head.map((_, n) => (n === 0 ? "---" : "---:"))), ...body.map(line)].join("\n")
}

/** A table for each engine; in parentheses, the share of the clean rate. */
export const report = (lines: ReadonlyArray<Line>, contenders: ReadonlyArray<Contender>): string =>
  (["postgres", "sqlite"] as const)
    .map((engine) => ({ engine, own: lines.filter((line) => line.engine === engine) }))
    .filter(({ own }) => own.length > 0)
    .map(({ engine, own }) => {
      const present = contenders.filter(
        (contender) => contender.engine === engine && own.some((line) => line.contender === contender.name)
      )
      const names = present.map(({ name }) => name)
      const head = [engine, ...names, "ours / raw", "ours / best peer", "target", "met"]
      const rows = [...new Set(own.map(({ workload }) => workload))].map((workload) =>
        row(
          engine,
          workload,
          own.filter((line) => line.workload === workload),
          present
        )
      )
      return table([head, ...rows])
    })
    .join("\n\n")
