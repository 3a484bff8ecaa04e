/**
 * Version 1: every table of the contract but the schedules. Times are whole milliseconds since the Unix epoch, JSON
 * is text (so that any Unicode string comes back as it went in), on both engines.
 *
 * `jobs` has one index for claims: the waiting rows of a queue by priority, the instant from which they are visible,
 * and id. Leased rows are in an index of their own, blocked ones (`visible_at` null) in neither: a claim meets only
 * rows that it takes.
 */
import { type Names, nextval, type PerEngine } from "../../engine.js"

interface Types {
  readonly id: (n: Names) => string
  readonly key: string
  readonly int: string
  readonly small: string
  readonly big: string
  readonly text: string
  readonly bool: string
  readonly name: string
}

const types: PerEngine<Types> = {
  postgres: {
    id: (n) => `bigint PRIMARY KEY DEFAULT ${nextval(n.jobIds)}`,
    key: "bigint PRIMARY KEY",
    int: "integer",
    small: "smallint",
    big: "bigint",
    text: "text",
    bool: "boolean NOT NULL DEFAULT false",
    name: 'text COLLATE "C"'
  },
  sqlite: {
    // AUTOINCREMENT: SQLite would reuse the ids of an emptied table
    id: () => "INTEGER PRIMARY KEY AUTOINCREMENT",
    key: "INTEGER PRIMARY KEY",
    int: "INTEGER",
    small: "INTEGER",
    big: "INTEGER",
    text: "TEXT",
    bool: "INTEGER NOT NULL DEFAULT 0",
    name: "TEXT"
  }
}

/** What a job keeps wherever its row is: live, dead or completed. */
const kept = (t: Types) => `
  queue ${t.name} NOT NULL,
  payload ${t.text} NOT NULL,
  priority ${t.small} NOT NULL,
  attempt ${t.int} NOT NULL,
  max_attempts ${t.int} NOT NULL,
  crashes ${t.int} NOT NULL DEFAULT 0,
  failures ${t.int} NOT NULL DEFAULT 0,
  enqueued_at ${t.big} NOT NULL,
  due_at ${t.big} NOT NULL,
  expires_at ${t.big},
  expires_ms ${t.big},
  dedupe_key ${t.text},
  dedupe_scope ${t.text},
  dedupe_window_ms ${t.big},
  ordering_key ${t.text},
  headers ${t.text},
  progress ${t.text},
  errors ${t.text},
  failure_times ${t.text},
  history ${t.text}`

/** Of version 1 only: version 3 drops it. */
export const lanes = (n: Names): string => n.jobs.replace(/jobs"$/, 'lanes"')

const tables = (n: Names, t: Types): ReadonlyArray<string> => [
  `CREATE TABLE ${n.jobs} (
  id ${t.id(n)},${kept(t)},
  visible_at ${t.big},
  token ${t.big},
  worker ${t.text},
  claimed_at ${t.big},
  visibility_ms ${t.big},
  undecodable_since ${t.big},
  cancel_requested_at ${t.big}
)`,
  `CREATE INDEX ${n.index("jobs_waiting")} ON ${n.jobs} (queue, priority DESC, visible_at, id) WHERE token IS NULL AND visible_at IS NOT NULL`,
  `CREATE INDEX ${n.index("jobs_leased")} ON ${n.jobs} (queue, visible_at) WHERE token IS NOT NULL`,
  `CREATE INDEX ${n.index("jobs_expiring")} ON ${n.jobs} (expires_at) WHERE expires_at IS NOT NULL AND token IS NULL`,
  `CREATE INDEX ${n.index("jobs_ordered")} ON ${n.jobs} (queue, ordering_key, id) WHERE ordering_key IS NOT NULL`,
  `CREATE TABLE ${n.deadLetters} (
  id ${t.key},${kept(t)},
  reason ${t.text} NOT NULL,
  died_at ${t.big} NOT NULL,
  token ${t.big}
)`,
  `CREATE INDEX ${n.index("dead_letters_by_time")} ON ${n.deadLetters} (queue, died_at, id)`,
  `CREATE TABLE ${n.completedJobs} (
  id ${t.key},${kept(t)},
  completed_at ${t.big} NOT NULL,
  token ${t.big}
)`,
  `CREATE INDEX ${n.index("completed_jobs_by_time")} ON ${n.completedJobs} (queue, completed_at, id)`,
  `CREATE TABLE ${n.dedupeKeys} (
  queue ${t.name} NOT NULL,
  dedupe_key ${t.text} NOT NULL,
  job_id ${t.big} NOT NULL,
  free_at ${t.big},
  PRIMARY KEY (queue, dedupe_key)
)`,
  `CREATE TABLE ${lanes(n)} (
  queue ${t.name} NOT NULL,
  ordering_key ${t.text} NOT NULL,
  head_id ${t.big},
  blocked_by ${t.big},
  PRIMARY KEY (queue, ordering_key)
)`,
  `CREATE TABLE ${n.queues} (
  name ${t.name} NOT NULL PRIMARY KEY,
  max_crashes ${t.int} NOT NULL DEFAULT 5,
  retain_completed_ms ${t.big},
  retain_dead_ms ${t.big},
  dead_letter_queue ${t.text},
  on_dead ${t.text},
  paused_at ${t.big},
  defaults ${t.text},
  defined_by ${t.text} NOT NULL,
  updated_at ${t.big} NOT NULL
)`,
  `CREATE TABLE ${n.locks} (
  name ${t.name} NOT NULL PRIMARY KEY,
  token ${t.big} NOT NULL,
  owner ${t.text} NOT NULL,
  acquired_at ${t.big} NOT NULL,
  expires_at ${t.big} NOT NULL,
  ttl_ms ${t.big} NOT NULL
)`
]

export const initial: PerEngine<(n: Names) => ReadonlyArray<string>> = {
  postgres: (n) => [
    `CREATE SEQUENCE ${n.jobIds}`,
    ...tables(n, types.postgres),
    // One counter for the lease tokens of jobs and locks. A sequence: never rolled back, so never reused
    `CREATE SEQUENCE ${n.tokens}`,
    // The live table is small and churns: vacuum it by what changed, not by what share of it changed
    `ALTER TABLE ${n.jobs} SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000, autovacuum_vacuum_cost_delay = 0)`
  ],
  sqlite: (n) => [
    ...tables(n, types.sqlite),
    // The sum says when a lease would have begun: one that begins in the future was written by a clock that ran ahead
    `CREATE INDEX ${n.index("jobs_begun")} ON ${n.jobs} (queue, visible_at - visibility_ms) WHERE token IS NOT NULL`,
    `CREATE TABLE ${n.tokens} (id INTEGER PRIMARY KEY CHECK (id = 1), value INTEGER NOT NULL)`,
    `INSERT INTO ${n.tokens} (id, value) VALUES (1, 0)`
  ]
}
