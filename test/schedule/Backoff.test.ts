import { Backoff } from "alkstore"
import { Effect, Option, Random } from "effect"
import fc from "fast-check"
import { describe, expect, test } from "vitest"
import { delayMillis } from "../../src/schedule/Replay.js"
import { defaultDelayMillis } from "../../src/services/Settlement.js"
import { seed as first } from "../support/form.js"

const delayAt = (options: Backoff.ExponentialOptions, failures: number, seed: unknown = 1) =>
  Effect.runSync(
    delayMillis(Backoff.exponential(options), { failures, times: [], now: 1_000_000, input: undefined }).pipe(
      Effect.map(Option.getOrThrow),
      Effect.withRandom(Random.make(seed))
    )
  )

describe("Backoff.exponential", () => {
  test("doubles from its base to its cap (G46)", () => {
    const delays = [1, 2, 3, 4, 5, 6].map((n) => delayAt({ base: "1 second", cap: "10 seconds", jitter: 0 }, n))
    expect(delays).toEqual([1_000, 2_000, 4_000, 8_000, 10_000, 10_000])
  })

  test("without jitter, by default, is what job.retry takes", () => {
    for (const n of [1, 2, 5, 17, 18, 30, 100]) expect(delayAt({ jitter: 0 }, n)).toBe(defaultDelayMillis(n))
  })

  test("the cap comes before the jitter: jobs that reached it do not come back as a herd (G46)", () => {
    const delays = Array.from({ length: 200 }, (_, seed) => delayAt({ cap: "1 minute" }, 40, seed))
    expect(Math.min(...delays)).toBeGreaterThanOrEqual(48_000)
    expect(Math.max(...delays)).toBeLessThanOrEqual(72_001)
    expect(Math.max(...delays)).toBeGreaterThan(60_000)
    expect(new Set(delays).size).toBeGreaterThan(100)
  })

  test("every delay lies within the jitter, whatever the options and however many failures", () => {
    const millis = fc.integer({ min: 1, max: 86_400_000 })
    fc.assert(
      fc.property(
        millis,
        millis,
        fc.double({ min: 1, max: 10, noNaN: true }),
        fc.double({ min: 0, max: 1, noNaN: true }),
        fc.integer({ min: 1, max: 3_000 }),
        fc.integer(),
        (base, cap, factor, jitter, failures, seed) => {
          const exact = Math.min(cap, base * factor ** Math.min(failures - 1, 499))
          const delay = delayAt({ base, cap, factor, jitter }, failures, seed)
          expect(delay).toBeGreaterThanOrEqual(Math.floor(exact * (1 - jitter)))
          expect(delay).toBeLessThanOrEqual(Math.ceil(exact * (1 + jitter)) + 1)
        }
      ),
      { seed: first, numRuns: 200 }
    )
  })
})
