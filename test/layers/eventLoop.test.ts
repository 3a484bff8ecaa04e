/**
 * What answers at once and follows itself by microtasks could keep every timer, answer and signal from the process: leases would
 * lapse and a shutdown would not be heard. Turns of the event loop are counted, not timed.
 */

import { SqliteClient } from "@effect/sql-sqlite-node"
import { Queue, transaction, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Layer, Schema, type Scope, Stream } from "effect"
import { describe, expect, test } from "vitest"
import { temporaryFile } from "../support/engines.js"

const Numbers = Queue.make("numbers", { payload: Schema.Number })

type Services = Sqlite.Services

const quiet = { sweeper: false, scheduler: false } as const

/** Counts the turns that the event loop has while an effect runs. */
const turns = <A, E, R>(self: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    let count = 0
    let next = setImmediate(function turn() {
      count++
      next = setImmediate(turn)
    })
    yield* Effect.ensuring(
      self,
      Effect.sync(() => clearImmediate(next))
    )
    return count
  })

const times = (count: number, self: Effect.Effect<unknown, unknown, Services>) =>
  Effect.repeatN(Effect.asVoid(self), count - 1)

const drain = (count: number) =>
  Effect.gen(function* () {
    yield* Numbers.enqueueStream(Stream.range(1, count))
    let left = count
    const done = yield* Effect.makeLatch(false)
    const work = Worker.make(Numbers, {
      handler: () => Effect.sync(() => --left === 0 && done.unsafeOpen())
    })
    return yield* turns(Effect.scoped(Effect.zipRight(work, done.await)))
  })

/** Some hundreds of milliseconds each, of which a turn is due every five. */
const busy: Readonly<Record<string, Effect.Effect<number, unknown, Services | Scope.Scope>>> = {
  "a worker that drains": drain(10_000),
  "a stream of enqueues": turns(Numbers.enqueueStream(Stream.range(1, 40_000))),
  "enqueues, one after the other": turns(times(2_000, Numbers.enqueue(1))),
  "transactions, one after the other": turns(times(1_500, transaction(Numbers.enqueue(1)))),
  "enqueues in one transaction": turns(transaction(times(3_000, Numbers.enqueue(1)))),
  "claims of nothing": turns(times(2_000, Numbers.claim())),
  "lists and counts": turns(times(1_000, Effect.zipRight(Numbers.list(), Numbers.counts))),
  "thousands of calls at the same moment": turns(
    Effect.forEach(Array.from({ length: 3_000 }), () => Numbers.list({ limit: 1 }), {
      concurrency: "unbounded",
      discard: true
    })
  ),
  "claims and acks": turns(
    times(
      700,
      Effect.flatMap(Effect.zipRight(Numbers.enqueue(1), Numbers.claim()), ([job]) => job?.ack ?? Effect.die("none"))
    )
  )
}

const own = Layer.unwrapScoped(Effect.map(temporaryFile, (filename) => Sqlite.layerFile(filename, quiet)))

const theirs = Layer.unwrapScoped(
  Effect.map(temporaryFile, (filename) => Layer.provide(Sqlite.layer(quiet), SqliteClient.layer({ filename })))
)

describe.each([
  ["SQLite", own],
  ["SQLite, the application's client", theirs]
] as const)("%s", (_, layer) => {
  test.each(Object.entries(busy))("%s: the event loop has its turns (G195)", async (_, run) => {
    const count = await Effect.runPromise(run.pipe(Effect.scoped, Effect.provide(layer)))
    expect(count).toBeGreaterThan(5)
  })

  test("nobody is kept from its turns by others who call in a row (G195)", async () => {
    const enough = 300
    const done = { claims: 0, enqueues: 0, lists: 0, transactions: 0 }
    const isEnough = () => Object.values(done).every((count) => count >= enough)
    const loop = (kind: keyof typeof done, call: Effect.Effect<unknown, unknown, Services>) =>
      Effect.repeat(
        Effect.tap(call, () => void done[kind]++),
        { until: isEnough }
      )
    const all = Effect.all(
      [
        loop("claims", Numbers.claim({ limit: 1 })),
        loop("lists", Numbers.list({ limit: 1 })),
        loop("enqueues", Numbers.enqueue(1, { dedupeKey: "the same" })),
        loop("transactions", transaction(Numbers.counts))
      ],
      { concurrency: "unbounded", discard: true }
    )
    await Effect.runPromise(Effect.provide(all, layer))
    expect(isEnough()).toBe(true)
  })
})
