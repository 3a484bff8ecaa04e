/**
 * What a worker tells of itself.
 *
 * @since 0.1.0
 */
import type { JobError } from "../services/Job.js"
import type { DeadReason } from "../services/JobState.js"
import type { WakeState } from "../services/Wake.js"

/**
 * @since 0.1.0
 * @category models
 */
export interface JobRef {
  readonly queue: string
  readonly jobId: number
  readonly attempt: number
  readonly token: number
}

/**
 * Every transition of a worker and of the jobs in its hands.
 *
 * - `Started`, `Acked`, `Retried`, `Released`, `Died`, `LeaseLost`, `TimedOut`, `Stuck`: of one job
 * - `Undecodable`: given back, since this worker cannot read its payload or has no handler for its tag
 * - `Paused`, `Resumed`, `Draining`, `Stopped`, `Failed`: of the worker
 * - `QueuePaused`, `QueueResumed`: the queue is paused for the whole fleet; it is not any more
 * - `Outage`, `Recovered`: the database could not be used, by whichever of the worker's fibers; all of them can again
 * - `Restarted`: one of the worker's own fibers died of a defect and was started again
 * - `EventLoopBlocked`: for so long nothing else ran in this process, and these jobs were in its hands
 * - `HeartbeatReplaced`: the given Schedule ended, or would have let leases end; the default is used from then on
 *
 * @since 0.1.0
 * @category models
 */
export type WorkerEvent =
  | { readonly _tag: "Started"; readonly job: JobRef }
  | { readonly _tag: "Acked"; readonly job: JobRef }
  | {
      readonly _tag: "Retried"
      readonly job: JobRef
      readonly delayMillis: number
      readonly error: JobError | undefined
    }
  | { readonly _tag: "Released"; readonly job: JobRef; readonly delayMillis: number }
  | { readonly _tag: "Undecodable"; readonly job: JobRef; readonly reason: string }
  | { readonly _tag: "Died"; readonly job: JobRef; readonly reason: DeadReason; readonly error: JobError | undefined }
  | { readonly _tag: "LeaseLost"; readonly job: JobRef }
  | { readonly _tag: "TimedOut"; readonly job: JobRef }
  | { readonly _tag: "Stuck"; readonly job: JobRef }
  | { readonly _tag: "Paused" }
  | { readonly _tag: "Resumed" }
  | { readonly _tag: "QueuePaused" }
  | { readonly _tag: "QueueResumed" }
  | { readonly _tag: "Draining" }
  | { readonly _tag: "Stopped" }
  | { readonly _tag: "Failed"; readonly reason: string }
  | { readonly _tag: "Outage"; readonly reason: string }
  | { readonly _tag: "Recovered" }
  | { readonly _tag: "Restarted"; readonly fiber: string; readonly reason: string }
  | { readonly _tag: "EventLoopBlocked"; readonly millis: number; readonly jobs: ReadonlyArray<JobRef> }
  | { readonly _tag: "HeartbeatReplaced"; readonly reason: string }

/**
 * @since 0.1.0
 * @category models
 */
export interface Status {
  readonly state: "running" | "paused" | "draining" | "stopped" | "failed"
  /** The queue is paused for the whole fleet, as far as this worker knows. */
  readonly queuePaused: boolean
  /** Jobs whose handler runs now. */
  readonly running: number
  /** Jobs claimed ahead of a free handler. */
  readonly buffered: number
  /** Ended jobs whose outcome is not written yet. */
  readonly settling: number
  /** Handlers that did not end when they were interrupted. */
  readonly stuck: number
  readonly acked: number
  readonly retried: number
  readonly released: number
  readonly dead: number
  readonly lost: number
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Health {
  /** The worker runs, its last claim and renewal succeeded and are recent, and it has a usable handler slot. */
  readonly healthy: boolean
  /** What is wrong, if anything. */
  readonly problems: ReadonlyArray<string>
  readonly wake: WakeState
  readonly stuck: number
  /** Milliseconds since the last claim that the database answered; undefined before the first. */
  readonly lastClaimMillisAgo: number | undefined
  /** Milliseconds since the last renewal that the database answered; undefined before the first. */
  readonly lastRenewalMillisAgo: number | undefined
}
