/** Layers and workers built where nothing can be interrupted, as in an acquisition: closing them ends all the same. */
import { Queue, Supervisor, Telemetry, transaction, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { type Context, Deferred, Effect, Layer, Redacted, Reloadable, Schema, type Scope, ScopedRef } from "effect"
import { describe, expect, inject, it } from "vitest"
import { sqliteFile, temporaryFile } from "../support/engines.js"
import { live } from "../support/outages.js"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.String })

const engines = {
  SQLite: Layer.unwrapScoped(Effect.map(temporaryFile, (filename) => Sqlite.layerFile(filename))),
  PostgreSQL: Layer.unwrapEffect(
    Effect.map(
      Effect.promise(() => createDatabase(inject("pgUrl"))),
      (url) => Pg.layerUrl(Redacted.make(url))
    )
  )
}

/** Runs it and closes its scope, which has to end. */
const ends = <A, E>(self: Effect.Effect<A, E, Scope.Scope>) =>
  live(Effect.timeout(Effect.disconnect(Effect.scoped(self)), "20 seconds"))

const acquired = <A, E>(layer: Layer.Layer<A, E>) => Effect.acquireRelease(Layer.build(layer), () => Effect.void)

describe.each(["SQLite", "PostgreSQL"] as const)("G83: %s, built in an uninterruptible region", (name) => {
  const engine: Layer.Layer<Sqlite.Services, unknown> = engines[name]
  const enqueued = (context: Context.Context<Queue.Queue>) => Effect.provide(Letters.enqueue("a"), context)

  it("closes in a ScopedRef", () =>
    ends(
      Effect.flatMap(ScopedRef.fromAcquire(Layer.build(engine)), (ref) => Effect.flatMap(ScopedRef.get(ref), enqueued))
    ))

  it("closes as Reloadable, also when it is loaded again", () =>
    ends(
      Effect.gen(function* () {
        const reloadable = yield* Layer.build(Reloadable.manual(Queue.Queue, { layer: engine }))
        yield* Effect.provide(Reloadable.reload(Queue.Queue), reloadable)
      })
    ))

  it("closes with a worker, whose handler is interrupted, and with gauges", () =>
    ends(
      Effect.gen(function* () {
        const started = yield* Deferred.make<void>()
        const handler = () => Effect.zipRight(Deferred.succeed(started, undefined), Effect.never)
        const loops = Layer.merge(Worker.layer(Letters, { handler, shutdownGrace: 100 }), Telemetry.layer())
        yield* enqueued(yield* acquired(Layer.provideMerge(loops, engine)))
        yield* Deferred.await(started)
      })
    ))

  it("closes with a supervisor", () =>
    ends(
      Effect.gen(function* () {
        const done = yield* Deferred.make<void>()
        const worker = Supervisor.worker(Letters, { handler: () => Deferred.succeed(done, undefined) })
        yield* enqueued(yield* acquired(Layer.provideMerge(Supervisor.layer([worker]), engine)))
        yield* Deferred.await(done)
      })
    ))

  it("ends a worker that was forked there with its fiber", () =>
    ends(
      Effect.gen(function* () {
        const context = yield* Layer.build(engine)
        const forked = Effect.uninterruptible(Worker.fork(Letters, { handler: () => Effect.void }))
        // As a fiber of its own, which waits for its children at its end
        const fiber = yield* Effect.fork(Effect.provide(forked, context))
        const worker = yield* fiber
        expect((yield* worker.status).state).toBe("stopped")
      })
    ))
})

it("SQLite, the application's client: whether it is held is answered there, too", () =>
  ends(
    Effect.gen(function* () {
      const { holdsWriteLock } = yield* Queue.Queue
      expect(yield* Effect.uninterruptible(holdsWriteLock)).toBe(false)
      expect(yield* transaction(Effect.uninterruptible(holdsWriteLock))).toBe(true)
    }).pipe(Effect.provide(sqliteFile.layer()))
  ))
