/** Workers that are forked where their engine is provided: the engine is closed before the fiber ends, and they before it. */
import { Outbox, Queue, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Deferred, Effect, Exit, Fiber, Layer, Redacted, Schema, type Scope } from "effect"
import { describe, expect, inject, it } from "vitest"
import { temporaryFile } from "../support/engines.js"
import { live } from "../support/outages.js"
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

/** Something that a handler waits for in the middle. */
const makeWork = Effect.gen(function* () {
  const started = yield* Deferred.make<void>()
  const gate = yield* Deferred.make<void>()
  const work = Effect.zipRight(Deferred.succeed(started, undefined), Deferred.await(gate))
  return { started: Deferred.await(started), gate, work }
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
          const { gate, started, work } = yield* makeWork
          // Closing waits for the handler, and the handler for the closing
          const closing = Layer.scopedDiscard(Effect.addFinalizer(() => Deferred.succeed(gate, undefined)))
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
        const { gate, started, work } = yield* makeWork
        // Its handler ends when the closing has begun, and not before
        const closing = Layer.scopedDiscard(Effect.addFinalizer(() => Deferred.succeed(gate, undefined)))
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
        const gates = yield* Effect.replicateEffect(makeWork, 3)
        const ended: Array<number> = []
        const gateOf = (index: number) => (gates[index % 3] as (typeof gates)[number]).gate
        // Each lets the next one end: one after the other, the first to be closed would wait for another for ever
        const next = (index: number) => Effect.suspend(() => Deferred.succeed(gateOf(index + 1), undefined))
        const handlers = gates.map(({ work }, index) =>
          work.pipe(Effect.zipRight(Effect.sync(() => ended.push(index))), Effect.zipRight(next(index)))
        )
        const queues = gates.map((_, index) => Queue.make(`many-${index}`, { payload: Schema.Number }))
        const program = Effect.gen(function* () {
          for (const [index, queue] of queues.entries()) {
            yield* queue.enqueue(index)
            yield* Worker.fork(queue, { handler: () => handlers[index] as Effect.Effect<unknown> })
          }
          for (const { started } of gates) yield* started
          yield* Effect.addFinalizer(() => Deferred.succeed(gateOf(1), undefined))
        })
        yield* Effect.provide(Effect.scoped(program), engine)
        expect(ended).toEqual([1, 2, 0])
      }).pipe(Effect.scoped)
    ))
})
