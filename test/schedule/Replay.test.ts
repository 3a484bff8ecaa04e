import { Duration, Effect, Option, Random, Schedule } from "effect"
import fc from "fast-check"
import { describe, expect, test } from "vitest"
import { delayMillis } from "../../src/schedule/Replay.js"
import { seed } from "../support/form.js"

const start = 1_700_000_000_000

const replay = <In>(
  schedule: Schedule.Schedule<unknown, In>,
  failures: number,
  options: {
    readonly times?: ReadonlyArray<number>
    readonly now?: number
    readonly input?: In
    readonly seed?: unknown
  } = {}
) =>
  Effect.runSync(
    delayMillis(schedule, {
      failures,
      times: options.times ?? [],
      now: options.now ?? start,
      input: options.input as In
    }).pipe(Effect.withRandom(Random.make(options.seed ?? 1)), Effect.map(Option.getOrUndefined))
  )

describe("a replayed Schedule", () => {
  test("gives its n-th delay at the n-th failure (G45)", () => {
    const delays = Schedule.fromDelays("1 second", "5 seconds", "1 minute")
    expect([1, 2, 3, 4].map((n) => replay(delays, n))).toEqual([1_000, 5_000, 60_000, undefined])
    expect([1, 2, 3, 9].map((n) => replay(Schedule.fibonacci("1 second"), n))).toEqual([1_000, 1_000, 2_000, 34_000])
  })

  test("is none once it has ended, and not a delay of 0 (G46)", () => {
    expect(replay(Schedule.stop, 1)).toBeUndefined()
    expect(replay(Schedule.recurs(3), 3)).toBe(0)
    expect([4, 5, 2_000].map((n) => replay(Schedule.recurs(3), n))).toEqual([undefined, undefined, undefined])
  })

  test("elapsed time is real time since the first failure, also across restarts (G45)", () => {
    const policy = Schedule.spaced("1 minute").pipe(Schedule.upTo("1 hour"))
    const minutes = (n: number) => start + n * 60_000
    expect(replay(policy, 3, { times: [minutes(0), minutes(1)], now: minutes(59) })).toBe(60_000)
    expect(replay(policy, 3, { times: [minutes(0), minutes(1)], now: minutes(61) })).toBeUndefined()
    // A hundred failures in as many seconds have not used up the hour
    const quick = Array.from({ length: 99 }, (_, n) => start + n * 1_000)
    expect(replay(policy, 100, { times: quick, now: start + 100_000 })).toBe(60_000)
  })

  test("when only the latest times and the first are kept, elapsed time still begins at the first (G45)", () => {
    const policy = Schedule.spaced("1 minute").pipe(Schedule.upTo("1 hour"))
    const kept = [start, ...Array.from({ length: 99 }, (_, n) => start + (n + 200) * 10_000)]
    expect(replay(policy, 300, { times: kept, now: start + 3_000_000 })).toBe(60_000)
    expect(replay(policy, 300, { times: kept, now: start + 3_700_000 })).toBeUndefined()
  })

  test("resetAfter, and other things of time, see the times of the failures", () => {
    const policy = Schedule.exponential("1 second").pipe(Schedule.resetAfter("1 hour"))
    const soon = [start, start + 2_000, start + 5_000]
    expect(replay(policy, 4, { times: soon, now: start + 10_000 })).toBe(8_000)
    expect(replay(policy, 4, { times: soon, now: start + 7_300_000 })).toBe(1_000)
  })

  test("a cron finds its next boundary from now", () => {
    const hourly = Schedule.cron("0 * * * *", "UTC")
    const now = Date.UTC(2030, 0, 1, 12, 20)
    expect(replay(hourly, 3, { times: [now - 7_200_000, now - 3_600_000], now })).toBe(40 * 60_000)
  })

  test("its input is the failure: a policy can stop early (G46)", () => {
    const policy = Schedule.spaced("1 second").pipe(Schedule.whileInput((error: string) => error !== "hopeless"))
    expect(replay(policy, 3, { input: "passing" })).toBe(1_000)
    expect(replay(policy, 3, { input: "hopeless" })).toBeUndefined()
  })

  test("jitter is drawn in the last step only", () => {
    const shares: Array<number> = []
    const spy = Schedule.forever.pipe(
      Schedule.addDelayEffect(() => Effect.map(Random.next, (share) => Duration.millis(shares.push(share))))
    )
    replay(spy, 6, { seed: 42 })
    expect(shares.slice(0, 5)).toEqual([0.5, 0.5, 0.5, 0.5, 0.5])
    expect(shares[5]).not.toBe(0.5)
  })

  test("whatever overflows is a long delay, not none and not 0", () => {
    for (let n = 30; n <= 2_000; n += 17) {
      const delay = replay(Schedule.exponential("1 second"), n) as number
      expect(delay).toBeGreaterThan(86_400_000)
      expect(delay).toBeLessThanOrEqual(366 * 86_400_000)
    }
    expect(replay(Schedule.spaced(Duration.infinity), 1)).toBe(366 * 86_400_000)
  })

  test("a clock that went backwards gives no negative delay", () => {
    const policy = Schedule.exponential("1 second").pipe(Schedule.upTo("1 day"))
    const times = [start + 5_000_000, start + 9_000_000, start]
    expect(replay(policy, 4, { times, now: start })).toBe(8_000)
  })

  test("any times, any number of failures: a delay within bounds, or none, and always the same", () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 0, max: 4_000_000_000_000 }), { maxLength: 100 }),
        fc.integer({ min: 1, max: 1_500 }),
        fc.constantFrom<Schedule.Schedule<unknown>>(
          Schedule.exponential("1 second"),
          Schedule.fibonacci("1 day"),
          Schedule.spaced(0),
          Schedule.fixed("1 minute"),
          Schedule.recurs(20),
          Schedule.jittered(Schedule.linear("3 seconds")),
          Schedule.upTo(Schedule.spaced("1 minute"), "1 day")
        ),
        (times, failures, schedule) => {
          const delay = replay(schedule, failures, { times, now: start })
          if (delay !== undefined) {
            expect(Number.isInteger(delay)).toBe(true)
            expect(delay).toBeGreaterThanOrEqual(0)
            expect(delay).toBeLessThanOrEqual(366 * 86_400_000)
          }
          expect(replay(schedule, failures, { times, now: start })).toBe(delay)
        }
      ),
      { seed, numRuns: 200 }
    )
  })
})
