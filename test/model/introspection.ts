/** What the API says of a queue agrees with the model. */
import { Queue } from "alkstore"
import { Effect } from "effect"
import { type QueueName, queues } from "./queues.js"
import { agree, type Scene } from "./scene.js"
import { type Job, stateOf } from "./state.js"

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
  const oldest = Math.min(...of("ready").map(({ dueAt }) => dueAt))
  const next = Math.min(...of("delayed").map(({ dueAt }) => dueAt))
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
const placeOf = ({ state }: Scene, id: number): string | undefined =>
  state.live.some((job) => job.id === id)
    ? "Live"
    : state.dead.some((letter) => letter.id === id)
      ? "Dead"
      : state.completed.some((job) => job.id === id)
        ? "Completed"
        : undefined

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
      (yield* queue.list({ limit: 1_000 })).map(seenLive),
      mine.map((job) => live(scene, job))
    )
    const running = mine.filter(({ lease }) => lease !== null)
    running.sort((a, b) => (a.lease?.deadline ?? 0) - (b.lease?.deadline ?? 0) || byId(a, b))
    agree(
      "running",
      (yield* queue.running({ limit: 1_000 })).map(seenLive),
      running.map((job) => live(scene, job))
    )
    const letters = state.dead
      .filter((letter) => letter.queue === name)
      .sort((a, b) => b.diedAt - a.diedAt || byId(b, a))
    agree(
      "deadLetters.list",
      (yield* queue.deadLetters.list({ limit: 1_000 })).map(({ id, reason }) => ({ id, reason })),
      letters.map(({ id, reason }) => ({ id, reason }))
    )
    const last = scene.ids.at(-1)
    if (last === undefined) return
    const found = yield* Queue.find(last.id)
    agree("find", found?._tag, placeOf(scene, last.id))
  })
