/** Namespaces: several in one database, unseen by each other. */
import { Lock, Queue } from "alkstore"
import { Context, Effect, Layer, Option, TestClock } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  expectEmpty,
  freshName,
  freshQueue,
  liveRows,
  type Suite,
  sweep,
  virtual
} from "./support.js"

export const namespaceSuite: Suite = (engine, options) => {
  virtual(engine, options, "namespaces", (it) => {
    /** Runs an effect in another namespace of the same database, over the same client. */
    const elsewhere = (namespace: string) =>
      Effect.map(
        Layer.build(
          engine.beside({ virtual: true, silent: options.silent, sqlite: { namespace }, postgres: { namespace } })
        ),
        (context) =>
          <A, E, R>(self: Effect.Effect<A, E, R>) =>
            Effect.mapInputContext(self, (outer: Context.Context<R>) => Context.merge(outer, context))
      )

    it.scoped("jobs, dead letters, keys and sweeps of one are not the other's (G87)", () =>
      Effect.gen(function* () {
        const there = yield* elsewhere("another_")
        const queue = freshQueue()
        yield* queue.enqueue("here", { dedupeKey: "k" })
        yield* there(expectEmpty(queue))
        expect(yield* there(queue.claim())).toEqual([])
        expect(yield* there(queue.enqueue("there", { dedupeKey: "k" }))).toMatchObject({ deduplicated: false })
        expect((yield* liveRows(queue)).map(({ payload }) => payload)).toEqual(['"here"'])
        const here = yield* claimOne(queue, { visibilityTimeout: "1 second" })
        yield* (yield* there(claimOne(queue))).fail("there")
        yield* TestClock.adjust("1 minute")
        expect(yield* there(sweep())).toMatchObject({ expired: 0, recovered: 0, crashed: 0 })
        yield* here.ack
        yield* expectEmpty(queue)
        expect(yield* there(deadRows(queue))).toHaveLength(1)
      })
    )

    it.scoped("a lease of one is none in the other, whatever its numbers (G28, G87)", () =>
      Effect.gen(function* () {
        const there = yield* elsewhere("third_")
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const job = yield* claimOne(queue)
        const settlement = { _tag: "Ack", id: job.id, token: job.lease.token } as const
        const settle = Effect.flatMap(Queue.Queue, (store) => store.settle(queue.name, [settlement]))
        expect(yield* there(settle)).toEqual(["gone"])
        expect(yield* settle).toEqual(["done"])
      })
    )

    it.scoped("locks of one are free in the other (G87)", () =>
      Effect.gen(function* () {
        const there = yield* elsewhere("fourth_")
        const name = freshName("lock")
        yield* Lock.acquire(name)
        expect(yield* there(Lock.list)).toEqual([])
        expect(Option.isSome(yield* there(Lock.tryAcquire(name)))).toBe(true)
        expect(Option.isNone(yield* Lock.tryAcquire(name))).toBe(true)
      })
    )

    it.scoped("settings of a queue are their namespace's (G55, G87)", () =>
      Effect.gen(function* () {
        const there = yield* elsewhere("fifth_")
        const queue = freshQueue()
        const strict = Queue.make(queue.name, { payload: queue.payload, maxCrashes: 0 })
        yield* queue.enqueue(1)
        yield* there(strict.enqueue(1))
        yield* claimOne(queue, { visibilityTimeout: "1 second" })
        yield* there(claimOne(strict, { visibilityTimeout: "1 second" }))
        yield* TestClock.adjust("1 minute")
        yield* sweep()
        yield* there(sweep())
        expect(yield* liveRows(queue)).toHaveLength(1)
        expect(yield* there(deadRows(queue))).toHaveLength(1)
      })
    )

    it.scoped("the same namespace beside itself is the same (G84)", () =>
      Effect.gen(function* () {
        const context = yield* Layer.build(engine.beside({ virtual: true, silent: options.silent }))
        const queue = freshQueue()
        yield* Effect.provide(queue.enqueue(1, { dedupeKey: "k" }), context)
        expect((yield* queue.enqueue(2, { dedupeKey: "k" })).deduplicated).toBe(true)
        expect((yield* claimOne(queue)).payload).toBe(1)
      })
    )
  })
}
