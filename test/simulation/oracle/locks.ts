/** Locks: one holder at a time, under tokens that only grow; and one at a time in what a lock is there for. */
import type { Process } from "../world.js"
import { type Change, type Court, num, type Scene } from "./oracle.js"

/** For what takes no time to end: statements that wait for others. */
const slack = 10_000

export const makeLocks = (court: Court) => {
  const { note, world, wrong } = court
  const holders = new Map<string, Process>()
  const ends = new Map<string, number>()
  const inside = new Map<string, { readonly by: Process; readonly stops: number }>()
  let last = 0

  const taken = (scene: Scene, name: string, { after, before }: Change): void => {
    note(scene, `takes the lock ${name} under ${after?.token}`)
    if (before !== undefined && num(before.expires_at) > scene.now)
      wrong(`${scene.by.name} takes the lock ${name}, which ${holders.get(name)?.name} holds`)
    if (num(after?.token) <= last)
      wrong(`the lock ${name} is taken under ${after?.token}, and ${last} was given before`)
    last = Math.max(last, num(after?.token))
    holders.set(name, scene.by)
  }

  return {
    /** Tokens of leases and locks come from one counter. */
    given: (token: number): void => {
      last = Math.max(last, token)
    },
    look: (scene: Scene, change: Change): void => {
      const { after, before } = change
      const name = String((after ?? before)?.name)
      if (after !== undefined) ends.set(`${name} ${scene.by.name}`, num(after.expires_at))
      if (after !== undefined && after.token !== before?.token) {
        taken(scene, name, change)
        return
      }
      const gone = after === undefined && num(before?.expires_at) + num(before?.ttl_ms) <= scene.now
      if (holders.get(name) !== scene.by && !gone)
        wrong(`${scene.by.name} ${after ? "renews" : "frees"} the lock ${name}, which ${holders.get(name)?.name} holds`)
    },
    /** A process is in what the lock is there for, from now on and until it has ended. */
    enters: (name: string, by: Process) => {
      const other = inside.get(name)
      // Who stood still learns of its loss too late: only a token helps there
      if (other !== undefined && other.by.state !== "dead" && other.by.stops === other.stops)
        wrong(`${by.name} has the lock ${name} while ${other.by.name} has it`)
      const mine = { by, stops: by.stops }
      inside.set(name, mine)
      return () => {
        if (inside.get(name) === mine) inside.delete(name)
        const end = ends.get(`${name} ${by.name}`) ?? world.now
        if (world.now > Math.max(end, by.wentOnAt) + slack)
          wrong(`${by.name} goes on for ${world.now - end} ms after the end of its lock ${name}`)
      }
    }
  }
}
