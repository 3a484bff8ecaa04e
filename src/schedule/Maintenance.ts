/**
 * The cadence of maintenance.
 *
 * @since 0.1.0
 */
import { Duration, Schedule } from "effect"
import type { WakeState } from "../services/Wake.js"

/**
 * A sweep every 15 s, jittered by a fifth, so that the processes of a fleet do not meet.
 *
 * @since 0.1.0
 * @category schedules
 */
export const sweep: Schedule.Schedule<unknown> = Schedule.spaced("15 seconds").pipe(Schedule.jittered)

/**
 * How long a scheduler leaves what is due to the one that is at it: 1 s, in milliseconds.
 *
 * @since 0.1.0
 * @category schedules
 */
export const schedulerTurn = 1_000

/**
 * After how many milliseconds, at most, a scheduler looks for a boundary that it has not been woken for: the interval of
 * polling, and no less than a minute while wakes arrive.
 *
 * @since 0.1.0
 * @category schedules
 */
export const schedulerLook = (wakes: WakeState, pollInterval: Duration.Duration): number =>
  Math.max(Duration.toMillis(pollInterval), wakes._tag === "Live" ? 60_000 : 1)

/**
 * The cadence at which the gauges of queues are counted.
 *
 * @since 0.1.0
 * @category schedules
 */
export const gauges = (millis: number): Schedule.Schedule<unknown> => Schedule.spaced(Duration.millis(millis))
