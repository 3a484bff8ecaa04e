/**
 * The cadence of lease renewals.
 *
 * @since 0.1.0
 */
import { Duration, Schedule } from "effect"

/**
 * Every third of the visibility timeout: two beats may be lost before a lease ends.
 *
 * @since 0.1.0
 * @category schedules
 */
export const heartbeat = (visibilityMillis: number): Schedule.Schedule<unknown> =>
  Schedule.spaced(Duration.millis(visibilityMillis / 3))

/**
 * How long before the end of a lease that could not be renewed a handler is interrupted, in milliseconds: a tenth of
 * the visibility timeout, at least 50 ms, at most 5 s.
 *
 * @since 0.1.0
 * @category models
 */
export const marginMillis = (visibilityMillis: number): number => Math.min(5_000, Math.max(50, visibilityMillis / 10))

/**
 * Progress is written at most this often.
 *
 * @since 0.1.0
 * @category schedules
 */
export const progressMillis = 1_000
