import { DateTime, Duration, Either } from "effect"
import fc from "fast-check"
import { describe, expect, test } from "vitest"
import {
  checkDuration,
  checkHeaders,
  checkInstant,
  checkInteger,
  checkKey,
  checkPrefix,
  checkQueueName,
  checkSchema,
  maxInstant
} from "../../src/services/input.js"
import { seed } from "../support/form.js"

const right = Either.getOrUndefined
const left = <A, E>(checked: Either.Either<A, E>) => Either.getOrUndefined(Either.flip(checked))

const hostile = [
  undefined,
  null,
  1,
  Number.NaN,
  1n,
  Symbol("s"),
  {},
  [],
  () => 1,
  new Proxy(
    {},
    {
      get: () => {
        throw new Error("get")
      }
    }
  )
]

describe("names and keys", () => {
  test("queue names are 1 to 128 of the allowed characters (G6)", () => {
    for (const name of ["a", "A-z_0.9:/", "x".repeat(128)]) expect(right(checkQueueName(name))).toBe(name)
    for (const name of ["", "x".repeat(129), "a b", "ä", "a\n", "a\u0000", "a;--", 'a"', ...hostile]) {
      expect(left(checkQueueName(name))).toMatchObject({ _tag: "InvalidArgument", argument: "queue name" })
    }
  })

  test("keys are 1 to 512 bytes of well-formed text without NUL (G6)", () => {
    for (const key of ["a", " ", "ü".repeat(256), "😀"]) expect(right(checkKey("key", key))).toBe(key)
    for (const key of ["", "ü".repeat(257), "a\u0000", "\ud800", ...hostile]) {
      expect(left(checkKey("key", key))).toMatchObject({ _tag: "InvalidArgument", argument: "key" })
    }
  })

  test("namespaces become identifiers", () => {
    expect(right(checkPrefix("app_1_"))).toBe("app_1_")
    for (const prefix of ["", "a-b", "a;", 'a"', "x".repeat(65), ...hostile])
      expect(left(checkPrefix(prefix))).toBeDefined()
    expect(right(checkSchema('my "schema"'))).toBe('my "schema"')
    for (const schema of ["", "pg_catalog", "a\u0000", "\ud800", "x".repeat(53), ...hostile]) {
      expect(left(checkSchema(schema))).toBeDefined()
    }
  })
})

describe("numbers", () => {
  test("whole ones, within bounds", () => {
    fc.assert(
      fc.property(fc.oneof(fc.integer(), fc.double()), (value) => {
        const fits = Number.isInteger(value) && value >= -5 && value <= 5
        expect(right(checkInteger("n", value, -5, 5))).toBe(fits ? value : undefined)
      }),
      { seed }
    )
    for (const value of ["1", ...hostile.filter((one) => one !== 1)]) {
      expect(left(checkInteger("n", value, 0, 5))).toMatchObject({ argument: "n" })
    }
  })

  test("durations are whole milliseconds, rounded up", () => {
    expect(right(checkDuration("d", "10 seconds"))).toBe(10_000)
    expect(right(checkDuration("d", 0.1))).toBe(1)
    expect(right(checkDuration("d", Duration.micros(1_500n)))).toBe(2)
    expect(right(checkDuration("d", 1_500_000n))).toBe(2)
    expect(right(checkDuration("d", 0))).toBe(0)
    fc.assert(
      fc.property(fc.integer({ min: 0, max: maxInstant }), (millis) => {
        expect(right(checkDuration("d", millis))).toBe(millis)
        expect(right(checkDuration("d", Duration.millis(millis)))).toBe(millis)
        expect(right(checkDuration("d", `${millis} millis`))).toBe(millis)
      }),
      { seed }
    )
  })

  test.each([
    -1,
    -0.5,
    -1n,
    "-1 seconds",
    " -5 minutes",
    [-1, 0],
    Number.NaN,
    Number.POSITIVE_INFINITY,
    Duration.infinity,
    maxInstant + 1,
    "soon",
    "10",
    "",
    {},
    null,
    undefined,
    new Date()
  ])("no duration: %s (G6)", (input) => {
    expect(left(checkDuration("delay", input))).toMatchObject({ _tag: "InvalidArgument", argument: "delay" })
  })

  test("durations out of their range are refused, and the message says the range (G6)", () => {
    const checked = left(checkDuration("d", 99, { min: 100, max: 200 }))
    expect(checked?.message).toContain("100 ms and 200 ms")
    expect(right(checkDuration("d", 100, { min: 100, max: 200 }))).toBe(100)
    expect(left(checkDuration("d", 201, { min: 100, max: 200 }))).toBeDefined()
  })

  test("instants: valid dates up to the year 9999 (G6)", () => {
    expect(right(checkInstant("runAt", new Date(5)))).toBe(5)
    expect(right(checkInstant("runAt", DateTime.unsafeMake(5)))).toBe(5)
    expect(right(checkInstant("runAt", new Date(-5)))).toBe(-5)
    expect(right(checkInstant("runAt", new Date(maxInstant)))).toBe(maxInstant)
    for (const bad of [new Date(Number.NaN), new Date(maxInstant + 1), { epochMillis: "1" }, "2030-01-01", 5]) {
      expect(left(checkInstant("runAt", bad))).toMatchObject({ argument: "runAt" })
    }
  })
})

describe("headers", () => {
  test("a map of strings of at most 16 KiB (G6)", () => {
    expect(right(checkHeaders({ a: "1", b: "" }))).toBe('{"a":"1","b":""}')
    expect(right(checkHeaders({}))).toBeNull()
    expect(right(checkHeaders(undefined))).toBeNull()
    expect(right(checkHeaders({ a: "x".repeat(16 * 1024 - 8) }))).toBeDefined()
    for (const bad of [{ a: "x".repeat(16 * 1024) }, { a: 1 }, { a: undefined }, ["a"], "a", 1, null]) {
      expect(left(checkHeaders(bad))).toMatchObject({ argument: "headers" })
    }
  })

  test("any map of strings comes back as it was", () => {
    fc.assert(
      fc.property(fc.dictionary(fc.string({ unit: "binary" }), fc.string({ unit: "binary" })), (headers) => {
        const text = right(checkHeaders(headers))
        if (typeof text === "string")
          expect(new Map(Object.entries(JSON.parse(text)))).toEqual(new Map(Object.entries(headers)))
      }),
      { seed }
    )
  })

  test("a Proxy that answers otherwise the second time does not get past the check", () => {
    let asked = 0
    const sly = new Proxy(
      { a: "fine" },
      { get: (target, name) => (name === "a" && asked++ > 0 ? 1 : Reflect.get(target, name)) }
    )
    const text = right(checkHeaders(sly))
    expect(text).toBe('{"a":"fine"}')
  })
})
