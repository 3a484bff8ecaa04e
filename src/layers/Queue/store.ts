/**
 * What the parts of the Queue service share: the database, its verbs, wakes after commits, and ordering keys advanced.
 */
import { Deferred, Effect, FiberId } from "effect"
import type { StoreError, TransactionOpen } from "../../services/Errors.js"
import { queueTopic, Wake } from "../../services/Wake.js"
import { type Database, detached, type Refused, type Verb } from "../Database/Database.js"
import { makeAnnounce } from "../Wake/announce.js"
import type { Advanced } from "./statements/lanes.js"
import { makeVerbs, type SqlQueueOptions } from "./verbs.js"

export const none: Advanced = { unblocked: 0, more: false, missed: false }

/** How often a pass is made again that met another one. */
const tries = 5

type Pass = Deferred.Deferred<Advanced, TransactionOpen | StoreError>

/**
 * One pass at a time per queue; all who ask while one is under way, which may have begun too early for them, share the
 * next. A pass goes on when nobody waits for it any more: others may.
 */
const sharing = (pass: (queue: string) => Effect.Effect<Advanced, TransactionOpen | StoreError>) => {
  const next = new Map<string, Pass | undefined>()
  const work = (queue: string, first: Pass): Effect.Effect<void> =>
    Effect.flatMap(Effect.intoDeferred(pass(queue), first), () => {
      const waiting = next.get(queue)
      if (waiting === undefined) {
        next.delete(queue)
        return Effect.void
      }
      next.set(queue, undefined)
      return work(queue, waiting)
    })
  return (queue: string): Effect.Effect<Pass> =>
    Effect.suspend(() => {
      const mine: Pass = next.get(queue) ?? Deferred.unsafeMake(FiberId.none)
      const busy = next.has(queue)
      next.set(queue, busy ? mine : undefined)
      return busy
        ? Effect.succeed(mine)
        : Effect.as(Effect.forkDaemon(Effect.uninterruptible(detached(work(queue, mine)))), mine)
    })
}

export const makeStore = (db: Database, options: SqlQueueOptions) =>
  Effect.gen(function* () {
    const wake = yield* Wake
    const scope = yield* Effect.scope
    const verbs = makeVerbs(db, options)

    const { addition, change: wakeTopics } = makeAnnounce(db, wake, scope)
    const announce = (queues: Iterable<string>) => wakeTopics(Array.from(queues, queueTopic))
    /** The same for jobs that have been added. */
    const announceNew = (queue: string) => addition([queueTopic(queue)])
    /** The same where it is known that no transaction is open. */
    const wakeNew = (queue: string) => wake.wake([queueTopic(queue)])

    // Two passes that met: the unique index has refused the second, which looks again
    const again = <A, E extends TransactionOpen | StoreError>(self: Effect.Effect<A, E>) =>
      Effect.retry(self, {
        times: tries,
        while: (error) => error._tag === "StoreError" && error.reason === "constraint"
      })

    /** One statement, if nobody else is at it and no dead letter may hold a key; else it waits for its turn first. */
    const pass = (queue: string): Effect.Effect<Advanced, TransactionOpen | StoreError> =>
      Effect.flatMap(
        again(db.apart("write", "advance", (session) => verbs.lanes.advance(session, queue, false))),
        (advanced) => {
          if (!advanced.missed) return Effect.succeed(advanced)
          const careful: Verb<Advanced> = (session) =>
            Effect.zipRight(verbs.lanes.turn(session, queue), verbs.lanes.advance(session, queue, true))
          return again(db.apart("waits", "advance", careful, "transaction"))
        }
      )

    const shared = sharing((queue) =>
      pass(queue).pipe(
        Effect.tap(({ unblocked }) => (unblocked > 0 ? wake.wake([queueTopic(queue)]) : Effect.void)),
        // Told here, once for all who share the pass: most of them go on without it
        Effect.tapError((error) =>
          Effect.logWarning(`queue ${queue}: a pass over its ordering keys failed; the next claim makes another`, error)
        )
      )
    )

    /** Deals with marks of ordering keys, always in a transaction of its own: see `statements/lanes`. */
    const advance = (queue: string): Effect.Effect<Advanced, TransactionOpen | StoreError> =>
      db.names.engine === "sqlite" ? Effect.succeed(none) : Effect.flatMap(shared(queue), Deferred.await)

    /**
     * The same after a change that is committed already; within a transaction it is left to the next claim. The change
     * stands, and so do its marks: a failed pass, which has been told, is not the caller's failure.
     */
    const advanceNow = (queue: string): Effect.Effect<void> =>
      Effect.flatMap(db.joins, (joins) =>
        joins ? Effect.void : Effect.catchAll(Effect.asVoid(advance(queue)), () => Effect.void)
      )

    /** The same, not waited for. */
    const advanceSoon = (queue: string): Effect.Effect<void> =>
      db.names.engine === "sqlite" ? Effect.void : Effect.asVoid(shared(queue))

    /**
     * What a look tells of a queue's jobs: one that seems to be blocked may only have a mark of its ordering key before it,
     * that nobody has dealt with since its transaction. Within a transaction it is told as it stands.
     */
    const upToDate = <A, E>(
      look: Effect.Effect<A, E>,
      blockedIn: (found: A) => string | undefined
    ): Effect.Effect<A, E | Refused> =>
      Effect.flatMap(look, (found) => {
        const queue = db.names.engine === "sqlite" ? undefined : blockedIn(found)
        if (queue === undefined) return Effect.succeed(found)
        const marked = db.joined("read", "advance", (session) => verbs.lanes.isMarked(session, queue))
        return Effect.if(
          Effect.flatMap(db.joins, (joins) => (joins ? Effect.succeed(false) : marked)),
          {
            onTrue: () => Effect.zipRight(advanceNow(queue), look),
            onFalse: () => Effect.succeed(found)
          }
        )
      })

    return { db, verbs, wakeTopics, announce, announceNew, wakeNew, advance, advanceNow, advanceSoon, upToDate }
  })

export type Store = Effect.Effect.Success<ReturnType<typeof makeStore>>
