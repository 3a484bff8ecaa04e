/**
 * Cadences of waiting for something that will pass: a lock, a conflict, the next look for work.
 *
 * @since 0.1.0
 */
import { Duration, Effect, Schedule } from "effect"
import type { WakeState } from "../services/Wake.js"

/**
 * Timers of the runtime reach 2^31 - 1 ms; a longer sleep would never wake. Nothing sleeps longer than this.
 *
 * @since 0.1.0
 * @category models
 */
export const longestSleepMillis = 86_400_000

/**
 * A sleep, cut to what a timer can hold.
 *
 * @since 0.1.0
 * @category constructors
 */
export const sleepMillis = (millis: number): number => Math.min(longestSleepMillis, Math.max(1, Math.ceil(millis)))

/**
 * A sleep of any length, in as many parts as a timer needs.
 *
 * @since 0.1.0
 * @category constructors
 */
export const longSleep = (millis: number): Effect.Effect<void> =>
  millis <= longestSleepMillis
    ? Effect.sleep(sleepMillis(millis))
    : Effect.zipRight(
        Effect.sleep(longestSleepMillis),
        Effect.suspend(() => longSleep(millis - longestSleepMillis))
      )

/**
 * While another process has the write lock: after 1 ms, doubling, at most 50 ms apart with jitter; without end.
 *
 * @since 0.1.0
 * @category schedules
 */
export const busyDelays: Schedule.Schedule<unknown> = Schedule.exponential(1).pipe(
  Schedule.union(Schedule.spaced(50)),
  Schedule.jittered
)

/**
 * The same for so long.
 *
 * @since 0.1.0
 * @category schedules
 */
export const busyRetry = (limit: Duration.DurationInput): Schedule.Schedule<unknown> =>
  Schedule.intersect(
    busyDelays,
    Schedule.elapsed.pipe(Schedule.whileOutput((elapsed) => Duration.lessThan(elapsed, limit)))
  )

/**
 * How long a listener rests at most before it looks for work without any wake, in milliseconds.
 *
 * @since 0.1.0
 * @category schedules
 */
export const restMillis = (
  wake: { readonly pollInterval: Duration.Duration; readonly liveInterval?: Duration.Duration | undefined },
  state: WakeState,
  expecting: boolean
): number => {
  const { liveInterval = wake.pollInterval } = wake
  return Duration.toMillis(
    state._tag === "Live" && !expecting ? Duration.max(liveInterval, wake.pollInterval) : wake.pollInterval
  )
}

/**
 * After a deadlock or a serialization failure, which the engine has rolled back: soon, five times.
 *
 * @since 0.1.0
 * @category schedules
 */
export const conflictRetry: Schedule.Schedule<unknown> = Schedule.exponential(5).pipe(
  Schedule.jittered,
  Schedule.intersect(Schedule.recurs(5))
)

/**
 * While the database cannot be reached: from 100 ms, doubling, at most 5 s apart, with jitter so that a fleet does not
 * come back as a herd; without end.
 *
 * @since 0.1.0
 * @category schedules
 */
export const outageRetry: Schedule.Schedule<unknown> = Schedule.exponential(100).pipe(
  Schedule.union(Schedule.spaced("5 seconds")),
  Schedule.jittered
)

/**
 * Jobs that come in a stream gather between claims: after a claim that has emptied the queue and found `jobs` or more without
 * ordering keys, the next one is made `millis` after its answer. Every `trialMillis` that many `trials` are made the other way;
 * what was found in which time decides, the latest counting most (`memory` for each claim before): to wait has to bring
 * `enough` of what claims at once do. What comes more than `gapMillis` later is another stream. Measured: `bench/RESULTS.md`.
 *
 * @since 0.1.0
 * @category schedules
 */
export const stream = {
  jobs: 3,
  millis: 5,
  trialMillis: 200,
  trials: 2,
  gapMillis: 200,
  memory: 0.7,
  enough: 0.8
} as const

/**
 * The looks after a file event: at once, and these many milliseconds after each other.
 *
 * @since 0.1.0
 * @category schedules
 */
export const eventLooks: ReadonlyArray<number> = [1, 3]

/**
 * After so many events in a row that were for nobody here, the next ones are looked at once only, so many milliseconds
 * later: somebody else works in this database.
 *
 * @since 0.1.0
 * @category schedules
 */
export const idleLooks = { after: 10, millis: 100 }

/**
 * For so many milliseconds calls that answer at once may follow each other before the event loop has a turn: a timer comes no later
 * because of them.
 *
 * @since 0.1.0
 * @category models
 */
export const turnMillis = 5
