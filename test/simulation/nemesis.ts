/** What befalls whole processes and clocks. */
import type { Fleet } from "./fleet.js"
import type { Process } from "./world.js"

const second = 1_000
const minute = 60_000

export const makeNemesis = (fleet: Fleet) => {
  const { faults, world } = fleet
  const { chance } = world

  const stop = (process: Process) => {
    if (process.state !== "running") return
    faults.count("stopped")
    // All others would do nothing but try again and again to write
    const long = fleet.database.isWriting(process) ? 0 : 3
    const millis = chance.weighted([
      [2, chance.between(100, (long ? 20 : 8) * second)],
      [long, chance.between(20 * second, 12 * minute)]
    ])
    world.note(process.name, `stands still for ${millis} ms`)
    process.stop()
    world.after(millis, () => {
      if (process.state !== "stopped") return
      world.note(process.name, "goes on")
      process.go()
    })
  }

  const kill = (process: Process) => {
    faults.count("killed")
    faults.kill(process)
  }

  const deploy = (process: Process) => {
    const host = fleet.able().find((able) => able.process === process)
    if (host !== undefined) fleet.shutDown(host)
  }

  const cutOff = (process: Process) => faults.cutOff(process, chance.between(second, 10 * minute))

  /** On one process. */
  const strikeAt = (process: Process | undefined): void => {
    if (process === undefined || process.state === "dead" || faults.over) return
    chance.weighted([
      [5, stop],
      [3, kill],
      [3, deploy],
      [3, cutOff]
    ])(process)
  }

  const step = () => {
    const host = chance.pick(fleet.hosts)
    const by = chance.pick([-3_600_000, -61_000, -900, 900, 61_000, 3_600_000])
    faults.count("clock step")
    host.skew += by
    if (host.process === undefined) return
    world.note(host.process.name, `its clock is set by ${by} ms`)
    host.process.skew = host.skew
  }

  const spurious = () => {
    faults.count("wake spurious")
    for (const { process, wakes } of fleet.hosts) if (process?.state === "running") wakes?.wakeAll()
  }

  return {
    strike: () =>
      chance.weighted([
        [10, () => strikeAt(chance.pick(fleet.hosts).process)],
        [2, step],
        [1, spurious]
      ])(),
    /** Most of the time nobody does anything: trouble that is to matter comes while a handler runs. */
    ambush: (process: Process, long: boolean) => {
      if (!faults.over && chance.happens(long ? 0.35 : 0.06))
        world.after(chance.between(1, (long ? 240 : 25) * second), () => strikeAt(process))
    }
  }
}
