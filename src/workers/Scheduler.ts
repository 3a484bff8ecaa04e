/**
 * The scheduler: a supervised fiber that sleeps until the next boundary of any schedule and fires what is due. One
 * process of the fleet does so at a time, for economy; each boundary gives one job whether nobody, one or all do.
 *
 * @since 0.1.0
 */
import { Effect, Layer } from "effect"
import { forkLoop } from "../schedule/forkLoop.js"
import { schedulerLook, schedulerTurn } from "../schedule/Maintenance.js"
import { outageRetry, sleepMillis } from "../schedule/Polling.js"
import { reconnect } from "../schedule/Reconnect.js"
import { Clock } from "../services/Clock.js"
import { Lock } from "../services/Lock.js"
import { Queue } from "../services/QueueStore.js"
import { Schedules } from "../services/ScheduleStore.js"
import { scheduleTopic, Wake } from "../services/Wake.js"

/** The name of the lock under which one process of the fleet fires at a time: held while it fires, not while it sleeps. */
const schedulerLock = "__alkstore_scheduler"

/**
 * Fires schedules until the scope closes.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer: Layer.Layer<never, never, Schedules | Queue | Clock | Lock | Wake> = Layer.scopedDiscard(
  Effect.gen(function* () {
    const schedules = yield* Schedules
    const queue = yield* Queue
    const clock = yield* Clock
    const lock = yield* Lock
    const wake = yield* Wake

    /** How many it has dealt with; 0 when somebody else is at it. Where time is a test's there is no fleet to spare. */
    const pass = clock.virtual
      ? schedules.fireDue
      : schedules.fireDue.pipe(
          lock.withLock(schedulerLock, { ttl: "5 seconds", timeout: 0 }),
          Effect.catchTags({ LockTimeout: () => Effect.succeed(0), LockLost: () => Effect.succeed(0) })
        )

    /** Milliseconds until the next look, unless a wake comes first. */
    const round = Effect.gen(function* () {
      const next = yield* schedules.nextInMillis
      if (next !== undefined && next <= 0) return (yield* pass) > 0 ? 0 : schedulerTurn
      const state = yield* wake.state
      // In a test every change is of this process, and wakes it: looks would be timers in the way of a year's advance
      const look =
        clock.virtual && state._tag === "Live" ? Number.POSITIVE_INFINITY : schedulerLook(state, wake.pollInterval)
      return Math.min(next ?? Number.POSITIVE_INFINITY, look)
    })

    const loop = Effect.gen(function* () {
      const subscription = yield* wake.subscribe(scheduleTopic)
      for (;;) {
        let reported = false
        const wait = yield* Effect.retry(
          Effect.tapError(round, (error) => {
            if (reported) return Effect.void
            reported = true
            return Effect.logWarning("schedules cannot be fired; it is tried again until it works", error)
          }),
          outageRetry
        )
        const time = wait === Number.POSITIVE_INFINITY ? Effect.never : Effect.sleep(sleepMillis(wait))
        if (wait > 0) yield* Effect.raceFirst(subscription.await, time)
      }
    })

    yield* Effect.scoped(loop).pipe(
      Effect.tapErrorCause((cause) => Effect.logError("the scheduler died and is started again", cause)),
      Effect.sandbox,
      Effect.retry(reconnect),
      Effect.withTracerEnabled(false),
      queue.detached,
      forkLoop
    )
  })
)
