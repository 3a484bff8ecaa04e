/**
 * Expiry: a page at a time; when a page cannot be moved, row by row, so that one bad row never stops the rest.
 */
import { Effect } from "effect"
import { countExpired } from "../../services/metrics.js"
import { page } from "./moveLapsed.js"
import { type Cursor, type Expired, fromStart } from "./statements/sweep.js"
import type { Store } from "./store.js"

export const makeExpire = ({ announce, db, verbs }: Store) => {
  const tell = (moved: Expired) =>
    Effect.suspend(() => {
      countExpired(moved.queues)
      return Effect.as(announce(moved.woken), moved.count)
    })

  const one = (id: number) =>
    db
      .apart("waits", "sweep", (session) => verbs.sweep.expireJob(session, id))
      .pipe(
        Effect.flatMap(tell),
        Effect.catchIf(
          (error) => !error.retryable,
          (error) => Effect.as(Effect.logWarning(`sweep: job ${id} has expired and could not be moved`, error), 0)
        )
      )

  const rowByRow = (queue: string | undefined) =>
    Effect.gen(function* () {
      let count = 0
      let cursor: Cursor = fromStart
      for (;;) {
        const after = cursor
        const found = yield* db.apart("read", "sweep", (session) => verbs.sweep.expired(session, queue, after, page))
        for (const { id } of found) count += yield* one(id)
        const last = found.at(-1)
        if (last === undefined || found.length < page) return { count, more: false }
        cursor = last
      }
    })

  /** Moves a page of what has expired, of one queue or of all, outside of every transaction. */
  const apart = (queue: string | undefined) =>
    db
      .apart("write", "sweep", (session) => verbs.sweep.expire(session, queue, page))
      .pipe(
        Effect.flatMap(tell),
        Effect.map((count) => ({ count, more: count === page })),
        Effect.catchIf(
          (error) => !error.retryable,
          () => rowByRow(queue)
        )
      )

  /** The same for a claim, in the caller's transaction if it is in one. */
  const joined = (queue: string) =>
    Effect.flatMap(db.joins, (joins) =>
      joins
        ? Effect.flatMap(
            db.joined("write", "sweep", (session) => verbs.sweep.expire(session, queue, page)),
            tell
          )
        : Effect.map(apart(queue), ({ count }) => count)
    )

  return { apart, joined }
}
