/**
 * The fetcher: one per worker, claims for all its handlers. It drains before it waits; it waits for a wake, the next
 * due job, the next lease's end or the safety poll, whichever is first.
 */
import { Effect, type Fiber } from "effect"
import { outageRetry, restMillis, sleepMillis } from "../schedule/Polling.js"
import { retryWhile } from "../schedule/retryWhile.js"
import type { ClaimPosition, ClaimResult } from "../services/QueueStore.js"
import type { WakeState } from "../services/Wake.js"
import { nextMembers } from "./batch.js"
import { notePaused } from "./controller.js"
import { makeRun, type Run, type WorkerState } from "./held.js"
import { room, type Starter, take } from "./intake.js"
import type { JobFork, Runs } from "./jobFork.js"
import { failing, works } from "./outage.js"
import type { Perform } from "./perform.js"
import { runJob } from "./runJob.js"
import type { Stream } from "./stream.js"

/** For so long room is kept for jobs that are being enqueued: an enqueue without an answer keeps nobody from a handler. */
const keptMillis = 100

/** While enough jobs are ready, lapsed leases are looked for this often. */
const probeMillis = 1_000

export const makeStarter = (state: WorkerState, perform: Perform, makeFork: (runs: Runs) => JobFork): Starter => {
  const take = (): Run | undefined => {
    if (state.running >= state.policy.concurrency) return undefined
    const members = nextMembers(state)
    if (members.length === 0) return undefined
    const run = makeRun(members)
    for (const held of members) {
      held.phase = "running"
      held.run = run
    }
    state.running++
    return run
  }
  const start = () => {
    for (let run = take(); run !== undefined; run = take()) fork(run)
  }
  const fork = makeFork({
    take,
    start,
    pressing: () => state.buffer.length <= state.refillAt,
    life: (run, fiber, scope, goOn) => runJob(state, run, fiber, perform, scope, start, goOn)
  })
  return { start }
}

/**
 * Opens a latch at the latest at some instant, which may be set anew at any time: for each of many short waits, without a
 * fiber for each. It ends with the fiber that sets it, which has to be the same each time.
 */
const makeAlarm = (state: WorkerState, latch: Effect.Latch) => {
  let due = Number.POSITIVE_INFINITY
  let fiber: Fiber.RuntimeFiber<void> | undefined
  /** When that fiber looks next: at `due`, or before. */
  let looks = 0

  const sleep: Effect.Effect<void> = Effect.flatMap(state.clock.monotonic, (now) => {
    if (due === Number.POSITIVE_INFINITY) {
      fiber = undefined
      return Effect.void
    }
    if (now < due) {
      looks = due
      return Effect.zipRight(Effect.sleep(sleepMillis(due - now)), sleep)
    }
    fiber = undefined
    return latch.open
  })

  return {
    set: (millis: number): Effect.Effect<void> =>
      Effect.flatMap(state.clock.monotonic, (now) => {
        due = now + millis
        if (fiber !== undefined && looks <= due) return Effect.void
        fiber?.unsafeInterruptAsFork(fiber.id())
        looks = due
        return Effect.map(Effect.fork(sleep), (forked) => {
          fiber = forked
        })
      }),
    clear: (): void => {
      due = Number.POSITIVE_INFINITY
    }
  }
}

export const fetcher = (state: WorkerState, starter: Starter, stream: Stream): Effect.Effect<never> => {
  let lastProbe = Number.NEGATIVE_INFINITY
  let fruitless = 0
  /** Where the last claim has come to: dropped with a wake, an empty answer and every second. */
  let after: ClaimPosition | undefined
  /** Whether the last claim began at one: nothing more was found there, not nothing at all. */
  let hinted = false
  let wakesHeard = 0
  let alarm = makeAlarm(state, state.nudge)

  const claimed = Effect.sync(() => {
    state.claiming = false
    if (state.draining) state.idle.unsafeOpen()
  })

  /** Uninterruptible: a claim that has been answered is always in the worker's hands. */
  const claim = ({ ahead, handlers, limit }: ReturnType<typeof room>) =>
    Effect.gen(function* () {
      const now = yield* state.clock.monotonic
      const probe = now - lastProbe >= probeMillis
      if (probe) lastProbe = now
      const heard = wakesHeard
      hinted = !probe && after !== undefined
      state.claiming = true
      state.caughtUp = false
      state.refillAt = -1
      const result = yield* state.queue.claim({
        queue: state.queueName,
        limit,
        handlers,
        prefetch: ahead,
        visibilityMillis: state.policy.visibilityMillis,
        worker: state.workerId,
        probe,
        after: probe ? undefined : after
      })
      // What has become ready since it was sent may lie before
      after = heard === wakesHeard ? result.last : undefined
      state.caughtUp = heard === wakesHeard && !hinted && !result.more && !result.paused
      state.lastClaim = yield* state.clock.monotonic
      state.leftBehind = result.left === true
      works(state, "claiming")
      stream.found(result.jobs.length)
      state.telemetry.claimed(result.jobs)
      take(state, starter, result)
      notePaused(state, result.paused)
      return result
    }).pipe(Effect.ensuring(claimed), Effect.uninterruptible)

  const outage = (error: { readonly message: string }) =>
    Effect.suspend(() => {
      state.telemetry.waits(false)
      return failing(state, "claiming", error)
    })

  const rest = (result: ClaimResult, limit: number, wakes: WakeState) => {
    // What others were claiming at that very moment was not seen, nor was its lease: should that end, it is found in time.
    // Where time is a test's there are no others, and looks would be timers in the way of days
    const unseen = state.clock.virtual ? Number.POSITIVE_INFINITY : state.policy.visibilityMillis
    const poll = Math.min(restMillis(state.wake, wakes, result.nextInMillis !== undefined), unseen)
    const { more, nextInMillis = poll } = result
    // There is more, but nothing that may be claimed now: spent rows that are being moved, or that somebody has locked,
    // or ones for free handlers only
    const due = more && nextInMillis === 0 ? poll : nextInMillis
    if (!more) fruitless = 0
    const millis = Math.min(poll, due, more ? Math.min(1_000, 5 * 2 ** fruitless++) : poll)
    const woken = limit === 0 ? Effect.raceFirst(state.nudge.await, state.room.await) : state.nudge.await
    return Effect.flatMap(Effect.zipRight(alarm.set(millis), woken), () => {
      alarm.clear()
      return state.nudge.close
    })
  }

  /** Wakes are nudges like others: so that who rests waits for one thing. */
  const heard = Effect.map(state.subscription.await, () => {
    after = undefined
    wakesHeard++
    state.caughtUp = false
    state.nudge.unsafeOpen()
  })
  const wakes = Effect.zipRight(
    Effect.whileLoop({ while: () => true, body: () => heard, step: () => undefined }),
    Effect.never
  )

  /** What to claim, once there is room for anything; undefined when it has to be looked at anew. */
  const roomFound = Effect.gen(function* () {
    yield* state.room.close
    const found = room(state)
    if (found.limit + found.ahead > 0) return found
    state.telemetry.waits(false)
    const opened = Effect.as(state.room.await, undefined)
    if (state.reserved === 0 || state.clock.virtual) return yield* opened
    // What comes of that enqueue after all waits for a handler
    const anyway = Effect.map(state.clock.lull(keptMillis), () => room(state, 0))
    const without = yield* Effect.raceFirst(opened, anyway)
    return without === undefined || without.limit + without.ahead > 0 ? without : yield* opened
  })

  const turns = Effect.gen(function* () {
    const found = yield* roomFound
    if (found === undefined) return
    const { limit } = found
    const result = yield* Effect.catchAll(
      retryWhile(Effect.tapError(claim(found), outage), outageRetry, () => true),
      () => Effect.never
    )
    if (state.paused || state.draining) return
    if (result.more && result.jobs.length > 0) {
      fruitless = 0
      return
    }
    if (hinted) return
    state.telemetry.waits(!result.more && !result.paused)
    yield* rest(result, limit, yield* state.wake.state)
    // What has woken meanwhile is found by the claim that follows
    if (yield* stream.gather(result.jobs.filter(({ orderingKey }) => orderingKey === null).length))
      yield* state.nudge.close
  }).pipe(Effect.forever)
  // A loop that is started again after a defect has lost the fiber of its alarm
  const begun = Effect.sync(() => {
    state.caughtUp = false
    alarm = makeAlarm(state, state.nudge)
  })
  return Effect.raceFirst(Effect.zipRight(begun, turns), wakes)
}
