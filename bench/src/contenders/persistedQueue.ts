/**
 * Effect's own PersistedQueue over its SQL store. It has no batches: where many are enqueued, a transaction of single
 * calls stands for one.
 */
import { PersistedQueue } from "@effect/experimental"
import { SqlClient, SqlPersistedQueue } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Effect, Fiber, Layer, ManagedRuntime, Redacted, Schema } from "effect"
import { type Contender, chunks, type Engine, type Payload, type Session } from "../contender.js"

const takers = 100
const pollInterval = 10

const clientOf = (engine: Engine, where: string) =>
  engine === "postgres"
    ? PgClient.layer({ url: Redacted.make(where), maxConnections: 10 })
    : SqliteClient.layer({ filename: where })

const layerOf = (engine: Engine, where: string) =>
  PersistedQueue.layer.pipe(
    Layer.provide(SqlPersistedQueue.layerStore({ pollInterval })),
    Layer.provideMerge(clientOf(engine, where) as Layer.Layer<SqlClient.SqlClient>)
  )

const count = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  const rows = yield* sql<{ n: number | string }>`SELECT count(*) AS n FROM effect_queue WHERE completed = FALSE`
  return Number(rows[0]?.n)
})

/** As everybody else here has it: the client leaves it at FULL. */
const relax = Effect.flatMap(SqlClient.SqlClient, (sql) => sql`PRAGMA synchronous = NORMAL`)

const open = (engine: Engine) => async (where: string) => {
  const runtime = ManagedRuntime.make(layerOf(engine, where))
  if (engine === "sqlite") await runtime.runPromise(relax)
  const jobs = await runtime.runPromise(
    PersistedQueue.make({ name: "bench", schema: Schema.Struct({ n: Schema.Number, text: Schema.String }) })
  )
  const offerAll = (all: ReadonlyArray<Payload>, concurrency: number) =>
    Effect.forEach(all, (job) => jobs.offer(job), { concurrency, discard: true })
  const session: Session = {
    enqueue: (all, inFlight) => runtime.runPromise(offerAll(all, inFlight)),
    enqueueMany: (all, size) =>
      runtime.runPromise(
        Effect.flatMap(SqlClient.SqlClient, (sql) =>
          Effect.forEach(chunks(all, size), (chunk) => sql.withTransaction(offerAll(chunk, 1)), { discard: true })
        )
      ),
    work: async (handler) => {
      const taking = Effect.forever(jobs.take((job) => Effect.sync(() => handler(job))))
      const fiber = runtime.runFork(
        Effect.all(
          Array.from({ length: takers }, () => taking),
          { concurrency: "unbounded", discard: true }
        )
      )
      return () => Effect.runPromise(Effect.asVoid(Fiber.interrupt(fiber)))
    },
    left: () => runtime.runPromise(count),
    close: () => runtime.dispose()
  }
  return session
}

const shared = {
  name: "PersistedQueue",
  settings: `Effect's, SqlPersistedQueue, ${takers} takers, pollInterval ${pollInterval} ms`,
  without: {
    W2: "has no batches",
    W4: "polls, and waits for its takers",
    W6: "sorts all that is ready for each take, has no delayed jobs",
    W7: "drains too slowly"
  }
}

export const persistedQueuePostgres: Contender = {
  ...shared,
  engine: "postgres",
  scale: { "W1-10": 0.2, W3: 0.05, W5: 0.2 },
  open: open("postgres")
}

export const persistedQueueSqlite: Contender = {
  ...shared,
  engine: "sqlite",
  settings: `${shared.settings}, WAL, synchronous NORMAL`,
  scale: { W1: 0.2, W3: 0.1, W5: 0.2 },
  open: open("sqlite")
}
