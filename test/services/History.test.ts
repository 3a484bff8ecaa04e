import { Cause } from "effect"
import fc from "fast-check"
import { describe, expect, test } from "vitest"
import {
  crashedHistory,
  errorsOf,
  failedHistory,
  failureTimesOf,
  type History,
  jobError,
  maxErrors,
  sameHistory
} from "../../src/services/History.js"
import { describe as describeError } from "../../src/services/Job.js"
import { seed } from "../support/form.js"

const none: History = { crashes: 0, failures: 0, errors: null, failureTimes: null }

const errorAt = (at: number) => jobError({ at, attempt: at, kind: "failure", error: `error ${at}` })

const history = (failures: number): History => {
  let row = none
  for (let n = 1; n <= failures; n++) row = failedHistory(row, errorAt(n))
  return row
}

const throwing = new Proxy(
  {},
  {
    get: () => {
      throw new Error("get")
    },
    getPrototypeOf: () => {
      throw new Error("getPrototypeOf")
    }
  }
)

describe("a stored error", () => {
  const hostile: ReadonlyArray<readonly [string, unknown]> = [
    ["null", null],
    ["undefined", undefined],
    ["a Symbol", Symbol("s")],
    ["a BigInt", 10n],
    ["a function", () => 1],
    ["a Proxy whose traps throw", throwing],
    ["an object without a prototype", Object.create(null)],
    ["a circular object", Object.assign([], { 0: [] as Array<unknown> })],
    ["an Error without a message", new Error()],
    ["an Error whose message is an object", Object.assign(new Error(), { message: {} })],
    ["50 MB", "x".repeat(50 * 1024 * 1024)],
    ["nothing but control characters", "\u0001".repeat(10_000)],
    ["nothing but NUL", "\u0000".repeat(10_000)],
    ["nothing but lone surrogates", "\ud800".repeat(10_000)],
    ["pairs cut in the middle", "😀".repeat(10_000)]
  ]

  test.each(hostile)("%s is at most 8 KiB of text that any database takes (G49)", (_, error) => {
    const stored = jobError({ at: 1, attempt: 1, kind: "defect", error, cause: Cause.die(error) })
    const text = JSON.stringify(stored)
    expect(Buffer.byteLength(text)).toBeLessThanOrEqual(8 * 1024)
    expect(JSON.parse(text)).toEqual(stored)
    expect(text).not.toMatch(/\\u0000|\\ud[89ab]/)
  })

  test("any value at all can be stored (G49)", () => {
    const anything = fc.anything({
      withBigInt: true,
      withDate: true,
      withMap: true,
      withNullPrototype: true,
      withSet: true,
      withSparseArray: true
    })
    fc.assert(
      fc.property(fc.oneof(anything, fc.string({ unit: "binary" })), (error) => {
        const stored = jobError({ at: 1, attempt: 1, kind: "failure", error, cause: Cause.fail(error) })
        expect(JSON.parse(JSON.stringify(stored))).toEqual(stored)
        expect(describeError(error)).toBeTypeOf("string")
      }),
      { seed }
    )
  })

  test("has the tag or the name of what was thrown", () => {
    expect(errorAt(1)).not.toHaveProperty("tag")
    const tagOf = (error: unknown) => jobError({ at: 1, attempt: 1, kind: "failure", error }).tag
    expect(tagOf({ _tag: "RateLimited" })).toBe("RateLimited")
    expect(tagOf(new TypeError("no"))).toBe("TypeError")
    expect(tagOf({ _tag: 1 })).toBeUndefined()
  })
})

describe("the history of a job", () => {
  test("keeps the last ten errors, oldest first (G49)", () => {
    const errors = errorsOf(history(25))
    expect(errors).toHaveLength(maxErrors)
    expect(errors.map(({ at }) => at)).toEqual([16, 17, 18, 19, 20, 21, 22, 23, 24, 25])
  })

  test("keeps the time of the first failure and of the latest, and counts them all (G45)", () => {
    const row = history(300)
    const times = failureTimesOf(row)
    expect(row.failures).toBe(300)
    expect(times[0]).toBe(1)
    expect(times.at(-1)).toBe(300)
    expect(times.length).toBeLessThanOrEqual(100)
    expect([...times].sort((a, b) => a - b)).toEqual(times)
    expect(failureTimesOf(history(3))).toEqual([1, 2, 3])
  })

  test("a crash is counted apart, and is no failure", () => {
    const row = crashedHistory(history(2), errorAt(9))
    expect(row).toMatchObject({ crashes: 1, failures: 2 })
    expect(failureTimesOf(row)).toEqual([1, 2])
    expect(errorsOf(row).map(({ at }) => at)).toEqual([1, 2, 9])
    expect(sameHistory(row)).toEqual(row)
  })

  test.each(["", "no JSON", "{}", "null", "[1, null, {}]", '"x"'])(
    "what is not readable counts as none: %s",
    (text) => {
      const row = { ...none, errors: text, failureTimes: text === "[1, null, {}]" ? "[null]" : text }
      expect(errorsOf(row)).toEqual([])
      expect(failureTimesOf(row)).toEqual([])
      expect(errorsOf(failedHistory(row, errorAt(5)))).toMatchObject([{ at: 5 }])
    }
  )
})
