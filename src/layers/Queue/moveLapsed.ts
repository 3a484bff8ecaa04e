/**
 * One page of lapsed leases: back to ready, or to the dead letters, as `Settlement.lapsed` decides.
 */
import { Effect } from "effect"
import type { DeadReason } from "../../services/JobState.js"
import { lapsed, type Settlement } from "../../services/Settlement.js"
import type { Verb } from "../Database/Database.js"
import { int } from "./statements/rows.js"
import type { Cursor } from "./statements/sweep.js"
import type { Verbs } from "./verbs.js"

/** Rows per statement of a sweep. */
export const page = 500

export interface Moved {
  /** Where the next page begins; undefined after the last. */
  readonly cursor: Cursor | undefined
  readonly recovered: number
  readonly crashed: number
  /** Why each that is dead now is. */
  readonly died: ReadonlyArray<DeadReason>
  /** Queues that may have a job more to claim. */
  readonly woken: ReadonlySet<string>
}

export const moveLapsed =
  (verbs: Verbs, queue: string, after: Cursor): Verb<Moved> =>
  (session) =>
    Effect.gen(function* () {
      const [clock] = yield* session.execute(verbs.present, {})
      const rows = yield* verbs.sweep.lapsed(session, queue, after, page)
      if (rows.length === 0) return { cursor: undefined, recovered: 0, crashed: 0, died: [], woken: new Set<string>() }
      const settlements = rows.map((row) => lapsed(row, int(clock?.now)))
      const options = { skipLocked: true, lapsedOnly: true }
      // One row that cannot be written never stops the rest: a page that fails is done row by row
      const woken = new Set<string>()
      const apply = (some: ReadonlyArray<Settlement>) =>
        Effect.map(verbs.settle(session, queue, some, options), (settled) => {
          for (const name of settled.woken) woken.add(name)
          return settled.outcomes
        })
      const outcomes = yield* apply(settlements).pipe(
        Effect.catchIf(
          (error) => !error.retryable && !session.joined,
          () =>
            Effect.forEach(settlements, (settlement) =>
              apply([settlement]).pipe(
                Effect.map(([outcome]) => outcome),
                Effect.catchIf(
                  (error) => !error.retryable,
                  (error) =>
                    Effect.as(
                      Effect.logWarning(`sweep: job ${settlement.id} of queue ${queue} could not be moved`, error),
                      undefined
                    )
                )
              )
            )
        )
      )
      const last = rows[rows.length - 1]
      const done = settlements.filter((_, index) => outcomes[index] === "done")
      const died = done.flatMap((s) => (s._tag === "Bury" ? [s.reason] : []))
      return {
        cursor: rows.length < page || last === undefined ? undefined : { at: last.deadline, id: last.id },
        recovered: done.filter((s) => s._tag === "Return").length,
        crashed: died.length,
        died,
        woken
      }
    })
