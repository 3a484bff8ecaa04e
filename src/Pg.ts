/**
 * alkstore on PostgreSQL, 13 and later: the Layers of one schema.
 *
 * @since 0.1.0
 */
import type { SqlClient, SqlError } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { type ConfigError, Duration, Effect, Either, Layer, Redacted } from "effect"
import type { ClientConfig } from "pg"
import { makeClock } from "./layers/Clock/ProcessClock.js"
import { checkUrl } from "./layers/Database/connectionUrl.js"
import { makePgConnections, type PgSettings } from "./layers/Database/PgConnections.js"
import { makePgDatabase } from "./layers/Database/PgDatabase.js"
import { postgresNames } from "./layers/engine.js"
import { makeInnerScopes } from "./layers/innerScopes.js"
import * as SqlLock from "./layers/Lock/SqlLock.js"
import { migrate } from "./layers/Queue/migrations/migrate.js"
import * as SqlQueue from "./layers/Queue/SqlQueue.js"
import * as SqlSchedules from "./layers/Schedules/SqlSchedules.js"
import * as SqlTransfer from "./layers/Transfer/SqlTransfer.js"
import { makeEchoes } from "./layers/Wake/echoes.js"
import * as PgWake from "./layers/Wake/PgWake.js"
import * as PollWake from "./layers/Wake/PollWake.js"
import { Clock } from "./services/Clock.js"
import type { InvalidArgument, SchemaMismatch, StoreError } from "./services/Errors.js"
import { checkDuration, checkInteger, checkOptions, checkSchema, endless } from "./services/input.js"
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
  /** The schema of the library's tables: one namespace. At most 52 bytes. Default `alkstore`. */
  readonly namespace?: string | undefined
  /** Bring the tables up to date (default), or only verify that they are: for roles that may not change the schema. */
  readonly migrate?: boolean | undefined
  /** Run the sweeper in this process (default). */
  readonly sweeper?: boolean | Sweeper.SweeperOptions | undefined
  /** Fire schedules in this process (default). */
  readonly scheduler?: boolean | undefined
  /** Where the Layer's own connections go, when not where the client's go: around a pooler, say. */
  readonly connection?:
    | {
        readonly url?: Redacted.Redacted | undefined
        readonly host?: string | undefined
        readonly port?: number | undefined
      }
    | undefined
  /** The Layer's own connections besides the one that listens: 2 or more. Default 2. */
  readonly connections?: number | undefined
  /** Default 5 s, at most a day. */
  readonly connectTimeout?: Duration.DurationInput | undefined
  /** How long a statement on the Layer's own connections may take. Default 10 s, at most a day. */
  readonly statementTimeout?: Duration.DurationInput | undefined
  /** Named prepared statements on the Layer's own connections (default); switch off behind a pooler in transaction mode. */
  readonly prepare?: boolean | undefined
  /** `SET` on the Layer's own connections (default); switch off behind a pooler in transaction mode. */
  readonly sessionSettings?: boolean | undefined
  /** LISTEN on a connection of its own (default). Without, work is found by polling. */
  readonly listen?: boolean | undefined
  /** NOTIFY with what makes work visible (default). Without, other processes find it by polling. */
  readonly notify?: boolean | undefined
  /**
   * How often workers look for work without a wake, and once in their visibility timeout at least. Default 5 s;
   * `Duration.infinity`: no oftener than that.
   */
  readonly pollInterval?: Duration.DurationInput | undefined
}

/**
 * What an engine provides.
 *
 * @since 0.1.0
 * @category models
 */
export type Services = Queue | Wake | Clock | Lock | Schedules | Transfer

/** The client's own connection settings, as its driver takes them. */
const configOf = (client: PgClient.PgClientConfig, options: Options): ClientConfig => {
  const { connection = {} } = options
  const elsewhere = connection.host !== undefined || connection.port !== undefined
  const url = connection.url ?? (elsewhere ? undefined : client.url)
  const password = client.password === undefined ? undefined : Redacted.value(client.password)
  return {
    ...(url === undefined ? {} : { connectionString: Redacted.value(url) }),
    ...(connection.url === undefined
      ? defined({
          host: connection.host ?? client.host,
          port: connection.port ?? client.port,
          database: client.database,
          user: client.username,
          password,
          ssl: client.ssl,
          stream: client.stream
        })
      : {}),
    application_name: "alkstore"
  }
}

const defined = (fields: Record<string, unknown>): object =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))

/** What tests replace. */
export interface Seams {
  readonly wake?: Layer.Layer<Wake> | undefined
  /** Rows stamped by this process's clock instead of the server's: for tests under TestClock. */
  readonly processClock?: boolean | undefined
  /** Time passes only when a test says so. */
  readonly virtualTime?: boolean | undefined
}

/** For the driver and the server 0 would be no limit; neither can count the milliseconds of a month. */
const timeout = { min: 1, max: 86_400_000 }

const names = [
  "namespace",
  "migrate",
  "sweeper",
  "scheduler",
  "connection",
  "connections",
  "connectTimeout",
  "statementTimeout",
  "prepare",
  "sessionSettings",
  "listen",
  "notify",
  "pollInterval"
] as const

/** What can be said of the options before anything is opened. */
const check = (options: Options) =>
  Either.gen(function* () {
    yield* checkOptions(options, names)
    if (options.connection !== undefined) yield* checkOptions(options.connection, ["url", "host", "port"], "connection")
    const { port, url } = options.connection ?? {}
    if (url !== undefined) yield* checkUrl("connection.url", url)
    if (port !== undefined) yield* checkInteger("connection.port", port, 1, 65_535)
    const settings: PgSettings = {
      connections: yield* checkInteger("connections", options.connections ?? 2, 2, 100),
      connectTimeoutMillis: yield* checkDuration("connectTimeout", options.connectTimeout ?? "5 seconds", timeout),
      statementTimeoutMillis: yield* checkDuration(
        "statementTimeout",
        options.statementTimeout ?? "10 seconds",
        timeout
      ),
      prepare: options.prepare ?? true,
      sessionSettings: options.sessionSettings ?? true
    }
    return {
      schema: yield* checkSchema(options.namespace ?? "alkstore"),
      settings,
      poll: Duration.millis(yield* checkDuration("pollInterval", options.pollInterval ?? "5 seconds", endless)),
      sweeper: yield* Sweeper.checkSweeper(options.sweeper)
    }
  })

const make = (options: Options, seams: Seams) =>
  Effect.gen(function* () {
    const sql = yield* PgClient.PgClient
    const { poll, schema, settings, sweeper } = yield* check(options)
    const clock = yield* makeClock(seams.processClock === true ? "process" : "database", seams.virtualTime)
    const names = postgresNames(schema, clock.source)
    const config = configOf(sql.config, options)
    const connections = yield* Effect.acquireRelease(makePgConnections(config, settings), ({ close }) =>
      Effect.timeoutOption(Effect.interruptible(close), "1 second")
    )
    const db = yield* makePgDatabase(sql, names, clock, connections)
    yield* migrate(db, options.migrate === false ? "verify" : "migrate")
    const notify = options.notify ?? true
    const echoes = makeEchoes()
    const wake =
      seams.wake ??
      (options.listen === false
        ? PollWake.layerLocal(poll, "LISTEN is switched off")
        : PgWake.layer({
            connection: config,
            channel: names.channel,
            pollInterval: poll,
            connectTimeoutMillis: settings.connectTimeoutMillis,
            probeTimeoutMillis: 2_000,
            echoes
          }))
    const base = Layer.merge(wake, Layer.succeed(Clock, clock))
    const inner = makeInnerScopes()
    const engine = Layer.provideMerge(
      Layer.mergeAll(
        SqlQueue.layer(db, { notify, echoes, innerScope: inner.open }),
        SqlLock.layer(db),
        SqlSchedules.layer(db, { notify }),
        SqlTransfer.layer(db, { notify })
      ),
      base
    )
    const maintenance = Layer.mergeAll(
      inner.layer,
      sweeper === undefined ? Layer.empty : Sweeper.layer(sweeper),
      options.scheduler === false ? Layer.empty : Scheduler.layer
    )
    return Layer.provideMerge(maintenance, engine)
  })

/**
 * Queue, Schedules, Wake, Clock and Lock over the application's own PgClient, so that an enqueue joins its transactions.
 * Creates and updates the tables, listens, sweeps and fires schedules. Besides the client's pool it uses `connections` + 1 connections of its
 * own, so that leases go on when handlers have used up the pool.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (
  options: Options = {}
): Layer.Layer<Services, InvalidArgument | SchemaMismatch | StoreError, PgClient.PgClient> =>
  Layer.unwrapScoped(make(options, {}))

/** @internal */
export const layerWith = (
  options: Options,
  seams: Seams
): Layer.Layer<Services, InvalidArgument | SchemaMismatch | StoreError, PgClient.PgClient> =>
  Layer.unwrapScoped(make(options, seams))

/**
 * The same with a client of its own. Provides the client too, for the application's own tables. Its `connectTimeout`
 * is the same, and is also how long a statement waits for one of its connections to be free: without, a server that
 * accepts and says nothing would be waited for without end.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerUrl = (
  url: Redacted.Redacted,
  options: Options = {}
): Layer.Layer<
  Services | PgClient.PgClient | SqlClient.SqlClient,
  InvalidArgument | SchemaMismatch | StoreError | ConfigError.ConfigError | SqlError.SqlError
> =>
  Layer.unwrapEffect(
    Effect.map(Effect.zipRight(checkUrl("url", url), check(options)), ({ settings }) =>
      Layer.provideMerge(layer(options), PgClient.layer({ url, connectTimeout: settings.connectTimeoutMillis }))
    )
  )
