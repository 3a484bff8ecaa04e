/**
 * The sweep: what has expired, leases that have lapsed, ordering keys with marks, retentions and dedupe windows that
 * have passed, locks of the dead. Page by page; one bad row never stops the rest.
 */
import { Effect } from "effect"
import type { Service, SweepResult } from "../../services/QueueStore.js"
import { makeExpire } from "./expire.js"
import { makeLapse } from "./lapse.js"
import { page } from "./moveLapsed.js"
import { type Cursor, fromStart } from "./statements/sweep.js"
import type { Store } from "./store.js"

interface Result {
  expired: number
  recovered: number
  crashed: number
  purged: number
}

export const makeSweep = (store: Store): Service["sweepExpired"] => {
  const { advance, db, verbs } = store
  const expiry = makeExpire(store)
  const lapse = makeLapse(store)

  const expire = (queue: string | undefined, result: Result) =>
    Effect.gen(function* () {
      for (;;) {
        // On SQLite a look comes first: nothing to do costs no write lock
        const look =
          db.names.engine === "sqlite"
            ? (yield* db.apart("read", "sweep", (session) => verbs.sweep.expire(session, queue, 1))).count
            : 1
        if (look === 0) return
        const { count, more } = yield* expiry.apart(queue)
        result.expired += count
        if (!more) return
      }
    })

  const leases = (queue: string, result: Result) =>
    Effect.gen(function* () {
      let cursor: Cursor | undefined = fromStart
      while (cursor !== undefined) {
        const after: Cursor = cursor
        const found = yield* db.apart("read", "sweep", (session) => verbs.sweep.lapsed(session, queue, after, 1))
        if (found.length === 0) break
        const moved = yield* lapse.apart(queue, after)
        result.recovered += moved.recovered
        result.crashed += moved.died.length
        cursor = moved.cursor
      }
    })

  const marks = (queue: string) => Effect.repeat(advance(queue), { while: (passed) => passed.more })

  const retire = (queue: string | undefined, result: Result) =>
    Effect.gen(function* () {
      for (;;) {
        const due = yield* db.apart("read", "sweep", (session) => verbs.sweep.due(session, queue))
        if (!due) return
        const purged = yield* db.apart("write", "sweep", (session) => verbs.letters.retire(session, queue, page))
        const freed = yield* db.apart("write", "sweep", (session) => verbs.sweep.freeKeys(session, page))
        result.purged += purged
        if (purged + freed === 0) return
      }
    })

  const locks = Effect.gen(function* () {
    while (yield* db.apart("read", "sweep", verbs.sweep.locksLeft)) {
      const forgotten = yield* db.apart("write", "sweep", (session) => verbs.sweep.forgetLocks(session, page))
      if (forgotten === 0) return
    }
  })

  /** Every queue, by name, that a look finds something in. */
  const each = <E, R>(
    next: (after: string) => Effect.Effect<string | undefined, E, R>,
    visit: (queue: string) => Effect.Effect<unknown, E, R>
  ) =>
    Effect.gen(function* () {
      let name = yield* next("")
      while (name !== undefined) {
        yield* visit(name)
        name = yield* next(name)
      }
    })

  return (queue) =>
    Effect.gen(function* () {
      const result: Result = { expired: 0, recovered: 0, crashed: 0, purged: 0 }
      yield* expire(queue, result)
      if (queue !== undefined) {
        yield* leases(queue, result)
        yield* marks(queue)
        yield* retire(queue, result)
        return result satisfies SweepResult
      }
      yield* each(
        (after) => db.apart("read", "sweep", (session) => verbs.sweep.nextLeased(session, after)),
        (name) => leases(name, result)
      )
      yield* each((after) => db.apart("read", "sweep", (session) => verbs.lanes.nextMarked(session, after)), marks)
      yield* retire(undefined, result)
      yield* locks
      return result satisfies SweepResult
    })
}
