import { Duration, Either } from "effect"
import { describe, expect, test } from "vitest"
import { checkPolicy, type PolicyOptions } from "../../src/workers/policy.js"

describe("a worker's policy", () => {
  test("has defaults for all", () => {
    expect(Either.getOrThrow(checkPolicy({}))).toMatchObject({
      concurrency: 10,
      maxPrefetch: 500,
      visibilityMillis: 30_000,
      marginMillis: 3_000,
      timeoutMillis: 3_600_000,
      stuckMillis: 10_000,
      graceMillis: 25_000
    })
  })

  test("of a transactional worker is another where an open transaction is the only writer (G123)", () => {
    const transactional = { transactional: true, concurrency: 8, visibilityTimeout: "30 seconds" } as const
    expect(Either.getOrThrow(checkPolicy(transactional))).toMatchObject({ concurrency: 8, timeoutMillis: 3_600_000 })
    expect(Either.getOrThrow(checkPolicy(transactional, true))).toMatchObject({ concurrency: 1, timeoutMillis: 10_000 })
    expect(Either.isRight(checkPolicy({ ...transactional, timeout: "10 seconds" }, true))).toBe(true)
    const longer = checkPolicy({ ...transactional, timeout: 10_001 }, true)
    expect(longer).toMatchObject({ left: { _tag: "InvalidArgument", argument: "timeout" } })
    expect(Either.isRight(checkPolicy({ timeout: "1 hour" }, true))).toBe(true)
  })

  test("takes options that are undefined as not given", () => {
    const none = { concurrency: undefined, visibilityTimeout: undefined, heartbeat: undefined, retry: undefined }
    expect(Either.getOrThrow(checkPolicy(none))).toMatchObject({ concurrency: 10, visibilityMillis: 30_000 })
  })

  test("the bounds themselves are allowed", () => {
    const least = { concurrency: 1, prefetch: 0, visibilityTimeout: 100, timeout: 1, stuckAfter: 0, shutdownGrace: 0 }
    expect(Either.getOrThrow(checkPolicy(least))).toMatchObject({ marginMillis: 50, graceMillis: 0, stuckMillis: 0 })
    const most = { concurrency: 10_000, prefetch: 10_000, visibilityTimeout: "1 day", timeout: "366 days" } as const
    expect(Either.getOrThrow(checkPolicy(most))).toMatchObject({ marginMillis: 5_000 })
  })

  test.each<readonly [keyof PolicyOptions<never>, unknown]>([
    ["concurrency", 0],
    ["concurrency", 10_001],
    ["concurrency", "10"],
    ["prefetch", -1],
    ["prefetch", 0.5],
    ["visibilityTimeout", 99],
    ["visibilityTimeout", Duration.infinity],
    ["timeout", 0],
    ["timeout", Duration.infinity],
    ["stuckAfter", "-1 millis"],
    ["shutdownGrace", Number.NaN],
    ["name", ""],
    ["name", "a\u0000"],
    ["name", "\ud800"],
    ["name", "x".repeat(513)]
  ])("%s: %s is refused (G6)", (argument, value) => {
    const checked = checkPolicy({ [argument]: value } as PolicyOptions<never>)
    expect(Either.getOrThrow(Either.flip(checked))).toMatchObject({ _tag: "InvalidArgument", argument })
  })
})
