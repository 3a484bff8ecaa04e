/**
 * What is to be measured, of whom, in which order and how much of it.
 */
import { parseArgs } from "node:util"
import type { Contender, Engine } from "./contender.js"
import { contenders } from "./contenders.js"
import type { Sizes, Workload } from "./figure.js"
import { workloads } from "./workloads.js"

const short: Sizes = {
  serial: 500,
  inFlight: 5_000,
  batches: 30_000,
  drain: 20_000,
  both: 2_000,
  latency: 30,
  clutter: 0.1,
  pinned: 20_000,
  idleSeconds: 3,
  lockSeconds: 3,
  memory: 100_000
}

const full: Sizes = {
  serial: 2_000,
  inFlight: 10_000,
  batches: 100_000,
  drain: 20_000,
  both: 3_000,
  latency: 200,
  clutter: 1,
  pinned: 40_000,
  idleSeconds: 10,
  lockSeconds: 3,
  memory: 1_000_000
}

/** SQLite does so much more in a second that less would be over before it can be timed. */
const more: Partial<Sizes> = { serial: 5_000, inFlight: 10_000, batches: 50_000, both: 4_000 }
const muchMore: Partial<Sizes> = { serial: 20_000, inFlight: 40_000, batches: 200_000, both: 20_000 }

const sizesOf = (isFull: boolean, given: Partial<Sizes>): Plan["sizes"] => ({
  postgres: { ...(isFull ? full : short), ...given },
  sqlite: isFull ? { ...full, ...muchMore, ...given } : { ...short, ...more, ...given }
})

export interface Plan {
  readonly full: boolean
  readonly rounds: number
  readonly sizes: Readonly<Record<Engine, Sizes>>
  readonly contenders: ReadonlyArray<Contender>
  readonly workloads: ReadonlyArray<Workload>
  /** Where CPU profiles go, if any are wanted. */
  readonly prof: string | undefined
  /** How long one measurement may take. */
  readonly timeoutMillis: number
}

/** `W3` for W3, `W1` for all of W1; what is compared with a clean rate needs that rate too. */
const chosen = (only: string | undefined): ReadonlyArray<Workload> => {
  const starts = only?.split(",") ?? [""]
  const wanted = new Set(workloads.filter(({ name }) => starts.some((start) => name.startsWith(start))))
  // A Set's loop comes to what is added meanwhile
  for (const { clean } of wanted) {
    const needed = workloads.find(({ name }) => name === clean)
    if (needed !== undefined) wanted.add(needed)
  }
  return workloads.filter((workload) => wanted.has(workload))
}

export const readPlan = (args: ReadonlyArray<string>): Plan => {
  const { values } = parseArgs({
    args: [...args],
    options: {
      full: { type: "boolean", default: false },
      rounds: { type: "string", default: "3" },
      engine: { type: "string" },
      only: { type: "string" },
      contender: { type: "string" },
      sizes: { type: "string", default: "{}" },
      prof: { type: "string" }
    }
  })
  const names = values.contender?.split(",")
  return {
    full: values.full,
    rounds: Number(values.rounds),
    sizes: sizesOf(values.full, JSON.parse(values.sizes) as Partial<Sizes>),
    contenders: contenders.filter(
      ({ engine, name }) => (values.engine ?? engine) === engine && (names === undefined || names.includes(name))
    ),
    workloads: chosen(values.only),
    prof: values.prof,
    timeoutMillis: values.full ? 1_800_000 : 120_000
  }
}

/** Why this is not measured; `""` without a word, since it was never meant to be. */
export const reasonAgainst = (contender: Contender, workload: Workload): string | undefined => {
  const { name } = workload
  if ((workload.engine ?? contender.engine) !== contender.engine) return ""
  if (workload.ours === true && contender.ours !== true) return ""
  if (contender.only?.every((start) => !name.startsWith(start)) === true) return ""
  const reason = Object.entries(contender.without ?? {}).find(([start]) => name.startsWith(start))?.[1]
  return reason ?? (workload.clutter === true && contender.clutter === undefined ? "no clutter" : undefined)
}

/** Nobody always comes first, or always after the same one. */
const rotated = <A>(all: ReadonlyArray<A>, by: number): ReadonlyArray<A> => {
  const turned = [...all.slice(by % all.length), ...all.slice(0, by % all.length)]
  return by % 2 === 0 ? turned : turned.reverse()
}

/** A round's measurements, in order. */
export const measurements = (plan: Plan, round: number) =>
  plan.workloads
    .filter(({ once }) => once !== true || round === 0 || plan.full)
    .flatMap((workload, index) =>
      rotated(
        plan.contenders.filter((contender) => reasonAgainst(contender, workload) === undefined),
        round + index
      ).map((contender) => ({ workload, contender }))
    )
