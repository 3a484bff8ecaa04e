/**
 * A worker's options, checked and with their defaults.
 */
import { type Duration, Either, type Schedule } from "effect"
import { standard } from "../schedule/Backoff.js"
import * as Heartbeat from "../schedule/Heartbeat.js"
import { InvalidArgument } from "../services/Errors.js"
import { checkDuration, checkInteger, checkKey, checkOptions } from "../services/input.js"
import type { JobFailure } from "../services/Job.js"
import type { BatchOptions } from "./options.js"

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
  /** How long a handler may run before it is interrupted; a failure. A transactional one's counts from BEGIN. Default 1 h. */
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
  /**
   * Handler and ack commit together, in one transaction of the queue's client, or not at all. Whatever else becomes of
   * the job (a failure, a `Snooze`, a timeout, a lost lease, a shutdown) rolls back what the handler has written.
   * SQLite, where one transaction at a time has the only connection: one handler runs at a time whatever `concurrency`
   * says, and `timeout` is at most, and by default, a third of the visibility timeout. Default false.
   */
  readonly transactional?: boolean | undefined
  /** A name for the worker, kept with each job that it holds: 1 to 512 bytes. */
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
  readonly transactional: boolean
  /** Whether handlers take many jobs at once, and how many at most: 1 for those that do not. */
  readonly batched: boolean
  readonly batchSize: number
  readonly maxWaitMillis: number
}

const day = 86_400_000

const hour = 3_600_000

const names = [
  "concurrency",
  "prefetch",
  "visibilityTimeout",
  "heartbeat",
  "timeout",
  "stuckAfter",
  "retry",
  "shutdownGrace",
  "transactional",
  "name",
  "handler",
  "handlers",
  "batchHandler",
  "batch"
] as const

/** Options that only some kinds of workers have. */
interface KindOptions {
  readonly handler?: unknown
  readonly handlers?: unknown
  readonly batchHandler?: unknown
  readonly batch?: BatchOptions | undefined
}

const refuse = (argument: string, message: string) =>
  Either.left(new InvalidArgument({ argument, message: `${argument}: ${message}` }))

const checkBatch = ({ batch, batchHandler }: KindOptions, transactional: boolean, visibilityMillis: number) =>
  Either.gen(function* () {
    const batched = batchHandler !== undefined
    if (!batched) return { batched, batchSize: 1, maxWaitMillis: 0 }
    if (batch !== undefined) yield* checkOptions(batch, ["size", "maxWait"], "batch")
    if (transactional) yield* refuse("transactional", "a batchHandler cannot be; use transaction inside of it")
    return {
      batched,
      batchSize: yield* checkInteger("batch.size", batch?.size ?? 100, 1, 1_000),
      // Leases are not renewed while jobs wait, and after a third of the visibility timeout they are given back
      maxWaitMillis: yield* checkDuration("batch.maxWait", batch?.maxWait ?? 0, { min: 0, max: visibilityMillis / 4 })
    }
  })

/** `singleWriter`: see the Queue service. */
export const checkPolicy = (
  options: PolicyOptions<never> & KindOptions,
  singleWriter = false
): Either.Either<Policy, InvalidArgument> =>
  Either.gen(function* () {
    yield* checkOptions(options, names)
    if (options.name !== undefined) yield* checkKey("name", options.name)
    const visibilityMillis = yield* checkDuration("visibilityTimeout", options.visibilityTimeout ?? "30 seconds", {
      min: 100,
      max: day
    })
    const transactional = options.transactional === true
    const alone = transactional && singleWriter
    const third = Math.floor(visibilityMillis / 3)
    const timeoutMillis = yield* checkDuration("timeout", options.timeout ?? (alone ? third : hour), {
      min: 1,
      max: 366 * day
    })
    if (alone && timeoutMillis > third)
      yield* refuse(
        "timeout",
        `${timeoutMillis} ms is more than a third of the visibility timeout (${third} ms); while a transactional handler runs on this engine no lease can be renewed`
      )
    const concurrency = yield* checkInteger("concurrency", options.concurrency ?? 10, 1, 10_000)
    return {
      concurrency: alone ? 1 : concurrency,
      maxPrefetch: yield* checkInteger("prefetch", options.prefetch ?? 500, 0, 10_000),
      visibilityMillis,
      marginMillis: Heartbeat.marginMillis(visibilityMillis),
      heartbeat: options.heartbeat ?? Heartbeat.heartbeat(visibilityMillis),
      timeoutMillis,
      stuckMillis: yield* checkDuration("stuckAfter", options.stuckAfter ?? "10 seconds", { min: 0, max: day }),
      graceMillis: yield* checkDuration("shutdownGrace", options.shutdownGrace ?? "25 seconds", { min: 0, max: day }),
      retry: options.retry ?? standard,
      transactional,
      ...(yield* checkBatch(options, transactional, visibilityMillis))
    }
  })
