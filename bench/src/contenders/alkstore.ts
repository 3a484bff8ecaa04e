/**
 * This library with its default settings: `Worker.layer` with nothing but a handler.
 */
import { Queue, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Either, Exit, Layer, ManagedRuntime, Redacted, Schema, Scope, Stream } from "effect"
import { type Contender, chunks, type Engine, type Payload, payload, type Session } from "../contender.js"
import { clutterPostgres, clutterSqlite } from "./alkstoreClutter.js"

const define = (name: string) => Queue.make(name, { payload: Schema.Struct({ n: Schema.Number, text: Schema.String }) })

const layerOf = (engine: Engine, where: string) =>
  engine === "postgres" ? Pg.layerUrl(Redacted.make(where)) : Sqlite.layerFile(where)

type Services = Sqlite.Services

const open =
  (engine: Engine) =>
  async (where: string, queue = "bench"): Promise<Session> => {
    const runtime = ManagedRuntime.make(layerOf(engine, where) as Layer.Layer<Services>)
    const context = await runtime.runtime()
    const jobs = define(queue)
    const run = <A, E>(effect: Effect.Effect<A, E, Services>) => runtime.runPromise(effect)
    const work = async (handler: (job: Payload) => void) => {
      const scope = Effect.runSync(Scope.make())
      const worker = Worker.layer(jobs, { handler: (job) => Effect.sync(() => handler(job.payload)) })
      const built = Scope.extend(Layer.build(worker), scope) as Effect.Effect<unknown>
      await Effect.runPromise(Effect.provide(built, context))
      return () => Effect.runPromise(Scope.close(scope, Exit.void))
    }
    return {
      enqueue: (all, inFlight) =>
        run(Effect.forEach(all, (job) => jobs.enqueue(job), { concurrency: inFlight, discard: true })),
      enqueueMany: (all, size) =>
        run(Effect.forEach(chunks(all, size), (chunk) => jobs.enqueueMany(chunk), { discard: true })),
      work,
      left: () =>
        run(
          Effect.map(jobs.counts, ({ blocked, delayed, leased, ready }) =>
            [blocked, delayed, leased, ready].reduce((sum, { count }) => sum + count, 0)
          )
        ),
      close: () => runtime.dispose(),
      tryEnqueue: (job) =>
        run(Effect.map(Effect.either(jobs.enqueue(job)), Either.match({ onLeft: tagOf, onRight: () => "enqueued" }))),
      enqueueStream: (count) => run(Effect.asVoid(jobs.enqueueStream(Stream.map(Stream.range(0, count - 1), payload))))
    }
  }

const tagOf = (error: { readonly _tag: string }) => error._tag

export const alkstorePostgres: Contender = {
  name: "alkstore",
  engine: "postgres",
  ours: true,
  settings: "defaults",
  open: open("postgres"),
  clutter: clutterPostgres
}

export const alkstoreSqlite: Contender = {
  name: "alkstore",
  engine: "sqlite",
  ours: true,
  settings: "defaults: WAL, synchronous NORMAL",
  open: open("sqlite"),
  clutter: clutterSqlite
}
