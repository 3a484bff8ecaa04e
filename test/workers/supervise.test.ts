import { it } from "@effect/vitest"
import { Deferred, Effect, Exit, Fiber, TestClock } from "effect"
import { describe, expect } from "vitest"
import { supervise } from "../../src/workers/supervise.js"

/** A loop that dies as often as told, then waits for ever. */
const dying = (defects: ReadonlyArray<unknown>) => {
  const seen = { starts: 0, told: [] as Array<string> }
  const loop = Effect.suspend(() => {
    const n = seen.starts++
    return n < defects.length ? Effect.die(defects[n]) : Effect.never
  })
  return { seen, supervised: supervise("loop", loop, (_, reason) => void seen.told.push(reason)) }
}

const throwing = new Proxy(
  {},
  {
    get: () => {
      throw new Error("get")
    }
  }
)

describe("a supervised loop", () => {
  it.effect("is started again when it dies, whatever of, and it is told (G74)", () =>
    Effect.gen(function* () {
      const { seen, supervised } = dying([new Error("boom"), null, throwing, "text"])
      const fiber = yield* Effect.fork(supervised)
      yield* TestClock.adjust("1 minute")
      expect(seen.starts).toBe(5)
      expect(seen.told).toHaveLength(4)
      expect(seen.told[0]).toContain("boom")
      expect(yield* Fiber.poll(fiber)).toMatchObject({ _tag: "None" })
      yield* Fiber.interrupt(fiber)
    })
  )

  it.effect("that dies at once every time is not a hot loop, and never given up (G74)", () =>
    Effect.gen(function* () {
      const { seen, supervised } = dying(Array.from({ length: 10_000 }, () => "boom"))
      const fiber = yield* Effect.fork(supervised)
      yield* TestClock.adjust("1 second")
      expect(seen.starts).toBeLessThan(10)
      yield* TestClock.adjust("10 minutes")
      expect(seen.starts).toBeGreaterThan(90)
      expect(seen.starts).toBeLessThan(250)
      yield* Fiber.interrupt(fiber)
    })
  )

  it.effect("ends when it is interrupted, and that is not told as a death", () =>
    Effect.gen(function* () {
      const started = yield* Deferred.make<void>()
      const told: Array<string> = []
      const loop = Effect.zipRight(Deferred.succeed(started, undefined), Effect.never)
      const fiber = yield* Effect.fork(supervise("loop", loop, (_, reason) => void told.push(reason)))
      yield* Deferred.await(started)
      expect(Exit.isInterrupted(yield* Fiber.interrupt(fiber))).toBe(true)
      expect(told).toEqual([])
    })
  )
})
