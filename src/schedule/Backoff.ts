/**
 * Retry policies.
 *
 * @since 0.1.0
 */
import { Duration, Effect, Random, Schedule } from "effect"

/**
 * @since 0.1.0
 * @category models
 */
export interface ExponentialOptions {
  /** The delay after the first failure. Default 1 s. */
  readonly base?: Duration.DurationInput | undefined
  /** By how much each delay is longer than the one before. Default 2. */
  readonly factor?: number | undefined
  /** The longest delay, before jitter. Default 24 h. */
  readonly cap?: Duration.DurationInput | undefined
  /** The share by which a delay is lengthened or shortened at random. Default 0.2. */
  readonly jitter?: number | undefined
}

/**
 * `base * factor ^ (n - 1)` after the n-th failure, at most `cap`, then ± `jitter`: the cap comes first, so that jobs
 * that have reached it do not come back as a herd. Never ends; combine it with `Schedule.recurs` or `Schedule.upTo`.
 *
 * @since 0.1.0
 * @category schedules
 */
export const exponential = (options: ExponentialOptions = {}): Schedule.Schedule<number> => {
  const base = Math.max(0, Duration.toMillis(options.base ?? "1 second"))
  const cap = Math.max(0, Duration.toMillis(options.cap ?? "24 hours"))
  const factor = options.factor ?? 2
  const jitter = options.jitter ?? 0.2
  return Schedule.unfold(0, (n) => n + 1).pipe(
    Schedule.addDelayEffect((n) => {
      // 2 ^ 1000 is still a number; the cap does the rest
      const delay = Math.min(cap, base * factor ** Math.min(n, 1_000))
      return Effect.map(Random.nextRange(1 - jitter, 1 + jitter), (share) =>
        Duration.millis(Math.max(0, delay * share))
      )
    })
  )
}

/**
 * The policy of a worker that names none: 1 s, doubled each time, ± 20 %, at most 24 h.
 *
 * @since 0.1.0
 * @category schedules
 */
export const standard: Schedule.Schedule<number> = exponential()
