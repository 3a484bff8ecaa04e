/**
 * One SQLite database in memory for the whole fleet, and a client of it for each process. As with a file, one process
 * writes at a time: while it has a transaction open, the statements of all others are answered with SQLITE_BUSY.
 *
 * Triggers keep a log of every change of a row, in the transaction that makes it, so that what is rolled back leaves no
 * trace; after each commit the log is handed over, with whoever committed.
 */
import * as Reactivity from "@effect/experimental/Reactivity"
import { SqlClient, type SqlConnection, SqlError, Statement } from "@effect/sql"
import Sqlite from "better-sqlite3"
import { Effect, Stream } from "effect"
import type { Fault, Faults } from "./faults.js"
import type { Process, World } from "./world.js"

export type Row = Readonly<Record<string, string | number | null>>

export interface Change {
  readonly table: string
  readonly before: Row | undefined
  readonly after: Row | undefined
}

export interface Commit {
  readonly by: Process
  /** When its transaction began: what is stamped by it, is so between then and the commit. */
  readonly since: number
  readonly changes: ReadonlyArray<Change>
}

/** The columns that are kept of each table, by its name without the prefix of the namespace. */
const watched = {
  jobs: [
    ...["id", "queue", "payload", "attempt", "max_attempts", "crashes", "failures", "due_at", "visible_at", "token"],
    ...["visibility_ms", "expires_at", "dedupe_key", "dedupe_scope", "dedupe_window_ms", "ordering_key"],
    ...["cancel_requested_at", "headers", "history", "priority", "worker"]
  ],
  dead_letters: ["id", "queue", "payload", "reason", "died_at", "attempt", "max_attempts", "crashes"],
  completed_jobs: ["id", "queue", "completed_at"],
  lane_blocks: ["letter_id", "queue", "ordering_key"],
  queues: ["name", "paused_at", "max_crashes", "retain_dead_ms", "retain_completed_ms", "dead_letter_queue"],
  locks: ["name", "token", "expires_at", "ttl_ms"],
  schedules: ["name", "paused_at", "next_at", "fire_at", "last_at", "updated_at", "catch_up", "overlap"]
} as const

const prefix = "_alkstore_"

/** Tables of the application. */
const own = { effects: ["id", "token"], orders: ["n"] } as const

const failure = (code: string) =>
  new SqlError.SqlError({
    message: "Failed to execute statement",
    cause: Object.assign(new Error(`injected: ${code}`), { code })
  })

/** Savepoints have a new name each time: statements that are not worth keeping. */
const passing = /^(SAVEPOINT|RELEASE|ROLLBACK)/

export class FleetDatabase {
  private readonly db = new Sqlite(":memory:")
  private readonly prepared = new Map<string, Sqlite.Statement>()
  /** Who has a transaction open. */
  private writer: Process | undefined
  private since = 0
  /** Those whose last transaction failed: what it was to do is done in another, as of the same instant. */
  private readonly failed = new WeakMap<Process, number>()
  private log: Sqlite.Statement | undefined
  private forget: Sqlite.Statement | undefined

  constructor(
    readonly world: World,
    readonly faults: Faults,
    private readonly committed: (commit: Commit) => void
  ) {}

  /** When the product has made its tables: those of the application, and the log. */
  watch(): void {
    const { db } = this
    db.exec("CREATE TABLE effects (id INTEGER, token INTEGER); CREATE TABLE orders (n INTEGER)")
    db.exec("CREATE TABLE change_log (seq INTEGER PRIMARY KEY, what TEXT, before TEXT, after TEXT)")
    const follow = (table: string, name: string, columns: ReadonlyArray<string>) => {
      const json = (row: string) =>
        `json_object(${columns.map((column) => `'${column}', ${row}.${column}`).join(", ")})`
      const on = (event: string, before: string, after: string) =>
        db.exec(`CREATE TRIGGER "log_${table}_${event}" AFTER ${event} ON "${name}" BEGIN
          INSERT INTO change_log (what, before, after) VALUES ('${table}', ${before}, ${after}); END`)
      on("INSERT", "NULL", json("NEW"))
      on("UPDATE", json("OLD"), json("NEW"))
      on("DELETE", json("OLD"), "NULL")
    }
    for (const [table, columns] of Object.entries(watched)) follow(table, `${prefix}${table}`, columns)
    for (const [table, columns] of Object.entries(own)) follow(table, table, columns)
    this.log = db.prepare("SELECT what, before, after FROM change_log ORDER BY seq")
    this.forget = db.prepare("DELETE FROM change_log")
  }

  /** For the oracle, which is nobody's process. */
  look(text: string): ReadonlyArray<Row> {
    return this.db.prepare(text).all() as Array<Row>
  }

  close(): void {
    this.db.close()
  }

  /** Whether a process has a transaction open, in which nobody else can write. */
  isWriting(process: Process): boolean {
    return this.writer === process
  }

  /** A process is dead: what it has not committed is gone, and so is its lock. */
  abandon(process: Process): void {
    if (this.writer !== process) return
    this.writer = undefined
    this.db.exec("ROLLBACK")
  }

  /** What has been committed since the last time. */
  private handOver(by: Process): void {
    const rows = this.log?.all() as Array<{ what: string; before: string | null; after: string | null }> | undefined
    if (rows === undefined || rows.length === 0) return
    this.forget?.run()
    const parse = (text: string | null) => (text === null ? undefined : (JSON.parse(text) as Row))
    this.committed({
      by,
      since: this.since,
      changes: rows.map(({ after, before, what }) => ({ table: what, before: parse(before), after: parse(after) }))
    })
  }

  private run(text: string, parameters: ReadonlyArray<unknown>): ReadonlyArray<Row> {
    let statement = this.prepared.get(text)
    if (statement === undefined) {
      statement = this.db.prepare(text)
      if (!passing.test(text)) this.prepared.set(text, statement)
    }
    if (statement.reader) return statement.all(...parameters) as Array<Row>
    statement.run(...parameters)
    return []
  }

  private execute(by: Process, text: string, parameters: ReadonlyArray<unknown>) {
    if (this.writer !== undefined && this.writer !== by) {
      // Nobody but who began a transaction can end it
      if (/^(COMMIT|ROLLBACK)/.test(text)) return Effect.fail(failure("SQLITE_ERROR"))
      this.faults.count("busy")
      by.trouble()
      return Effect.fail(failure("SQLITE_BUSY"))
    }
    if (this.writer === undefined) this.since = this.failed.get(by) ?? this.world.now
    try {
      const rows = this.run(text, parameters)
      this.writer = this.db.inTransaction ? by : undefined
      if (text === "ROLLBACK") this.failed.set(by, this.since)
      if (this.writer === undefined && this.since < this.world.now) by.wroteUntil = this.world.now
      if (this.writer === undefined && text !== "ROLLBACK") {
        this.failed.delete(by)
        this.handOver(by)
      }
      return Effect.succeed(rows)
    } catch (cause) {
      this.writer = this.db.inTransaction ? by : undefined
      return Effect.fail(new SqlError.SqlError({ message: "Failed to execute statement", cause }))
    }
  }

  /** A statement that something befalls. */
  private befallen(fault: Fault, by: Process, text: string, parameters: ReadonlyArray<unknown>) {
    const done = Effect.suspend(() => this.execute(by, text, parameters))
    switch (fault._tag) {
      case "refused":
        return Effect.fail(failure(fault.code))
      case "lost":
        return Effect.zipRight(done, Effect.fail(failure(fault.code)))
      case "rests":
        return Effect.flatMap(Effect.exit(done), (exit) => {
          by.rest(fault.millis)
          return Effect.zipRight(Effect.yieldNow(), exit)
        })
      case "slow": {
        // The driver is synchronous: the whole process waits for the disk
        const wait = Effect.suspend(() => {
          by.stop()
          this.world.after(fault.millis, () => by.go())
          return Effect.yieldNow()
        })
        return fault.after
          ? Effect.flatMap(Effect.exit(done), (exit) => Effect.zipRight(wait, exit))
          : Effect.zipRight(wait, done)
      }
      case "killed":
        return Effect.suspend(() => {
          if (fault.after) this.execute(by, text, parameters)
          this.faults.kill(by)
          return Effect.never
        })
    }
  }

  private connection(by: Process): SqlConnection.Connection {
    const execute = (text: string, parameters: ReadonlyArray<unknown>) =>
      Effect.suspend(() => {
        const fault = this.faults.ofStatement(by, text, this.writer === by)
        return fault === undefined ? this.execute(by, text, parameters) : this.befallen(fault, by, text, parameters)
      })
    return {
      execute,
      executeRaw: execute,
      executeUnprepared: execute,
      executeValues: () => Effect.die("not used here"),
      executeStream: () => Stream.die("not used here")
    }
  }

  /** A client of one process, with the one connection that a SQLite client has. */
  readonly client = (by: Process): Effect.Effect<SqlClient.SqlClient> =>
    Effect.gen(this, function* () {
      const connection = this.connection(by)
      const semaphore = yield* Effect.makeSemaphore(1)
      return yield* SqlClient.make({
        acquirer: semaphore.withPermits(1)(Effect.succeed(connection)),
        transactionAcquirer: Effect.uninterruptibleMask((restore) =>
          Effect.as(
            Effect.zipRight(
              restore(semaphore.take(1)),
              Effect.addFinalizer(() => semaphore.release(1))
            ),
            connection
          )
        ),
        compiler: Statement.makeCompilerSqlite(),
        spanAttributes: []
      })
    }).pipe(Effect.provide(Reactivity.layer))
}
