/**
 * define: makes a queue's settings known to the fleet. A worker's word beats a producer's, in whatever order they come;
 * nothing is written when nothing changes.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { QueueSettings } from "../../../services/QueueStore.js"
import { type Names, type PerEngine, type Session, statement } from "../../engine.js"

const upsert = (n: Names) => {
  const text = statement(
    n,
    "define",
    `INSERT INTO ${n.queues} AS q (name, max_crashes, defined_by, updated_at)
    VALUES (:name, :maxCrashes, :by, ${n.now})
    ON CONFLICT (name) DO UPDATE SET max_crashes = excluded.max_crashes, defined_by = excluded.defined_by, updated_at = excluded.updated_at
    WHERE (q.defined_by = 'producer' OR excluded.defined_by = 'worker')
      AND (q.max_crashes <> excluded.max_crashes OR q.defined_by <> excluded.defined_by)`
  )
  return (session: Session, settings: QueueSettings, by: "producer" | "worker"): Effect.Effect<void, StoreError> =>
    Effect.asVoid(session.execute(text, { name: settings.name, maxCrashes: settings.maxCrashes, by }))
}

/** The two engines share this one statement. */
export const define: PerEngine<typeof upsert> = { postgres: upsert, sqlite: upsert }
