/** A handler that holds up the whole process is told of. */
import { Queue, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Fiber, Schema, Stream } from "effect"
import { expect, test } from "vitest"
import { makeClock } from "../../src/layers/Clock/ProcessClock.js"

const Letters = Queue.make("letters", { payload: Schema.String })

const block = (millis: number) =>
  Effect.sync(() => {
    const end = performance.now() + millis
    while (performance.now() < end);
  })

test("G78 an event loop that stood still is reported, with the jobs at hand", async () => {
  const program = Effect.gen(function* () {
    const worker = yield* Worker.make(Letters, {
      // Something must hold a lease when the next beat looks
      handler: ({ payload }) => (payload === "blocks" ? block(1_500) : Effect.never),
      visibilityTimeout: "6 seconds",
      shutdownGrace: 0
    })
    const told = yield* worker.events.pipe(
      Stream.filter((event) => event._tag === "EventLoopBlocked"),
      Stream.runHead,
      Effect.timeout("20 seconds"),
      Effect.fork
    )
    const receipts = yield* Letters.enqueueMany(["waits", "blocks"])
    const event = yield* Effect.flatten(Fiber.join(told))
    return { event, ids: receipts.map(({ id }) => id) }
  }).pipe(Effect.scoped)
  const { event, ids } = await Effect.runPromise(Effect.provide(program, Sqlite.layerFile(":memory:")))
  expect(event.millis).toBeGreaterThanOrEqual(1_000)
  expect(event.jobs.map(({ jobId }) => jobId).sort()).toEqual(ids)
})

test("G78 also one that begins when a look is about to be taken, and ends before the timers that measure have run", async () => {
  const program = Effect.gen(function* () {
    const clock = yield* makeClock("process")
    // As soon as this fiber waits
    queueMicrotask(() => Effect.runSync(block(1_500)))
    return yield* clock.stall(0)
  })
  expect((await Effect.runPromise(Effect.scoped(program))).millis).toBeGreaterThanOrEqual(1_000)
})
