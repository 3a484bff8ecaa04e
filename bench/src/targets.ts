/**
 * What is asked of this library: a factor over the best peer, a share of the raw limit, of the clean rate, or a bound.
 * Of a factor and a share, the one that asks for less.
 */
import type { Engine } from "./contender.js"

export interface Target {
  /** Times the best peer's figure. */
  readonly peer?: number
  /** Share of the raw limit. */
  readonly raw?: number
  /** Share of its own clean rate. */
  readonly clean?: number
  /** A bound, whatever others do. */
  readonly atMost?: number
  /** The less the better. */
  readonly lower?: boolean
}

const rate = (peer: number): Target => ({ peer, raw: 0.8 })
const time = (peer: number): Target => ({ peer, raw: 0.8, lower: true })
const ofClean = (clean: number): Target => ({ clean })
const atMost = (bound: number): Target => ({ atMost: bound, lower: true })

const both: Readonly<Record<string, Target>> = {
  "W6-clean": ofClean(0.9),
  "W6-delayed": ofClean(0.9),
  "W6-finished": ofClean(0.9),
  "W6-ready": ofClean(0.9),
  "W6-other": ofClean(0.9)
}

const targets: Readonly<Record<Engine, Readonly<Record<string, Target>>>> = {
  postgres: {
    ...both,
    "W1-serial": rate(1.2),
    "W1-10": rate(5),
    W2: rate(1.6),
    W3: rate(1.3),
    "W4-same p50": time(0.8),
    "W4-cross p50": time(0.8),
    W5: rate(4),
    W7: ofClean(0.8)
  },
  sqlite: {
    ...both,
    "W1-serial": rate(1),
    "W1-10": rate(1.3),
    W2: { raw: 0.6 },
    W3: rate(1.5),
    "W4-same p50": time(0.5),
    "W4-cross p50": time(0.9),
    W5: rate(1.5),
    idle: atMost(0.3),
    loop: atMost(20)
  }
}

export const targetOf = (engine: Engine, workload: string): Target | undefined => targets[engine][workload]

/** The figure to reach, if what it depends on was measured. */
export const limitOf = (target: Target, raw: number | undefined, peer: number | undefined): number | undefined => {
  if (target.atMost !== undefined) return target.atMost
  const share = target.raw ?? 1
  const candidates = [
    ...(target.peer === undefined || peer === undefined ? [] : [peer * target.peer]),
    ...(target.raw === undefined || raw === undefined ? [] : [target.lower === true ? raw / share : raw * share])
  ]
  if (candidates.length === 0) return undefined
  return target.lower === true ? Math.max(...candidates) : Math.min(...candidates)
}

export const inWords = ({ atMost: bound, clean, lower, peer, raw }: Target): string => {
  if (bound !== undefined) return `≤ ${bound}`
  if (clean !== undefined) return `≥ ${clean} × its clean rate`
  const sign = lower === true ? "≤" : "≥"
  const limit = raw === undefined ? undefined : lower === true ? `raw / ${raw}` : `${raw} × raw`
  return `${sign} ${[peer === undefined ? undefined : `${peer} × best peer`, limit].filter(Boolean).join(" or ")}`
}
