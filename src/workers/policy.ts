/**
 * A worker's options, checked and with their defaults.
 */
import { type Duration, Either, type Schedule } from "effect"
import { standard } from "../schedule/Backoff.js"
import * as Heartbeat from "../schedule/Heartbeat.js"
import type { InvalidArgument } from "../services/Errors.js"
import { checkDuration, checkInteger } from "../services/input.js"
import type { JobFailure } from "../services/Job.js"

export interface PolicyOptions {
  readonly concurrency?: number | undefined
  readonly prefetch?: number | undefined
  readonly visibilityTimeout?: Duration.DurationInput | undefined
  readonly heartbeat?: Schedule.Schedule<unknown> | undefined
  readonly timeout?: Duration.DurationInput | undefined
  readonly stuckAfter?: Duration.DurationInput | undefined
  readonly shutdownGrace?: Duration.DurationInput | undefined
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

export const checkPolicy = (
  options: PolicyOptions & { readonly retry?: Schedule.Schedule<unknown, JobFailure<never>> | undefined }
): Either.Either<Policy, InvalidArgument> =>
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
