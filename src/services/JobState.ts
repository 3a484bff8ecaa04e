/**
 * The states of a job and the transitions between them, as data.
 *
 * ```text
 * enqueue ─► delayed ──due──► ready ──claim──► leased ──ack─────────► gone (or kept, if the queue retains)
 *              ▲               ▲                │ ├─ retry(delay) ─► delayed (attempt spent)
 *              │               ├─ lease ended ──┘ ├─ release/snooze► ready / delayed (attempt given back)
 *  blocked ────┴─ key is free ─┘                  ├─ fail ────────► dead(failed)
 *                                                 └─ spent ───────► dead(exhausted | crashed)
 * ready | delayed | blocked ─ expiresAt passed ─► dead(expired);  cancel ─► dead(cancelled)
 * ```
 *
 * @since 0.1.0
 */

/**
 * A live job is `delayed` (not before its dueAt), `ready` (may be claimed), `blocked` (waits for another of its
 * ordering key) or `leased` (held by a worker).
 *
 * @since 0.1.0
 * @category models
 */
export type JobState = "delayed" | "ready" | "blocked" | "leased"

/**
 * Why a job was dead-lettered: attempts used up, the last attempt (or too many attempts) crashed, failed on
 * purpose, expired before it ran, cancelled, or no worker could decode it for a day.
 *
 * @since 0.1.0
 * @category models
 */
export type DeadReason = "exhausted" | "crashed" | "failed" | "expired" | "cancelled" | "undecodable"

/**
 * Where each event leads from each state. `gone` is the end of an acknowledged job, `dead` a dead letter.
 *
 * @since 0.1.0
 * @category models
 */
export const transitions = {
  delayed: { due: "ready", expire: "dead", cancel: "dead" },
  ready: { claim: "leased", expire: "dead", cancel: "dead" },
  blocked: { unblock: "ready", expire: "dead", cancel: "dead" },
  leased: {
    ack: "gone",
    retry: "delayed",
    release: "ready",
    snooze: "delayed",
    fail: "dead",
    exhaust: "dead",
    lapse: "ready",
    cancel: "dead"
  }
} as const satisfies Record<JobState, Record<string, JobState | "gone" | "dead">>

/**
 * The state of a live job's row. A row holds no state of its own: it follows from the lease token, the
 * instant from which the job is visible (`null` when its ordering key blocks it) and the present.
 *
 * @since 0.1.0
 * @category constructors
 */
export const stateOf = (
  row: { readonly token: number | null; readonly visibleAt: number | null },
  now: number
): JobState =>
  row.token !== null ? "leased" : row.visibleAt === null ? "blocked" : row.visibleAt <= now ? "ready" : "delayed"
