/**
 * From how a handler ended to what becomes of its job: pure, but for the retry Schedule, which may be effectful.
 */
import { Cause, Chunk, Effect, Exit, Option, type Schedule } from "effect"
import * as Replay from "../schedule/Replay.js"
import { failureTimesOf, jobError } from "../services/History.js"
import { jobInfo } from "../services/handle.js"
import { checkDuration } from "../services/input.js"
import { Fatal, type JobError, type JobFailure, RetryAfter, Snooze } from "../services/Job.js"
import * as Settlement from "../services/Settlement.js"

/** Why the runtime itself interrupted a handler. */
export type Stop = "timeout" | "stuck" | "shutdown" | "unreachable" | "cancelled"

export interface Ending {
  readonly row: Settlement.ClaimedRow
  readonly exit: Exit.Exit<unknown, unknown>
  /** Why the handler was interrupted, if it was by the runtime. */
  readonly stop: Stop | undefined
  /** By the database's clock. */
  readonly now: number
  readonly retry: Schedule.Schedule<unknown, JobFailure<never>>
  readonly timeoutMillis: number
}

export interface Decision {
  readonly settlement: Settlement.Settlement
  readonly error: JobError | undefined
}

/**
 * The first failure of a cause that is a word of the error channel. Values that a handler fails with may be hostile: a
 * Proxy whose traps throw.
 */
export const word = <A>(cause: Cause.Cause<unknown>, constructor: new (...args: never) => A): A | undefined => {
  const is = (error: unknown): error is A => {
    try {
      return error instanceof constructor
    } catch {
      return false
    }
  }
  return Option.getOrUndefined(Chunk.findFirst(Cause.failures(cause), is))
}

const timedOut = (millis: number) => `the handler did not end within its timeout of ${millis} ms`
const stuck = "the handler did not end when it was interrupted; its slot was given up"

const errorOf = (ending: Ending, cause: Cause.Cause<unknown>, error: unknown): JobError => {
  const { now: at, row, stop, timeoutMillis } = ending
  if (stop === "timeout")
    return jobError({ at, attempt: row.attempt, kind: "timeout", error: timedOut(timeoutMillis), cause })
  if (stop === "stuck") return jobError({ at, attempt: row.attempt, kind: "stuck", error: stuck })
  const kind = Cause.isFailure(cause) ? "failure" : "defect"
  return jobError({ at, attempt: row.attempt, kind, error, cause })
}

const squash = (cause: Cause.Cause<unknown>): unknown => {
  try {
    return Cause.isInterruptedOnly(cause) ? "the handler was interrupted by its own program" : Cause.squash(cause)
  } catch {
    return "a failure that cannot be read"
  }
}

export const decide = (ending: Ending): Effect.Effect<Decision> =>
  Effect.suspend(() => {
    const { exit, row, stop } = ending
    if (Exit.isSuccess(exit) && stop !== "stuck") {
      return Effect.succeed({ settlement: Settlement.done(row), error: undefined })
    }
    const cause = Exit.isSuccess(exit) ? Cause.empty : exit.cause
    if (stop === "shutdown" || stop === "unreachable")
      return Effect.succeed({ settlement: Settlement.givenBack(row, 0), error: undefined })
    if (stop === "cancelled") {
      const error = jobError({ at: ending.now, attempt: row.attempt, kind: "failure", error: "cancelled while it ran" })
      const letter = Settlement.fatal(row, error)
      return Effect.succeed({
        settlement: letter._tag === "Bury" ? { ...letter, reason: "cancelled" } : letter,
        error
      } as Decision)
    }
    return stop === undefined ? spoken(ending, cause) : scheduled(ending, cause)
  })

/** The error channel speaks: Fatal, Snooze, RetryAfter; all else is the Schedule's. */
const spoken = (ending: Ending, cause: Cause.Cause<unknown>): Effect.Effect<Decision> => {
  const { row } = ending
  const fatal = word(cause, Fatal)
  if (fatal !== undefined) {
    const error = errorOf(ending, cause, fatal.error)
    return Effect.succeed({ settlement: Settlement.fatal(row, error), error })
  }
  const snooze = word(cause, Snooze)
  const nap = snooze === undefined ? undefined : checkDuration("delay", snooze.delay)
  if (nap?._tag === "Right")
    return Effect.succeed({ settlement: Settlement.givenBack(row, nap.right), error: undefined })
  const after = word(cause, RetryAfter)
  const delay = after === undefined ? undefined : checkDuration("delay", after.delay)
  if (delay?._tag === "Right") {
    const error = errorOf(ending, cause, after?.error ?? after)
    return Effect.succeed({ settlement: Settlement.failed(row, error, delay.right), error })
  }
  return scheduled(ending, cause)
}

const scheduled = (ending: Ending, cause: Cause.Cause<unknown>): Effect.Effect<Decision> => {
  const { now, retry, row } = ending
  const squashed = squash(cause)
  const error = errorOf(ending, cause, squashed)
  const failures = row.failures + 1
  const input: JobFailure<never> = {
    cause: cause as Cause.Cause<never>,
    error: ending.stop === undefined ? squashed : error.message,
    failures,
    attempt: row.attempt,
    job: jobInfo(row)
  }
  return Replay.delayMillis(retry, { failures, times: failureTimesOf(row), now, input }).pipe(
    // A policy that throws is no reason to lose the job: the default delay stands in
    Effect.catchAllCause((broken) =>
      Effect.as(
        // What it died of may be more than a logger can print
        Effect.catchAllCause(
          Effect.logError(`queue ${row.queue}: the retry Schedule died; the default delay is used`, broken),
          () => Effect.void
        ),
        Option.some(Settlement.defaultDelayMillis(failures))
      )
    ),
    Effect.map((delay) => ({ settlement: Settlement.failed(row, error, Option.getOrNull(delay)), error }))
  )
}
