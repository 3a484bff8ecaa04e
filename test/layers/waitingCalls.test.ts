/**
 * Calls of a process that wait for what an open transaction of the application has locked, on the Layer's own PostgreSQL
 * connections, of which there are two: whatever their number and kind, they never have them all.
 */
import { Queue, Schedules, transaction } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Deferred, Effect, Fiber, Redacted, Schema } from "effect"
import { expect, inject, test } from "vitest"
import { eventually, observe } from "../conformance/workerSupport.js"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.String })
const Long = Queue.make("long", { payload: Schema.String })
const nightly = Schedules.make("nightly", { every: "300 days", queue: Letters, payload: "night" })

type Call = Effect.Effect<unknown, unknown, Queue.Queue | Schedules.Schedules>

/** What is done in the transaction, and what waits for it. Letter 1 is delayed. */
const kinds: Readonly<Record<string, readonly [inside: Call, outside: Call]>> = {
  "operations on a job": [Letters.cancel(1), Letters.reschedule({ id: 1 }, { delay: "2 hours" })],
  "operations on many": [Letters.cancelMany({ all: true }), Letters.cancelMany({ all: true })],
  "pauses of a queue": [Letters.pause, Letters.pause],
  "enqueues with a key": [Letters.enqueue("k", { dedupeKey: "new" }), Letters.enqueue("k", { dedupeKey: "new" })],
  replacements: [
    Letters.reschedule({ id: 1 }, { delay: "2 hours" }),
    Letters.enqueue("r", { dedupeKey: "delayed", onDuplicate: "replace" })
  ],
  "changes of a schedule": [Schedules.pause("nightly"), Schedules.trigger("nightly")]
}

const set = Effect.gen(function* () {
  yield* Letters.enqueue("delayed", { delay: "1 hour", dedupeKey: "delayed" })
  yield* Schedules.put(nightly)
})

test.each(Object.entries(kinds))(
  "%s that wait for a transaction keep no lease from being renewed, and no job from being enqueued (G188)",
  async (_, [first, others]) => {
    const layer = Pg.layerUrl(Redacted.make(await createDatabase(inject("pgUrl"))), { sweeper: false })
    const program = Effect.gen(function* () {
      yield* set
      const open = yield* Deferred.make<void>()
      const close = yield* Deferred.make<void>()
      const gate = yield* Deferred.make<void>()
      const inside = Effect.zipRight(Deferred.succeed(open, undefined), Deferred.await(close))
      const held = yield* Effect.fork(transaction(Effect.zipRight(first, inside)))
      yield* Deferred.await(open)
      let begun = 0
      const { tags, worker } = yield* observe(Long, {
        visibilityTimeout: "2 seconds",
        handler: () =>
          Effect.zipRight(
            Effect.sync(() => void begun++),
            Deferred.await(gate)
          )
      })
      yield* Long.enqueue("long")
      yield* eventually(
        "the handler began",
        Effect.sync(() => begun),
        (count) => count === 1
      )
      const calls = yield* Effect.forEach([1, 2, 3, 4], () => Effect.fork(Effect.either(others)))
      let renewals = 0
      let last = Number.POSITIVE_INFINITY
      const look = Effect.map(worker.health, ({ lastRenewalMillisAgo: ago = Number.POSITIVE_INFINITY }) => {
        if (ago < last) renewals++
        last = ago
        return tags()
      })
      yield* eventually("four renewals, or none", look, (seen) => renewals >= 4 || seen.includes("LeaseLost"))
      expect(tags()).toEqual(["Started"])
      expect(calls.filter((fiber) => fiber.unsafePoll() !== null)).toEqual([])
      yield* Long.enqueue("another")
      yield* eventually(
        "that began, too",
        Effect.sync(() => begun),
        (count) => count === 2
      )
      yield* Deferred.succeed(close, undefined)
      yield* Fiber.join(held)
      yield* Fiber.joinAll(calls)
      yield* Deferred.succeed(gate, undefined)
      yield* eventually(
        "both are acked",
        Effect.sync(tags),
        (seen) => seen.filter((tag) => tag === "Acked").length === 2
      )
    }).pipe(Effect.scoped, Effect.provide(layer))
    await Effect.runPromise(program as Effect.Effect<void, unknown>)
  },
  60_000
)
