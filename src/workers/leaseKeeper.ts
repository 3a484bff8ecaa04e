/**
 * The lease keeper: renews every lease in the worker's hands with one statement per beat, and writes progress, at most
 * once a second.
 */
import { Duration, Effect, Option, type Schedule, ScheduleDecision, ScheduleIntervals } from "effect"
import * as Heartbeat from "../schedule/Heartbeat.js"
import { renewalRetry } from "../schedule/Renewal.js"
import type { RenewOutcome } from "../services/QueueStore.js"
import { look, noteCancelled } from "./controller.js"
import { arm, type Held, renewalOf, type WorkerState } from "./held.js"
import { lose } from "./interrupt.js"
import { ceases, failing, works } from "./outage.js"

const batchSize = 1_000

/** Longer than this is a block worth telling of. */
const blockedMillis = 1_000

const note = (state: WorkerState, held: Held, outcome: RenewOutcome, sentAt: number, now: number): void => {
  if (outcome === "lost" || outcome === "gone") {
    // A job that its handler has settled is no loss, and one that is being settled learns it there
    const byHand = held.settledByHand !== undefined && (outcome === "gone" || held.settledByHand._tag === "Return")
    if (!byHand) {
      if (held.phase !== "settling") lose(state, held, now)
      return
    }
  }
  // Who has settled it in a transaction that is still open has locked it, and nobody else can take it
  if (outcome === "busy" && held.settledByHand === undefined) return
  held.deadline = sentAt + state.policy.visibilityMillis
  if (outcome === "cancelled") noteCancelled(state, held, now)
}

/** Renews leases, and writes what their handlers last said of their progress: kept until it is known to be written. */
export const renew = (state: WorkerState, batch: ReadonlyArray<Held>) =>
  Effect.gen(function* () {
    const sentAt = yield* state.clock.monotonic
    const renewals = batch.map((held) => {
      held.beat = false
      return renewalOf(state, held, held.progress)
    })
    const outcomes = yield* state.queue.renew(renewals)
    const now = yield* state.clock.monotonic
    state.lastRenewal = now
    for (const [index, held] of batch.entries()) {
      const outcome = outcomes[index] ?? "busy"
      if (outcome !== "busy" && held.progress === renewals[index]?.progress) held.progress = undefined
      note(state, held, outcome, sentAt, now)
    }
  })

const renewAll = (state: WorkerState, wanted: (held: Held) => boolean) =>
  Effect.suspend(() => {
    const mine = [...state.held.values()].filter(
      (held) => held.phase !== "lost" && held.phase !== "stuck" && wanted(held)
    )
    const batches = Array.from({ length: Math.ceil(mine.length / batchSize) }, (_, n) =>
      mine.slice(n * batchSize, (n + 1) * batchSize)
    )
    const all = Effect.forEach(batches, (batch) => renew(state, batch), { discard: true })
    return batches.length === 0 ? all : Effect.map(all, () => works(state, "renewing leases"))
  }).pipe(Effect.tapError((error) => failing(state, "renewing leases", error)))

/** Whoever held up this process is among the jobs that run, or ended since the last look. */
const watchLoop = (state: WorkerState) =>
  Effect.flatMap(state.clock.stall(state.stallMark), ({ mark, millis }) => {
    state.stallMark = mark
    const recent = state.recent.splice(0)
    if (millis < blockedMillis) return Effect.void
    const running = [...state.held.values()].filter((held) => held.phase === "running").map((held) => held.ref)
    const jobs = [...running, ...recent.slice(-20)]
    state.publish({ _tag: "EventLoopBlocked", millis, jobs })
    return Effect.logWarning(
      `queue ${state.queueName}: the event loop stood still for ${millis} ms; leases cannot be renewed meanwhile. Jobs at hand: ${jobs.map((job) => job.jobId).join(", ") || "none"}`
    )
  })

/** The delays of the heartbeat Schedule; one that ends or waits for too long is replaced by the default. */
const makeBeats = (state: WorkerState) => {
  const { heartbeat, marginMillis, visibilityMillis } = state.policy
  let schedule: Schedule.Schedule<unknown> = heartbeat
  let current: unknown = heartbeat.initial
  const replace = (reason: string): number => {
    schedule = Heartbeat.heartbeat(visibilityMillis)
    current = schedule.initial
    state.publish({ _tag: "HeartbeatReplaced", reason })
    return visibilityMillis / 3
  }
  return Effect.gen(function* () {
    const now = yield* state.clock.now
    const [next, , decision] = yield* schedule.step(now, undefined, current)
    current = next
    if (ScheduleDecision.isDone(decision)) return replace("the heartbeat Schedule ended")
    const delay = ScheduleIntervals.start(decision.intervals) - now
    // At the margin before its end a lease counts as one that cannot be renewed
    if (!(delay < visibilityMillis - marginMillis))
      return replace("a step of the heartbeat Schedule reaches the end of the visibility timeout")
    return Math.max(1, delay)
  }).pipe(Effect.catchAllDefect(() => Effect.sync(() => replace("the heartbeat Schedule died"))))
}

export const leaseKeeper = (state: WorkerState): Effect.Effect<never> => {
  const beats = makeBeats(state)
  const retry = renewalRetry(state.policy.visibilityMillis)
  return Effect.gen(function* () {
    if (state.held.size === 0) {
      ceases(state, "renewing leases")
      yield* Effect.zipRight(state.holding.close, state.holding.await)
    }
    yield* Effect.sleep(Duration.millis(yield* beats))
    yield* Effect.zipRight(watchLoop(state), renewAll(state, () => true).pipe(Effect.retry(retry), Effect.option))
    arm(state, Number.NEGATIVE_INFINITY)
    // A pause whose wake was lost: what was claimed ahead is not to be held for long
    if (state.buffer.length > 0) yield* look(state)
  }).pipe(Effect.forever)
}

/** Writes what handlers say of their progress: the first at once, then the latest of each second. */
export const progressKeeper = (state: WorkerState): Effect.Effect<never> =>
  Effect.gen(function* () {
    yield* Effect.zipRight(state.beats.await, state.beats.close)
    const written = yield* Effect.option(renewAll(state, (held) => held.beat || held.progress !== undefined))
    if (Option.isNone(written)) state.beats.unsafeOpen()
    yield* Effect.sleep(Heartbeat.progressMillis)
  }).pipe(Effect.forever)
