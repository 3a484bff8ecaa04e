/**
 * Version 3: ordering keys, retention, dedupe windows and introspection.
 *
 * At most one job of an ordering key is not blocked: the unique index `jobs_head` says so. Which job is the next to be
 * unblocked is looked up by whoever meets a mark (`lane_marks`) of its key; a dead letter that holds its key is in
 * `lane_blocks`. Neither is ever locked by a transaction of the application's for longer than its own rows.
 */
import type { Names, PerEngine } from "../../engine.js"
import { lanes } from "./0001_initial.js"

interface Types {
  readonly serial: string
  readonly big: string
  readonly text: string
  readonly name: string
}

const types: PerEngine<Types> = {
  postgres: { serial: "bigserial PRIMARY KEY", big: "bigint", text: "text", name: 'text COLLATE "C"' },
  sqlite: { serial: "INTEGER PRIMARY KEY", big: "INTEGER", text: "TEXT", name: "TEXT" }
}

const common = (n: Names, t: Types): ReadonlyArray<string> => [
  `DROP TABLE ${lanes(n)}`,
  `CREATE TABLE ${n.laneMarks} (id ${t.serial}, queue ${t.name} NOT NULL, ordering_key ${t.text} NOT NULL)`,
  `CREATE INDEX ${n.index("lane_marks_by_queue")} ON ${n.laneMarks} (queue, id)`,
  `CREATE TABLE ${n.laneBlocks} (
  letter_id ${t.big} NOT NULL PRIMARY KEY,
  queue ${t.name} NOT NULL,
  ordering_key ${t.text} NOT NULL
)`,
  `CREATE INDEX ${n.index("lane_blocks_by_key")} ON ${n.laneBlocks} (queue, ordering_key)`,
  `CREATE UNIQUE INDEX ${n.index("jobs_head")} ON ${n.jobs} (queue, ordering_key) WHERE ordering_key IS NOT NULL AND visible_at IS NOT NULL`,
  `CREATE INDEX ${n.index("jobs_blocked")} ON ${n.jobs} (queue, id) WHERE visible_at IS NULL`,
  `CREATE INDEX ${n.index("dedupe_keys_freeing")} ON ${n.dedupeKeys} (free_at) WHERE free_at IS NOT NULL`,
  `CREATE INDEX ${n.index("dead_letters_by_reason")} ON ${n.deadLetters} (queue, reason, died_at, id)`
]

export const operations: PerEngine<(n: Names) => ReadonlyArray<string>> = {
  postgres: (n) => [
    ...common(n, types.postgres),
    // Marks come and go as jobs do
    `ALTER TABLE ${n.laneMarks} SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0)`
  ],
  sqlite: (n) => common(n, types.sqlite)
}
