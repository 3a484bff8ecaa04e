/**
 * The cadence of maintenance.
 *
 * @since 0.1.0
 */
import { Schedule } from "effect"

/**
 * A sweep every 15 s, jittered by a fifth, so that the processes of a fleet do not meet.
 *
 * @since 0.1.0
 * @category schedules
 */
export const sweep: Schedule.Schedule<unknown> = Schedule.spaced("15 seconds").pipe(Schedule.jittered)
