/**
 * Processes whose every statement is a step: the product's own Queue service over its own Database, on clients that wait
 * for their turn.
 */
import { Reactivity } from "@effect/experimental"
import { type SqlClient, SqlError } from "@effect/sql"
import { SqliteClient } from "@effect/sql-sqlite-node"
import type { Queue } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Effect, Layer, Redacted, type Scope, Stream } from "effect"
import pg from "pg"
import { makeClock } from "../../src/layers/Clock/ProcessClock.js"
import { type Connection, type Database, positional, type Row } from "../../src/layers/Database/Database.js"
import type { PgConnections } from "../../src/layers/Database/PgConnections.js"
import { makePgDatabase } from "../../src/layers/Database/PgDatabase.js"
import { makeSqliteDatabase } from "../../src/layers/Database/SqliteDatabase.js"
import { postgresNames, sqliteNames } from "../../src/layers/engine.js"
import { migrate } from "../../src/layers/Queue/migrations/migrate.js"
import * as SqlQueue from "../../src/layers/Queue/SqlQueue.js"
import { storeError } from "../../src/layers/storeError.js"
import { Clock, type Service as ClockService } from "../../src/services/Clock.js"
import { Wake, type Service as WakeService } from "../../src/services/Wake.js"
import type { Stage } from "./steps.js"

export interface ProcessOptions {
  readonly stage: Stage
  readonly wake: WakeService
  /** Whether it sends notifications with its commits. */
  readonly notify: boolean
}

export type Process = Layer.Layer<Queue.Queue | Wake | Clock>

export interface SteppedEngine {
  readonly engine: "postgres" | "sqlite"
  readonly process: (options: ProcessOptions) => Effect.Effect<Process, unknown, Scope.Scope>
  /** Statements that were ever sent. */
  readonly sent: () => number
}

const nameOf = (text: string): string => /^\/\* alkstore:(\w+) \*\//.exec(text)?.[1] ?? text

/** What nobody else can see, and looks that lock nothing, are parts of the step that follows. */
const isPart = (name: string): boolean => /^(begin$|define|BEGIN|SAVEPOINT|RELEASE|select_|letters_latest$)/.test(name)

const stepOf = ({ stage }: ProcessOptions, text: string, part = isPart) => {
  const statement = nameOf(text)
  return part(statement) ? stage.part : <A, E, R>(self: Effect.Effect<A, E, R>) => stage.step(statement, self)
}

const services = (
  db: Database,
  clock: ClockService,
  { notify, wake }: ProcessOptions
): Effect.Effect<Process, never, Scope.Scope> => {
  const base = Layer.merge(Layer.succeed(Wake, wake), Layer.succeed(Clock, clock))
  return Effect.map(Layer.build(Layer.provideMerge(SqlQueue.layer(db, { notify }), base)), Layer.succeedContext)
}

/** What depends on how much time has passed here is the same each time, and nothing waits for time. */
const standing = (clock: ClockService): ClockService => ({
  ...clock,
  // Steps come by the test's choice alone
  breath: (call) => call,
  monotonic: Effect.succeed(0),
  monotonicOf: () => 0,
  lull: () => Effect.void
})

const unused = () => Effect.die("not used by the product")

const connectionOf = (
  query: (
    text: string,
    values: ReadonlyArray<unknown>
  ) => Effect.Effect<{ readonly rows: ReadonlyArray<Row> }, SqlError.SqlError>
): Connection => {
  const rows = (text: string, values: ReadonlyArray<unknown>) =>
    Effect.map(query(text, values), (result) => result.rows)
  return {
    execute: rows,
    executeUnprepared: rows,
    executeRaw: query,
    executeValues: unused,
    executeStream: () => Stream.die("not used by the product")
  }
}

const clientOf = (reserve: Effect.Effect<Connection, SqlError.SqlError, Scope.Scope>) =>
  ({ reserve }) as unknown as SqlClient.SqlClient

/** Prepared once per connection: to plan these statements takes longer than to run them. */
const prepared = new Map<string, string>()

let sent = 0

const query = (client: pg.Client, text: string, values: ReadonlyArray<unknown>) =>
  Effect.async<pg.QueryResult<Row>, Error>((resume) => {
    sent++
    const name = prepared.get(text) ?? `step_${prepared.size}`
    prepared.set(text, name)
    client.query({ name, text, values: [...values] }, (error: Error | null, result: pg.QueryResult<Row>) =>
      resume(error ? Effect.fail(error) : Effect.succeed(result))
    )
  })

export const connectTo = (url: string) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const client = new pg.Client({ connectionString: url })
      await client.connect()
      // As the product's own connections have it
      await client.query("SET jit = off; SET enable_seqscan = off")
      return client
    }),
    (client) => Effect.promise(() => client.end())
  )

export const postgresChannel = postgresNames("alkstore", "database").channel

/** A database with tables, and connections that are open already: no step waits for one. */
export const steppedPostgres = (url: string, connections = 8): Effect.Effect<SteppedEngine, unknown, Scope.Scope> =>
  Effect.gen(function* () {
    const quiet = { listen: false, sweeper: false, scheduler: false }
    yield* Effect.scoped(Layer.build(Pg.layerUrl(Redacted.make(url), quiet)))
    const idle = yield* Effect.replicateEffect(connectTo(url), connections)
    const clock = standing(yield* makeClock("database"))
    const lent = Effect.acquireRelease(
      Effect.sync(() => idle.pop() as pg.Client),
      (client) => Effect.sync(() => idle.push(client))
    )
    return {
      engine: "postgres",
      sent: () => sent,
      process: (options) => {
        /** A class of its own: by that a client's transactions are known. */
        class Mine {
          constructor(client: pg.Client) {
            const run = (text: string, values: ReadonlyArray<unknown>) =>
              Effect.mapError(query(client, text, values), (cause) => new SqlError.SqlError({ cause }))
            Object.assign(
              this,
              connectionOf((text, values) => stepOf(options, text)(run(text, values)))
            )
          }
        }
        const mine: PgConnections = {
          close: Effect.void,
          use: (_access, _operation, use) =>
            Effect.scoped(
              Effect.flatMap(lent, (client) =>
                use({
                  writes: true,
                  joined: false,
                  execute: (statement, parameters) =>
                    query(client, statement.text, positional(statement, parameters)).pipe(
                      Effect.mapBoth({
                        onSuccess: ({ rows }) => rows,
                        onFailure: (error) => storeError(statement.name, error)
                      }),
                      stepOf(options, statement.text)
                    )
                })
              )
            )
        }
        const sql = clientOf(Effect.map(lent, (client) => new Mine(client) as unknown as Connection))
        return Effect.flatMap(makePgDatabase(sql, postgresNames("alkstore", "database"), clock, mine), (db) =>
          services(db, clock, options)
        )
      }
    }
  })

/**
 * A database in memory: all that is called a process shares its one connection. What is done while somebody has it is one
 * step, for nobody else can do anything in between; but the COMMIT is one of its own.
 */
export const steppedSqlite: Effect.Effect<SteppedEngine, unknown, Scope.Scope> = Effect.gen(function* () {
  const sql = yield* SqliteClient.make({ filename: ":memory:" })
  const real = yield* Effect.scoped(sql.reserve)
  const clock = standing(yield* makeClock("process"))
  const names = sqliteNames("_alkstore_")
  const settings = { busyTimeout: 10, busyLimit: "5 seconds", synchronous: "NORMAL" } as const
  yield* migrate(yield* makeSqliteDatabase(sql, names, clock, settings), "migrate")
  let held = false
  const engine: SteppedEngine = {
    engine: "sqlite",
    sent: () => 0,
    process: (options) => {
      const connection = connectionOf((text, values) =>
        stepOf(
          options,
          text,
          (name) => name !== "COMMIT"
        )(Effect.map(real.execute(text, values, undefined), (rows) => ({ rows })))
      )
      const taken = Effect.acquireRelease(
        Effect.sync(() => {
          held = true
        }),
        () =>
          Effect.sync(() => {
            held = false
          })
      )
      const reserve = options.stage.step("takes the connection", Effect.zipLeft(sql.reserve, taken), () => !held)
      const client = clientOf(Effect.as(reserve, connection))
      return Effect.flatMap(makeSqliteDatabase(client, names, clock, settings), (db) => services(db, clock, options))
    }
  }
  return engine
}).pipe(Effect.provide(Reactivity.layer))
