/** PostgreSQL: a look that comes while another's claim is under way sees neither the job nor its lease. */
import { transaction, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Deferred, Effect, Layer, Redacted } from "effect"
import { expect, inject, it } from "vitest"
import { Letters, live, wait } from "../support/outages.js"
import { createDatabase } from "../support/postgres.js"

it("G58: a lease that a worker could not see is found when it has ended, long before its poll", () =>
  live(
    Effect.gen(function* () {
      const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
      const layer = Pg.layerUrl(Redacted.make(url), { sweeper: false, pollInterval: "1 minute" })
      const mine = yield* Layer.build(layer)
      const others = yield* Layer.build(layer)
      yield* Letters.enqueue("held").pipe(Effect.provide(mine))
      const claimed = yield* Deferred.make<void>()
      const looked = yield* Deferred.make<void>()
      yield* Letters.claim({ visibilityTimeout: "1 second" }).pipe(
        Effect.tap((jobs) => Effect.sync(() => expect(jobs).toHaveLength(1))),
        Effect.zipRight(Deferred.succeed(claimed, undefined)),
        Effect.zipRight(Deferred.await(looked)),
        transaction,
        Effect.provide(others),
        Effect.forkScoped
      )
      yield* Deferred.await(claimed)
      const started: Array<number> = []
      const worker = yield* Worker.make(Letters, {
        visibilityTimeout: "1 second",
        handler: (job) => Effect.sync(() => started.push(job.attempt))
      }).pipe(Effect.provide(mine))
      const health = worker.health.pipe(Effect.provide(mine))
      yield* wait("it has looked and listens", async () => {
        const { lastClaimMillisAgo, wake } = await Effect.runPromise(health)
        return wake._tag === "Live" && lastClaimMillisAgo !== undefined && lastClaimMillisAgo > 500
      })
      expect(started).toEqual([])
      yield* Deferred.succeed(looked, undefined)
      yield* wait("it is found", () => started.length > 0, 5_000)
      expect(started).toEqual([2])
    })
  ))
