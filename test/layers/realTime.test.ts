/**
 * What a virtual clock hides: instants of a real one have fractions of a millisecond, and rows have none.
 */
import { Queue, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Deferred, Effect, Layer, Redacted, Schema, TestContext } from "effect"
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

  it("G73: jobs that come in a stream gather for a moment between two claims, whatever Effect's Clock says", () =>
    live(
      Effect.gen(function* () {
        const here = yield* Layer.build((yield* engine) as Layer.Layer<Sqlite.Services, unknown>)
        const queue = Queue.make("stream", { payload: Schema.Number })
        const claims: Array<{ readonly begun: number; ended: number; found: number; more: boolean }> = []
        const watched = (real: Queue.Service) => ({
          claim: (request: ClaimRequest) => {
            const claim = { begun: performance.now(), ended: 0, found: 0, more: false }
            return Effect.map(real.claim(request), (result) => {
              claims.push(
                Object.assign(claim, { found: result.jobs.length, more: result.more, ended: performance.now() })
              )
              return result
            })
          }
        })
        let handled = yield* Deferred.make<void>()
        let left = 0
        const handler = () => Effect.suspend(() => (--left === 0 ? Deferred.succeed(handled, undefined) : Effect.void))
        const round = Effect.gen(function* () {
          handled = yield* Deferred.make<void>()
          left = 2 * stream.jobs
          yield* queue.enqueueMany(Array.from({ length: left }, (_, n) => n))
          yield* Deferred.await(handled)
        })
        const rounds = 8
        const streamed = Effect.gen(function* () {
          yield* withQueue(watched, Worker.make(queue, { handler }))
          yield* Effect.repeatN(round, rounds - 1)
        })
        // Nobody lets this clock go on
        yield* Effect.scoped(streamed).pipe(Effect.provide(here), Effect.provide(TestContext.TestContext))
        const pauses = claims.flatMap(({ ended, found, more }, at) => {
          const next = claims[at + 1]
          return found >= stream.jobs && !more && next !== undefined ? [next.begun - ended] : []
        })
        expect(pauses.length).toBeGreaterThanOrEqual(rounds - 1)
        expect(Math.min(...pauses)).toBeGreaterThanOrEqual(stream.millis - 1)
      })
    ))
})
