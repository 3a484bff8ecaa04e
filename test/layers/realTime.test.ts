/**
 * What a virtual clock hides: instants of a real one have fractions of a millisecond, and rows have none.
 */
import { Queue } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Layer, Redacted, Schema } from "effect"
import { describe, expect, inject, it } from "vitest"
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
})
