/** What the API says of a queue agrees with the model. */
import { Lock, Queue, Schedules } from "alkstore"
import { Effect } from "effect"
import { type QueueName, queues, settings } from "./queues.js"
import { agree, type Scene } from "./scene.js"
import { type Job, metAt, stateOf } from "./state.js"

const wayOf = (scene: Scene, job: Job) =>
  scene.depth > 0 && scene.pending.has(job.uid) ? "blocked" : stateOf(job, scene.state.now)

const live = (scene: Scene, job: Job) => ({
  id: job.id,
  state: wayOf(scene, job),
  attempt: job.attempt,
  dueAt: job.dueAt,
  deadline: job.lease?.deadline ?? null,
  errors: job.errors.length,
  lives: job.history.length
})

const seenLive = ({ attempt, deadline, dueAt, errors, history, id, state }: Queue.LiveRow) => ({
  id,
  state,
  attempt,
  dueAt,
  deadline,
  errors: errors.length,
  lives: history.length
})

const byId = (a: Job, b: Job) => (a.id ?? 0) - (b.id ?? 0)

const counted = (scene: Scene, queue: QueueName) => {
  const { completed, dead, live: jobs, now, paused } = scene.state
  const mine = jobs.filter((job) => job.queue === queue)
  const of = (state: string) => mine.filter((job) => wayOf(scene, job) === state)
  const count = (length: number) => ({ count: length, exact: true })
  const oldest = Math.min(...of("ready").map(metAt))
  const next = Math.min(...of("delayed").map(metAt))
  return {
    queue,
    ready: count(of("ready").length),
    delayed: count(of("delayed").length),
    blocked: count(of("blocked").length),
    leased: count(of("leased").length),
    dead: count(dead.filter((letter) => letter.queue === queue).length),
    completed: count(completed.filter((job) => job.queue === queue).length),
    paused: paused.includes(queue),
    oldestReadyMillis: Number.isFinite(oldest) ? now - oldest : undefined,
    nextDueMillis: Number.isFinite(next) ? next - now : undefined
  }
}

/** Where a job is, if it is. */
const placeOf = ({ state }: Scene, id: number) => {
  const { completed, dead, live: jobs } = state
  for (const [place, list] of [
    ["Live", jobs],
    ["Dead", dead],
    ["Completed", completed]
  ] as const) {
    const job = list.find((one) => one.id === id)
    if (job !== undefined) return [place, id, job.queue]
  }
  return undefined
}

/** Of a page. */
const few = 4

/** All there is of a list, page by page. */
const paged = <A, E, R>(
  list: (options: { readonly limit: number; readonly after?: A }) => Effect.Effect<ReadonlyArray<A>, E, R>
) =>
  Effect.gen(function* () {
    const all: Array<A> = []
    for (;;) {
      const last = all.at(-1)
      const rows = yield* list({ limit: few, ...(last === undefined ? {} : { after: last }) })
      all.push(...rows)
      if (rows.length < few) return all
    }
  })

export const apiAgrees = (scene: Scene, name: QueueName) =>
  Effect.gen(function* () {
    const { state } = scene
    const queue = queues[name]
    const counts = yield* queue.counts
    // The count has made PostgreSQL look
    if (scene.depth === 0)
      scene.pending = new Set(
        [...scene.pending].filter((uid) => !state.live.some((job) => job.uid === uid && job.queue === name))
      )
    agree("counts", counts, counted(scene, name))
    const mine = state.live.filter((job) => job.queue === name).sort(byId)
    agree(
      "list",
      (yield* paged(queue.list)).map(seenLive),
      mine.map((job) => live(scene, job))
    )
    const running = mine.filter(({ lease }) => lease !== null)
    running.sort((a, b) => (a.lease?.deadline ?? 0) - (b.lease?.deadline ?? 0) || byId(a, b))
    agree(
      "running",
      (yield* paged(queue.running)).map(seenLive),
      running.map((job) => live(scene, job))
    )
    const letters = state.dead
      .filter((letter) => letter.queue === name)
      .sort((a, b) => b.diedAt - a.diedAt || byId(b, a))
    agree(
      "deadLetters.list",
      (yield* paged(queue.deadLetters.list)).map(({ attempts, errors, id, reason }) => [
        id,
        reason,
        attempts,
        errors.length
      ]),
      letters.map(({ attempt, errors, id, reason }) => [id, reason, attempt, errors.length])
    )
    if (settings[name].retainCompleted !== null) {
      const done = state.completed.filter((job) => job.queue === name)
      done.sort((a, b) => b.completedAt - a.completedAt || byId(b, a))
      agree(
        "completed",
        (yield* paged(queue.completed)).map(({ attempts, completedAt, id }) => [id, attempts, completedAt]),
        done.map(({ attempt, completedAt, id }) => [id, attempt, completedAt])
      )
    }
    const last = scene.ids.at(-1)
    if (last === undefined) return
    const found = yield* Queue.find(last.id)
    agree("find", found && [found._tag, found.job.id, found.job.queue], placeOf(scene, last.id))
  })

export const schedulesAgree = ({ state }: Scene) =>
  Effect.gen(function* () {
    const at = (instant: Date | undefined) => instant?.getTime()
    const service = yield* Schedules.Schedules
    agree(
      "schedules",
      (yield* service.list).map(({ fired, lastAt, name, nextAt, pausedAt, skipped }) => ({
        name,
        fired,
        skipped,
        lastAt: at(lastAt),
        nextAt: at(nextAt),
        pausedAt: at(pausedAt)
      })),
      [...state.schedules]
        .sort((a, b) => (a.name < b.name ? -1 : 1))
        .map(({ fired, lastAt, name, nextAt, pausedAt, skipped }) => ({
          name,
          fired,
          skipped,
          lastAt: lastAt ?? undefined,
          nextAt: pausedAt === null ? nextAt : undefined,
          pausedAt: pausedAt ?? undefined
        }))
    )
  })

export const locksAgree = ({ state }: Scene) =>
  Effect.gen(function* () {
    const held = state.locks.filter(({ expiresAt }) => expiresAt > state.now)
    const lock = yield* Lock.Lock
    agree(
      "locks",
      (yield* lock.list).map(({ expiresAt, name, token }) => [name, token, expiresAt.getTime()]),
      held.sort((a, b) => (a.name < b.name ? -1 : 1)).map(({ expiresAt, name, token }) => [name, token, expiresAt])
    )
  })
