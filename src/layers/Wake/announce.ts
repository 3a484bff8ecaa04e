/**
 * Wakes after a commit: at once outside a transaction, when it has ended inside one.
 */
import { Effect, type Scope } from "effect"
import type { Service as WakeService } from "../../services/Wake.js"
import { type Database, detached } from "../Database/Database.js"
import { makeTell } from "./tell.js"

export interface Announce {
  /**
   * Wakes this process's listeners, and tells other processes. On PostgreSQL those are told by the NOTIFY in the
   * transaction, which wakes this process too where its end is not known here.
   */
  readonly change: (topics: ReadonlyArray<string>) => Effect.Effect<void>
  /** The same for jobs that have been added: other processes see that by themselves. */
  readonly addition: (topics: ReadonlyArray<string>) => Effect.Effect<void>
}

export const makeAnnounce = (db: Database, wake: WakeService, scope: Scope.Scope): Announce => {
  const tell = makeTell(db, scope)
  const after = (topics: ReadonlyArray<string>, ring: Effect.Effect<void>): Effect.Effect<void> =>
    topics.length === 0
      ? Effect.void
      : Effect.flatMap(db.joins, (joins) => {
          if (!joins) return ring
          if (db.names.engine === "postgres") return Effect.void
          return Effect.asVoid(
            Effect.forkIn(Effect.interruptible(detached(Effect.zipRight(db.afterTransaction, ring))), scope)
          )
        })
  return {
    change: (topics) =>
      after(
        topics,
        db.names.engine === "postgres" ? wake.wake(topics) : Effect.zipRight(wake.wake(topics), tell(topics))
      ),
    addition: (topics) => after(topics, wake.wake(topics))
  }
}
