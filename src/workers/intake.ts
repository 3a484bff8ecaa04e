/**
 * What a worker takes in: how much there is room for, and what becomes of what has been claimed for it.
 */
import type { ClaimResult, Receiver } from "../services/QueueStore.js"
import type { ClaimedRow } from "../services/Settlement.js"
import * as Settlement from "../services/Settlement.js"
import { arm, type Held, makeHeld, offerSettle, type WorkerState } from "./held.js"
import { lose } from "./interrupt.js"
import type { Stream } from "./stream.js"

/** As many as the handlers clear in this time are claimed ahead of them. */
const aheadMillis = 250

/** What is claimed ahead is at most about so many characters of payload: big jobs must not fill the memory. */
const aheadSize = 16 * 1024 * 1024

/** The most of either kind in one claim. */
const maxClaim = 10_000

export interface Starter {
  /** Starts buffered jobs in free slots. */
  readonly start: () => void
}

const prefetch = (state: WorkerState): number => {
  const { batchSize, concurrency, maxPrefetch } = state.policy
  if (state.meanRun === undefined) return 0
  const cleared = Math.floor((aheadMillis * concurrency) / Math.max(state.meanRun, 0.01)) * batchSize
  return Math.min(maxPrefetch, cleared, Math.floor(aheadSize / Math.max(1, state.meanSize)))
}

/**
 * How much there is room for: free slots, their handlers, and what may be claimed ahead of them; besides what is kept for jobs that
 * are being enqueued.
 */
export const room = (state: WorkerState, kept = state.reserved) => {
  if (state.paused || state.draining || state.state === "failed") return { limit: 0, handlers: 0, ahead: 0 }
  const { batchSize, concurrency } = state.policy
  const handlers = concurrency - state.running - Math.ceil((state.buffer.length + kept) / batchSize)
  const free = (concurrency - state.running) * batchSize - state.buffer.length - kept
  const most = state.leftBehind ? 0 : prefetch(state)
  const waiting = Math.max(0, -free)
  // Refilled when half empty, so that claims stay large
  const ahead = waiting <= most / 2 ? most - waiting : 0
  return {
    limit: Math.min(maxClaim, Math.max(0, free)),
    handlers: Math.max(0, handlers),
    ahead: Math.min(maxClaim, ahead)
  }
}

/** How long a job goes back for whose handler of an earlier lease has not ended yet. */
const overlapMillis = 1_000

/**
 * Whether an earlier lease's handler of the same job is still at it, here: the lease has ended unnoticed (the clock was
 * set, the process was suspended) and this worker has claimed the job again. It is interrupted, and has to end first.
 */
const overlaps = (state: WorkerState, earlier: ReadonlyArray<Held>): boolean => {
  for (const held of earlier) lose(state, held, state.lastClaim ?? 0)
  return earlier.some(({ phase }) => phase === "lost")
}

/** What is in hand of jobs that have been claimed again, by id. */
const earlierOf = (state: WorkerState, rows: ReadonlyArray<ClaimedRow>): ReadonlyMap<number, ReadonlyArray<Held>> => {
  const earlier = new Map<number, Array<Held>>()
  for (const { crashes, id } of rows) if (crashes > 0) earlier.set(id, [])
  if (earlier.size > 0) for (const held of state.held.values()) earlier.get(held.row.id)?.push(held)
  return earlier
}

const accept = (state: WorkerState, starter: Starter, rows: ReadonlyArray<ClaimedRow>): void => {
  const earlier = earlierOf(state, rows)
  for (const row of rows) {
    const held = makeHeld(row)
    state.meanSize = state.meanSize * 0.9 + row.payload.length * 0.1
    state.held.set(row.token, held)
    if (state.paused || state.draining) offerSettle(state, held, Settlement.givenBack(row, 0))
    else if (overlaps(state, earlier.get(row.id) ?? []))
      offerSettle(state, held, Settlement.givenBack(row, overlapMillis))
    else state.buffer.push(held)
  }
  if (rows.length > 0) state.holding.unsafeOpen()
  starter.start()
  const [first] = state.buffer
  const { maxWaitMillis, visibilityMillis } = state.policy
  if (first !== undefined) arm(state, first.row.claimedMonotonic + (maxWaitMillis || visibilityMillis / 3))
}

export const take = (state: WorkerState, starter: Starter, result: ClaimResult): void => {
  state.refillAt = result.more ? Math.floor((result.left === true ? 0 : prefetch(state)) / 2) : -1
  accept(state, starter, result.jobs)
}

/** For what is enqueued in this process while a handler is free and nothing else is ready. */
export const makeReceiver = (state: WorkerState, starter: Starter, stream: Stream): Receiver => ({
  queue: state.queueName,
  worker: state.workerId,
  visibilityMillis: state.policy.visibilityMillis,
  reserve: (jobs) => {
    if (!state.caughtUp || stream.gathers() || room(state).limit < jobs) return false
    state.reserved += jobs
    return true
  },
  take: (reserved, jobs) => {
    state.reserved -= reserved
    const [first] = jobs
    if (first !== undefined) {
      stream.handed(jobs.length, first.claimedMonotonic)
      state.telemetry.claimed(jobs)
      state.telemetry.waits(state.caughtUp)
      accept(state, starter, jobs)
    }
    state.room.unsafeOpen()
    if (state.draining) state.idle.unsafeOpen()
  }
})
