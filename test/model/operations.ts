/** What is done to waiting jobs, dead letters and queues, in the model. */
import type { Queue } from "alkstore"
import { holds } from "./claims.js"
import type { Apart, DeadFilterSpec, LiveFilterSpec, Simple } from "./commands.js"
import { advance, bury, expireAll, freshJob, join, lapse, removed } from "./ends.js"
import { type QueueName, queueNames, settings } from "./queues.js"
import { type Answer, agree, type Hand, type Scene } from "./scene.js"
import { isExpired, isLapsed, type Job, type Letter, type State, stateOf } from "./state.js"

type Of<Tag extends Simple["_tag"] | Apart["_tag"]> = Extract<Simple | Apart, { readonly _tag: Tag }>

const byId = (a: Job, b: Job): number => (a.id ?? 0) - (b.id ?? 0)

/** One of those that are known, by its position from the latest. */
export const pick = <A>(list: ReadonlyArray<A>, at: number): A | undefined =>
  list[list.length - 1 - (at % Math.max(1, list.length))]

/** A claim in somebody's hands; one that is good still sooner than a stale one. */
export const handAt = ({ hands, state }: Scene, at: number): Hand | undefined =>
  pick([...hands.filter((hand) => !holds(state, hand)), ...hands.filter((hand) => holds(state, hand))], at)

export const selected = (scene: Scene, queue: QueueName, filter: LiveFilterSpec): ReadonlyArray<Job> => {
  const { ids, state } = scene
  scene.count(`jobs by: ${filter.by}`)
  const fits = (job: Job): boolean => {
    switch (filter.by) {
      case "all":
        return true
      case "any":
        return job.id === pick(ids, filter.at)?.id
      case "state":
        return stateOf(job, state.now) === filter.state
      case "orderingKey":
        return job.orderingKey === filter.key
      case "dedupeKey":
        return state.keys.some(({ freeAt, key, uid }) => key === filter.key && uid === job.uid && freeAt === null)
      case "several":
        return filter.ats.some((at) => job.id === pick(ids, at)?.id)
      case "keyAndState":
        return job.orderingKey === filter.key && stateOf(job, state.now) === filter.state
      case "age":
        return job.enqueuedAt >= state.now - filter.most && job.enqueuedAt < state.now - filter.least
    }
  }
  return state.live.filter((job) => job.queue === queue && fits(job)).sort(byId)
}

const cancelOne = (scene: Scene, job: Job | undefined): Queue.CancelOutcome => {
  if (job === undefined) return "tooLate"
  if (job.lease === null) {
    bury(scene.state, job, "cancelled")
    return "cancelled"
  }
  job.cancelRequested = true
  return "requested"
}

export const cancelled = (scene: Scene, queue: QueueName, id: number, answer: Answer<Queue.CancelOutcome>): void => {
  const outcome = cancelOne(
    scene,
    scene.state.live.find((job) => job.queue === queue && job.id === id)
  )
  scene.count(`cancel: ${outcome}`)
  agree("cancel", answer, { ok: outcome })
}

const tally = <A extends string>(none: Readonly<Record<A, number>>, outcomes: ReadonlyArray<A>) => {
  const sum: Record<string, number> = { ...none }
  for (const outcome of outcomes) sum[outcome] = (sum[outcome] ?? 0) + 1
  return sum
}

export const cancelledMany = (scene: Scene, { filter, queue }: Of<"cancelMany">, answer: Answer<unknown>): void => {
  const outcomes = selected(scene, queue, filter).map((job) => cancelOne(scene, job))
  scene.count("cancelMany")
  agree("cancelMany", answer, { ok: tally({ cancelled: 0, requested: 0, tooLate: 0 }, outcomes) })
}

const changeOne = (state: State, job: Job, { delay, priority, runAt }: Of<"change">): Queue.ChangeOutcome => {
  if (isExpired(job, state.now)) return "tooLate"
  if (job.lease !== null) return "leased"
  const { now } = state
  const asked = runAt !== undefined ? Math.max(now, now + runAt) : delay !== undefined ? now + delay : job.dueAt
  // What is due and is to be due now keeps its place
  const dueAt = job.dueAt <= now && asked <= now ? job.dueAt : asked
  if (job.expiresMillis !== null && dueAt !== job.dueAt) job.expiresAt = dueAt + job.expiresMillis
  job.dueAt = dueAt
  job.priority = priority ?? job.priority
  return "changed"
}

export const changed = (scene: Scene, command: Of<"change">, answer: Answer<unknown>): void => {
  const outcomes = selected(scene, command.queue, command.filter).map((job) => changeOne(scene.state, job, command))
  for (const outcome of outcomes) scene.count(`change: ${outcome}`)
  agree("change", answer, { ok: tally({ changed: 0, leased: 0, tooLate: 0 }, outcomes) })
}

export const cleared = (scene: Scene, queue: QueueName, answer: Answer<number>): void => {
  const waiting = scene.state.live.filter((job) => job.queue === queue && job.lease === null)
  for (const job of waiting) removed(scene.state, job)
  scene.count(waiting.length === 0 ? "clear: none" : "clear")
  agree("clear", answer, { ok: waiting.length })
}

export const setPaused = (scene: Scene, queue: QueueName, paused: boolean, answer: Answer<boolean>): void => {
  const { state } = scene
  const changes = state.paused.includes(queue) !== paused
  state.paused = state.paused.filter((name) => name !== queue)
  if (paused) state.paused.push(queue)
  scene.count(`${paused ? "pause" : "resume"}: ${changes ? "changed" : "as it was"}`)
  agree(paused ? "pause" : "resume", answer, { ok: changes })
}

/** Oldest first. */
export const letters = (scene: Scene, queue: QueueName, filter: DeadFilterSpec): ReadonlyArray<Letter> => {
  const { ids, state } = scene
  scene.count(`letters by: ${filter.by}`)
  const fits = (letter: Letter): boolean => {
    switch (filter.by) {
      case "all":
        return true
      case "any":
        return letter.id === pick(ids, filter.at)?.id
      case "orderingKey":
        return letter.orderingKey === filter.key
      case "reason":
        return filter.reasons.includes(letter.reason)
      case "error":
        return letter.errors.some(({ message }) => message?.includes(filter.text))
      case "older":
        return letter.diedAt < state.now - filter.than
      case "younger":
        return letter.diedAt >= state.now - filter.than
      case "several":
        return filter.ats.some((at) => letter.id === pick(ids, at)?.id)
      case "keyAndReason":
        return letter.orderingKey === filter.key && filter.reasons.includes(letter.reason)
    }
  }
  return state.dead
    .filter((letter) => letter.queue === queue && fits(letter))
    .sort((a, b) => a.diedAt - b.diedAt || byId(a, b))
}

/** Whether somebody else has the letter's dedupe key in a queue. */
const keyHeld = (state: State, letter: Letter, to: QueueName): boolean =>
  state.keys.some(
    ({ freeAt, key, queue, uid }) =>
      queue === to && key === letter.dedupeKey && (freeAt === null || (freeAt > state.now && uid !== letter.uid))
  )

const revive = (scene: Scene, letter: Letter, to: QueueName, dueAt: number): void => {
  const { state } = scene
  const { attempt, crashes, diedAt, errors, failures, holds: held, history, id, queue, reason, ...rest } = letter
  const life = { id, queue, reason, diedAt, attempts: attempt, crashes, failures, errors }
  state.dead = state.dead.filter((other) => other !== letter)
  // It is the same job, unless its ordering key went on without it: then it joins the end
  const fresh = letter.orderingKey !== null && (!held || queue !== to)
  const { cancelRequested: _, expiresAt: __, failureTimes: ___, lease: ____, open: _____, uid, ...same } = rest
  const expiresAt = letter.expiresMillis === null ? null : dueAt + letter.expiresMillis
  const job = freshJob(state, {
    ...same,
    queue: to,
    dueAt,
    expiresAt,
    history: [...history, life].slice(-5),
    undecodableSince: null
  })
  const kept: Job = fresh ? job : { ...job, uid, id }
  if (letter.dedupeKey !== null) {
    state.keys = state.keys.filter((key) => key.queue !== to || key.key !== letter.dedupeKey)
    state.keys.push({ queue: to, key: letter.dedupeKey, uid: kept.uid, id: kept.id, freeAt: null })
  }
  join(state, kept)
  advance(state, queue, letter.orderingKey)
  scene.count(fresh ? "requeue: joins the end" : held ? "requeue: at the head" : "requeue")
  if (letter.dedupeKey !== null) scene.count("requeue: with a key")
}

export const requeued = (
  scene: Scene,
  { delay, filter, queue, to = queue }: Of<"requeue">,
  answer: Answer<Queue.Requeued>
): void => {
  const { state } = scene
  const named = !["all", "orderingKey", "error", "older", "younger"].includes(filter.by)
  const result = { requeued: 0, keyHeld: 0, notAccepted: 0, left: [] as Array<number> }
  for (const letter of letters(scene, queue, filter)) {
    if (!named && letter.reason === "cancelled") continue
    const accepted = to !== "numbers" || to === queue || typeof letter.payload === "number"
    if (accepted && !keyHeld(state, letter, to)) {
      revive(scene, letter, to, state.now + delay)
      result.requeued++
      continue
    }
    result[accepted ? "keyHeld" : "notAccepted"]++
    scene.count(accepted ? "requeue: key held" : "requeue: not accepted")
    result.left.push(letter.id ?? 0)
  }
  if (to !== queue && result.requeued > 0) scene.count("requeue: to another queue")
  agree("requeue", answer, { ok: result })
}

const purgeLetter = (state: State, letter: Letter): void => {
  state.dead = state.dead.filter((other) => other !== letter)
  advance(state, letter.queue, letter.orderingKey)
}

export const purged = (scene: Scene, { filter, queue }: Of<"purge">, answer: Answer<number>): void => {
  const some = letters(scene, queue, filter)
  for (const letter of some) purgeLetter(scene.state, letter)
  scene.count(
    some.some((letter) => letter.holds) ? "purge: frees an ordering key" : some.length > 0 ? "purge" : "purge: none"
  )
  agree("purge", answer, { ok: some.length })
}

/** Expires, ends leases, deletes what was kept long enough. */
export const swept = (scene: Scene, queue: QueueName | undefined, answer: Answer<Queue.SweepResult>): void => {
  const { count, state } = scene
  const { now } = state
  const of = (name: QueueName) => queue === undefined || queue === name
  const result = { expired: expireAll(state, of), recovered: 0, crashed: 0, purged: 0 }
  for (const job of state.live.filter((live) => of(live.queue) && isLapsed(live, now))) result[lapse(state, job)]++
  for (const name of queueNames.filter(of)) {
    const { retainCompleted, retainDead } = settings[name]
    const kept = state.dead.length + state.completed.length
    state.dead = state.dead.filter(
      ({ diedAt, holds, queue }) => queue !== name || holds || retainDead === null || diedAt > now - retainDead
    )
    state.completed = state.completed.filter(
      ({ completedAt, queue }) => queue !== name || retainCompleted === null || completedAt > now - retainCompleted
    )
    result.purged += kept - state.dead.length - state.completed.length
  }
  for (const [what, many] of Object.entries(result)) if (many > 0) count(`sweep: ${what}`)
  count("sweep")
  // The rows of dead holders, which had a whole ttl to come back
  if (queue === undefined) state.locks = state.locks.filter((lock) => lock.expiresAt + lock.ttl > state.now)
  agree("sweep", answer, { ok: result })
}

export const beaten = (scene: Scene, hand: Hand, progress: number | undefined, answer: Answer<void>): void => {
  const job = holds(scene.state, hand)
  scene.count(
    job === undefined ? "heartbeat: lease lost" : progress === undefined ? "heartbeat" : "heartbeat: progress"
  )
  if (job?.lease === undefined || job.lease === null) {
    agree("heartbeat", answer, { error: "LeaseLost" })
    return
  }
  if (isLapsed(job, scene.state.now)) scene.count("heartbeat: after the lease's end")
  agree("heartbeat", answer, { ok: undefined })
  job.lease.deadline = scene.state.now + job.lease.visibility
  if (progress !== undefined) job.progress = progress
}
