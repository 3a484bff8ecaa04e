/**
 * What is measured, and how much of it.
 */
import type { Contender, Engine, Session } from "./contender.js"

export type Unit = "jobs/s" | "ms" | "% of a core" | "MB"

/** One figure, as a workload gives it. */
export interface Figure {
  readonly workload: string
  readonly value: number
  readonly unit: Unit
  readonly lost: number
  readonly duplicated: number
  readonly [more: string]: unknown
}

/** One figure, as it is printed. */
export interface Line extends Figure {
  readonly round: number
  readonly contender: string
  readonly engine: Engine
  readonly settings: string
}

export interface Sizes {
  readonly serial: number
  readonly inFlight: number
  readonly batches: number
  readonly drain: number
  readonly both: number
  /** Jobs of W4, each way. */
  readonly latency: number
  /** A share of the full clutter of W6. */
  readonly clutter: number
  /** Jobs that come and go in W7 before the drain. */
  readonly pinned: number
  readonly idleSeconds: number
  readonly lockSeconds: number
  readonly memory: number
}

export interface Run {
  readonly contender: Contender
  readonly where: string
  readonly sizes: Sizes
}

export interface Workload {
  readonly name: string
  /** Only on this engine. */
  readonly engine?: Engine
  /** Only of this library. */
  readonly ours?: boolean
  /** Needs `Contender.clutter`. */
  readonly clutter?: boolean
  /** Measured in one round only in the short form. */
  readonly once?: boolean
  /** The workload whose rate, in the same round, is its clean rate. */
  readonly clean?: string
  readonly run: (run: Run, session: Session) => Promise<ReadonlyArray<Figure>>
}

const counts = ["serial", "inFlight", "batches", "drain", "both", "latency", "pinned"] as const

/** The sizes for a contender that does less. */
export const scaled = (sizes: Sizes, { scale = {} }: Contender, workload: string): Sizes => {
  const factor = Object.entries(scale).find(([start]) => workload.startsWith(start))?.[1] ?? 1
  const fewer = Object.fromEntries(counts.map((name) => [name, Math.max(1, Math.round(sizes[name] * factor))]))
  return { ...sizes, ...fewer }
}

export const rate = (workload: string, count: number, millis: number, inbox: { lost: number; duplicated: number }) => ({
  workload,
  value: (count * 1_000) / millis,
  unit: "jobs/s" as const,
  count,
  ...inbox
})
