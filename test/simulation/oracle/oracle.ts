/**
 * The oracle: sees every commit, every handler and every answer, and says what must not be. It knows the promises, and
 * nothing of how the product keeps them.
 */
import type { Change, Commit, Row } from "../database.js"
import { sweepMinutes } from "../queues.js"
import type { Process, World } from "../world.js"
import { makeDedupe } from "./dedupe.js"
import { makeEffects } from "./effects.js"
import { makeHandlings } from "./handlings.js"
import { makeLanes } from "./lanes.js"
import { makeLeases } from "./leases.js"
import { makeLetters } from "./letters.js"
import { makeLocks } from "./locks.js"
import { makeOrder } from "./order.js"
import { makePrompt } from "./prompt.js"
import { makeSchedules } from "./schedules.js"

export type { Change }

/** How a handler ended, by what it said itself. */
export type Said =
  | { readonly _tag: "done" }
  | { readonly _tag: "failed" }
  | { readonly _tag: "fatal" }
  | { readonly _tag: "again"; readonly millis: number; readonly spent: boolean }
  | { readonly _tag: "interrupted" }

export interface Handling {
  readonly id: number
  readonly token: number
  readonly by: Process
  /** Of its process, and what had befallen it, when the handler began, and when that was. */
  readonly stops: number
  readonly troubles: number
  readonly startedAt: number
  /** A worker's, one that is deaf to interrupts, or somebody's who has claimed by hand. */
  readonly kind: "worker" | "stubborn" | "hand"
  /** And when. */
  saidAt: number
  said: Said | undefined
}

/** A job that was ever there. */
export interface Job {
  readonly id: number
  readonly queue: string
  /** As it is, or was at its end. */
  row: Row
  /** Who holds its lease. */
  holder: Process | undefined
  /** The commit in which it ended; undefined while it lives. */
  endedIn: number | undefined
  end: string | undefined
}

export interface Scene extends Commit {
  readonly now: number
  readonly seq: number
}

/** What every rule sees and may say. */
export interface Court {
  readonly world: World
  readonly jobs: ReadonlyMap<number, Job>
  /** By token. */
  readonly handlings: ReadonlyMap<number, Handling>
  /** When each lease ends, or has ended, by its token. */
  readonly leases: ReadonlyMap<number, number>
  /** When each process had its hands full with each queue, the last time. */
  readonly fullAt: ReadonlyMap<string, number>
  /** Jobs that have not ended. */
  readonly live: () => ReadonlyArray<Job>
  readonly paused: ReadonlySet<string>
  /** When each queue was resumed, the last time. */
  readonly resumedAt: ReadonlyMap<string, number>
  readonly settings: ReadonlyMap<string, Row>
  /** Commits so far. */
  readonly seq: () => number
  readonly wrong: (what: string) => void
  readonly note: (scene: Scene, what: string) => void
  /** What a process has been told to do, by hand. */
  readonly asked: (by: Process, what: string) => boolean
}

export const num = (value: string | number | null | undefined): number => Number(value)
export const nOf = (row: Row): number => {
  const payload = JSON.parse(String(row.payload)) as { n?: number; payload?: { n?: number } }
  return payload.n ?? payload.payload?.n ?? Number.NaN
}

/** A job that is stored as claimed has been added, and claimed in the same commit: the rules for both hold. */
const steps = (change: Change): ReadonlyArray<Change> => {
  const { after, before, table } = change
  if (table !== "jobs" || before !== undefined || after === undefined || after.token === null) return [change]
  const ready: Row = { ...after, token: null, worker: null, claimed_at: null, visibility_ms: null, attempt: 0 }
  const added: Row = { ...ready, visible_at: after.due_at ?? null }
  return [
    { ...change, after: added },
    { ...change, before: added }
  ]
}

export const makeOracle = (world: World) => {
  const jobs = new Map<number, Job>()
  const handlings = new Map<number, Handling>()
  const leasesEnd = new Map<number, number>()
  const fullAt = new Map<string, number>()
  const hands = new Map<string, number>()
  const alive = new Map<number, Job>()
  const ids = new Map<number, string>()
  const paused = new Set<string>()
  const resumedAt = new Map<string, number>()
  const settings = new Map<string, Row>()
  const asked = new Map<string, number>()
  const refused = new Set<number>()
  const added = new Set<number>()
  const errors: Array<string> = []
  let seq = 0

  const court: Court = {
    world,
    jobs,
    handlings,
    leases: leasesEnd,
    fullAt,
    live: () => [...alive.values()],
    paused,
    resumedAt,
    settings,
    seq: () => seq,
    wrong: (what) => {
      errors.push(what)
      world.note("oracle", what)
    },
    note: ({ by }, what) => world.note(by.name, what),
    asked: (by, what) => (asked.get(`${by.name} ${what}`) ?? 0) > 0
  }
  const leases = makeLeases(court)
  const lanes = makeLanes(court)
  const dedupe = makeDedupe(court)
  const letters = makeLetters(court)
  const schedules = makeSchedules(court)
  const effects = makeEffects(court)
  const handlers = makeHandlings(court)
  const locks = makeLocks(court)
  const order = makeOrder(court)
  const prompt = makePrompt(court, handlers)

  /** A process has one job of a queue more in its hands, or one less. */
  const inHands = (by: Process, queue: string, more: 1 | -1): void => {
    const key = `${by.name} ${queue}`
    const before = hands.get(key) ?? 0
    hands.set(key, before + more)
    if (Math.max(before, before + more) >= (by.slots.get(queue)?.size ?? 0)) fullAt.set(key, world.now)
  }

  /** After the rules have looked at it. */
  const apply = (scene: Scene, { after, before }: Change): void => {
    if (after === undefined) {
      const job = jobs.get(num(before?.id))
      if (job === undefined) {
        court.wrong(`job ${before?.id} has gone that never was`)
        return
      }
      job.endedIn = scene.seq
      if (job.holder !== undefined) inHands(job.holder, job.queue, -1)
      job.holder = undefined
      alive.delete(job.id)
      return
    }
    const id = num(after.id)
    const job = jobs.get(id)
    const n = nOf(after)
    if (before === undefined && added.has(n) && n >= 0 && !letters.comesBack(scene, after))
      court.wrong(`${n} is enqueued twice`)
    added.add(n)
    if (refused.has(n)) court.wrong(`${n} is enqueued by a call that failed`)
    if (before === undefined || job === undefined) {
      const made: Job = {
        id,
        queue: String(after.queue),
        row: after,
        holder: undefined,
        endedIn: undefined,
        end: undefined
      }
      jobs.set(id, made)
      alive.set(id, made)
      return
    }
    job.row = after
    if (after.token !== before.token) {
      if (job.holder !== undefined) inHands(job.holder, job.queue, -1)
      job.holder = after.token === null ? undefined : scene.by
      if (job.holder !== undefined) inHands(job.holder, job.queue, 1)
    }
    if (after.token === null) return
    leasesEnd.set(num(after.token), num(after.visible_at))
    locks.given(num(after.token))
    if (after.cancel_requested_at !== null && before.cancel_requested_at === null) handlers.cancels(num(after.token))
  }

  const commit = (given: Commit): void => {
    seq++
    const scene: Scene = { ...given, changes: given.changes.flatMap(steps), now: world.now, seq }
    order.look(scene)
    for (const change of scene.changes) {
      if (change.table === "queues" && change.after !== undefined) {
        const name = String(change.after.name)
        settings.set(name, change.after)
        if (change.after.paused_at === null) {
          if (paused.delete(name)) resumedAt.set(name, world.now)
        } else if (!paused.has(name)) {
          paused.add(name)
          court.note(scene, `pauses ${name}`)
        }
      }
      if (change.table === "lane_blocks") lanes.look(scene, change)
      if (change.table === "locks") locks.look(scene, change)
      if (change.table !== "jobs") continue
      leases.look(scene, change)
      lanes.look(scene, change)
      dedupe.look(scene, change)
      apply(scene, change)
    }
    letters.look(scene)
    schedules.look(scene)
    effects.look(scene)
    prompt.look(scene)
  }

  return {
    errors,
    jobs,
    commit,
    court,
    answered: dedupe.answered,
    fired: schedules.fired,
    /** An enqueue of these has failed, and says that nothing was written. */
    refused: (numbers: ReadonlyArray<number>): void => {
      for (const n of numbers) {
        refused.add(n)
        if (added.has(n)) court.wrong(`${n} was enqueued by a call that failed`)
      }
    },
    /** A receipt was given for it. */
    promised: (numbers: ReadonlyArray<number>): void => {
      for (const n of numbers) if (!added.has(n)) court.wrong(`${n} has a receipt, and no job`)
    },
    /** A handler begins. */
    started: (by: Process, id: number, token: number, kind: Handling["kind"]): Handling => {
      const { stops, troubles } = by
      const handling: Handling = {
        id,
        token,
        by,
        kind,
        stops,
        troubles,
        startedAt: world.now,
        saidAt: 0,
        said: undefined
      }
      handlers.started(handling)
      handlings.set(token, handling)
      return handling
    },
    ended: (handling: Handling): void => {
      handling.saidAt = world.now
      handlers.ended(handling)
    },
    leaves: handlers.leaves,
    enters: locks.enters,
    told: prompt.told,
    neglectsNothing: prompt.neglects,
    /** A process tells of topics. */
    rings: (by: Process, topics: ReadonlyArray<string>): void => {
      for (const topic of topics) by.rang.set(topic, world.now)
      prompt.told(by, topics)
    },
    /** A message has one id, whenever it is delivered; nobody else has it. */
    delivers: (n: number, id: string): void => {
      if ((ids.get(n) ?? id) !== id) court.wrong(`message ${n} is delivered as ${id}, and was ${ids.get(n)}`)
      ids.set(n, id)
    },
    /** What a process does by hand, from now on and until it has ended. */
    asks: (by: Process, what: string) => {
      const key = `${by.name} ${what}`
      asked.set(key, (asked.get(key) ?? 0) + 1)
      return () => void asked.set(key, (asked.get(key) ?? 1) - 1)
    },
    owesNothing: schedules.owesNothing,
    /** When time has passed without faults. */
    atRest: (look: (text: string) => ReadonlyArray<Row>) => {
      for (const job of jobs.values())
        if (job.endedIn === undefined)
          court.wrong(`job ${job.id} of ${job.queue} has not ended: ${JSON.stringify(job.row)}`)
      dedupe.atRest(look)
      lanes.atRest(look)
      letters.atRest(look, sweepMinutes * 2 * 60_000)
    }
  }
}

export type Oracle = ReturnType<typeof makeOracle>
