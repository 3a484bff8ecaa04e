/**
 * The books of a soak: what was enqueued, what has to become of it, and, whenever nothing is left to be done, whether it
 * has. What is accounted for is forgotten, so that a soak may last for days.
 */
import { SqlClient } from "@effect/sql"
import { Effect } from "effect"
import type { Fault } from "./faults.js"
import type { Verdict } from "./verdict.js"

/**
 * - `done`: noted, once or, where a fault explains it, more often; no dead letter
 * - `once`: noted exactly once
 * - `dies`: noted by the morgue, and never done
 * - `expires`: a dead letter (expired), and never done
 * - `cancelled`: a dead letter (cancelled); `either`: that, or done
 */
export type Want = "done" | "once" | "dies" | "expires" | "cancelled" | "either"

/** Whether it was enqueued: not answered yet, for certain, nobody knows, certainly not. */
export type Certainty = "pending" | "sure" | "maybe" | "never"

interface Entry {
  want: Want
  certainty: Certainty
}

interface NoteRow {
  readonly kind: string
  readonly job: number
  readonly pid: number
  readonly at: number
}

interface Letter {
  readonly reason: string
}

export interface Books {
  /** The serial number of something that is about to be enqueued. */
  readonly open: (want: Want) => number
  readonly set: (serial: number, certainty: Certainty, want?: Want) => void
  /** An order and its mail, written in one transaction; `kept`: whether it was meant to commit. */
  readonly order: (job: number, mail: number, kept: boolean) => void
  /** Something was not enqueued, since a job with its dedupe key is there. */
  readonly merged: () => void
  /** A job of which a worker has lost the lease. */
  readonly lost: (job: number) => void
  readonly unanswered: () => number
}

export interface Totals {
  enqueued: number
  merged: number
  uncertain: number
  done: number
  exactlyOnce: number
  dead: number
  expired: number
  cancelled: number
  boundaries: number
  locks: number
  repeats: number
  lost: number
}

export const makeAccount = () => {
  const entries = new Map<number, Entry>()
  const orders = new Map<number, { readonly mail: number; readonly kept: boolean }>()
  const lostLeases = new Set<number>()
  const faults: Array<Fault> = []
  const violations: Array<string> = []
  const totals: Totals = {
    enqueued: 0,
    merged: 0,
    uncertain: 0,
    done: 0,
    exactlyOnce: 0,
    dead: 0,
    expired: 0,
    cancelled: 0,
    boundaries: 0,
    locks: 0,
    repeats: 0,
    lost: 0
  }
  let serial = 0
  const wrong = (what: string) => void violations.push(what)

  const books: Books = {
    open: (want) => {
      entries.set(++serial, { want, certainty: "pending" })
      return serial
    },
    set: (of, certainty, want) => {
      const entry = entries.get(of)
      if (entry === undefined) return wrong(`serial ${of} was answered after its end`)
      entry.certainty = certainty
      if (want !== undefined) entry.want = want
    },
    order: (job, mail, kept) => void orders.set(job, { mail, kept }),
    merged: () => void totals.merged++,
    lost: (job) => void lostLeases.add(job),
    unanswered: () => [...entries.values()].filter(({ certainty }) => certainty === "pending").length
  }

  /** What was written in one transaction is there, or is not, as a whole. */
  const settleOrders = (rows: ReadonlySet<number>) => {
    for (const [job, { kept, mail }] of orders) {
      const there = rows.has(job)
      if (there && !kept) wrong(`order ${job} was rolled back, and is there`)
      if (!there && entries.get(job)?.certainty === "sure") wrong(`order ${job} was committed, and is not there`)
      for (const of of [job, mail]) books.set(of, there ? "sure" : "never")
    }
    orders.clear()
  }

  const near = ({ at, pid }: NoteRow) =>
    faults.filter(
      ({ from, to, who }) => (who === "all" || who === pid) && from <= at + ackMillis && to >= at - ackMillis
    )

  /** A second run of what was done needs a reason: the first one's process, or the database, was in trouble. */
  const repeated = (of: number, notes: ReadonlyArray<NoteRow>) => {
    for (const note of notes.slice(0, -1)) {
      totals.repeats++
      if (lostLeases.has(note.job) || near(note).some(({ excuse }) => excuse)) continue
      const runs = notes.map(({ at, pid }) => `by ${pid} at ${new Date(at).toISOString()}`).join(", ")
      const around = near(note).map(({ from, name }) => `${name} at ${new Date(from).toISOString()}`)
      wrong(`job ${note.job} (serial ${of}, ${note.kind}) was done again without need: ${[runs, ...around].join("; ")}`)
    }
  }

  const check = (of: number, entry: Entry, notes: ReadonlyArray<NoteRow>, letter: Letter | undefined) => {
    const name = `serial ${of} (${entry.want}, ${entry.certainty})`
    const done = notes.filter(({ kind }) => kind !== "morgue")
    const buried = notes.length - done.length
    const there = notes.length > 0 || letter !== undefined
    if (entry.certainty === "never") return there ? wrong(`${name} was never enqueued, and is there`) : undefined
    if (entry.certainty === "maybe" && !there) return void totals.uncertain++
    const ended = endOf(entry.want, done.length, buried, letter)
    if (ended === undefined) {
      if (!there) totals.lost++
      return wrong(
        `${name}: ${there ? `done ${done.length} times, in the morgue ${buried}, ${letter?.reason}` : "LOST"}`
      )
    }
    totals[ended]++
    totals.enqueued++
    repeated(of, notes)
  }

  const verdicts = (): ReadonlyArray<Verdict> => [
    { name: "jobs lost", pass: totals.lost === 0, detail: `${totals.lost} of ${totals.enqueued}` },
    { name: "jobs accounted for", pass: violations.length === 0, detail: `${violations.length} violations` },
    { name: "jobs left open", pass: entries.size === 0, detail: String(entries.size) }
  ]

  return {
    books,
    faults,
    violations,
    totals,
    entries,
    lostLeases,
    settleOrders,
    check,
    wrong,
    verdicts,
    settled: () => totals.enqueued
  }
}

/** Between what a handler has noted and the end of its lease. */
const ackMillis = 6_000

type Ended = "done" | "exactlyOnce" | "dead" | "expired" | "cancelled"

/** What has become of it, if that is what had to. */
const endOf = (want: Want, done: number, buried: number, letter: Letter | undefined): Ended | undefined => {
  switch (want) {
    case "done":
      return done > 0 && letter === undefined ? "done" : undefined
    case "once":
      return done === 1 && letter === undefined ? "exactlyOnce" : undefined
    case "dies":
      return done === 0 && buried > 0 ? "dead" : undefined
    case "expires":
      return done === 0 && letter?.reason === "expired" ? "expired" : undefined
    case "cancelled":
      return letter?.reason === "cancelled" ? "cancelled" : undefined
    case "either":
      return letter?.reason === "cancelled" ? "cancelled" : done > 0 && letter === undefined ? "done" : undefined
  }
}

export type Account = ReturnType<typeof makeAccount>

/** Boundaries come once each, and none is left out between the first and the last. */
const checkBoundaries = ({ totals, wrong }: Account, notes: ReadonlyArray<{ readonly serial: number }>) => {
  const at = notes.map(({ serial }) => serial).sort((a, b) => a - b)
  totals.boundaries += at.length
  for (const [n, boundary] of at.entries()) {
    const gap = boundary - (at[n - 1] ?? boundary - 1_000)
    if (gap !== 1_000) wrong(`boundary ${new Date(boundary).toISOString()} came ${gap} ms after the one before`)
  }
}

const checkTokens = ({ totals, wrong }: Account, notes: ReadonlyArray<{ readonly serial: number }>) => {
  const tokens = new Set(notes.map(({ serial }) => serial))
  totals.locks += notes.length
  if (tokens.size < notes.length) wrong(`${notes.length - tokens.size} fencing tokens were given twice`)
}

/** Accounts for everything, when nothing is under way. Answers how many things it has accounted for. */
export const settleAccounts = (account: Account, letters: ReadonlyMap<number, Letter>) =>
  Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    const rows = yield* sql<Record<"serial" | "job" | "pid" | "noted_at", number | string> & { kind: string }>`
      SELECT serial, kind, job, pid, noted_at FROM soak_notes ORDER BY id`
    const all = rows.map((row) => ({
      serial: Number(row.serial),
      kind: row.kind,
      job: Number(row.job),
      pid: Number(row.pid),
      at: Number(row.noted_at)
    }))
    const orders = yield* sql<{ serial: number | string }>`SELECT serial FROM soak_orders`
    account.settleOrders(new Set(orders.map(({ serial }) => Number(serial))))
    const apart = (kind: string) => all.filter((note) => note.kind === kind)
    for (const { serial } of apart("disorder")) account.wrong(`serial ${serial} ran after a later one of its key`)
    checkBoundaries(account, apart("tick"))
    checkTokens(account, apart("lock"))
    const bySerial = new Map<number, Array<NoteRow>>()
    for (const { serial, ...note } of all) {
      if (["disorder", "tick", "lock"].includes(note.kind)) continue
      bySerial.set(serial, [...(bySerial.get(serial) ?? []), note])
    }
    for (const serial of [...bySerial.keys(), ...letters.keys()])
      if (!account.entries.has(serial)) account.wrong(`serial ${serial} was accounted for already, and is there again`)
    for (const [serial, entry] of account.entries)
      account.check(serial, entry, bySerial.get(serial) ?? [], letters.get(serial))
    const count = account.entries.size
    account.entries.clear()
    account.lostLeases.clear()
    account.faults.length = 0
    yield* sql`DELETE FROM soak_notes`
    yield* sql`DELETE FROM soak_orders`
    return count
  })
