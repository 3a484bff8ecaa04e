/**
 * Version 5: on SQLite, what other processes are to look at. What has been enqueued is seen by its ids; all else that
 * wakes leaves its topic here. Only a hint: rows may be deleted at any time.
 */
import type { Names, PerEngine } from "../../engine.js"

export const wakes: PerEngine<(n: Names) => ReadonlyArray<string>> = {
  // Told by NOTIFY
  postgres: () => [],
  sqlite: (n) => [
    `CREATE TABLE ${n.wakes} (topic TEXT NOT NULL PRIMARY KEY, changed INTEGER NOT NULL)`,
    `CREATE INDEX ${n.index("wakes_by_change")} ON ${n.wakes} (changed)`
  ]
}
