/** What goes wrong during a soak: one thing after another, and each in the books. */
import { setTimeout } from "node:timers/promises"
import type { Fleet, Worker } from "./fleet.js"
import type { Place } from "./place.js"

/** Whom it troubled, and when, in milliseconds since the Unix epoch. */
export interface Fault {
  readonly name: string
  readonly who: number | "all"
  readonly from: number
  readonly to: number
  /** Whether what was done by then may be done again because of it. */
  readonly excuse: boolean
}

export interface Faults {
  /** The next fault; over when it resolves. */
  readonly next: () => Promise<void>
  readonly counts: Readonly<Record<string, number>>
}

interface Options {
  readonly place: Place
  readonly fleet: Fleet
  /** Those that may be ended; each is replaced by another. */
  readonly guests: Array<Worker>
  readonly visibilityMillis: number
  readonly random: () => number
  readonly record: (fault: Fault) => void
  readonly wrong: (what: string) => void
}

/** An end in good order: no reason for anything to be done twice. */
const polite = "SIGTERM"

/** Connections come back, and what waited is written, a little after the trouble is over. */
const recoveryMillis = 6_000

export const makeFaults = ({ fleet, guests, place, random, record, visibilityMillis, wrong }: Options): Faults => {
  const counts: Record<string, number> = {}
  let turn = 0
  // Each in its turn, from anywhere
  let broken = Math.floor(random() * place.breakages.length)

  const noted = async (name: string, who: Fault["who"], happen: () => Promise<void>) => {
    counts[name] = (counts[name] ?? 0) + 1
    const from = Date.now()
    try {
      await happen()
    } finally {
      record({ name, who, from, to: Date.now() + (who === "all" ? recoveryMillis : 0), excuse: name !== polite })
    }
  }

  const terminate = (guest: Worker) =>
    noted(polite, guest.pid, async () => {
      const { exit, sample } = await guest.finish()
      if (exit !== 0) wrong(`process ${guest.pid} was asked to end, and ended with ${exit}`)
      if (sample === undefined) wrong(`process ${guest.pid} has not closed its scope`)
    })

  const freeze = (guest: Worker) =>
    // On SQLite it may hold the write lock
    noted("SIGSTOP, SIGCONT", place.engine === "sqlite" ? "all" : guest.pid, async () => {
      guest.signal("SIGSTOP")
      await setTimeout(visibilityMillis * 1.2)
      guest.signal("SIGCONT")
    })

  const restart = async () => {
    const guest = guests.shift()
    if (guest === undefined) return
    if (random() < 0.7) await terminate(guest)
    else await noted("SIGKILL", guest.pid, guest.kill)
    guests.push(await fleet.start())
  }

  const breakSomething = async () => {
    const breakage = place.breakages[broken++ % place.breakages.length]
    if (breakage !== undefined) await noted(breakage.name, "all", breakage.happen)
  }

  return {
    counts,
    next: async () => {
      const [guest] = guests
      // Most of them are restarts, and a stretch without trouble of the database lies before each of its
      switch (turn++ % 4) {
        case 2:
          return breakSomething()
        case 3:
          if (guest !== undefined && random() < 0.5) return freeze(guest)
          return restart()
        default:
          return restart()
      }
    }
  }
}
