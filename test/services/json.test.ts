import { Either, Schema } from "effect"
import fc from "fast-check"
import { describe, expect, test } from "vitest"
import { maxDepth, parseJson, toJson } from "../../src/services/json.js"
import { seed } from "../support/form.js"

const text = (value: unknown, maxBytes = 1_000_000) => Either.getOrUndefined(toJson(value, maxBytes))
const reason = (value: unknown, maxBytes = 1_000_000) => Either.getOrThrow(Either.flip(toJson(value, maxBytes)))

const nested = (depth: number): unknown => {
  let value: unknown = 1
  for (let n = 0; n < depth; n++) value = [value]
  return value
}

describe("toJson", () => {
  test("takes an instance of a Schema.Class without fields, which encodes to itself, and no other instance", () => {
    class Poll extends Schema.Class<Poll>("Poll")({}) {}
    expect(text(Schema.encodeSync(Poll)(new Poll()))).toBe("{}")
    expect(Schema.decodeUnknownSync(Poll)({})).toBeInstanceOf(Poll)
    expect(reason(new Map())).toContain("Map is not JSON")
    expect(reason(new (class Other {})())).toContain("Other is not JSON")
  })

  test("any JSON comes back as it was (G4)", () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        // In JSON there is one zero
        expect(JSON.stringify(parseJson(text(value)))).toBe(JSON.stringify(value))
      }),
      { seed }
    )
  })

  test("any string of UTF-16 comes back as it was, NUL and lone surrogates too (G4)", () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 0, max: 0xffff })), (units) => {
        const value = String.fromCharCode(...units)
        expect(parseJson(text(value))).toBe(value)
      }),
      { seed }
    )
  })

  test.each<readonly [string, unknown, string]>([
    ["undefined", undefined, "undefined"],
    ["NaN", { a: [Number.NaN] }, "at a.0"],
    ["Infinity", Number.POSITIVE_INFINITY, "Infinity"],
    ["a BigInt", { big: 1n }, "at big: bigint"],
    ["a Symbol", [Symbol("s")], "symbol"],
    ["a function", { f: () => 1 }, "function"],
    ["undefined in an array", [1, undefined], "at 1"],
    ["a hole in an array", Array(2), "at 0"],
    ["a Date", { at: new Date() }, "Date is not JSON"],
    ["a Map", new Map(), "Map is not JSON"],
    ["a class", new (class Money {})(), "Money is not JSON"],
    ["a toJSON method", { toJSON: () => 1 }, "toJSON"],
    [
      "a getter that throws",
      Object.defineProperty({}, "x", {
        enumerable: true,
        get: () => {
          throw new Error("no")
        }
      }),
      "no"
    ],
    [
      "a Proxy whose traps throw",
      new Proxy(
        {},
        {
          getPrototypeOf: () => {
            throw new Error("trap")
          }
        }
      ),
      "trap"
    ]
  ])("refuses %s and says where (G5)", (_, value, what) => {
    expect(reason(value)).toContain(what)
  })

  test("refuses what is circular or too deep, and takes what is just as deep as allowed (G5)", () => {
    const circular: Record<string, unknown> = {}
    circular.self = circular
    expect(reason(circular)).toContain("circular")
    expect(reason(nested(maxDepth + 1))).toContain("nested deeper")
    expect(reason(nested(200_000))).toContain("nested deeper")
    expect(text(nested(maxDepth))).toBeDefined()
  })

  test("counts bytes, not characters (G5)", () => {
    expect(text("ü".repeat(49), 100)).toBeDefined()
    expect(reason("ü".repeat(50), 100)).toContain("102 bytes")
  })

  test("leaves out undefined properties, as JSON does", () => {
    expect(text({ a: undefined, b: 1 })).toBe('{"b":1}')
    expect(text(Object.assign(Object.create(null), { a: 1 }))).toBe('{"a":1}')
  })
})

test("parseJson answers undefined for what is no JSON", () => {
  for (const bad of [null, undefined, "", "{", "undefined", "\u0000"]) expect(parseJson(bad)).toBeUndefined()
})
