/**
 * Lapsed leases: a page at a time; when a page cannot be moved, row by row, each in a transaction of its own, so that
 * one bad row never stops the rest and leaves nothing half done.
 */
import { Effect } from "effect"
import { countDied } from "../../services/metrics.js"
import { type Moved, moveLapsed, page } from "./moveLapsed.js"
import { type Cursor, fromStart } from "./statements/sweep.js"
import type { Store } from "./store.js"

export const makeLapse = ({ announce, db, verbs }: Store) => {
  const tell = (queue: string) => (moved: Moved) =>
    Effect.suspend(() => {
      countDied(queue, moved.died)
      return announce(moved.woken)
    })

  const some = (queue: string, after: Cursor, limit: number) =>
    Effect.tap(db.apart("write", "sweep", moveLapsed(verbs, queue, after, limit), "transaction"), tell(queue))

  const rowByRow = (queue: string, after: Cursor) =>
    Effect.gen(function* () {
      const rows = yield* db.apart("read", "sweep", (session) => verbs.sweep.lapsed(session, queue, after, page))
      let before = after
      let recovered = 0
      const died: Array<Moved["died"][number]> = []
      for (const { deadline: at, id } of rows) {
        const moved = yield* Effect.catchIf(
          some(queue, before, 1),
          (error) => !error.retryable,
          (error) =>
            Effect.as(Effect.logWarning(`sweep: job ${id} of queue ${queue} could not be moved`, error), undefined)
        )
        recovered += moved?.recovered ?? 0
        died.push(...(moved?.died ?? []))
        before = { at, id }
      }
      return { cursor: rows.length < page ? undefined : before, recovered, died }
    })

  /** Moves a page of one queue's lapsed leases, outside of every transaction. */
  const apart = (queue: string, after: Cursor) =>
    Effect.catchIf(
      some(queue, after, page),
      (error) => !error.retryable,
      () => rowByRow(queue, after)
    )

  /** The first page for a claim, in the caller's transaction if it is in one; answers how many it moved. */
  const joined = (queue: string) =>
    Effect.flatMap(db.joins, (joins) =>
      Effect.map(
        joins
          ? Effect.tap(db.joined("write", "sweep", moveLapsed(verbs, queue, fromStart)), tell(queue))
          : apart(queue, fromStart),
        ({ died, recovered }) => died.length + recovered
      )
    )

  return { apart, joined }
}
