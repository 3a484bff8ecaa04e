/**
 * Cadences of connections and loops that must come back.
 *
 * @since 0.1.0
 */
import { Schedule } from "effect"

/**
 * From 50 ms, doubling, at most 5 s apart with jitter (a fleet does not come back as a herd, and a server that refuses
 * is asked 12 times a minute); without end, and from the start again after a minute of peace.
 *
 * @since 0.1.0
 * @category schedules
 */
export const reconnect: Schedule.Schedule<unknown> = Schedule.exponential(50).pipe(
  Schedule.union(Schedule.spaced("5 seconds")),
  Schedule.jittered,
  Schedule.resetAfter("1 minute")
)

/**
 * How often a LISTEN connection is asked whether it is alive: a half-open one says nothing by itself.
 *
 * @since 0.1.0
 * @category schedules
 */
export const listenProbe: Schedule.Schedule<unknown> = Schedule.spaced("5 seconds")
