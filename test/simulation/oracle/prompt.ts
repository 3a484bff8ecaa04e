/**
 * Promptness: what becomes ready is told; whoever is told, and has a hand free, takes it; and what nobody was told of
 * is found all the same, in the time of a look. Of a process that something has just befallen, less is asked.
 */
import type { Row } from "../database.js"
import { visibility } from "../queues.js"
import type { Process } from "../world.js"
import type { Handlings } from "./handlings.js"
import { type Change, type Court, type Job, num, type Scene } from "./oracle.js"

/** So soon. */
const moment = 3_000
/** A worker that has met an error tries again by then. */
const recovery = 10_000

export const makePrompt = (court: Court, { hasDeaf, obeys }: Pick<Handlings, "hasDeaf" | "obeys">) => {
  const { paused, world, wrong } = court

  const isReady = ({ queue, row }: Job, at: number): boolean =>
    row.token === null &&
    row.visible_at !== null &&
    num(row.visible_at) <= at &&
    (row.expires_at === null || num(row.expires_at) > world.now) &&
    !paused.has(queue) &&
    (court.resumedAt.get(queue) ?? at) <= at

  const readyOf = (queue: string, at: number) => court.live().filter((job) => job.queue === queue && isReady(job, at))

  /** Whether it has a hand free, and has had it for a moment. */
  const isFree = (by: Process, queue: string): boolean => {
    const slot = by.slots.get(queue)
    if (
      slot === undefined ||
      hasDeaf(by, queue) ||
      (court.fullAt.get(`${by.name} ${queue}`) ?? 0) >= world.now - moment
    )
      return false
    const held = court.live().filter((job) => job.queue === queue && job.holder === by).length
    return Math.max(held, slot.running) < slot.size
  }

  const isWell = (by: Process, since: number) => by.state === "running" && by.troubledAt < since - recovery

  const told = (by: Process, topics: ReadonlyArray<string>): void => {
    const since = world.now
    const names = topics.filter((topic) => by.slots.has(topic.replace(/^!/, "")))
    if (names.length === 0 || !isWell(by, since)) return
    const ready = names.flatMap((name) => readyOf(name, since))
    if (ready.length === 0 && !names.some((name) => name.startsWith("!"))) return
    world.after(moment, () => {
      if (!isWell(by, since) || by.leaving) return
      for (const name of names) if (name.startsWith("!")) obeys(by, name.slice(1), since)
      for (const job of ready)
        if (job.endedIn === undefined && isReady(job, since) && isFree(by, job.queue))
          wrong(`${by.name} was told of ${job.id} of ${job.queue}, and has a hand free, and does not take it`)
    })
  }

  /** Whether what a change makes ready is claimed in the same commit. */
  const isTaken = (changes: ReadonlyArray<Change>, { after: ready }: Change): boolean =>
    changes.some(({ after, before }) => before !== undefined && after?.id === ready?.id && after?.token !== null)

  /** Whether a change makes a job ready that was not. */
  const becomesReady = ({ after, before }: Change, now: number): boolean => {
    const ready = (row: Row | undefined) =>
      row !== undefined && row.token === null && row.visible_at !== null && num(row.visible_at) <= now
    return ready(after) && !ready(before)
  }

  /** What a process makes ready, it tells. */
  const look = ({ by, changes, now }: Scene): void => {
    const topics = new Set(
      changes
        .filter((change) => change.table === "jobs" && becomesReady(change, now) && !isTaken(changes, change))
        .map(({ after }) => after?.queue)
    )
    for (const topic of topics)
      world.after(moment, () => {
        if (isWell(by, now) && !by.leaving && (by.rang.get(String(topic)) ?? 0) < now)
          wrong(`${by.name} makes a job of ${topic} ready, and tells nobody`)
      })
  }

  return {
    told,
    look,
    /** Nothing has gone wrong since then: what is ready or has lapsed has been found by whoever has a hand free. */
    neglects: (since: number, able: ReadonlyArray<Process>): void => {
      const long = visibility.most * 1_000 + 60_000
      const at = world.now - long
      if (at < since) return
      for (const job of court.live()) {
        const { id, queue, row } = job
        const lapsed = row.token !== null && num(row.visible_at) <= at
        if (!lapsed && !isReady(job, at)) continue
        const idle = able.find((by) => by.startedAt < at && isFree(by, queue))
        if (idle !== undefined)
          wrong(`${id} of ${queue} is ${lapsed ? "lapsed" : "ready"} for long, and ${idle.name} has a hand free`)
      }
    }
  }
}
