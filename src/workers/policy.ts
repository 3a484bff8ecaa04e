/**
 * A worker's options, checked and with their defaults.
 */
import { type Duration, Either, type Schedule } from "effect"
import { standard } from "../schedule/Backoff.js"
import * as Heartbeat from "../schedule/Heartbeat.js"
import type { InvalidArgument } from "../services/Errors.js"
import { checkDuration, checkInteger } from "../services/input.js"
import type { JobFailure } from "../services/Job.js"

/**
 * The policy of a worker.
 *
 * @since 0.1.0
 * @category models
 */
export interface PolicyOptions<E> {
  /** Handlers at the same time. Default 10. */
  readonly concurrency?: number | undefined
  /**
   * The most that is claimed ahead of free handlers: never more than the handlers, as measured, clear in 250 ms; 0 for
   * none. Jobs that crashed before or are on their last attempt are never among them. Default 500.
   */
  readonly prefetch?: number | undefined
  /** The length of a lease. Default 30 s, at least 100 ms. */
  readonly visibilityTimeout?: Duration.DurationInput | undefined
  /** When leases are renewed. Default: every third of the visibility timeout. */
  readonly heartbeat?: Schedule.Schedule<unknown> | undefined
  /** How long a handler may run before it is interrupted; a failure. Default 1 h. */
  readonly timeout?: Duration.DurationInput | undefined
  /** How long an interrupted handler may take to end before its slot is given up. Default 10 s. */
  readonly stuckAfter?: Duration.DurationInput | undefined
  /**
   * The delay after the n-th failure is the n-th decision of this Schedule; when it ends the job is dead (`exhausted`).
   * Default: exponential from 1 s, ± 20 %, at most 24 h.
   */
  readonly retry?: Schedule.Schedule<unknown, JobFailure<E>> | undefined
  /** How long handlers may go on when the worker is stopped before they are interrupted. Default 25 s. */
  readonly shutdownGrace?: Duration.DurationInput | undefined
  /** A name for the worker: kept with each job that it holds. */
  readonly name?: string | undefined
}

export interface Policy {
  readonly concurrency: number
  readonly maxPrefetch: number
  readonly visibilityMillis: number
  readonly marginMillis: number
  readonly heartbeat: Schedule.Schedule<unknown>
  readonly timeoutMillis: number
  readonly stuckMillis: number
  readonly graceMillis: number
  readonly retry: Schedule.Schedule<unknown, JobFailure<never>>
}

const day = 86_400_000

export const checkPolicy = (options: PolicyOptions<never>): Either.Either<Policy, InvalidArgument> =>
  Either.gen(function* () {
    const visibilityMillis = yield* checkDuration("visibilityTimeout", options.visibilityTimeout ?? "30 seconds", {
      min: 100,
      max: day
    })
    return {
      concurrency: yield* checkInteger("concurrency", options.concurrency ?? 10, 1, 10_000),
      maxPrefetch: yield* checkInteger("prefetch", options.prefetch ?? 500, 0, 10_000),
      visibilityMillis,
      marginMillis: Heartbeat.marginMillis(visibilityMillis),
      heartbeat: options.heartbeat ?? Heartbeat.heartbeat(visibilityMillis),
      timeoutMillis: yield* checkDuration("timeout", options.timeout ?? "1 hour", { min: 1, max: 366 * day }),
      stuckMillis: yield* checkDuration("stuckAfter", options.stuckAfter ?? "10 seconds", { min: 0, max: day }),
      graceMillis: yield* checkDuration("shutdownGrace", options.shutdownGrace ?? "25 seconds", { min: 0, max: day }),
      retry: options.retry ?? standard
    }
  })
