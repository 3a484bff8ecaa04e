/** Schedules and locks, in the model. */

import { isDeepStrictEqual } from "node:util"
import type { Lock } from "alkstore"
import { Option } from "effect"
import { type ScheduleName, schedules } from "./commands.js"
import { add } from "./enqueue.js"
import { settings } from "./queues.js"
import { type Answer, agree, demand, type Receipt, type Scene } from "./scene.js"
import type { Schedule, ScheduleSpec, State } from "./state.js"
import { stateOf } from "./state.js"

/** The first boundary after an instant. */
const nextOf = (name: ScheduleName, after: number): number => {
  const { offset, period } = schedules[name]
  return Math.floor((after - offset) / period) * period + period + offset
}

const boundaries = (name: ScheduleName, from: number, until: number): ReadonlyArray<number> => {
  const all: Array<number> = []
  for (let at = nextOf(name, from - 1); at <= until; at = nextOf(name, at)) all.push(at)
  return all
}

const find = (state: State, name: ScheduleName): Schedule | undefined =>
  state.schedules.find((one) => one.name === name)

const enqueueOne = (scene: Scene, { name, spec }: Schedule, boundary: number | undefined) => {
  const { now } = scene.state
  const { maxAttempts, priority } = settings[spec.queue]
  const expiresMillis = spec.expires ?? settings[spec.queue].expiresMillis
  const added = add(scene, {
    queue: spec.queue,
    payload: spec.payload,
    priority: spec.priority ?? priority,
    maxAttempts: spec.maxAttempts ?? maxAttempts,
    dueAt: now,
    expiresMillis,
    expiresAt: expiresMillis === null ? null : now + expiresMillis,
    headers: {
      "alkstore-schedule": name,
      ...(boundary === undefined ? {} : { "alkstore-boundary": new Date(boundary).toISOString() })
    },
    dedupeKey: null,
    dedupeScope: null,
    dedupeWindow: null,
    replace: false,
    orderingKey: null
  })
  if (!("job" in added)) throw new Error("a schedule's job has no dedupe key")
  return added.job
}

const lateMillis = 10_000

const fireOne = (scene: Scene, schedule: Schedule): void => {
  const { count, state } = scene
  const { now } = state
  const { catchUp, overlap } = schedule.spec
  const all = boundaries(schedule.name as ScheduleName, schedule.nextAt, now)
  const come = all.slice(catchUp === "all" ? -100 : -1)
  const due = catchUp === "skip" ? come.filter((at) => now - at <= lateMillis) : come
  const live = state.live.some(({ uid }) => schedule.jobs.includes(uid))
  const wanted = overlap === "allow" ? due : live ? [] : due.slice(0, 1)
  const jobs = wanted.map((at) => enqueueOne(scene, schedule, at).uid)
  schedule.jobs = [...schedule.jobs, ...jobs]
  schedule.fired += jobs.length
  schedule.skipped += due.length - wanted.length
  schedule.lastAt = come.at(-1) ?? schedule.lastAt
  schedule.nextAt = nextOf(schedule.name as ScheduleName, Math.max(now, schedule.lastAt ?? now))
  count(
    wanted.length > 1
      ? "fire: catches up"
      : wanted.length === 1
        ? "fire: one"
        : live
          ? "fire: overlap"
          : "fire: skipped"
  )
}

const owes = (schedule: Schedule, now: number): boolean => schedule.pausedAt === null && schedule.nextAt <= now

const fireOwed = (scene: Scene, schedule: Schedule): void => {
  if (!owes(schedule, scene.state.now)) return
  scene.count("schedule: fires what is owed")
  fireOne(scene, schedule)
}

export const fired = (scene: Scene, answer: Answer<number>): void => {
  const due = scene.state.schedules.filter((schedule) => owes(schedule, scene.state.now))
  for (const schedule of due.sort((a, b) => a.nextAt - b.nextAt || (a.name < b.name ? -1 : 1))) fireOne(scene, schedule)
  scene.count(due.length === 0 ? "fire: none" : "fire")
  agree("fire", answer, { ok: due.length })
}

export const put = (scene: Scene, name: ScheduleName, spec: ScheduleSpec, answer: Answer<string>): void => {
  const { now } = scene.state
  const schedule = find(scene.state, name)
  const outcome = schedule === undefined ? "created" : isDeepStrictEqual(schedule.spec, spec) ? "unchanged" : "changed"
  scene.count(`schedule: ${outcome}`)
  agree("schedule", answer, { ok: outcome })
  if (schedule === undefined) {
    const fresh = { pausedAt: null, nextAt: nextOf(name, now), lastAt: null, fired: 0, skipped: 0, jobs: [] }
    scene.state.schedules.push({ name, spec, createdAt: now, ...fresh })
  } else if (outcome === "changed") {
    fireOwed(scene, schedule)
    schedule.spec = spec
  }
}

/** The schedule of this name, or the answer must say that there is none. */
const existing = (scene: Scene, name: ScheduleName, answer: Answer<unknown>): Schedule | undefined => {
  const schedule = find(scene.state, name)
  if (schedule === undefined) {
    scene.count("schedule: not found")
    agree("schedule", answer, { error: "ScheduleNotFound" })
  }
  return schedule
}

export const pausedSchedule = (scene: Scene, name: ScheduleName, answer: Answer<void>): void => {
  const schedule = existing(scene, name, answer)
  if (schedule === undefined) return
  agree("schedulePause", answer, { ok: undefined })
  if (schedule.pausedAt !== null) return
  fireOwed(scene, schedule)
  schedule.pausedAt = scene.state.now
  scene.count("schedule: paused")
}

export const resumedSchedule = (scene: Scene, name: ScheduleName, answer: Answer<void>): void => {
  const schedule = existing(scene, name, answer)
  if (schedule === undefined) return
  agree("scheduleResume", answer, { ok: undefined })
  if (schedule.pausedAt === null) return
  schedule.pausedAt = null
  schedule.nextAt = nextOf(name, Math.max(scene.state.now, schedule.lastAt ?? 0))
  scene.count("schedule: resumed")
}

export const removedSchedule = (scene: Scene, name: ScheduleName, answer: Answer<boolean>): void => {
  const schedule = find(scene.state, name)
  scene.state.schedules = scene.state.schedules.filter((other) => other !== schedule)
  scene.count(schedule === undefined ? "schedule: nothing to remove" : "schedule: removed")
  agree("scheduleRemove", answer, { ok: schedule !== undefined })
}

export const triggered = (scene: Scene, name: ScheduleName, answer: Answer<Receipt>): void => {
  const schedule = existing(scene, name, answer)
  if (schedule === undefined) return
  const job = enqueueOne(scene, schedule, undefined)
  schedule.jobs = [...schedule.jobs, job.uid]
  scene.count("schedule: triggered")
  const id = "ok" in answer ? answer.ok.id : 0
  agree("trigger", answer, { ok: { id, state: stateOf(job, scene.state.now), deduplicated: false, replaced: false } })
}

export const locked = (
  scene: Scene,
  name: string,
  ttl: number,
  answer: Answer<Option.Option<Lock.LockLease>>
): void => {
  const { state } = scene
  const free = !state.locks.some((lock) => lock.name === name && lock.expiresAt > state.now)
  scene.count(free ? "lock" : "lock: held")
  const lease = "ok" in answer ? Option.getOrUndefined(answer.ok) : undefined
  agree("lock", { ...answer, ok: lease !== undefined }, { ok: free })
  if (lease === undefined) return
  demand(lease.token > scene.lastToken, () => `lock token ${lease.token} is not above ${scene.lastToken}`)
  scene.lastToken = lease.token
  agree("the lock's end", lease.expiresAt, state.now + ttl)
  state.locks = [
    ...state.locks.filter((lock) => lock.name !== name),
    { name, token: lease.token, ttl, expiresAt: lease.expiresAt }
  ]
  scene.locks.push(lease)
}

/** `renew` or `release` under a token: what has ended by time but was not taken is still its. */
export const relocked = (scene: Scene, lease: Lock.LockLease, keep: boolean, answer: Answer<unknown>): void => {
  const { state } = scene
  const mine = state.locks.find((lock) => lock.name === lease.name && lock.token === lease.token)
  const what = keep ? "relock" : "unlock"
  scene.count(mine === undefined ? `${what}: lost` : what)
  agree(what, { ...answer, ok: true }, mine === undefined ? { error: "LockLost", ok: true } : { ok: true })
  if (mine === undefined) return
  if (keep) mine.expiresAt = state.now + mine.ttl
  else state.locks = state.locks.filter((lock) => lock !== mine)
}

/** Whoever holds it, and though its lease has ended, as long as its row is there. */
export const forceUnlocked = (scene: Scene, name: string, answer: Answer<boolean>): void => {
  const { state } = scene
  const held = state.locks.some((lock) => lock.name === name)
  state.locks = state.locks.filter((lock) => lock.name !== name)
  scene.count(held ? "forceUnlock" : "forceUnlock: free")
  agree("forceUnlock", answer, { ok: held })
}
