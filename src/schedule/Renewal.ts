/**
 * Cadences of what is held for a limited time.
 *
 * @since 0.1.0
 */
import { Duration, Schedule } from "effect"

/**
 * A lock is renewed every third of its ttl: two renewals may fail before it ends.
 *
 * @since 0.1.0
 * @category schedules
 */
export const lockRenewal = (ttlMillis: number): Schedule.Schedule<unknown> =>
  Schedule.spaced(Duration.millis(ttlMillis / 3))

/**
 * Those who wait for a lock look at it at least this often, in milliseconds, wakes or not.
 *
 * @since 0.1.0
 * @category models
 */
export const lockWaitMillis = 5_000

/**
 * After a renewal that failed: again and again within the lease, twenty times per visibility timeout but not more than
 * ten times a second, for as long as a lease lasts.
 *
 * @since 0.1.0
 * @category schedules
 */
export const renewalRetry = (visibilityMillis: number): Schedule.Schedule<unknown> =>
  Schedule.spaced(Duration.millis(Math.max(100, visibilityMillis / 20))).pipe(
    Schedule.upTo(Duration.millis(visibilityMillis))
  )
