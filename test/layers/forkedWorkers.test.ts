/** Workers that are forked where their engine is provided: the engine is closed before the fiber ends, and they before it. */
import { Outbox, Queue, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Deferred, Effect, Exit, Fiber, Layer, Option, Redacted, Schedule, Schema, Scope } from "effect"
import { describe, expect, inject, it } from "vitest"
import { makeInnerScopes } from "../../src/layers/innerScopes.js"
import { temporaryFile } from "../support/engines.js"
import { live, logs } from "../support/outages.js"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.Number })
const News = Outbox.make("news", { message: Schema.Number })

type Engine = Layer.Layer<Sqlite.Services, unknown>

const quiet = { sweeper: false, scheduler: false } as const

const engines: Readonly<Record<string, Effect.Effect<Engine, never, Scope.Scope>>> = {
  SQLite: Effect.map(temporaryFile, (filename) => Sqlite.layerFile(filename, quiet)),
  PostgreSQL: Effect.map(
    Effect.promise(() => createDatabase(inject("pgUrl"))),
    (url) => Pg.layerUrl(Redacted.make(url), quiet)
  )
}

/** A handler that waits in the middle, and what lets it end when it is built and closed: not before the closing has begun. */
const makeWork = Effect.gen(function* () {
  const started = yield* Deferred.make<void>()
  const gate = yield* Deferred.make<void>()
  const work = Effect.zipRight(Deferred.succeed(started, undefined), Deferred.await(gate))
  const closing = Layer.scopedDiscard(Effect.addFinalizer(() => Deferred.succeed(gate, undefined)))
  return { started: Deferred.await(started), gate, work, closing }
})

describe.each(Object.entries(engines))("%s", (_, make) => {
  const forks = {
    "a worker": (work: Effect.Effect<void>) =>
      Effect.zipRight(Letters.enqueue(1), Worker.fork(Letters, { handler: () => work })),
    "a relay": (work: Effect.Effect<void>) =>
      Effect.zipRight(News.publish(1), Outbox.fork(News, { deliver: () => work }))
  }

  it.each(Object.entries(forks))(
    "%s whose program ends: what is under way is done and acked before the database is closed (G82)",
    (_, fork) =>
      live(
        Effect.gen(function* () {
          const engine = yield* make
          const { closing, started, work } = yield* makeWork
          const program = Effect.zipRight(fork(work), started)
          yield* Effect.provide(Effect.provide(program, closing), engine)
          const left = yield* Effect.provide(Effect.zip(Letters.list(), News.list()), engine)
          expect(left).toEqual([[], []])
        }).pipe(Effect.scoped)
      )
  )

  it.each(Object.entries(forks))("%s that is interrupted with its program: the same (G82)", (_, fork) =>
    live(
      Effect.gen(function* () {
        const engine = yield* make
        const { closing, started, work } = yield* makeWork
        const program = Effect.provide(Effect.zipRight(fork(work), Effect.never), closing)
        const fiber = yield* Effect.fork(Effect.provide(program, engine))
        yield* started
        yield* Fiber.interrupt(fiber)
        const left = yield* Effect.provide(Effect.zip(Letters.list(), News.list()), engine)
        expect(left).toEqual([[], []])
      }).pipe(Effect.scoped)
    )
  )

  it("one whose fiber ends first drains then, and is not there when the engine is closed (G82)", () =>
    live(
      Effect.gen(function* () {
        const engine = yield* make
        const { gate, started, work } = yield* makeWork
        yield* Effect.provide(
          Effect.gen(function* () {
            const fiber = yield* Effect.fork(Effect.zipRight(forks["a worker"](work), Effect.never))
            yield* started
            yield* Deferred.succeed(gate, undefined)
            expect(Exit.isInterrupted(yield* Fiber.interrupt(fiber))).toBe(true)
            expect(yield* Letters.list()).toEqual([])
          }),
          engine
        )
      }).pipe(Effect.scoped)
    ))

  it("several do not wait for each other's grace (G82)", () =>
    live(
      Effect.gen(function* () {
        const engine = yield* make
        const ended: Array<string> = []
        const names = ["one", "other"]
        const queues = names.map((name) => Queue.make(name, { payload: Schema.String }))
        const workers: Array<Worker.Worker> = []
        const isDraining = (worker: Worker.Worker | undefined): Effect.Effect<boolean> =>
          worker === undefined
            ? Effect.succeed(false)
            : Effect.map(worker.status, ({ state }) => state === "draining" || state === "stopped")
        const started = yield* Effect.forEach(names, () => Deferred.make<void>())
        // Each goes on until the other is asked to end: one after the other, the first would have to wait for its whole grace
        const handlerOf = (index: number) => (job: { readonly payload: string }) =>
          Deferred.succeed(started[index] as (typeof started)[number], undefined).pipe(
            Effect.zipRight(
              Effect.repeat(
                Effect.suspend(() => isDraining(workers[1 - index])),
                { until: (is) => is, schedule: Schedule.spaced("5 millis") }
              )
            ),
            Effect.zipRight(Effect.sync(() => ended.push(job.payload)))
          )
        const program = Effect.gen(function* () {
          for (const [index, queue] of queues.entries()) {
            yield* queue.enqueue(queue.name)
            workers.push(yield* Worker.fork(queue, { handler: handlerOf(index) }))
          }
          yield* Effect.forEach(started, Deferred.await)
        })
        yield* Effect.provide(program, engine)
        expect(ended.sort()).toEqual(names)
      }).pipe(Effect.scoped)
    ))
})

describe("scopes within a Layer (G82)", () => {
  /** One that is opened in a Layer, and the closing of that Layer. */
  const opened = Effect.gen(function* () {
    const { layer, open } = makeInnerScopes()
    const outer = yield* Scope.make()
    yield* Scope.extend(Layer.build(layer), outer)
    return { open, close: Scope.close(outer, Exit.void) }
  })

  it("one that is being closed already is waited for", () =>
    live(
      Effect.gen(function* () {
        const { close, open } = yield* opened
        const { gate, started, work } = yield* makeWork
        const inner = yield* open
        yield* Scope.addFinalizer(inner, work)
        const own = yield* Effect.fork(Scope.close(inner, Exit.void))
        yield* started
        const closing = yield* Effect.fork(close)
        yield* Effect.repeatN(Effect.yieldNow(), 20)
        expect(yield* Fiber.poll(closing)).toEqual(Option.none())
        yield* Deferred.succeed(gate, undefined)
        yield* Effect.all([Fiber.join(closing), Fiber.join(own)])
      })
    ))

  it("one that dies keeps no other from its end, and is told of", () =>
    live(
      Effect.gen(function* () {
        const { close, open } = yield* opened
        const { gate, started, work } = yield* makeWork
        const before = logs.length
        const [bad, good] = [yield* open, yield* open]
        let ended = false
        yield* Scope.addFinalizer(
          good,
          Effect.zipRight(
            work,
            Effect.sync(() => (ended = true))
          )
        )
        yield* Scope.addFinalizer(
          bad,
          Effect.zipRight(
            started,
            Effect.ensuring(
              Effect.die("boom"),
              Effect.sync(() => void setImmediate(() => Effect.runSync(Deferred.succeed(gate, undefined))))
            )
          )
        )
        yield* close
        expect(ended).toBe(true)
        expect(logs.slice(before)).toEqual([expect.stringContaining("boom")])
      })
    ))

  it("one that is opened when the Layer is closed is closed", () =>
    live(
      Effect.gen(function* () {
        const { close, open } = yield* opened
        yield* close
        let ended = false
        const late = yield* open
        yield* Scope.addFinalizer(
          late,
          Effect.sync(() => (ended = true))
        )
        expect(ended).toBe(true)
      })
    ))
})
