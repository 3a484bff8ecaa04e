/** What one handler does to its fiber, and the next, which may run in the same one. */
import { SqlClient } from "@effect/sql"
import { Cause, Effect, FiberRef, HashMap, RuntimeFlags, RuntimeFlagsPatch } from "effect"
import { expect } from "vitest"
import { freshQueue, live, type Suite } from "./support.js"
import { eventually, numbers, observe, until } from "./workerSupport.js"

/** Ends when the fiber has been interrupted, whether it can be or not. */
const interrupted = eventually(
  "the interrupt",
  FiberRef.get(FiberRef.interruptedCause),
  (cause) => !Cause.isEmpty(cause)
)

export const workerIsolationSuite: Suite = (engine, options) => {
  live(engine, options, "a handler and the next", (it) => {
    it.effect("share a fiber while they leave nothing behind; what they set is not seen by the next (G194)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const own = FiberRef.unsafeMake("nobody's")
        const seen: Array<object> = []
        const fibers = new Set<unknown>()
        const { worker } = yield* observe(queue, {
          concurrency: 1,
          handler: (job) =>
            Effect.gen(function* () {
              const annotations = yield* Effect.logAnnotations
              const value = yield* FiberRef.get(own)
              const flags = yield* Effect.getRuntimeFlags

              fibers.add(yield* Effect.fiberId)
              seen.push({
                value,
                yields: RuntimeFlags.isEnabled(flags, RuntimeFlags.CooperativeYielding),
                itself: HashMap.unsafeGet(annotations, "job") === job.id
              })
              yield* FiberRef.set(own, "somebody's")
              if (job.payload === 5)
                yield* Effect.patchRuntimeFlags(RuntimeFlagsPatch.disable(RuntimeFlags.CooperativeYielding))
            })
        })
        yield* queue.enqueueMany(numbers(20))
        yield* until("all have run", () => seen.length === 20)
        expect(seen).toEqual(Array(20).fill({ value: "nobody's", yields: true, itself: true }))
        expect(fibers.size).toBeLessThan(20)
        yield* until("all are acked", () => Effect.runSync(worker.status).acked === 20)
      })
    )

    it.effect("end on their own: children and finalizers with the job that made them (G194)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const order: Array<string> = []
        const note = (what: string) => Effect.sync(() => void order.push(what))
        const children = () => order.filter((what) => what.startsWith("child"))
        const { of } = yield* observe(queue, {
          concurrency: 1,
          handler: ({ payload }) =>
            Effect.gen(function* () {
              yield* note(`${payload} begins`)
              yield* Effect.addFinalizer(() => note(`${payload} finalized`))
              if (Number(payload) % 2 === 0) {
                yield* Effect.fork(Effect.onInterrupt(Effect.never, () => note(`child of ${payload} ended`)))
                // So that the child has begun
                yield* Effect.yieldNow()
              }
              // While the worker goes on, not when it is done
              if (payload === 5) yield* until("the children have ended", () => children().length === 3)
            })
        })
        yield* queue.enqueueMany(numbers(6))
        yield* until("all are acked", () => of("Acked").length === 6)
        const own = order.filter((what) => !what.startsWith("child"))
        expect(own).toEqual(numbers(6).flatMap((n) => [`${n} begins`, `${n} finalized`]))
        expect(children()).toEqual([0, 2, 4].map((n) => `child of ${n} ended`))
      })
    )

    it.effect("are not interrupted for each other (G194)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const sql = yield* SqlClient.SqlClient
        const started: Array<unknown> = []
        const { of } = yield* observe(queue, {
          concurrency: 1,
          // One loses its lease, and cannot be interrupted, while others wait for its slot
          handler: ({ heartbeat, id, payload }) =>
            Effect.gen(function* () {
              started.push(payload)
              if (payload !== 5) return yield* Effect.sleep(1)
              yield* sql.unsafe(`DELETE FROM ${engine.table("jobs")} WHERE id = ${id}`)
              yield* heartbeat(1)
              yield* Effect.uninterruptible(interrupted)
            })
        })
        yield* queue.enqueueMany(numbers(12))
        yield* until("the others are acked", () => of("Acked").length === 11)
        expect(started).toEqual(numbers(12))
        expect(of("LeaseLost")).toHaveLength(1)
        expect(of("Acked").every(({ job }) => job.attempt === 1)).toBe(true)
      })
    )
  })
}
