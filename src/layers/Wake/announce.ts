/**
 * Wakes after a commit: at once outside a transaction, when it has ended inside one.
 */
import { Effect, type Scope } from "effect"
import type { Service as WakeService } from "../../services/Wake.js"
import { type Database, detached } from "../Database/Database.js"

/** Wakes this process's listeners; on PostgreSQL those of an open transaction are woken by the NOTIFY in it. */
export const makeAnnounce =
  (db: Database, wake: WakeService, scope: Scope.Scope) =>
  (topics: ReadonlyArray<string>): Effect.Effect<void> =>
    Effect.flatMap(db.joins, (joins) => {
      if (topics.length === 0) return Effect.void
      if (!joins) return wake.wake(topics)
      if (db.names.engine === "postgres") return Effect.void
      return Effect.asVoid(
        Effect.forkIn(Effect.interruptible(detached(Effect.zipRight(db.afterTransaction, wake.wake(topics)))), scope)
      )
    })
