/**
 * The delay at the n-th failure of a job, from a Schedule and the stored times of the failures.
 *
 * @since 0.1.0
 */
import { Effect, Option, Random, type Schedule, ScheduleDecision, ScheduleIntervals } from "effect"

/** The longest delay that is handed on: a year. What is longer, or overflows, is cut to it. */
const longestMillis = 366 * 86_400_000

/**
 * Replays the schedule: its n-th step decides. Steps before the last are taken at the stored times, without jitter;
 * the last one now. So a delay survives a restart, and what is elapsed-based means real time since the first failure.
 * `none` when the schedule has ended. `times` are the failures before this one; when not all are stored, the missing
 * ones are taken at the first.
 *
 * @since 0.1.0
 * @category combinators
 */
export const delayMillis = <In>(
  schedule: Schedule.Schedule<unknown, In>,
  options: {
    readonly failures: number
    readonly times: ReadonlyArray<number>
    readonly now: number
    readonly input: In
  }
): Effect.Effect<Option.Option<number>> =>
  Effect.gen(function* () {
    const { input, now, times } = options
    const steps = Math.min(options.failures, longestReplay)
    let state: unknown = schedule.initial
    let latest = Number.NEGATIVE_INFINITY
    for (let n = 1; n <= steps; n++) {
      const last = n === steps
      const at = Math.max(latest, last ? now : stored(times, n, steps, now))
      latest = at
      const step = schedule.step(at, input, state)
      const [next, , decision] = yield* last ? step : Effect.withRandom(step, middle)
      if (ScheduleDecision.isDone(decision)) return Option.none()
      if (last) return Option.some(clamp(ScheduleIntervals.start(decision.intervals) - at))
      state = next
    }
    return Option.none()
  })

/** Enough for any policy to have reached its cap, and far from where exponentials overflow. */
const longestReplay = 500

const middle = Random.fixed([0.5])

const clamp = (millis: number): number =>
  Number.isFinite(millis) ? Math.min(longestMillis, Math.max(0, Math.ceil(millis))) : longestMillis

/** When the n-th failure was: the latest are kept, and the first. */
const stored = (times: ReadonlyArray<number>, n: number, steps: number, now: number): number => {
  const missing = steps - 1 - times.length
  if (n === 1 || missing <= 0) return times[n - 1] ?? now
  return times[n - 1 - missing] === undefined || n - 1 <= missing
    ? (times[0] ?? now)
    : (times[n - 1 - missing] as number)
}
