/** Schedules: each boundary gives the jobs that the policy says, once, whoever fires, whatever happens. */
import { Schedules } from "alkstore"
import type { Row } from "../database.js"
import { plans } from "../queues.js"
import { boundaries } from "./calendar.js"
import { type Court, num, type Scene } from "./oracle.js"

const day = 86_400_000
/** How late a boundary may be fired under `skip`. */
const late = 10_000
/** How many missed boundaries `all` makes up for. */
const most = 100

const headerOf = (row: Row, name: string): string | undefined => {
  const headers = row.headers === null ? {} : (JSON.parse(String(row.headers)) as Record<string, string>)
  return headers[name]
}

export const makeSchedules = (court: Court) => {
  const { wrong } = court
  const from = Math.floor(court.world.now / day) * day - day
  const rules = new Map(
    plans.map((plan) => [plan.name, { ...plan, all: boundaries(plan.rule, from, from + 12 * day) }])
  )
  const rows = new Map<string, Row>()
  const fired = new Set<string>()

  const nextAfter = (name: string, now: number) => rules.get(name)?.all.find((boundary) => boundary > now)

  const nexts = ({ now, since }: Scene, name: string, last: number) =>
    [now, since].map((at) => nextAfter(name, Math.max(at, last)))

  /** Its jobs of this commit, by their boundary. */
  const jobsOf = (scene: Scene, name: string): ReadonlyArray<number> =>
    scene.changes.flatMap(({ after, before, table }) => {
      if (table !== "jobs" || before !== undefined || after === undefined || after.queue !== "ticks") return []
      if (headerOf(after, Schedules.scheduleHeader) !== name) return []
      const boundary = headerOf(after, Schedules.boundaryHeader)
      return boundary === undefined ? [] : [Date.parse(boundary)]
    })

  const isLive = (scene: Scene, name: string): boolean => {
    const mine = new Set(scene.changes.map(({ after }) => num(after?.id)))
    return [...court.jobs.values()].some(
      ({ endedIn, id, row }) =>
        endedIn === undefined && !mine.has(id) && headerOf(row, Schedules.scheduleHeader) === name
    )
  }

  const expected = (scene: Scene, now: number, name: string, before: Row): ReadonlyArray<number> => {
    const rule = rules.get(name)
    if (rule === undefined) return []
    const after = Math.max(num(before.next_at), before.last_at === null ? 0 : num(before.last_at) + 1)
    const come = rule.all.filter((boundary) => boundary >= after && boundary <= now)
    const wanted = rule.catchUp === "all" ? come.slice(-most) : come.slice(-1)
    const inTime = rule.catchUp === "skip" ? wanted.filter((boundary) => now - boundary <= late) : wanted
    return rule.overlap === "allow" ? inTime : isLive(scene, name) ? [] : inTime.slice(0, 1)
  }

  const advanced = (scene: Scene, name: string, before: Row, after: Row): void => {
    // A transaction that takes long is stamped by some instant of it
    const wanted = [scene.now, scene.since].map((now) => expected(scene, now, name, before).join())
    const given = jobsOf(scene, name)
    court.note(scene, `fires ${name} for ${given.map((at) => new Date(at).toISOString()).join(", ") || "nothing"}`)
    if (before.paused_at !== null) wrong(`${name} is fired while it is paused`)
    if (!wanted.includes(given.join())) wrong(`${name} is fired for [${given}], and it should be for [${wanted[0]}]`)
    for (const boundary of given) {
      if (fired.has(`${name} ${boundary}`)) wrong(`${name} is fired twice for ${boundary}`)
      fired.add(`${name} ${boundary}`)
    }
    if (!nexts(scene, name, num(after.last_at)).includes(num(after.next_at)))
      wrong(`${name} is due next at ${after.next_at}`)
  }

  const look = (scene: Scene): void => {
    for (const { after, before, table } of scene.changes) {
      if (table !== "schedules") continue
      const name = String((after ?? before)?.name)
      if (after === undefined) rows.delete(name)
      else {
        rows.set(name, after)
        const fires =
          before !== undefined && before.updated_at === after.updated_at && before.paused_at === after.paused_at
        if (before === undefined || (before.paused_at !== null && after.paused_at === null)) {
          if (!nexts(scene, name, 0).includes(num(after.next_at))) wrong(`${name} begins at ${after.next_at}`)
        } else if (fires && (before.next_at !== after.next_at || before.last_at !== after.last_at))
          advanced(scene, name, before, after)
      }
    }
    const firing = new Set(scene.changes.flatMap(({ after, table }) => (table === "schedules" ? [after?.name] : [])))
    for (const name of rules.keys())
      if (!firing.has(name) && jobsOf(scene, name).length > 0)
        wrong(`${name} has a job of a boundary that it still owes`)
  }

  return {
    look,
    fired,
    /** When time has passed without faults. */
    owesNothing: (): void => {
      for (const [name, { next_at, paused_at }] of rows)
        if (paused_at === null && num(next_at) < court.world.now) wrong(`${name} owes its boundary of ${next_at}`)
    }
  }
}
