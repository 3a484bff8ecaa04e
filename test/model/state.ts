/** The model's state: what the contract says there is, and nothing of how it is stored. */
import type { QueueName } from "./queues.js"

export type Reason = "exhausted" | "crashed" | "failed" | "expired" | "cancelled" | "undecodable"

export interface ErrorNote {
  readonly kind: "failure" | "crash" | "undecodable"
  readonly attempt: number
  readonly at: number
  /** Of failures only: the other messages are the library's own. */
  readonly message: string | undefined
}

export interface Lease {
  readonly token: number
  readonly claimedAt: number
  readonly visibility: number
  deadline: number
}

/** A life that ended in the dead letters. */
export interface Life {
  readonly id: number | undefined
  readonly queue: QueueName
  readonly reason: Reason
  readonly diedAt: number
  readonly attempts: number
  readonly crashes: number
  readonly failures: number
  readonly errors: ReadonlyArray<ErrorNote>
}

export interface Job {
  /** The model's own name of it: in the order in which jobs joined their queues. */
  readonly uid: number
  /** The engine's; undefined until it was seen. */
  id: number | undefined
  readonly queue: QueueName
  payload: unknown
  headers: Readonly<Record<string, string>> | null
  priority: number
  readonly maxAttempts: number
  readonly enqueuedAt: number
  dueAt: number
  expiresAt: number | null
  expiresMillis: number | null
  readonly dedupeKey: string | null
  readonly dedupeScope: "waiting" | null
  readonly dedupeWindow: number | null
  readonly orderingKey: string | null
  attempt: number
  crashes: number
  failures: number
  errors: ReadonlyArray<ErrorNote>
  failureTimes: ReadonlyArray<number>
  readonly history: ReadonlyArray<Life>
  progress: unknown
  undecodableSince: number | null
  cancelRequested: boolean
  /** Not behind another of its ordering key: once it is, it stays. */
  open: boolean
  lease: Lease | null
}

export interface Letter extends Job {
  readonly reason: Reason
  readonly diedAt: number
  /** Holds its ordering key. */
  readonly holds: boolean
}

export interface Completed extends Job {
  readonly completedAt: number
}

/** Who holds a dedupe key: a live job, or until `freeAt` one that has ended. */
export interface Key {
  readonly queue: QueueName
  readonly key: string
  uid: number
  id: number | undefined
  freeAt: number | null
}

export interface Schedule {
  readonly name: string
  spec: ScheduleSpec
  readonly createdAt: number
  pausedAt: number | null
  nextAt: number
  lastAt: number | null
  fired: number
  skipped: number
  /** Those of its jobs that may be live still. */
  jobs: ReadonlyArray<number>
}

export interface ScheduleSpec {
  readonly queue: "jobs" | "mail"
  readonly payload: number
  readonly priority?: number
  readonly maxAttempts?: number
  readonly expires?: number
  readonly catchUp: "latest" | "all" | "skip"
  readonly overlap: "allow" | "skip"
}

export interface State {
  now: number
  live: Array<Job>
  dead: Array<Letter>
  completed: Array<Completed>
  keys: Array<Key>
  paused: Array<QueueName>
  schedules: Array<Schedule>
  locks: Array<Lock>
}

export interface Lock {
  readonly name: string
  readonly token: number
  readonly ttl: number
  expiresAt: number
}

export const emptyState = (now: number): State => ({
  now,
  live: [],
  dead: [],
  completed: [],
  keys: [],
  paused: [],
  schedules: [],
  locks: []
})

let lastUid = 0

/** Never used again, also when a transaction rolls back. */
export const nextUid = (): number => ++lastUid

/** It waits, and its expiry has passed: it will not run. */
export const isExpired = (job: Job, now: number): boolean =>
  job.lease === null && job.expiresAt !== null && job.expiresAt <= now

/** When a claim meets it, if it is open: once it is due, or by its expiry. */
export const metAt = ({ dueAt, expiresAt }: Job): number => Math.min(dueAt, expiresAt ?? dueAt)

/** The lease has ended by time. */
export const isLapsed = (job: Job, now: number): boolean => job.lease !== null && job.lease.deadline <= now

/** Ready, and neither paused nor expired: a claim may take it. */
export const isClaimable = (state: State, job: Job): boolean =>
  job.lease === null &&
  job.open &&
  job.dueAt <= state.now &&
  !isExpired(job, state.now) &&
  !state.paused.includes(job.queue)

export const stateOf = (job: Job, now: number): "leased" | "blocked" | "ready" | "delayed" =>
  job.lease !== null ? "leased" : !job.open ? "blocked" : metAt(job) <= now ? "ready" : "delayed"
