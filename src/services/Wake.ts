/**
 * Wakes: hints that a queue may have work. A wake may be spurious, late or lost; it is never the only way to
 * find work.
 *
 * @since 0.1.0
 */
import { Context, type Duration, type Effect, type Scope } from "effect"

/**
 * - `Live`: wakes arrive from every process that this engine reaches
 * - `Degraded`: the source of wakes is being re-established; work is found by polling meanwhile
 * - `PollOnly`: there is no source of wakes; work is found by polling
 *
 * @since 0.1.0
 * @category models
 */
export type WakeState =
  | { readonly _tag: "Live" }
  | { readonly _tag: "Degraded"; readonly reason: string }
  | { readonly _tag: "PollOnly"; readonly reason: string }

/**
 * One listener's own wakes. They coalesce: however many come before an `await`, it ends once. None is lost
 * between the subscription and the `await`.
 *
 * @since 0.1.0
 * @category models
 */
export interface Subscription {
  /** Ends at the next wake, or at once if one came since the last `await`. */
  readonly await: Effect.Effect<void>
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /** Listens for wakes of one topic until the scope closes. Every subscription gets every wake (fan-out). */
  readonly subscribe: (topic: string) => Effect.Effect<Subscription, never, Scope.Scope>
  /** Wakes the listeners of this process. */
  readonly wake: (topics: Iterable<string>) => Effect.Effect<void>
  readonly state: Effect.Effect<WakeState>
  /** How often a listener looks for work without any wake: the safety net. */
  readonly pollInterval: Duration.Duration
  /**
   * The same for a listener that knows of nothing to come, while the state is `Live` and the source itself polls for all
   * of its listeners. Default: `pollInterval`.
   */
  readonly liveInterval?: Duration.Duration | undefined
}

/**
 * @since 0.1.0
 * @category tags
 */
export class Wake extends Context.Tag("alkstore/Wake")<Wake, Service>() {}

/**
 * The topic of a queue's wakes: its name. It is also what a notification carries.
 *
 * @since 0.1.0
 * @category constructors
 */
export const queueTopic = (queue: string): string => queue

/**
 * The topic of a named lock's wakes: no queue can have such a name.
 *
 * @since 0.1.0
 * @category constructors
 */
export const lockTopic = (lock: string): string => `#${lock}`

/**
 * The topic of changes to schedules: no queue and no lock can have such a name.
 *
 * @since 0.1.0
 * @category constructors
 */
export const scheduleTopic = "@"

/**
 * The topic of what is asked of a queue's workers while they hold jobs: pauses and cancellations. No queue can have
 * such a name.
 *
 * @since 0.1.0
 * @category constructors
 */
export const controlTopic = (queue: string): string => `!${queue}`
