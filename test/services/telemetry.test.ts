/** Trace context: what is read, what is written. */
import { Tracer } from "effect"
import { describe, expect, test } from "vitest"
import { carrying, errorType, parseTraceparent, producerOf, traceparentOf } from "../../src/services/telemetry.js"

const traceId = "0af7651916cd43dd8448eb211c80319c"
const spanId = "b7ad6b7169203331"
const text = `00-${traceId}-${spanId}-01`
const external = (ids: Partial<Parameters<typeof Tracer.externalSpan>[0]> = {}) =>
  Tracer.externalSpan({ traceId, spanId, sampled: true, ...ids })

describe("traceparent", () => {
  test("is written and read, sampled or not (G135)", () => {
    expect(traceparentOf(external())).toBe(text)
    expect(traceparentOf(external({ sampled: false }))).toBe(`00-${traceId}-${spanId}-00`)
    expect(parseTraceparent(text)).toMatchObject({ traceId, spanId, sampled: true })
    expect(parseTraceparent(`00-${traceId}-${spanId}-fe`)).toMatchObject({ sampled: false })
    expect(parseTraceparent(`01-${traceId}-${spanId}-03-of-the-future`)).toMatchObject({ traceId, sampled: true })
  })

  test("is not written for a span without one: where tracing is disabled (G139)", () => {
    expect(traceparentOf(external({ traceId: "noop", spanId: "noop" }))).toBeUndefined()
  })

  test.each([
    ["", "nothing"],
    ["00", "a part"],
    [text.slice(0, -1), "too short"],
    [`${text}-rest`, "version 00 with more"],
    [`ff-${traceId}-${spanId}-01`, "the forbidden version"],
    [`00-${"0".repeat(32)}-${spanId}-01`, "no trace"],
    [`00-${traceId}-${"0".repeat(16)}-01`, "no span"],
    [text.replace("a", "g"), "not hexadecimal"],
    [` ${text}`, "with a space"],
    [`${text}\n`, "with a line end"]
  ])("%j is none: %s (G137)", (malformed) => {
    expect(parseTraceparent(malformed)).toBeUndefined()
    expect(producerOf(JSON.stringify({ traceparent: malformed }))).toBeUndefined()
  })
})

describe("stored headers", () => {
  test("get a trace context, and keep what is there (G135)", () => {
    expect(JSON.parse(carrying(null, text))).toEqual({ traceparent: text })
    expect(JSON.parse(carrying(JSON.stringify({ a: "b" }), text))).toEqual({ traceparent: text, a: "b" })
    const own = JSON.stringify({ a: "b", Traceparent: "mine" })
    expect(carrying(own, text)).toBe(own)
  })

  test.each([
    { 'x","traceparent': "v" },
    { a: ',"traceparent":"v"' },
    { a: '{"traceparent":"v"}' },
    { "traceparent ": "v" },
    { "\\": '","traceparent":"v"' }
  ])("%j has none of its own (G135, G137)", (headers) => {
    const stored = JSON.stringify(headers)
    expect(producerOf(stored)).toBeUndefined()
    const carried = carrying(stored, text)
    expect(JSON.parse(carried)).toEqual({ ...headers, traceparent: text })
    expect(producerOf(carried)).toMatchObject({ traceId, spanId })
  })

  test("are read in whatever case and layout (G135)", () => {
    expect(producerOf(JSON.stringify({ a: "b", TraceParent: text.toUpperCase() }, null, 2))).toMatchObject({ spanId })
    expect(producerOf(null)).toBeUndefined()
  })
})

test("the type of an error is its tag or class, and hostile ones have none (G136)", () => {
  const hostile = new Proxy(
    {},
    {
      get: () => {
        throw new Error("no")
      }
    }
  )
  expect([{ _tag: "NoSuchAddress" }, new RangeError("x"), "text", null, {}, hostile].map(errorType)).toEqual([
    "NoSuchAddress",
    "RangeError",
    "_OTHER",
    "_OTHER",
    "_OTHER",
    "_OTHER"
  ])
})
