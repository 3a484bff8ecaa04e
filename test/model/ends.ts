/** How jobs join and leave the live ones, in the model: keys, places, letters, envelopes. */
import { type QueueName, settings } from "./queues.js"
import { type ErrorNote, isExpired, type Job, type Letter, nextUid, type Reason, type State } from "./state.js"

/** Lets the first of an ordering key go on, if nobody is before it and no dead letter holds the key. */
export const advance = (state: State, queue: QueueName, orderingKey: string | null): void => {
  if (orderingKey === null) return
  const lane = state.live.filter((job) => job.queue === queue && job.orderingKey === orderingKey)
  if (lane.some((job) => job.open)) return
  const [first] = lane.sort((a, b) => a.uid - b.uid)
  if (first === undefined) return
  // A job goes before the letters of jobs after it
  first.open = !state.dead.some(
    (letter) => letter.holds && letter.queue === queue && letter.orderingKey === orderingKey && letter.uid < first.uid
  )
}

export const join = (state: State, job: Job): void => {
  state.live.push(job)
  advance(state, job.queue, job.orderingKey)
}

type Fresh = Pick<Job, "queue" | "payload" | "priority" | "maxAttempts" | "dueAt"> & Partial<Job>

export const freshJob = (state: State, given: Fresh): Job => ({
  uid: nextUid(),
  id: undefined,
  headers: null,
  enqueuedAt: state.now,
  expiresAt: null,
  expiresMillis: null,
  dedupeKey: null,
  dedupeScope: null,
  dedupeWindow: null,
  orderingKey: null,
  attempt: 0,
  crashes: 0,
  failures: 0,
  errors: [],
  failureTimes: [],
  history: [],
  progress: null,
  undecodableSince: null,
  cancelRequested: false,
  lease: null,
  ...given,
  open: (given.orderingKey ?? null) === null
})

/** Its dedupe key, which a window may hold on, and its place. */
const leave = (state: State, job: Job, window: number | null): void => {
  state.live = state.live.filter((other) => other !== job)
  const held = state.keys.find((key) => key.uid === job.uid && key.freeAt === null)
  if (held !== undefined && window !== null) held.freeAt = state.now + window
  else if (held !== undefined) state.keys = state.keys.filter((key) => key !== held)
  advance(state, job.queue, job.orderingKey)
}

export const complete = (state: State, job: Job): void => {
  if (settings[job.queue].retainCompleted !== null) state.completed.push({ ...job, completedAt: state.now })
  leave(state, job, job.dedupeWindow)
}

export const removed = (state: State, job: Job): void => leave(state, job, null)

/** An envelope as a dead-letter queue's payload. */
const envelope = (letter: Letter): unknown => ({
  payload: letter.payload,
  reason: letter.reason,
  errors: letter.errors,
  origin: {
    id: letter.id,
    queue: letter.queue,
    attempts: letter.attempt,
    priority: letter.priority,
    enqueuedAt: letter.enqueuedAt,
    diedAt: letter.diedAt,
    dedupeKey: letter.dedupeKey,
    orderingKey: letter.orderingKey
  }
})

export const bury = (state: State, job: Job, reason: Reason): void => {
  const { block, deadLetterQueue } = settings[job.queue]
  const called = reason === "cancelled"
  const holds = block && job.orderingKey !== null && !called
  const letter: Letter = { ...job, reason, diedAt: state.now, holds }
  state.dead.push(letter)
  leave(state, job, called ? null : job.dedupeWindow)
  if (deadLetterQueue === null || called) return
  const { maxAttempts, priority } = settings[deadLetterQueue]
  const { headers } = job
  join(
    state,
    freshJob(state, {
      queue: deadLetterQueue,
      payload: envelope(letter),
      priority,
      maxAttempts,
      dueAt: state.now,
      headers
    })
  )
}

const noted = (job: Job, kind: ErrorNote["kind"], at: number, message?: string): void => {
  job.errors = [...job.errors, { kind, attempt: job.attempt, at, message }].slice(-10)
}

export const failed = (job: Job, kind: "failure" | "undecodable", at: number, message?: string): void => {
  noted(job, kind, at, message)
  job.failures++
  job.failureTimes = [...job.failureTimes, at]
}

/** Back from a lease, or dead if it was to be cancelled meanwhile. */
export const giveBack = (state: State, job: Job, dueAt: number, attempt: number): void => {
  if (job.cancelRequested) bury(state, job, "cancelled")
  else Object.assign(job, { lease: null, dueAt, attempt })
}

/** A lease that ended unsettled. */
export const lapse = (state: State, job: Job): "recovered" | "crashed" => {
  noted(job, "crash", state.now)
  job.crashes++
  if (job.cancelRequested) bury(state, job, "cancelled")
  else if (job.attempt >= job.maxAttempts || job.crashes > settings[job.queue].maxCrashes) bury(state, job, "crashed")
  else {
    giveBack(state, job, Math.min(state.now, job.lease?.deadline ?? state.now), job.attempt)
    return "recovered"
  }
  return "crashed"
}

/** Everything of some queues that has expired is dead. */
export const expireAll = (state: State, of: (queue: QueueName) => boolean): number => {
  const spent = state.live.filter((job) => of(job.queue) && isExpired(job, state.now))
  for (const job of spent) bury(state, job, "expired")
  return spent.length
}
