/** Acks by the dozen, as workers settle: one statement, and each job its own outcome. */
import { Queue } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, TestClock } from "effect"
import { expect } from "vitest"
import { expectEmpty, freshQueue, liveRows, type Suite, virtual } from "./support.js"

const count = 30
const history = { crashes: 0, failures: 1, errors: null, failureTimes: null }

/** So many jobs, claimed. */
const claimed = (queue: ReturnType<typeof freshQueue>, options: Queue.EnqueueOptions = {}) =>
  Effect.gen(function* () {
    yield* queue.enqueueMany(
      Array.from({ length: count }, (_, n) => n),
      options
    )
    const jobs = yield* queue.claim({ limit: count, visibilityTimeout: "1 minute" })
    expect(jobs).toHaveLength(count)
    return jobs.map(({ id, lease, payload }) => ({
      payload,
      ack: { _tag: "Ack" as const, plain: true, id, token: lease.token }
    }))
  })

export const settleManySuite: Suite = (engine, options) => {
  virtual(engine, options, "many acks at once", (it) => {
    it.effect("take all of their jobs, whoever else waits or is held (G39, G41)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const store = yield* Queue.Queue
        const jobs = yield* claimed(queue)
        yield* queue.enqueueMany([100, 101])
        yield* queue.claim()
        expect(
          yield* store.settle(
            queue.name,
            jobs.map(({ ack }) => ack)
          )
        ).toEqual(jobs.map(() => "done"))
        expect((yield* liveRows(queue)).map(({ payload, state }) => [payload, state])).toEqual([
          ["100", "leased"],
          ["101", "ready"]
        ])
      })
    )

    it.effect("of which some are lost, gone or none of this queue's leave those as they are (G28, G41)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const store = yield* Queue.Queue
        const jobs = yield* claimed(queue)
        const acks = jobs.map(({ ack }) => ack)
        const [first, second, third] = acks as [(typeof acks)[0], (typeof acks)[0], (typeof acks)[0]]
        yield* store.settle(queue.name, [third])
        const outcomes = yield* store.settle(queue.name, [
          { ...first, token: first.token + 1_000_000 },
          { ...second, token: second.token - 1_000_000 },
          ...acks.slice(2),
          { ...first, id: 1_000_000_000 }
        ])
        expect(outcomes).toEqual(["lost", "lost", "gone", ...acks.slice(3).map(() => "done"), "gone"])
        expect((yield* liveRows(queue)).map(({ payload, state }) => [payload, state])).toEqual([
          ["0", "leased"],
          ["1", "leased"]
        ])
      })
    )

    it.effect("with one that was claimed again since: only the lease that holds it counts (G28, G41)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const store = yield* Queue.Queue
        const stale = yield* claimed(queue)
        yield* TestClock.adjust("1 minute")
        const held = yield* queue.claim({ limit: count })
        const acks = [...stale.map(({ ack }) => ack)]
        acks[0] = { ...(acks[0] as (typeof acks)[0]), token: held[0]?.lease.token ?? 0 }
        expect(yield* store.settle(queue.name, acks)).toEqual(acks.map((_, index) => (index === 0 ? "done" : "lost")))
        expect(yield* liveRows(queue)).toHaveLength(count - 1)
      })
    )

    it.effect("beside a job that goes back (G41)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const store = yield* Queue.Queue
        const [back, ...acks] = (yield* claimed(queue)).map(({ ack }) => ack)
        if (back === undefined) return expect.fail("none")
        const { id, token } = back
        const outcomes = yield* store.settle(queue.name, [
          ...acks,
          { _tag: "Return", id, token, attempt: 1, delayMillis: 0, undecodableSince: null, history }
        ])
        expect(outcomes).toEqual([...acks.map(() => "done"), "done"])
        expect((yield* liveRows(queue)).map(({ payload, state }) => [payload, state])).toEqual([["0", "ready"]])
      })
    )

    it.effect("keep their jobs where the queue retains completed ones, from when it says so (G39, G152)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const store = yield* Queue.Queue
        const jobs = yield* claimed(queue)
        const retaining = Queue.make(queue.name, { payload: queue.payload, retainCompleted: "1 hour" })
        yield* retaining.enqueue(100)
        expect(
          yield* store.settle(
            queue.name,
            jobs.map(({ ack }) => ack)
          )
        ).toEqual(jobs.map(() => "done"))
        expect((yield* Testing.completed(retaining)).map(({ payload }) => payload).sort()).toEqual(
          jobs.map(({ payload }) => String(payload)).sort()
        )
      })
    )

    it.effect("free the keys of those that have one (G39)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const store = yield* Queue.Queue
        const jobs = yield* claimed(queue)
        yield* queue.enqueue(100, { dedupeKey: "k" })
        const [keyed] = yield* queue.claim()
        const acks = [...jobs.map(({ ack }) => ack), { ...jobs[0]?.ack, id: keyed?.id, token: keyed?.lease.token }]
        const outcomes = yield* store.settle(queue.name, acks as ReadonlyArray<(typeof jobs)[0]["ack"]>)
        expect(outcomes).toEqual(acks.map(() => "done"))
        yield* expectEmpty(queue)
        expect((yield* queue.enqueue(101, { dedupeKey: "k" })).deduplicated).toBe(false)
      })
    )
  })
}
