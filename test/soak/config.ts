/** What the processes of a soak have in common: queues, tables, and what they tell each other. */
import { SqlClient } from "@effect/sql"
import { Outbox, Queue } from "alkstore"
import { Effect, Schema } from "effect"
import type { Sample } from "./measure.js"

export type EngineName = "postgres" | "sqlite"

/**
 * What a handler does with a job:
 * - `do`: notes it
 * - `linger`: notes it after a while; `lock`: does so under locks
 * - `retry`: fails twice, then notes it
 * - `die`: fails for ever; `revive`: is dead-lettered, and noted when it has been requeued
 * - `ordered`: notes it, and that no later job of its key was noted before
 * - `tick`: notes the boundary of its schedule
 */
export const Task = Schema.Struct({
  serial: Schema.Number,
  act: Schema.Literal("do", "linger", "lock", "retry", "die", "revive", "ordered", "tick"),
  key: Schema.optional(Schema.String),
  /** As much as payloads weigh: what is kept by mistake is seen. */
  pad: Schema.String
})
export type Task = typeof Task.Type

export const pad = "x".repeat(300)

/** No outage may exhaust what is to be done in the end. */
const patient = { maxAttempts: 100_000, maxCrashes: 100_000 }

export const Work = Queue.make("work", { payload: Task, ...patient })
/** Its worker is transactional: what it notes is written exactly once. */
export const Exact = Queue.make("exact", { payload: Task, ...patient })
export const Morgue = Queue.make("morgue", { payload: Queue.deadEnvelope(Task), ...patient })
export const Fragile = Queue.make("fragile", {
  payload: Task,
  ...patient,
  maxAttempts: 2,
  retainDead: "300 millis",
  retainCompleted: "300 millis",
  deadLetterQueue: Morgue
})
/** Nobody works on it: its jobs expire. */
export const Unattended = Queue.make("unattended", { payload: Task })
export const Mail = Outbox.make("mail", { message: Task, key: ({ key }) => key, ...patient })

/** How a child process is told what to be. */
export interface ChildConfig {
  readonly engine: EngineName
  /** A url, or a file. */
  readonly database: string
  readonly visibilityMillis: number
  readonly graceMillis: number
}

/** From a child. */
export type Told =
  | { readonly _tag: "Ready" }
  | { readonly _tag: "Measured"; readonly sample: Sample }
  /** After its scope has closed. */
  | { readonly _tag: "Closed"; readonly sample: Sample }
  /** Something of a worker's events that a soak must know of. */
  | { readonly _tag: "Event"; readonly event: string; readonly job?: number; readonly detail?: string }

/** To a child. */
export type Asked = { readonly _tag: "Measure" }

/** What has been done, and by whom. Rows go when they have been accounted for. */
export interface Note {
  readonly serial: number
  readonly kind: "work" | "exact" | "fragile" | "morgue" | "mail" | "tick" | "lock" | "disorder"
  readonly job: number
}

export const note = ({ job, kind, serial }: Note) =>
  Effect.flatMap(
    SqlClient.SqlClient,
    (sql) => sql`INSERT INTO soak_notes ${sql.insert({ serial, kind, job, pid: process.pid, noted_at: Date.now() })}`
  )

/** The application's own tables. */
export const createTables = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  const id = sql.onDialectOrElse({
    sqlite: () => sql.literal("INTEGER PRIMARY KEY AUTOINCREMENT"),
    orElse: () => sql.literal("bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY")
  })
  yield* sql`CREATE TABLE soak_notes (id ${id}, serial bigint NOT NULL, kind text NOT NULL, job bigint NOT NULL, pid integer NOT NULL, noted_at bigint NOT NULL)`
  yield* sql`CREATE TABLE soak_orders (serial bigint PRIMARY KEY, mail bigint NOT NULL)`
  yield* sql`CREATE TABLE soak_lanes (lane text PRIMARY KEY, last bigint NOT NULL)`
})

export const lanes: ReadonlyArray<string> = Array.from({ length: 8 }, (_, n) => `lane ${n}`)
