/**
 * Time, as a service. All of the library's time enters here.
 *
 * @since 0.1.0
 */
import { Context, type Effect, type Fiber } from "effect"

/**
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /**
   * Whose clock stamps and compares the rows: the `database` server's, inside each statement, so that hosts whose
   * clocks differ agree; or this `process`'s, bound to each statement as a parameter.
   */
  readonly source: "database" | "process"
  /** Whether time passes only when a test says so. Shutdowns then wait for nothing. */
  readonly virtual: boolean
  /** Milliseconds since the Unix epoch by this process's clock; never goes backwards within a process. */
  readonly now: Effect.Effect<number>
  /** Milliseconds on a clock that only moves forward; for measuring how much of a lease is left. */
  readonly monotonic: Effect.Effect<number>
  /** The same, read by a fiber for itself in the middle of a step. */
  readonly monotonicOf: (fiber: Fiber.RuntimeFiber<unknown, unknown>) => number
  /**
   * The longest time in milliseconds for which the event loop of this process stood still since a mark (0 at first),
   * and the mark for the next call; 0 where it cannot be measured.
   */
  readonly stall: (since: number) => Effect.Effect<{ readonly millis: number; readonly mark: number }>
  /**
   * Ends after so many milliseconds of the machine's own time, whatever Effect's Clock says, and at once where time is
   * virtual: for waits in which work gathers, and which mean nothing else.
   */
  readonly lull: (millis: number) => Effect.Effect<void>
  /**
   * For a call that answers at once, without waiting: lets the event loop have a turn before it where it has had none for some
   * milliseconds. Nothing where time is virtual.
   */
  readonly breath: <A, E, R>(call: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class Clock extends Context.Tag("alkstore/Clock")<Clock, Service>() {}
