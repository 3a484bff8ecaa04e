/**
 * One page of lapsed leases, whole or not at all: back to ready, or to the dead letters, as `Settlement.lapsed` decides.
 */
import { Effect } from "effect"
import type { DeadReason } from "../../services/JobState.js"
import { doneOf, lapsed } from "../../services/Settlement.js"
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
  /** Why each that is dead now is. */
  readonly died: ReadonlyArray<DeadReason>
  /** Queues that may have a job more to claim. */
  readonly woken: ReadonlySet<string>
}

export const moveLapsed =
  (verbs: Verbs, queue: string, after: Cursor, limit = page): Verb<Moved> =>
  (session) =>
    Effect.gen(function* () {
      const [clock] = yield* session.execute(verbs.present, {})
      const rows = yield* verbs.sweep.lapsed(session, queue, after, limit)
      if (rows.length === 0) return { cursor: undefined, recovered: 0, died: [], woken: new Set<string>() }
      const settlements = rows.map((row) => lapsed(row, int(clock?.now)))
      const { outcomes, woken } = yield* verbs.settle(session, queue, settlements, {
        skipLocked: true,
        lapsedOnly: true
      })
      const last = rows[rows.length - 1]
      const done = settlements.flatMap((settlement, index) => doneOf(settlement, outcomes[index]) ?? [])
      return {
        cursor: rows.length < limit || last === undefined ? undefined : { at: last.deadline, id: last.id },
        recovered: done.filter((s) => s._tag === "Return").length,
        died: done.flatMap((s) => (s._tag === "Bury" ? [s.reason] : [])),
        woken
      }
    })
