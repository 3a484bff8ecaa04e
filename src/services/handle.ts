/**
 * The job handle over a claimed row.
 */
import { Effect, Either } from "effect"
import { InvalidArgument, LeaseLost, type SettleError } from "./Errors.js"
import { errorsOf, jobError, livesOf } from "./History.js"
import { checkDuration, checkOptions } from "./input.js"
import type { Job, JobInfo } from "./Job.js"
import { parseJson, toJson } from "./json.js"
import type { Service } from "./QueueStore.js"
import * as Settlement from "./Settlement.js"
import { countSettled, settling } from "./telemetry.js"

/** The greatest progress value, in UTF-8 bytes of its JSON text. */
export const maxProgressBytes = 8 * 1024

const headersOf = (text: string | null): Readonly<Record<string, string>> => {
  const parsed = parseJson(text)
  return typeof parsed === "object" && parsed !== null ? (parsed as Record<string, string>) : {}
}

/** What is known of a claimed job besides its payload. */
export const jobInfo = (row: Settlement.ClaimedRow): JobInfo => ({
  id: row.id,
  queue: row.queue,
  attempt: row.attempt,
  maxAttempts: row.maxAttempts,
  crashes: row.crashes,
  failures: row.failures,
  priority: row.priority,
  enqueuedAt: new Date(row.enqueuedAt),
  dueAt: new Date(row.dueAt),
  expiresAt: row.expiresAt === null ? undefined : new Date(row.expiresAt),
  headers: headersOf(row.headers),
  dedupeKey: row.dedupeKey ?? undefined,
  orderingKey: row.orderingKey ?? undefined,
  progress: parseJson(row.progress),
  errors: errorsOf(row),
  history: livesOf(row.history)
})

/** The JSON text of a progress value, or why it cannot be kept. */
export const checkProgress = (progress: unknown): Either.Either<string | undefined, InvalidArgument> =>
  progress === undefined
    ? Either.right(undefined)
    : Either.mapLeft(
        toJson(progress, maxProgressBytes),
        (message) => new InvalidArgument({ argument: "progress", message: `progress: ${message}` })
      )

export const leaseLost = (row: Settlement.ClaimedRow): LeaseLost =>
  new LeaseLost({
    queue: row.queue,
    jobId: row.id,
    token: row.token,
    message: `job ${row.id} of queue ${row.queue} is no longer held under lease token ${row.token}; nothing was changed`
  })

/** A worker's say in a handle: how heartbeats are done, and what it learns of settles by hand. */
export interface Hooks {
  readonly heartbeat?: (progress: string | undefined) => Effect.Effect<void, SettleError>
  /**
   * Told of a settle by hand before it is sent: an interrupt, or somebody else's look at the job, may come before its answer. Answers
   * what to call with what was done, or with nothing.
   */
  readonly settling?: (settlement: Settlement.Settlement) => (done?: Settlement.Settlement) => void
}

/** What was sent may have been done. */
const mayStand = (error: SettleError): boolean =>
  error._tag === "StoreError" && /^(connection|uncertain|timeout)$/.test(error.reason)

/** The handle and, for whoever claimed, what to do with a payload that cannot be decoded. */
export const makeJob = <A>(queue: Service, row: Settlement.ClaimedRow, payload: A, hooks: Hooks = {}) => {
  const settle = (settlement: () => Settlement.Settlement): Effect.Effect<void, SettleError> =>
    Effect.suspend(() => {
      const wanted = settlement()
      const correct = hooks.settling?.(wanted)
      const answered = Effect.flatMap(queue.settle(row.queue, [wanted]), ([outcome]) => {
        const done = Settlement.doneOf(wanted, outcome)
        if (done === undefined) return Effect.fail(leaseLost(row))
        correct?.(done)
        return Effect.succeed(done)
      })
      const settled = Effect.tapError(answered, (error) =>
        Effect.sync(() => {
          if (!mayStand(error)) correct?.()
        })
      )
      return Effect.asVoid(settling(row, wanted, correct !== undefined, settled))
    })
  const now = Effect.map(queue.monotonic, (at) => Math.floor(row.claimedAt + at - row.claimedMonotonic))
  const lease = {
    queue: row.queue,
    jobId: row.id,
    token: row.token,
    attempt: row.attempt,
    deadline: row.deadline,
    visibilityMillis: row.visibilityMillis
  }
  const delayed = (argument: string, delay: unknown, fallback: number) =>
    delay === undefined ? Either.right(fallback) : checkDuration(argument, delay)
  const error = (at: number, value: unknown) =>
    jobError({ at, attempt: row.attempt, kind: "failure", error: value ?? "given back by job.retry or job.fail" })
  // Assigned, not spread: a literal that begins with a spread costs many times as much
  const handle: Job<A> = Object.assign(jobInfo(row), {
    payload,
    lease,
    ack: settle(() => Settlement.done(row)),
    retry: (options = {}) =>
      Either.flatMap(checkOptions(options, ["delay", "error"]), () =>
        delayed("delay", options.delay, Settlement.defaultDelayMillis(row.failures + 1))
      ).pipe(
        Effect.flatMap((delay) =>
          Effect.flatMap(now, (at) => settle(() => Settlement.failed(row, error(at, options.error), delay)))
        )
      ),
    fail: (value) => Effect.flatMap(now, (at) => settle(() => Settlement.fatal(row, error(at, value)))),
    release: settle(() => Settlement.givenBack(row, 0)),
    snooze: (delay) =>
      Effect.flatMap(checkDuration("delay", delay), (millis) => settle(() => Settlement.givenBack(row, millis))),
    heartbeat: (progress) =>
      Effect.flatMap(checkProgress(progress), (text) => {
        if (hooks.heartbeat !== undefined) return hooks.heartbeat(text)
        return queue
          .renew([{ id: row.id, token: row.token, visibilityMillis: row.visibilityMillis, progress: text }])
          .pipe(
            Effect.flatMap(([outcome]) =>
              outcome === "lost" || outcome === "gone" ? Effect.fail(leaseLost(row)) : Effect.void
            )
          )
      })
  } satisfies Omit<Job<A>, keyof JobInfo>)
  return {
    handle,
    undecodable: (message: string) =>
      Effect.flatMap(now, (at) => {
        const wanted = Settlement.undecodable(row, at, message)
        return Effect.map(queue.settle(row.queue, [wanted]), ([outcome]) => {
          const done = Settlement.doneOf(wanted, outcome)
          if (done !== undefined) countSettled(row, done)
        })
      })
  }
}
