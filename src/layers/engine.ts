/**
 * What the engines have in common for the statements: names, placeholders, sessions.
 */
import { Effect } from "effect"
import type { StoreError } from "../services/Errors.js"

export type Engine = "postgres" | "sqlite"

/** One thing, said for both engines in one place. */
export type PerEngine<A> = Readonly<Record<Engine, A>>

/** Where the engines must differ, and why. */
export const capabilities: PerEngine<{
  readonly reach: string
  readonly claims: string
  readonly clock: string
  readonly renewalInTransaction: string
}> = {
  postgres: {
    reach: "every process on every host: LISTEN/NOTIFY",
    claims: "many at once: FOR UPDATE SKIP LOCKED",
    clock: "the server's, inside each statement",
    renewalInTransaction: "goes on: leases have connections of their own"
  },
  sqlite: {
    reach: "every process on the host: file events on the database's directory",
    claims: "one at a time: a short immediate write transaction",
    clock: "the host's, bound as a parameter; the row stores its visibility, so a deadline further off counts as ended",
    renewalInTransaction:
      "waits for the one connection; nobody can take the job meanwhile, so its deadline stands still"
  }
}

export type Row = Readonly<Record<string, unknown>>
/** Handed over to the session, which adds `now`. */
export type Parameters = Record<string, unknown>

/** A statement, compiled once: `:name` placeholders are numbered for PostgreSQL and kept for SQLite. */
export interface Statement {
  readonly name: string
  readonly text: string
  readonly parameters: ReadonlyArray<string>
}

/** Somewhere to execute statements: a connection, perhaps inside a transaction. Binds `:now` itself. */
export interface Session {
  /** Whether statements may write. */
  readonly writes: boolean
  /** Whether this is the caller's transaction. */
  readonly joined: boolean
  /** SQLite, in a transaction of its own: what is to be told whether it has been committed, once it has ended. */
  readonly ends?: Array<(committed: boolean) => void> | undefined
  /** PostgreSQL, on our own connections: the server's process, which its notifications name. */
  readonly pid?: number | undefined
  readonly execute: (statement: Statement, parameters: Parameters) => Effect.Effect<ReadonlyArray<Row>, StoreError>
}

/** The names of one namespace, quoted and qualified, and the expression for the present. */
export interface Names {
  readonly engine: Engine
  readonly namespace: string
  /** PostgreSQL: the schema, quoted. */
  readonly schema: string
  readonly jobs: string
  readonly deadLetters: string
  readonly completedJobs: string
  readonly dedupeKeys: string
  readonly laneMarks: string
  readonly laneBlocks: string
  readonly queues: string
  readonly locks: string
  readonly schedules: string
  readonly migrations: string
  /** One row: the identity of the namespace. */
  readonly identity: string
  /** What was taken over from other namespaces. */
  readonly imports: string
  /** SQLite: what other processes are to look at. */
  readonly wakes: string
  /** PostgreSQL: the sequence; SQLite: the table with the counter. */
  readonly tokens: string
  /** PostgreSQL: the sequence of the job ids. */
  readonly jobIds: string
  /** A prefix for index names, unquoted. */
  readonly index: (name: string) => string
  /** Milliseconds since the Unix epoch: an SQL expression. */
  readonly now: string
  /**
   * No lease begins later, but what a clock wrote that ran ahead: a statement that waited, or stood still, meets rows that were
   * written by statements which began after it; and see `clockStepMillis`.
   */
  readonly latest: string
  /** The NOTIFY channel of the namespace. */
  readonly channel: string
}

/** A text as PostgreSQL reads it whatever `standard_conforming_strings` says. */
const literal = (text: string): string => {
  const quoted = `'${text.replaceAll("'", "''")}'`
  return text.includes("\\") ? `E${quoted.replaceAll("\\", "\\\\")}` : quoted
}

/** The next value of a PostgreSQL sequence: an SQL expression. */
export const nextval = (sequence: string): string => `nextval(${literal(sequence)}::regclass)`

const quote = (name: string): string => `"${name.replaceAll('"', '""')}"`

/**
 * The server's clock at the start of the statement: stable within it, so that it can be an index condition (as
 * `clock_timestamp()` cannot), and not frozen at BEGIN (as `now()` is).
 */
const serverNow = "floor(extract(epoch from statement_timestamp()) * 1000)::bigint"

/** The server's clock, at every look. */
const serverLatest = "floor(extract(epoch from clock_timestamp()) * 1000)::bigint"

/**
 * A clock that is set back by less leaves the leases and locks alone that were given before: they seem to begin in the future for
 * as long, and are no sign of a clock that ran ahead.
 */
export const clockStepMillis = 30_000

/** The present as something that is computed once per statement, not for each row: the server's clock costs a microsecond. */
export const onceNow = (n: Names): string => (n.engine === "postgres" ? `(SELECT ${n.now})` : n.now)

/** Whether two values are equal, or both null. */
export const same: PerEngine<(a: string, b: string) => string> = {
  postgres: (a, b) => `${a} IS NOT DISTINCT FROM ${b}`,
  sqlite: (a, b) => `${a} IS ${b}`
}

const tablesOf = (name: (table: string) => string) => ({
  jobs: name("jobs"),
  deadLetters: name("dead_letters"),
  completedJobs: name("completed_jobs"),
  dedupeKeys: name("dedupe_keys"),
  laneMarks: name("lane_marks"),
  laneBlocks: name("lane_blocks"),
  queues: name("queues"),
  locks: name("locks"),
  schedules: name("schedules"),
  migrations: name("migrations"),
  identity: name("identity"),
  imports: name("imports"),
  wakes: name("wakes"),
  tokens: name("tokens"),
  jobIds: name("job_ids")
})

/** Every name that a namespace gives to a table or a sequence, without the namespace. */
export const tableNames: ReadonlyArray<string> = Object.values(tablesOf((table) => table))

export const postgresNames = (schema: string, source: "database" | "process"): Names => ({
  engine: "postgres",
  namespace: schema,
  schema: quote(schema),
  ...tablesOf((table) => `${quote(schema)}.${quote(table)}`),
  index: quote,
  now: source === "database" ? serverNow : ":now::bigint",
  latest: `(${source === "database" ? serverLatest : ":now::bigint"} + ${clockStepMillis})`,
  channel: channelOf(schema)
})

export const sqliteNames = (prefix: string): Names => {
  const name = (table: string) => quote(`${prefix}${table}`)
  return {
    engine: "sqlite",
    namespace: prefix,
    schema: "",
    ...tablesOf(name),
    index: name,
    now: ":now",
    latest: `(:now + ${clockStepMillis})`,
    channel: ""
  }
}

/** `__alkstore_` and the schema, which is at most 52 bytes: channel names are at most 63. */
const channelOf = (schema: string): string => `__alkstore_${schema}`

/** What is quoted, which is left as it is; placeholders, but not `::type` casts; line breaks with what indents the next line. */
const parts = /"(?:[^"]|"")*"|'(?:[^']|'')*'|(?<!:):([a-z][A-Za-z]*)|\n\s+/g

/** Compiles `:name` placeholders. A namespace may be called anything, `:name` too: nothing is changed within quotes. */
export const statement = (names: Names, name: string, source: string): Statement => {
  const parameters: Array<string> = []
  const number = (parameter: string): string => {
    const known = parameters.indexOf(parameter)
    return `$${known < 0 ? parameters.push(parameter) : known + 1}`
  }
  const text = source.trim().replace(parts, (part, parameter: string | undefined) => {
    if (parameter !== undefined) return names.engine === "sqlite" ? part : number(parameter)
    return part.startsWith("\n") ? "\n" : part
  })
  return { name, text: `/* alkstore:${name} */ ${text}`, parameters }
}

/**
 * Waits for whoever else has the same turn, until the end of this transaction: for what one process after the other must do. On SQLite
 * the transaction itself is that.
 */
export const makeTurn = (n: Names, name: string) => {
  const take = statement(n, name, "SELECT pg_advisory_xact_lock(hashtextextended(:turn, 0))")
  return (session: Session, turn: string): Effect.Effect<void, StoreError> =>
    n.engine === "sqlite" ? Effect.void : Effect.asVoid(session.execute(take, { turn }))
}
