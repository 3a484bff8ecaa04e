/**
 * Handlers: one of a job at a time; no longer than its lease, its timeout and a cancellation allow; and what it says at
 * its end is what becomes of the job. Of a process that something has just befallen, less is asked.
 */
import { timeoutMillis, visibility } from "../queues.js"
import type { Process } from "../world.js"
import type { Court, Handling } from "./oracle.js"

/** For what takes no time to end: statements that wait for others. */
const slack = 10_000

/** A beat is a third of a lease. */
const beat = (visibility.most * 1_000) / 3

export const makeHandlings = (court: Court) => {
  const { handlings, jobs, leases, world, wrong } = court
  /** Whose end has not come. */
  const running = new Set<Handling>()
  const cancelledAt = new Map<number, number>()

  /** Another handler of the job may be at it still only where a process stood still or a handler would not end. */
  const started = (mine: Handling): void => {
    const { by, id, token } = mine
    for (const other of running) {
      if (other.by.state === "dead") running.delete(other)
      else if (
        other.id === id &&
        other.by.stops === other.stops &&
        other.kind !== "stubborn" &&
        other.said === undefined
      )
        wrong(`${by.name} runs ${id} under ${token} while ${other.by.name} runs it under ${other.token}`)
    }
    running.add(mine)
    const slot = mine.kind === "hand" ? undefined : by.slots.get(String(jobs.get(id)?.queue))
    if (slot === undefined) return
    if (mine.kind === "worker" && ++slot.running > slot.size)
      wrong(`${by.name} runs ${slot.running} handlers of ${jobs.get(id)?.queue} at once`)
  }

  /** A worker whose handlers are deaf to interrupts may have given up: then it drains, and is started again. */
  const hasDeaf = (by: Process, queue: string | undefined): boolean =>
    [...running].some(({ by: other, id, kind }) => other === by && kind === "stubborn" && jobs.get(id)?.queue === queue)

  /** Whoever interrupts a handler has a reason: leases of a process that nothing befalls are renewed. */
  const interrupted = ({ by, id, startedAt, token, troubles }: Handling): void => {
    if (by.troubles !== troubles || hasDeaf(by, jobs.get(id)?.queue)) return
    const row = jobs.get(id)?.row
    if (row?.cancel_requested_at !== null && row?.token === token) return
    if (world.now - startedAt < timeoutMillis && row?.token === token)
      wrong(`${by.name} interrupts ${id} under ${token} for no reason`)
  }

  /** It ended by itself: nobody had a reason to interrupt it before. */
  const ended = ({ by, id, startedAt, token }: Handling): void => {
    const { now } = world
    const late = (what: string, at: number) => {
      if (now > Math.max(at, by.wentOnAt) + slack)
        wrong(`${by.name} lets the handler of ${id} under ${token} go on for ${now - at} ms after ${what}`)
    }
    const end = leases.get(token) ?? now
    // While the process itself writes, nobody can take the job
    if (by.wroteUntil < end - slack) late("its lease", end)
    late("its timeout", startedAt + timeoutMillis)
    const asked = cancelledAt.get(token)
    if (asked !== undefined) late("its cancellation", Math.max(asked, startedAt, by.troubledAt) + beat)
  }

  return {
    started,
    hasDeaf,
    ended: (handling: Handling): void => {
      running.delete(handling)
      const slot = handling.by.slots.get(String(jobs.get(handling.id)?.queue))
      if (slot !== undefined && handling.kind === "worker") slot.running--
      if (handling.kind !== "worker") return
      if (handling.said?._tag === "interrupted") interrupted(handling)
      else ended(handling)
    },
    /** A cancellation of the job that is held under a token. */
    cancels: (token: number): void => void cancelledAt.set(token, world.now),
    /** A process has been told of what is asked of a queue's handlers, a while ago. */
    obeys: (by: Process, queue: string, since: number): void => {
      for (const { by: other, id, kind, said, token } of running) {
        const asked = cancelledAt.get(token)
        if (other !== by || jobs.get(id)?.queue !== queue || kind !== "worker" || said !== undefined) continue
        if (asked !== undefined && asked <= since && jobs.get(id)?.row.token === token)
          wrong(`${by.name} was told that ${id} is cancelled, and goes on with it`)
      }
    },
    /** It has ended in peace: what its workers held, they have given back. */
    leaves: (by: Process): void => {
      for (const { holder, id, row } of court.live()) {
        const last = handlings.get(Number(row.token))
        if (holder === by && row.worker !== "manual" && last?.kind !== "stubborn")
          wrong(`${by.name} has ended and holds ${id} under ${row.token}`)
      }
    }
  }
}

export type Handlings = ReturnType<typeof makeHandlings>
