/**
 * Who holds a dedupe key: free, spent, to be replaced, or the first job, whose receipt is answered.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import { stateOf } from "../../../services/JobState.js"
import type { NewJob, Receipt } from "../../../services/QueueStore.js"
import type { Names, Row, Session, Statement } from "../../engine.js"
import { metAt } from "./lists.js"
import { bool, int, intOrNull } from "./rows.js"

/** Now plus the delay, or runAt unless it has passed. */
export const dueAt = (now: string, max: string, at: string, delay: string) =>
  `CASE WHEN ${at} IS NULL THEN ${now} + ${delay} ELSE ${max}(${at}, ${now}) END`

/** The receipt of a job that is new. */
export const added = (id: number, dueAt: number | null, now: number): Receipt => ({
  id,
  state: stateOf({ token: null, visibleAt: dueAt }, now),
  deduplicated: false,
  replaced: false
})

/** A key that holds nobody off: its job has ended and its window, if it had one, has passed. */
export const isFree = (row: Row): boolean =>
  row.live_id === null && (intOrNull(row.free_at) === null || int(row.free_at) <= int(row.now))

/** A holder that has expired and will never run: it is dead before it swallows another, or is replaced. */
export const isSpent = (row: Row): boolean => bool(row.spent)

/** Payload, headers and times of a job that nobody holds are replaced; its attempts and errors start afresh. */
export const replaceText = (n: Names, max: string) => {
  const [at, delay] = n.engine === "sqlite" ? [":runAt", ":delay"] : [":runAt::bigint", ":delay::bigint"]
  const due = dueAt(n.now, max, at, delay)
  const big = n.engine === "sqlite" ? "" : "::bigint"
  return `UPDATE ${n.jobs} SET payload = :payload, headers = :headers, priority = :priority, due_at = ${due},
      visible_at = CASE WHEN visible_at IS NULL THEN NULL ELSE ${due} END,
      expires_at = coalesce(:expiresAt${big}, ${due} + :expiresMillis${big}), expires_ms = :expiresMillis${big}, attempt = 0, crashes = 0, failures = 0,
      errors = NULL, failure_times = NULL, progress = NULL, undecodable_since = NULL
    WHERE id = :id AND token IS NULL
    RETURNING token, visible_at, ${metAt[n.engine]("due_at", "expires_at")} AS met_at, ${n.now} AS now`
}

/** The receipt of whoever holds the key, replaced first if that is wanted and possible; none when it has just changed. */
export const heldBy = (
  session: Session,
  replace: Statement,
  row: Row,
  job: NewJob,
  notice: { readonly queue: string; readonly channel: string }
): Effect.Effect<Receipt | undefined, StoreError> =>
  Effect.gen(function* () {
    const id = int(row.job_id)
    if (row.live_id === null) return { id, state: "ended", deduplicated: true, replaced: false }
    const [changed] = job.replace
      ? yield* session.execute(replace, {
          ...notice,
          id,
          payload: job.payload,
          headers: job.headers,
          priority: job.priority,
          delay: job.delayMillis,
          runAt: job.runAt,
          expiresMillis: job.expiresMillis,
          expiresAt: job.expiresAt
        })
      : []
    // It waited when it was looked at, and is claimed or gone by now: look again
    if (job.replace && changed === undefined && intOrNull(row.token) === null) return undefined
    const { met_at, now, token, visible_at } = changed ?? row
    // PostgreSQL: the first of its ordering key, which the next pass unblocks
    const visibleAt = visible_at === null && bool(row.head) ? met_at : visible_at
    return {
      id,
      state: stateOf({ token: intOrNull(token), visibleAt: intOrNull(visibleAt) }, int(now)),
      deduplicated: true,
      replaced: changed !== undefined
    }
  })
