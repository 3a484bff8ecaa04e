/**
 * How many steps of the runtime hot paths take. Unlike a time, that is the same on every machine and at every load; where code
 * is cold, it is most of what a call costs. The bounds are what they take now and a little more; on SQLite a job through a worker
 * counts looks after file events, too.
 */

import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { Queue, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Deferred, Effect, type Fiber, Layer, Redacted, Runtime, RuntimeFlags, Schema, Supervisor } from "effect"
import { describe, expect, inject, test } from "vitest"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.Struct({ n: Schema.Number, text: Schema.String }) })
const letter = { n: 1, text: "about as long as a text is" }

class Steps extends Supervisor.AbstractSupervisor<void> {
  count = 0
  override readonly value = Effect.void
  override onEffect(_fiber: Fiber.RuntimeFiber<unknown, unknown>): void {
    this.count++
  }
}

const quiet = { sweeper: false, scheduler: false } as const

const sqlite = Layer.unwrapScoped(
  Effect.map(
    Effect.acquireRelease(
      Effect.sync(() => mkdtempSync(join(tmpdir(), "alkstore-steps-"))),
      (folder) => Effect.sync(() => rmSync(folder, { recursive: true }))
    ),
    (folder) => Sqlite.layerFile(join(folder, "jobs.db"), quiet)
  )
)

const postgres = Layer.unwrapEffect(
  Effect.map(
    Effect.promise(() => createDatabase(inject("pgUrl"))),
    (url) => Pg.layerUrl(Redacted.make(url), quiet)
  )
)

/** Runs with every step of every fiber counted. */
const counted = <A, E, R>(self: (steps: Steps) => Effect.Effect<A, E, R>) =>
  Effect.flatMap(Effect.runtime<R>(), (runtime) =>
    Effect.suspend(() => {
      const steps = new Steps()
      const supervised = Effect.supervised(steps)(self(steps))
      const runtimeFlags = RuntimeFlags.enable(runtime.runtimeFlags, RuntimeFlags.OpSupervision)
      return Effect.promise(() => Runtime.runPromise(Runtime.make({ ...runtime, runtimeFlags }), supervised))
    })
  )

const median = (values: ReadonlyArray<number>) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0

/** Each of these, once the first ones have set everything up. */
const each = (steps: Steps, act: Effect.Effect<unknown, unknown, Queue.Queue>) =>
  Effect.gen(function* () {
    const counts: Array<number> = []
    for (let n = 0; n < 30; n++) {
      const before = steps.count
      yield* act
      counts.push(steps.count - before)
    }
    return median(counts)
  })

const inFlight = Effect.forEach(Array.from({ length: 10 }), () => Letters.enqueue(letter), {
  concurrency: "unbounded",
  discard: true
})

describe.each([
  { name: "SQLite", layer: sqlite, enqueue: 74, ten: 750, through: 400, drained: 17 },
  { name: "PostgreSQL", layer: postgres, enqueue: 46, ten: 650, through: 240, drained: 17 }
])("$name", ({ drained: ofDrained, enqueue, layer, name, ten, through }) => {
  test("an enqueue, ten at once, a job through an idle worker, and one of many take no more steps than they need", () =>
    Effect.runPromise(
      Effect.gen(function* () {
        const figures = yield* counted((steps) =>
          Effect.gen(function* () {
            const one = yield* each(steps, Letters.enqueue(letter))
            const some = yield* each(steps, inFlight)
            let done = yield* Deferred.make<void>()
            const many = 2_000
            yield* Letters.enqueueMany(Array.from({ length: many }, () => letter))
            let left = 330 + many
            const drained = yield* Deferred.make<void>()
            const before = steps.count
            yield* Worker.make(Letters, {
              handler: () => (--left > 0 ? Effect.void : Deferred.succeed(left === 0 ? drained : done, undefined))
            })
            yield* Deferred.await(drained)
            const drain = (steps.count - before) / (330 + many)
            const job = Effect.gen(function* () {
              done = yield* Deferred.make<void>()
              yield* Letters.enqueue(letter)
              yield* Deferred.await(done)
            })
            return { one, some, job: yield* each(steps, job), drain }
          }).pipe(Effect.scoped)
        )
        console.log(`${name}: steps for an enqueue, ten at once, a job through an idle worker, one of many`, figures)
        expect(figures.one).toBeLessThanOrEqual(enqueue)
        expect(figures.some).toBeLessThanOrEqual(ten)
        expect(figures.job).toBeLessThanOrEqual(through)
        expect(figures.drain).toBeLessThanOrEqual(ofDrained)
      }).pipe(Effect.provide(layer), Effect.scoped)
    ))
})
