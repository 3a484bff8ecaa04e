/** A filter by state selects what `list` and `counts` tell: when keys have just been freed, and over many pages. */
import { Schedules, transaction } from "alkstore"
import { Effect } from "effect"
import { describe, expect } from "vitest"
import { freshName, freshQueue, liveRows, virtual } from "../conformance/support.js"
import { postgres, sqliteMemory } from "../support/engines.js"

const same = { orderingKey: "key" }
const changed = (count: number) => ({ changed: count, leased: 0, tooLate: 0 })
const cancelled = (count: number) => ({ cancelled: count, requested: 0, tooLate: 0 })

/** More than two pages. */
const many = Array.from({ length: 1_200 }, (_, n) => n)

describe.each([sqliteMemory, postgres])("$name", (engine) => {
  virtual(engine, { silent: false }, "a filter by state", (it) => {
    it.effect("finds the first of a key that a transaction has enqueued (G147, G161)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* transaction(queue.enqueueMany([1, 2], same))
        expect(yield* queue.cancelMany({ state: "ready" })).toEqual(cancelled(1))
        expect((yield* liveRows(queue)).map(({ payload, state }) => [payload, state])).toEqual([["2", "ready"]])
      })
    )

    it.effect("of what is blocked leaves the first of each key alone (G147, G161)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* transaction(queue.enqueueMany([1, 2, 3], same))
        expect(yield* queue.cancelMany({ state: "blocked" })).toEqual(cancelled(2))
        expect((yield* liveRows(queue)).map(({ payload, state }) => [payload, state])).toEqual([["1", "ready"]])
      })
    )

    it.effect("finds a delayed one of a key (G147, G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* transaction(queue.enqueue(1, { ...same, delay: "1 hour" }))
        expect(yield* queue.runNow({ state: "delayed" })).toEqual(changed(1))
        expect(yield* queue.claim()).toHaveLength(1)
      })
    )

    it.effect("finds the next of a key whose first was acked in a transaction (G147, G160)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2], same)
        const [job] = yield* queue.claim()
        yield* transaction(job?.ack ?? Effect.void)
        expect(yield* queue.setPriority({ state: "ready" }, 5)).toEqual(changed(1))
      })
    )

    it.effect("finds a schedule's job that was triggered in a transaction (G147)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const schedule = Schedules.make(freshName("hourly"), { every: "1 hour", queue, payload: 1, ...same })
        yield* Schedules.put(schedule)
        yield* transaction(Schedules.trigger(schedule.name))
        expect(yield* queue.cancelMany({ state: "ready" })).toEqual(cancelled(1))
      })
    )

    it.effect("of what is ready does not reach, page by page, what that frees (G147)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        for (const _ of ["firsts", "those behind them"])
          yield* queue.enqueueMany(many, (n) => ({ orderingKey: `key ${n}` }))
        expect(yield* queue.cancelMany({ state: "ready" })).toEqual(cancelled(1_200))
        expect(yield* liveRows(queue)).toHaveLength(1_200)
      })
    )

    it.effect("changes all of many pages, once (G147, G156)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(many)
        expect(yield* queue.setPriority({ state: "ready" }, 3)).toEqual(changed(1_200))
        expect(yield* queue.reschedule({ state: "ready" }, { delay: "1 hour" })).toEqual(changed(1_200))
        expect(yield* queue.runNow({ state: "delayed" })).toEqual(changed(1_200))
      })
    )
  })
})
