/**
 * The state of one worker: the jobs in its hands and what it has done. Plain mutable data, owned by the worker's
 * fibers, which take turns on one event loop.
 */
import { Effect, type Fiber } from "effect"
import type { Service as ClockService } from "../services/Clock.js"
import type { Service as QueueService, Renewal } from "../services/QueueStore.js"
import type { ClaimedRow, Settlement } from "../services/Settlement.js"
import type { Subscription, Service as WakeService } from "../services/Wake.js"
import type { Stop } from "./decide.js"
import type { Doing, Failing } from "./outage.js"
import type { Policy } from "./policy.js"
import type { TelemetryHooks } from "./telemetryHooks.js"
import type { JobRef, WorkerEvent } from "./WorkerEvent.js"

export type RunFiber = Fiber.RuntimeFiber<unknown, unknown>

/** One call of a handler: one job, or those of a batch. */
export interface Run {
  /** The jobs whose end it decides. One that cannot be decoded leaves. */
  readonly members: Array<Held>
  fiber: RunFiber | undefined
  /** Monotonic milliseconds; infinite until the fiber has started. */
  startedAt: number
  /** Monotonic milliseconds: when it counts as stuck; infinite until it is interrupted. */
  stuckAt: number
  /** It ignored its interruption, and its slot was given up. */
  stuck: boolean
}

export interface Held {
  readonly row: ClaimedRow
  /** What events call it. */
  readonly ref: JobRef
  /** `buffered`, then `running`, then `settling`; `lost` and `stuck` leave the handler to itself. */
  phase: "buffered" | "running" | "settling" | "lost" | "stuck"
  /** From its start on. */
  run: Run | undefined
  /** It has waited long enough for others to fill its batch. */
  ripe: boolean
  /** Monotonic milliseconds: when the lease ends as far as this process knows. */
  deadline: number
  /** Why the runtime wants no more of the handler for this job. */
  stop: Stop | undefined
  /** Progress that is not written yet. */
  progress: string | undefined
  beat: boolean
  /** How the job was settled in the handler's own transaction, or by its handler; perhaps not answered yet, or rolled back since. */
  settledByHand: Settlement | undefined
  settlement: Settlement | undefined
  /** A settle was sent and its answer lost: finding the job gone means that it was done. */
  sent: boolean
}

export interface Counters {
  acked: number
  retried: number
  released: number
  dead: number
  lost: number
}

export interface WorkerState {
  readonly queueName: string
  readonly workerId: string
  readonly policy: Policy
  readonly queue: QueueService
  readonly clock: ClockService
  readonly wake: WakeService
  readonly subscription: Subscription
  /** Wakes of what is asked while jobs are in hand. */
  readonly control: Subscription
  readonly telemetry: TelemetryHooks
  /** By lease token: one job may be here twice, under an old lease and a new one. */
  readonly held: Map<number, Held>
  readonly buffer: Array<Held>
  /** As soon as no more than so many are left there, the fetcher wants its turn, to claim more meanwhile. */
  refillAt: number
  /** Handlers that run now: slots in use. */
  running: number
  stuck: number
  paused: boolean
  /** For the whole fleet, as far as this worker knows. */
  queuePaused: boolean
  draining: boolean
  /** Ready jobs were left for free handlers: the next claim is for those, so that what is claimed ahead does not pass them for ever. */
  leftBehind: boolean
  /** Room that is kept for jobs that are being enqueued: see `receive`. */
  reserved: number
  /** The last claim has found all there was, and nothing has woken since. */
  caughtUp: boolean
  /** A claim is under way: what it takes will be in the worker's hands. */
  claiming: boolean
  state: "running" | "paused" | "draining" | "stopped" | "failed"
  readonly counters: Counters
  /** Mean run time of a handler, in milliseconds; undefined until one has ended. */
  meanRun: number | undefined
  /** Mean size of a payload, in characters. */
  meanSize: number
  /** Monotonic milliseconds. */
  readonly startedAt: number
  lastClaim: number | undefined
  lastRenewal: number | undefined
  /** What fails and is tried again: see `outage`. */
  readonly failing: Map<Doing, Failing>
  /** An outage has been told, and not yet that it is over. */
  outage: boolean
  /** Opened when there may be room for more jobs, or the worker's state changed. */
  readonly room: Effect.Latch
  /** Opened when the fetcher should look for work whatever it waits for. */
  readonly nudge: Effect.Latch
  /** Opened when the next deadline may have come nearer. */
  readonly rearm: Effect.Latch
  /** The monotonic instant for which the watch over deadlines is set. */
  armedFor: number
  /** Opened when the worker has jobs in its hands: without any, its leases need no keeper. */
  readonly holding: Effect.Latch
  /** Opened when progress is to be written. */
  readonly beats: Effect.Latch
  /** Opened when something is to be settled. */
  readonly settles: Effect.Latch
  readonly toSettle: Array<Held>
  /** Opened, while draining, whenever a job leaves the worker's hands. */
  readonly idle: Effect.Latch
  /** Up to where stalls of the event loop have been looked at. */
  stallMark: number
  /** Jobs that ended since the last beat, for whoever blocked the event loop. */
  readonly recent: Array<JobRef>
  readonly publish: (event: WorkerEvent) => void
}

export const jobRef = (row: ClaimedRow): JobRef => ({
  queue: row.queue,
  jobId: row.id,
  attempt: row.attempt,
  token: row.token
})

export const makeHeld = (row: ClaimedRow): Held => ({
  row,
  ref: jobRef(row),
  phase: "buffered",
  run: undefined,
  ripe: false,
  deadline: row.claimedMonotonic + row.visibilityMillis,
  stop: undefined,
  progress: undefined,
  beat: false,
  settledByHand: undefined,
  settlement: undefined,
  sent: false
})

export const makeRun = (members: Array<Held>): Run => ({
  members,
  fiber: undefined,
  startedAt: Number.POSITIVE_INFINITY,
  stuckAt: Number.POSITIVE_INFINITY,
  stuck: false
})

/** The lease again for its visibility timeout, and what is to be written of its job's progress. */
export const renewalOf = ({ policy }: WorkerState, { row }: Held, progress: string | undefined): Renewal => ({
  id: row.id,
  token: row.token,
  visibilityMillis: policy.visibilityMillis,
  progress
})

/** The present by the database's clock, as far as this process can tell without asking it; whole, as rows are. */
export const databaseNow = (state: WorkerState, row: ClaimedRow): Effect.Effect<number> =>
  Effect.map(state.clock.monotonic, (now) => Math.floor(row.claimedAt + now - row.claimedMonotonic))

/** Forgets a job: it is not in the worker's hands any more. */
export const forget = (state: WorkerState, held: Held): void => {
  if (state.held.get(held.row.token) === held) state.held.delete(held.row.token)
  if (state.draining) state.idle.unsafeOpen()
}

/** Hands an ended or never started job to the acknowledger. */
export const offerSettle = (state: WorkerState, held: Held, settlement: Settlement): void => {
  held.phase = "settling"
  held.settlement = settlement
  state.toSettle.push(held)
  state.settles.unsafeOpen()
}

/** Makes sure that the watch over deadlines wakes by then. */
export const arm = (state: WorkerState, at: number): void => {
  if (at < state.armedFor) state.rearm.unsafeOpen()
}
