/**
 * One life of the fleet, from a seed: days of calls and of trouble around a night in which clocks change, then rest, by
 * the end of which everything must have come to its end.
 */

import { Schedules } from "alkstore"
import { globalValue } from "effect/GlobalValue"
import { makeClients } from "./clients.js"
import type { FaultKind } from "./faults.js"
import { Fleet } from "./fleet.js"
import { makeNemesis } from "./nemesis.js"
import { makeOracle } from "./oracle/oracle.js"
import { schedules } from "./queues.js"
import { World } from "./world.js"

const minute = 60_000
const hour = 60 * minute
const day = 24 * hour

/** By then all delays have passed and all leases have ended, and everything has been looked for. */
const patience = 12 * hour

/** When the clocks of Berlin and New York change, both ways: in the middle of each life. */
const changes = ["2026-03-08T07:00Z", "2026-03-29T01:00Z", "2026-10-25T01:00Z", "2026-11-01T06:00Z"].map(Date.parse)

export interface Life {
  readonly seed: number
  /** Virtual days, rest not counted. */
  readonly days: number
  /** Calls a day, and troubles of processes. */
  readonly calls: number
  readonly troubles: number
}

export interface Report {
  readonly trace: ReadonlyArray<string>
  readonly errors: ReadonlyArray<string>
  readonly jobs: number
  readonly boundaries: number
  readonly calls: number
  readonly ends: ReadonlyMap<string, number>
  readonly faults: ReadonlyMap<FaultKind, number>
  /** Virtual milliseconds until nothing was left. */
  readonly drained: number
}

/** What a life of each form is like: of the long form every tenth is long, so that what takes days has its time. */
export const lifeOf = (seed: number, long: boolean): Life => {
  if (!long) return { seed, days: 0.036, calls: 700, troubles: 200 }
  return seed % 10 === 0 ? { seed, days: 2, calls: 200, troubles: 60 } : { seed, days: 0.15, calls: 500, troubles: 150 }
}

/** Things that happen again and again, as chance will have it. */
const recurring = (world: World, until: number, perDay: number, happen: () => void): void => {
  const next = () => {
    const wait = Math.ceil((-Math.log(1 - world.chance.below(1_000_000) / 1_000_000) * day) / perDay)
    if (world.now + wait < until) {
      world.after(wait, () => {
        happen()
        next()
      })
    }
  }
  next()
}

/**
 * Fibers of processes that were killed never end, and Effect would keep them as roots for ever: with them, the world.
 * `Effect.never` holds an interval of Node's, which nobody would clear. Stacks of injected errors are read by nobody.
 */
const leavingNothing = <A>(run: () => A): A => {
  const { roots } = globalValue(Symbol.for("effect/FiberScope/Global"), () => ({ roots: new Set<unknown>() }))
  const before = new Set(roots)
  const { clearInterval, setInterval } = globalThis
  const { stackTraceLimit } = Error
  globalThis.setInterval = (() => undefined) as unknown as typeof setInterval
  globalThis.clearInterval = () => {}
  Error.stackTraceLimit = 0
  try {
    return run()
  } finally {
    Object.assign(globalThis, { clearInterval, setInterval })
    Error.stackTraceLimit = stackTraceLimit
    for (const root of roots) if (!before.has(root)) roots.delete(root)
  }
}

export const simulate = (life: Life): Report => leavingNothing(() => live(life))

const live = ({ calls, days, seed, troubles }: Life): Report => {
  const world = new World(seed, 0)
  world.now = world.chance.pick(changes) - world.chance.between(days * 0.2 * day, days * 0.6 * day)
  const start = world.now
  const oracle = makeOracle(world)
  const fleet = new Fleet(world, oracle)
  try {
    fleet.migrate()
    for (const host of fleet.hosts) world.after(world.chance.between(1, 30_000), () => fleet.start(host))
    const clients = makeClients(fleet)
    const nemesis = makeNemesis(fleet)
    fleet.ambush = nemesis.ambush
    const end = start + days * day
    const failed = () => oracle.errors.length > 0
    for (const schedule of schedules)
      world.after(world.chance.between(40_000, 90_000), () =>
        clients.anybody(() => Schedules.put(schedule), `put ${schedule.name}`)
      )
    recurring(world, end, calls, clients.act)
    recurring(world, end, troubles, nemesis.strike)
    world.advance(end, failed)

    world.note("world", "comes to rest")
    fleet.faults.over = true
    fleet.silent = seed % 2 === 0
    for (const { process } of fleet.hosts) process?.go()
    const since = world.now
    for (let looks = 0; looks < 6 && !failed(); looks++) {
      world.advance(world.now + 10 * minute, failed)
      if (!failed())
        oracle.neglectsNothing(
          since,
          fleet.able().flatMap(({ process }) => process ?? [])
        )
    }
    if (!failed()) oracle.owesNothing()
    // Nothing new from here on
    for (const schedule of schedules) clients.anybody(() => Schedules.remove(schedule.name), `remove ${schedule.name}`)
    const rest = world.now
    const idle = () => [...oracle.jobs.values()].every(({ endedIn }) => endedIn !== undefined)
    while (!failed() && !idle() && world.now < rest + patience) {
      clients.letGo()
      world.advance(world.now + 10 * minute, failed)
    }
    if (!failed()) oracle.atRest((text) => fleet.database.look(text))
    const ends = new Map<string, number>()
    for (const { end = "alive" } of oracle.jobs.values()) ends.set(end, (ends.get(end) ?? 0) + 1)
    return {
      trace: world.trace,
      errors: oracle.errors,
      jobs: oracle.jobs.size,
      boundaries: oracle.fired.size,
      calls: clients.calls(),
      ends,
      faults: fleet.faults.counts,
      drained: world.now - rest
    }
  } finally {
    fleet.database.close()
  }
}
