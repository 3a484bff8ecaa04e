/**
 * What a virtual clock hides: instants of a real one have fractions of a millisecond, and rows have none.
 */
import { Clock, Queue, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Context, Deferred, Effect, Layer, Redacted, Schema, TestContext } from "effect"
import { describe, expect, inject, it } from "vitest"
import { stream } from "../../src/schedule/Polling.js"
import type { ClaimRequest } from "../../src/services/QueueStore.js"
import { withQueue } from "../conformance/workerSupport.js"
import { temporaryFile } from "../support/engines.js"
import { live } from "../support/outages.js"
import { createDatabase } from "../support/postgres.js"

const options = { sweeper: false, scheduler: false }

const engines = {
  PostgreSQL: Effect.map(
    Effect.promise(() => createDatabase(inject("pgUrl"))),
    (url) => Pg.layerUrl(Redacted.make(url), options)
  ),
  SQLite: Effect.map(temporaryFile, (file) => Sqlite.layerFile(file, options))
}

describe.each(Object.entries(engines))("%s, by a real clock", (_, engine) => {
  it("G26: a job claimed by hand that cannot be decoded goes back, its attempt not spent", () =>
    live(
      Effect.gen(function* () {
        const layer = yield* engine
        const here = yield* Layer.build(layer as Layer.Layer<Queue.Queue, unknown>)
        const written = Queue.make("letters", { payload: Schema.Unknown })
        const read = Queue.make("letters", { payload: Schema.String })
        const rows = Effect.gen(function* () {
          yield* written.enqueue({})
          expect(yield* read.claim()).toEqual([])
          return yield* written.list()
        })
        expect(yield* Effect.provide(rows, here)).toMatchObject([{ state: "delayed", attempt: 0 }])
      })
    ))

  describe("between two claims", () => {
    /** Of the clock that is moved by hand: how long a claim takes. */
    const claimMillis = 2

    /**
     * Rounds of jobs, each of which is added by the handler of the last job of the one before, after a first claim that found
     * nothing; what is waited for between claims, and in each wait `arriving`. The worker's monotonic clock is moved by claims
     * and waits alone, so that nothing depends on how fast the machine is; or it is Effect's.
     */
    const played = (
      rounds: number,
      add: (queue: Queue.Definition<number, number>) => Effect.Effect<unknown, unknown, Queue.Queue>,
      arriving: (queue: Queue.Definition<number, number>) => Effect.Effect<unknown, unknown, Queue.Queue> = () =>
        Effect.void,
      byHand = true
    ) =>
      Effect.gen(function* () {
        const here = yield* Layer.build((yield* engine) as Layer.Layer<Sqlite.Services, unknown>)
        const queue = Queue.make("stream", { payload: Schema.Number })
        const lulls: Array<number> = []
        const found: Array<number> = []
        const done = yield* Deferred.make<void>()
        let left = rounds
        let inHand = 0
        let now = 0
        const real = Context.get(here, Clock.Clock)
        const clock: Clock.Service = {
          ...real,
          monotonic: byHand ? Effect.sync(() => now) : real.monotonic,
          monotonicOf: byHand ? () => now : real.monotonicOf,
          lull: (millis) => {
            lulls.push(millis)
            now += millis
            const more = Effect.catchAll(Effect.provide(arriving(queue), here), Effect.die)
            return Effect.zipRight(real.lull(millis), Effect.asVoid(more))
          }
        }
        const counting = (store: Queue.Service) => ({
          claim: (request: ClaimRequest) =>
            Effect.map(store.claim(request), (result) => {
              // A look that finds nothing is short; SQLite's file events tell of this process's own commits, too
              if (result.jobs.length > 0) now += claimMillis
              found.push(result.jobs.length)
              inHand += result.jobs.length
              return result
            })
        })
        const handler = () =>
          Effect.suspend(() => {
            if (--inHand > 0) return Effect.void
            return --left > 0 ? Effect.orDie(add(queue)) : Deferred.succeed(done, undefined)
          })
        const all = Effect.gen(function* () {
          yield* withQueue(counting, Worker.make(queue, { handler }))
          yield* add(queue)
          yield* Deferred.await(done)
        })
        yield* Effect.scoped(all).pipe(Effect.provideService(Clock.Clock, clock), Effect.provide(here))
        expect(Math.max(0, ...lulls)).toBeLessThanOrEqual(stream.millis)
        return { lulls, found }
      })
    const several = (count: number, options: Queue.EnqueueOptions = {}) => {
      const numbers = Array.from({ length: count }, (_, n) => n)
      return (queue: Queue.Definition<number, number>) =>
        queue.enqueueMany(numbers, (n) =>
          "orderingKey" in options ? { orderingKey: `${options.orderingKey}${n}` } : {}
        )
    }

    it("jobs of a stream gather for a moment, by the machine's time", () =>
      live(
        Effect.gen(function* () {
          const { found, lulls } = yield* played(40, several(stream.jobs), several(100))
          expect(lulls.length).toBeGreaterThanOrEqual(10)
          // The last one may have been cut short
          expect(found.filter((count) => count >= 100).length).toBeGreaterThanOrEqual(lulls.length - 1)
        })
      ))

    it("nothing waits for a clock that nobody lets go on", () =>
      live(
        Effect.gen(function* () {
          const { lulls } = yield* Effect.provide(
            played(20, several(stream.jobs), several(100), false),
            TestContext.TestContext
          )
          expect(lulls).toEqual([])
        })
      ))

    it("nothing is waited for where that brings nothing: the next jobs come of those at hand", () =>
      live(
        Effect.gen(function* () {
          const { found, lulls } = yield* played(100, several(stream.jobs))
          const millis = found.length * (claimMillis + stream.millis)
          expect(lulls.length).toBeLessThanOrEqual(stream.trials * (2 + millis / stream.trialMillis))
        })
      ))

    it("nor for so few that come alone", () =>
      live(
        Effect.gen(function* () {
          expect((yield* played(10, several(stream.jobs - 1))).lulls).toEqual([])
        })
      ))

    it("nor for jobs with ordering keys", () =>
      live(
        Effect.gen(function* () {
          expect((yield* played(10, several(2 * stream.jobs, { orderingKey: "k" }))).lulls).toEqual([])
        })
      ))
  })
})
