/**
 * What the parts of the Queue service share: the database, its verbs, wakes after commits, and ordering keys advanced.
 */
import { Effect } from "effect"
import { conflictRetry } from "../../schedule/Polling.js"
import { queueTopic, Wake } from "../../services/Wake.js"
import type { Database } from "../Database/Database.js"
import { makeAnnounce } from "../Wake/announce.js"
import type { Advanced } from "./statements/lanes.js"
import { makeVerbs, type SqlQueueOptions } from "./verbs.js"

export const none: Advanced = { marks: 0, unblocked: 0 }

export const makeStore = (db: Database, options: SqlQueueOptions) =>
  Effect.gen(function* () {
    const wake = yield* Wake
    const scope = yield* Effect.scope
    const verbs = makeVerbs(db, options)

    const wakeTopics = makeAnnounce(db, wake, scope)
    const announce = (queues: Iterable<string>) => wakeTopics(Array.from(queues, queueTopic))

    /** Deals with marks of ordering keys, always in a transaction of its own: see `statements/lanes`. */
    const advance = (queue: string) =>
      db.names.engine === "sqlite"
        ? Effect.succeed(none)
        : db
            .apart("write", "advance", (session) => verbs.lanes.advance(session, queue))
            .pipe(
              // Two passes that met: the unique index has refused the second, which looks again
              Effect.retry({
                schedule: conflictRetry,
                while: (error) => error._tag === "StoreError" && error.reason === "constraint"
              }),
              Effect.tap(({ unblocked }) => (unblocked > 0 ? wake.wake([queueTopic(queue)]) : Effect.void))
            )

    return { db, verbs, wakeTopics, announce, advance }
  })

export type Store = Effect.Effect.Success<ReturnType<typeof makeStore>>
