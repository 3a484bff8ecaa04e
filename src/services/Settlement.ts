/**
 * What may become of a claimed job, as data. Decided here and in `workers/decide`; SQL only applies it, guarded
 * by the lease token.
 *
 * @since 0.1.0
 */
import { crashedHistory, failedHistory, type History, jobError, sameHistory } from "./History.js"
import type { JobError } from "./Job.js"
import type { DeadReason } from "./JobState.js"

/**
 * A claimed job as the store hands it over: encoded, with the counters a decision needs.
 *
 * @since 0.1.0
 * @category models
 */
export interface ClaimedRow {
  readonly id: number
  readonly queue: string
  readonly token: number
  readonly payload: string
  readonly priority: number
  readonly attempt: number
  readonly maxAttempts: number
  readonly crashes: number
  readonly failures: number
  readonly enqueuedAt: number
  readonly dueAt: number
  readonly expiresAt: number | null
  readonly headers: string | null
  readonly dedupeKey: string | null
  readonly orderingKey: string | null
  readonly progress: string | null
  readonly errors: string | null
  readonly failureTimes: string | null
  /** JSON array of `PastLife`, or null. */
  readonly history: string | null
  readonly undecodableSince: number | null
  readonly cancelRequested: boolean
  readonly claimedAt: number
  readonly deadline: number
  readonly visibilityMillis: number
  /** `Service.monotonic` just before the claim was sent: what measures how much of the lease is left. */
  readonly claimedMonotonic: number
}

/**
 * - `Ack`: done, leaves the live table; `plain` when it is known to have neither a dedupe nor an ordering key
 * - `Return`: back to ready or delayed; `attempt` is the count of attempts spent so far
 * - `Bury`: to the dead letters
 *
 * @since 0.1.0
 * @category models
 */
export type Settlement =
  | { readonly _tag: "Ack"; readonly id: number; readonly token: number; readonly plain?: boolean | undefined }
  | {
      readonly _tag: "Return"
      readonly id: number
      readonly token: number
      readonly attempt: number
      /** From now, in milliseconds; null keeps the row's present place (a lapsed lease is ready as of its end). */
      readonly delayMillis: number | null
      readonly undecodableSince: number | null
      readonly history: History
    }
  | {
      readonly _tag: "Bury"
      readonly id: number
      readonly token: number
      readonly reason: DeadReason
      readonly history: History
    }

/**
 * What came of a settle: `done`; `cancelled`: it was to go back, and a cancel had been asked for, so it is dead; `gone`: no such
 * live job (any more); `lost`: the job is live, but not under this token; `busy`: somebody has the row locked at this moment, try
 * again.
 *
 * @since 0.1.0
 * @category models
 */
export type SettleOutcome = "done" | "cancelled" | "gone" | "lost" | "busy"

/**
 * What becomes of a job that was to go back, and that a cancel has been asked for.
 *
 * @since 0.1.0
 * @category transitions
 */
export const cancelledInstead = ({
  history,
  id,
  token
}: Extract<Settlement, { readonly _tag: "Return" }>): Extract<Settlement, { readonly _tag: "Bury" }> => ({
  _tag: "Bury",
  id,
  token,
  reason: "cancelled",
  history
})

/**
 * What was done of what was wanted, by the outcome: nothing where it is `undefined`.
 *
 * @since 0.1.0
 * @category transitions
 */
export const doneOf = (wanted: Settlement, outcome: SettleOutcome | undefined): Settlement | undefined => {
  if (outcome === "done") return wanted
  return outcome === "cancelled" && wanted._tag === "Return" ? cancelledInstead(wanted) : undefined
}

/**
 * The default delay after the n-th failure, before jitter: 1 s, doubled each time, at most 24 h.
 *
 * @since 0.1.0
 * @category models
 */
export const defaultDelayMillis = (failures: number): number =>
  Math.min(86_400_000, 1_000 * 2 ** Math.min(30, Math.max(0, failures - 1)))

/**
 * A failed attempt's way: back after the delay, or dead (`exhausted`) when attempts are spent.
 *
 * @since 0.1.0
 * @category transitions
 */
export const failed = (row: ClaimedRow, error: JobError, delayMillis: number | null): Settlement => {
  const history = failedHistory(row, error)
  return delayMillis === null || row.attempt >= row.maxAttempts
    ? { _tag: "Bury", id: row.id, token: row.token, reason: "exhausted", history }
    : {
        _tag: "Return",
        id: row.id,
        token: row.token,
        attempt: row.attempt,
        delayMillis,
        undecodableSince: null,
        history
      }
}

/**
 * Dead-letters now.
 *
 * @since 0.1.0
 * @category transitions
 */
export const fatal = (row: ClaimedRow, error: JobError): Settlement => ({
  _tag: "Bury",
  id: row.id,
  token: row.token,
  reason: "failed",
  history: failedHistory(row, error)
})

/**
 * Gives the job back, the attempt not spent.
 *
 * @since 0.1.0
 * @category transitions
 */
export const givenBack = (row: ClaimedRow, delayMillis: number): Settlement => ({
  _tag: "Return",
  id: row.id,
  token: row.token,
  attempt: Math.max(0, row.attempt - 1),
  delayMillis,
  undecodableSince: null,
  history: sameHistory(row)
})

/**
 * The job is done.
 *
 * @since 0.1.0
 * @category transitions
 */
export const done = (row: ClaimedRow): Settlement => ({
  _tag: "Ack",
  id: row.id,
  token: row.token,
  plain: row.dedupeKey === null && row.orderingKey === null
})

const undecodableLimit = 86_400_000

/**
 * A payload that this process cannot decode: back, the attempt not spent, after as long as it has been undecodable
 * (1 s to 5 min), for a later deploy; dead (`undecodable`) after 24 h of that.
 *
 * @since 0.1.0
 * @category transitions
 */
export const undecodable = (row: ClaimedRow, now: number, message: string): Settlement => {
  const since = row.undecodableSince ?? now
  if (now - since >= undecodableLimit) {
    const error = jobError({ at: now, attempt: row.attempt, kind: "undecodable", error: message })
    return { _tag: "Bury", id: row.id, token: row.token, reason: "undecodable", history: failedHistory(row, error) }
  }
  return {
    _tag: "Return",
    id: row.id,
    token: row.token,
    attempt: Math.max(0, row.attempt - 1),
    delayMillis: Math.min(300_000, Math.max(1_000, now - since)),
    undecodableSince: since,
    history: sameHistory(row)
  }
}

/**
 * A lease that ended unsettled: ready again as of the lease's end, or dead (`crashed`) when attempts or crashes
 * are spent, or dead (`cancelled`) when that was asked for meanwhile.
 *
 * @since 0.1.0
 * @category transitions
 */
export const lapsed = (
  row: ClaimedRow & { readonly worker: string | null; readonly maxCrashes: number },
  now: number
): Settlement => {
  const error = jobError({
    at: now,
    attempt: row.attempt,
    kind: "crash",
    error: `the lease ended before the job was settled (worker ${row.worker ?? "unknown"}); its process died, hung or was cut off`
  })
  const history = crashedHistory(row, error)
  if (row.cancelRequested) return { _tag: "Bury", id: row.id, token: row.token, reason: "cancelled", history }
  return row.attempt >= row.maxAttempts || history.crashes > row.maxCrashes
    ? { _tag: "Bury", id: row.id, token: row.token, reason: "crashed", history }
    : {
        _tag: "Return",
        id: row.id,
        token: row.token,
        attempt: row.attempt,
        delayMillis: null,
        undecodableSince: row.undecodableSince,
        history
      }
}
