/**
 * alkstore on SQLite: the Layers of one file, or of one in-memory database.
 *
 * @since 0.1.0
 */

import { Reactivity } from "@effect/experimental"
import { SqlClient } from "@effect/sql"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Cause, type ConfigError, Context, Duration, Effect, Either, Layer, Schedule } from "effect"
import { makeClock } from "./layers/Clock/ProcessClock.js"
import type { Database } from "./layers/Database/Database.js"
import { makeFileClient } from "./layers/Database/fileClient.js"
import { makeSqliteDatabase, prepareSqlite, type SqliteSettings } from "./layers/Database/SqliteDatabase.js"
import { type Names, sqliteNames } from "./layers/engine.js"
import { type InnerScopes, makeInnerScopes } from "./layers/innerScopes.js"
import * as SqlLock from "./layers/Lock/SqlLock.js"
import { migrate } from "./layers/Queue/migrations/migrate.js"
import * as SqlQueue from "./layers/Queue/SqlQueue.js"
import * as SqlSchedules from "./layers/Schedules/SqlSchedules.js"
import { storeError } from "./layers/storeError.js"
import * as SqlTransfer from "./layers/Transfer/SqlTransfer.js"
import * as PollWake from "./layers/Wake/PollWake.js"
import * as SqliteWake from "./layers/Wake/SqliteWake.js"
import { busyRetry } from "./schedule/Polling.js"
import { Clock } from "./services/Clock.js"
import type { InvalidArgument, SchemaMismatch, StoreError } from "./services/Errors.js"
import { checkDuration, checkOneOf, checkOptions, checkPrefix, endless } from "./services/input.js"
import type { Lock } from "./services/Lock.js"
import type { Queue } from "./services/QueueStore.js"
import type { Schedules } from "./services/ScheduleStore.js"
import type { Transfer } from "./services/Transfer.js"
import type { Wake } from "./services/Wake.js"
import * as Scheduler from "./workers/Scheduler.js"
import * as Sweeper from "./workers/Sweeper.js"

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** The prefix of the library's tables: one namespace. 1 to 64 of A-Z a-z 0-9 _. Default `_alkstore_`. */
  readonly namespace?: string | undefined
  /** Bring the tables up to date (default), or only verify that they are. */
  readonly migrate?: boolean | undefined
  /** Run the sweeper in this process (default). */
  readonly sweeper?: boolean | Sweeper.SweeperOptions | undefined
  /** Fire schedules in this process (default). */
  readonly scheduler?: boolean | undefined
  /**
   * `PRAGMA busy_timeout` of the client: how long a statement blocks the event loop for the write lock. Short, because
   * the driver waits synchronously; the library then waits on without blocking. Default 5 ms, at most a day.
   */
  readonly busyTimeout?: Duration.DurationInput | undefined
  /**
   * How long a call waits for the write lock in all before it fails with a `StoreError` (`busy`). Default 5 s;
   * `Duration.infinity`: as long as it takes.
   */
  readonly busyLimit?: Duration.DurationInput | undefined
  /**
   * `PRAGMA synchronous` of the client. `NORMAL` (default): a crash of the process loses nothing, a power cut may lose
   * the last commits. `FULL`: a power cut loses nothing either, and each commit waits for the disk.
   */
  readonly synchronous?: SqliteSettings["synchronous"] | undefined
  /**
   * How often workers look for work without a wake, and once in their visibility timeout at least. Default 1 s;
   * `Duration.infinity`: no oftener than that.
   */
  readonly pollInterval?: Duration.DurationInput | undefined
  /** Watch the file for the commits of other processes (default). Without, they are found by polling. */
  readonly watch?: boolean | undefined
}

/**
 * What an engine provides.
 *
 * @since 0.1.0
 * @category models
 */
export type Services = Queue | Wake | Clock | Lock | Schedules | Transfer

const isMemory = (filename: string): boolean =>
  filename === "" || filename === ":memory:" || filename.startsWith("file::memory:")

const wakeLayer = (
  filename: string,
  names: Names,
  poll: Duration.Duration,
  watch: boolean | undefined
): Layer.Layer<Wake> => {
  if (isMemory(filename)) return PollWake.layerLocal(poll, "", true)
  return watch === false
    ? PollWake.layerLocal(poll, "the file is not watched")
    : SqliteWake.layer(filename, names, poll)
}

/** @internal */
export const services = (
  db: Database,
  innerScope?: InnerScopes["open"]
): Layer.Layer<Queue | Lock | Schedules | Transfer, never, Wake | Clock> =>
  Layer.mergeAll(
    SqlQueue.layer(db, { notify: false, innerScope }),
    SqlLock.layer(db),
    SqlSchedules.layer(db, { notify: false }),
    SqlTransfer.layer(db, { notify: false })
  )

/** What tests replace. */
export interface Seams {
  readonly wake?: Layer.Layer<Wake> | undefined
  /** Time passes only when a test says so. */
  readonly virtualTime?: boolean | undefined
}

const names = [
  "namespace",
  "migrate",
  "sweeper",
  "scheduler",
  "busyTimeout",
  "busyLimit",
  "synchronous",
  "pollInterval",
  "watch"
] as const

/** What can be said of the options before anything is opened. */
const check = (options: Options) =>
  Either.gen(function* () {
    yield* checkOptions(options, names)
    const settings: SqliteSettings = {
      // SQLite counts its milliseconds in 32 bits
      busyTimeout: yield* checkDuration("busyTimeout", options.busyTimeout ?? 5, { max: 86_400_000 }),
      busyLimit: yield* checkDuration("busyLimit", options.busyLimit ?? "5 seconds", { ...endless, min: 0 }),
      synchronous: yield* checkOneOf("synchronous", options.synchronous ?? "NORMAL", ["NORMAL", "FULL", "EXTRA", "OFF"])
    }
    return {
      prefix: yield* checkPrefix(options.namespace ?? "_alkstore_"),
      settings,
      poll: Duration.millis(yield* checkDuration("pollInterval", options.pollInterval ?? "1 second", endless)),
      sweeper: yield* Sweeper.checkSweeper(options.sweeper)
    }
  })

const make = (options: Options, seams: Seams) =>
  Effect.gen(function* () {
    const sql = yield* SqliteClient.SqliteClient
    const { poll, prefix, settings, sweeper } = yield* check(options)
    const clock = yield* makeClock("process", seams.virtualTime)
    yield* prepareSqlite(sql, settings)
    const names = sqliteNames(prefix)
    const db = yield* makeSqliteDatabase(sql, names, clock, settings)
    yield* migrate(db, options.migrate === false ? "verify" : "migrate")
    const base = Layer.merge(
      seams.wake ?? wakeLayer(sql.config.filename, names, poll, options.watch),
      Layer.succeed(Clock, clock)
    )
    const inner = makeInnerScopes()
    const engine = Layer.provideMerge(services(db, inner.open), base)
    const maintenance = Layer.mergeAll(
      inner.layer,
      sweeper === undefined ? Layer.empty : Sweeper.layer(sweeper),
      options.scheduler === false ? Layer.empty : Scheduler.layer
    )
    return Layer.provideMerge(maintenance, engine)
  })

/**
 * Queue, Schedules, Wake, Clock and Lock over the application's own SqliteClient, so that an enqueue joins its
 * transactions. Creates and updates the tables, sets the connection's `busy_timeout` and `synchronous`, watches the file,
 * sweeps and fires schedules.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (
  options: Options = {}
): Layer.Layer<Services, InvalidArgument | SchemaMismatch | StoreError, SqliteClient.SqliteClient> =>
  Layer.unwrapScoped(make(options, {}))

/** @internal */
export const layerWith = (
  options: Options,
  seams: Seams
): Layer.Layer<Services, InvalidArgument | SchemaMismatch | StoreError, SqliteClient.SqliteClient> =>
  Layer.unwrapScoped(make(options, seams))

/**
 * The same with a client of its own: one file, in WAL mode. Provides the client too, for the application's own tables.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerFile = (
  filename: string,
  options: Options = {}
): Layer.Layer<
  Services | SqliteClient.SqliteClient | SqlClient.SqlClient,
  InvalidArgument | SchemaMismatch | StoreError | ConfigError.ConfigError
> => Layer.unwrapEffect(Effect.map(check(options), () => Layer.provideMerge(layer(options), layerClient(filename))))

/** Opening a file may meet another process that is just switching it to WAL: the driver throws, we try again. */
const layerClient = (filename: string) =>
  Layer.scopedContext(
    Effect.map(makeFileClient(filename), (client) =>
      Context.make(SqliteClient.SqliteClient, client).pipe(Context.add(SqlClient.SqlClient, client))
    )
  ).pipe(
    Layer.provide(Reactivity.layer),
    Layer.catchAllCause((cause) => Layer.fail(storeError("connect", Cause.squash(cause)))),
    Layer.retry(
      Schedule.intersect(
        busyRetry("5 seconds"),
        Schedule.recurWhile((error: StoreError) => error.reason === "busy")
      )
    )
  )
