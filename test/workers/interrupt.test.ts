/**
 * A program that is interrupted, as SIGTERM does: the fiber that closes the worker's scope has been interrupted itself,
 * and still lets the handlers end.
 */
import { describe, expect, it } from "@effect/vitest"
import { Deferred, Effect, Fiber, Layer, Schema } from "effect"
import { Queue, Worker } from "../../src/index.js"
import { type EngineUnderTest, postgres, sqliteFile } from "../support/engines.js"

const Jobs = Queue.make("interrupted", { payload: Schema.String })

const suite = (engine: EngineUnderTest) =>
  describe(engine.name, () => {
    it.live("lets a running handler end within the grace, and writes that it did (G81, G82)", () =>
      Effect.gen(function* () {
        yield* Jobs.enqueue("slow")
        const started = yield* Deferred.make<void>()
        const goOn = yield* Deferred.make<void>()
        let finished = false
        const worker = Worker.layer(Jobs, {
          handler: () =>
            Deferred.succeed(started, undefined).pipe(
              Effect.zipRight(Deferred.await(goOn)),
              Effect.zipRight(
                Effect.sync(() => {
                  finished = true
                })
              )
            )
        })
        const app = yield* Effect.fork(Layer.launch(worker))
        yield* Deferred.await(started)
        const stopping = yield* Effect.fork(Fiber.interrupt(app))
        yield* Effect.yieldNow()
        yield* Deferred.succeed(goOn, undefined)
        yield* Fiber.join(stopping)
        expect(finished).toBe(true)
        const queue = yield* Queue.Queue
        expect(yield* queue.list("interrupted", { limit: 10, after: 0 })).toEqual([])
      }).pipe(Effect.provide(engine.layer()))
    )

    it.live("releases a handler that goes on beyond the grace, its attempt given back (G81)", () =>
      Effect.gen(function* () {
        yield* Jobs.enqueue("endless")
        const started = yield* Deferred.make<void>()
        const worker = Worker.layer(Jobs, {
          handler: () => Effect.zipRight(Deferred.succeed(started, undefined), Effect.never),
          shutdownGrace: "50 millis"
        })
        const app = yield* Effect.fork(Layer.launch(worker))
        yield* Deferred.await(started)
        yield* Fiber.interrupt(app)
        const queue = yield* Queue.Queue
        expect(yield* queue.list("interrupted", { limit: 10, after: 0 })).toMatchObject([
          { state: "ready", attempt: 0 }
        ])
      }).pipe(Effect.provide(engine.layer()))
    )
  })

suite(sqliteFile)
suite(postgres)
