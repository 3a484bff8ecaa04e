/** Who is told of an event loop that stood still. */
import { layer } from "@effect/vitest"
import { Queue, type Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Schema } from "effect"
import { expect } from "vitest"
import { observe, until } from "../conformance/workerSupport.js"

/** Holds up this process. */
const block = (millis: number) =>
  Effect.sync(() => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, millis))

layer(Sqlite.layerFile(":memory:"), { excludeTestServices: true })("an event loop that stood still", (it) => {
  it.effect("is told with the jobs at hand; a worker that was not there yet is not told (G78)", () =>
    Effect.gen(function* () {
      const queue = Queue.make("blocking", { payload: Schema.Number })
      const policy: Worker.Options<number, never, never> = {
        handler: (job) => Effect.zipRight(block(job.payload), Effect.sleep("2 seconds")),
        visibilityTimeout: "2500 millis"
      }
      const { of } = yield* observe(queue, policy)
      yield* queue.enqueue(1_600)
      yield* until("it is told", () => of("EventLoopBlocked").length === 1)
      expect(of("EventLoopBlocked")[0]?.millis).toBeGreaterThanOrEqual(1_000)
      expect(of("EventLoopBlocked")[0]?.jobs).toHaveLength(1)

      const later = Queue.make("later", { payload: Schema.Number })
      const newcomer = yield* observe(later, policy)
      yield* later.enqueue(0)
      yield* until("it beats", () => newcomer.of("Acked").length === 1)
      expect(newcomer.of("EventLoopBlocked").filter(({ millis }) => millis >= 1_500)).toEqual([])
    })
  )
})
