/** Cadences: how long the waits are, and whether they end. */
import { Chunk, Duration, Effect, Fiber, Option, Random, Schedule, TestClock, TestContext } from "effect"
import fc from "fast-check"
import { describe, expect, test } from "vitest"
import { heartbeat, marginMillis } from "../../src/schedule/Heartbeat.js"
import { schedulerLook, sweep } from "../../src/schedule/Maintenance.js"
import {
  busyRetry,
  conflictRetry,
  eventLooks,
  longestSleepMillis,
  longSleep,
  outageRetry,
  restMillis,
  sleepMillis
} from "../../src/schedule/Polling.js"
import { reconnect } from "../../src/schedule/Reconnect.js"
import { lockRenewal, renewalRetry } from "../../src/schedule/Renewal.js"
import { seed } from "../support/form.js"

/** The first delays of a Schedule whose steps take no time themselves; fewer if it ends. */
const delays = (schedule: Schedule.Schedule<unknown>, count: number, seed: unknown = 1): ReadonlyArray<number> =>
  Effect.runSync(
    Effect.map(
      Schedule.run(Schedule.delays(schedule), 0, Array.from({ length: count })).pipe(
        Effect.withRandom(Random.make(seed))
      ),
      (chunk) => Chunk.toReadonlyArray(chunk).map(Duration.toMillis)
    )
  )

describe("Heartbeat", () => {
  test("beats every third of the visibility timeout: two beats may be lost (G30)", () => {
    expect(delays(heartbeat(30_000), 4)).toEqual([10_000, 10_000, 10_000, 10_000])
  })

  test("two beats and the margin fit into every lease (G33)", () => {
    fc.assert(
      fc.property(fc.integer({ min: 300, max: 86_400_000 }), (visibility) => {
        const margin = marginMillis(visibility)
        expect(margin).toBeGreaterThanOrEqual(50)
        expect(margin).toBeLessThanOrEqual(5_000)
        expect((2 * visibility) / 3 + margin).toBeLessThan(visibility)
      }),
      { seed }
    )
  })

  test("a renewal that failed is tried again within its lease, not more than ten times a second", () => {
    expect(delays(renewalRetry(30_000), 3)).toEqual([1_500, 1_500, 1_500])
    expect(delays(renewalRetry(500), 2)).toEqual([100, 100])
    expect(delays(lockRenewal(30_000), 2)).toEqual([10_000, 10_000])
  })

  test("and not after it: others have been claimed by then", () =>
    Effect.runPromise(
      Effect.gen(function* () {
        const renewal = yield* Effect.fork(Effect.retry(Effect.fail("no"), renewalRetry(30_000)))
        yield* TestClock.adjust("29 seconds")
        expect(yield* Fiber.poll(renewal)).toEqual(Option.none())
        yield* TestClock.adjust("3 seconds")
        expect(Option.isSome(yield* Fiber.poll(renewal))).toBe(true)
      }).pipe(Effect.provide(TestContext.TestContext))
    ))
})

describe("Polling", () => {
  test("a long sleep is as long as it is to be, in parts that fit into a timer (G58, G70, G131)", () =>
    Effect.gen(function* () {
      const days = 86_400_000
      const fiber = yield* Effect.fork(longSleep(3 * days + 5))
      yield* TestClock.adjust(3 * days + 4)
      expect(yield* Fiber.poll(fiber)).toEqual(Option.none())
      yield* TestClock.adjust(1)
      expect(yield* Fiber.join(fiber)).toBeUndefined()
    }).pipe(Effect.provide(TestContext.TestContext), Effect.runPromise))

  test("a sleep is whole, at least 1 ms, and fits into a timer", () => {
    expect(sleepMillis(-5)).toBe(1)
    expect(sleepMillis(0.2)).toBe(1)
    expect(sleepMillis(1_000.4)).toBe(1_001)
    expect(sleepMillis(Number.POSITIVE_INFINITY)).toBe(longestSleepMillis)
    expect(longestSleepMillis).toBeLessThan(2 ** 31)
  })

  test("who is woken rests for longer, unless it knows of something that no wake tells of (G58, G59)", () => {
    const often = { pollInterval: Duration.seconds(5) }
    const wake = { ...often, liveInterval: Duration.minutes(1) }
    expect(restMillis(wake, { _tag: "Live" }, false)).toBe(60_000)
    expect(restMillis(wake, { _tag: "Live" }, true)).toBe(5_000)
    expect(restMillis(wake, { _tag: "Degraded", reason: "" }, false)).toBe(5_000)
    expect(restMillis(often, { _tag: "Live" }, false)).toBe(5_000)
    expect(restMillis({ ...wake, pollInterval: Duration.minutes(2) }, { _tag: "Live" }, false)).toBe(120_000)
  })

  test("an outage is waited out without end: soon at first, at most 6 s apart, never in step (G75)", () => {
    const first = delays(outageRetry, 100)
    expect(first).toHaveLength(100)
    expect(first[0]).toBeLessThanOrEqual(120)
    expect(Math.max(...first)).toBeLessThanOrEqual(6_000)
    expect(first[50]).toBeGreaterThanOrEqual(4_000)
    expect(delays(outageRetry, 100, 2)).not.toEqual(first)
  })

  test("a conflict is retried five times, soon", () => {
    // The run of a Schedule ends with one more delay, of 0
    expect(delays(conflictRetry, 20).slice(0, -1)).toHaveLength(5)
    expect(Math.max(...delays(conflictRetry, 20))).toBeLessThanOrEqual(100)
  })

  test("a busy database is asked again after a few milliseconds, later every 50", () => {
    const waits = delays(busyRetry("5 seconds"), 20)
    expect(waits[0]).toBeLessThanOrEqual(2)
    expect(Math.max(...waits)).toBeLessThanOrEqual(60)
  })

  test("after a file event: looks after 1 and 4 ms, then no more", () => {
    expect(eventLooks).toEqual([1, 3])
  })
})

describe("Reconnect and Maintenance", () => {
  test("a connection is sought without end, at most 6 s apart, never in step", () => {
    const first = delays(reconnect, 50)
    expect(first).toHaveLength(50)
    expect(first[0]).toBeLessThanOrEqual(60)
    expect(Math.max(...first)).toBeLessThanOrEqual(6_000)
    expect(delays(reconnect, 50, 2)).not.toEqual(first)
  })

  test("sweeps are about 15 s apart and do not march in step", () => {
    const first = delays(sweep, 20)
    expect(Math.min(...first)).toBeGreaterThanOrEqual(12_000)
    expect(Math.max(...first)).toBeLessThanOrEqual(18_000)
    expect(new Set(first).size).toBeGreaterThan(10)
  })

  test("a scheduler looks once in a minute where wakes arrive, and as often as the poll where none do", () => {
    const poll = Duration.seconds(5)
    expect(schedulerLook({ _tag: "Live" }, poll)).toBe(60_000)
    expect(schedulerLook({ _tag: "Live" }, Duration.minutes(2))).toBe(120_000)
    expect(schedulerLook({ _tag: "Degraded", reason: "" }, poll)).toBe(5_000)
    expect(schedulerLook({ _tag: "PollOnly", reason: "" }, poll)).toBe(5_000)
  })
})
