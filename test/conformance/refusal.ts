/** What an enqueue refuses: with the right typed error, and without a trace in the database. */
import { Queue } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Duration, Effect, Schema } from "effect"
import { expect } from "vitest"
import { expectEmpty, failsWith, freshQueue, type Suite, virtual } from "./support.js"

type Refused = readonly [label: string, argument: string, options: Queue.EnqueueOptions]

/** Values of a wrong type reach us from JavaScript and from JSON. */
const wrong = (options: object) => options as Queue.EnqueueOptions

const throws: object = Object.defineProperty({}, "a", {
  enumerable: true,
  get: () => {
    throw new Error("no")
  }
})

const fixed: ReadonlyArray<Refused> = [
  ...[-1, -0.5, Number.NaN, Number.POSITIVE_INFINITY, Number.MAX_VALUE, "-5 seconds", "5 parsecs", "", {}, null].map(
    (delay): Refused => [`delay ${String(delay)}`, "delay", wrong({ delay })]
  ),
  ["an infinite delay", "delay", { delay: Duration.infinity }],
  ["a negative delay in BigInt", "delay", wrong({ delay: -1n })],
  ["a delay of two thousand years", "delay", { delay: "730000 days" }],
  ["runAt that is no date", "runAt", { runAt: new Date(Number.NaN) }],
  ["runAt beyond the year 9999", "runAt", { runAt: new Date(253_402_300_800_000) }],
  ["runAt in text", "runAt", wrong({ runAt: "tomorrow" })],
  ["runAt in milliseconds", "runAt", wrong({ runAt: 5_000 })],
  ["runAt null", "runAt", wrong({ runAt: null })],
  ["delay and runAt", "runAt", { delay: "1 second", runAt: new Date(5_000_000_000_000) }],
  ["expires 0", "expires", { expires: 0 }],
  ["expires -1", "expires", { expires: -1 }],
  ["expires NaN", "expires", { expires: Number.NaN }],
  ["expires never", "expires", { expires: Duration.infinity }],
  ["expires that is no date", "expires", { expires: new Date(Number.NaN) }],
  ["expires beyond the year 9999", "expires", { expires: new Date(253_402_300_800_000) }],
  ["expires long ago", "expires", { expires: new Date(-1) }],
  ...[32_768, -32_769, 0.5, Number.NaN, Number.POSITIVE_INFINITY, "1"].map(
    (priority): Refused => [`priority ${priority}`, "priority", wrong({ priority })]
  ),
  ...[0, -1, 1.5, 100_001, Number.NaN, Number.POSITIVE_INFINITY, "3"].map(
    (maxAttempts): Refused => [`maxAttempts ${maxAttempts}`, "maxAttempts", wrong({ maxAttempts })]
  ),
  ["an empty key", "dedupeKey", { dedupeKey: "" }],
  ["a key of 513 bytes", "dedupeKey", { dedupeKey: "x".repeat(513) }],
  ["a key of 257 characters in 514 bytes", "dedupeKey", { dedupeKey: "é".repeat(257) }],
  ["a key with NUL", "dedupeKey", { dedupeKey: "a\u0000b" }],
  ["a key with a lone surrogate", "dedupeKey", { dedupeKey: "a\ud83d" }],
  ["a key that is a number", "dedupeKey", wrong({ dedupeKey: 5 })],
  ["a key that is null", "dedupeKey", wrong({ dedupeKey: null })],
  ["a header that is a number", "headers", wrong({ headers: { a: 1 } })],
  ["a header that is undefined", "headers", wrong({ headers: { a: undefined } })],
  ["headers in a list", "headers", wrong({ headers: ["a"] })],
  ["headers in text", "headers", wrong({ headers: "a" })],
  ["headers null", "headers", wrong({ headers: null })],
  ["headers over 16 KiB", "headers", { headers: { a: "x".repeat(16 * 1024 - 7) } }],
  ["headers that throw", "headers", wrong({ headers: throws })],
  ["an option that is misspelled", "options", wrong({ dedupKey: "a" })],
  ["an option of something else", "options", wrong({ timeout: "5 seconds" })],
  ["options that are none", "options", wrong(Object("text"))],
  ["orderingKey empty", "orderingKey", { orderingKey: "" }],
  ["orderingKey too long", "orderingKey", { orderingKey: "é".repeat(257) }],
  ["orderingKey with U+0000", "orderingKey", { orderingKey: "a\u0000" }],
  ["onDuplicate without a key", "dedupeKey", { onDuplicate: "replace" }],
  ["dedupeScope without a key", "dedupeKey", { dedupeScope: "waiting" }],
  ["dedupeWindow without a key", "dedupeKey", { dedupeWindow: "1 minute" }],
  ["dedupeWindow 0", "dedupeWindow", { dedupeKey: "a", dedupeWindow: 0 }],
  ["onDuplicate unknown", "onDuplicate", { dedupeKey: "a", onDuplicate: "merge" as never }],
  ["dedupeScope unknown", "dedupeScope", { dedupeKey: "a", dedupeScope: "ready" as never }]
]

/** Instants at or before the due time, seen from the present. */
const relative = (now: number): ReadonlyArray<Refused> => [
  ["an expiry that is now", "expires", { expires: new Date(now) }],
  ["an expiry that has passed", "expires", { expires: new Date(now - 1) }],
  ["an expiry at the end of the delay", "expires", { delay: 1_000, expires: new Date(now + 1_000) }],
  ["an expiry before the end of the delay", "expires", { delay: "1 hour", expires: new Date(now + 1_000) }],
  ["an expiry at runAt", "expires", { runAt: new Date(now + 5_000), expires: new Date(now + 5_000) }],
  ["an expiry before runAt", "expires", { runAt: new Date(now + 5_000), expires: new Date(now + 4_999) }],
  [
    "an expiry between a runAt that has passed and now",
    "expires",
    { runAt: new Date(now - 10), expires: new Date(now - 5) }
  ]
]

class Money {
  constructor(readonly amount: number) {}
}

const circular: Record<string, unknown> = {}
circular.self = { circular }

const nested = (depth: number): unknown => {
  let value: unknown = 1
  for (let level = 0; level < depth; level++) value = level % 2 === 0 ? [value] : { value }
  return value
}

const hostile = new Proxy(
  {},
  {
    ownKeys: () => {
      throw new Error("no")
    },
    getPrototypeOf: () => {
      throw new Error("no")
    }
  }
)

const unencodable: ReadonlyArray<readonly [string, unknown]> = [
  ["undefined", undefined],
  ["a BigInt", 1n],
  ["a BigInt inside", { a: [1n] }],
  ["a symbol", Symbol("s")],
  ["a function", { f: () => 1 }],
  ["a Date", new Date(0)],
  ["a Date inside", { at: [new Date(0)] }],
  ["a Map", new Map([["a", 1]])],
  ["a Set inside", { set: new Set([1]) }],
  ["an instance of a class", { money: new Money(1) }],
  ["bytes", new Uint8Array([1])],
  ["an Error", new Error("e")],
  ["a boxed string", Object("s")],
  ["NaN", Number.NaN],
  ["NaN inside", { a: [1, Number.NaN] }],
  ["Infinity", [Number.NEGATIVE_INFINITY]],
  ["a hole in a list", [1, undefined, 2]],
  ["a circle", circular],
  ["a getter that throws", { throws }],
  ["toJSON", { toJSON: () => "surprise" }],
  ["a Proxy that throws", hostile],
  ["10,000 levels", nested(10_000)],
  ["501 levels", nested(501)],
  ["1 MiB and a byte", "x".repeat(1024 * 1024 - 1)],
  ["1 MiB and a byte of two-byte characters", `${"é".repeat(512 * 1024 - 1)}x`]
]

const boom = (): never => {
  throw new Error("boom")
}

const iterable = (make: () => Iterator<unknown>): Iterable<unknown> => ({ [Symbol.iterator]: make })

const throwing: ReadonlyArray<readonly [string, Iterable<unknown>]> = [
  [
    "at the second step",
    iterable(() => {
      let steps = 0
      return { next: () => (steps++ === 0 ? { done: false, value: 1 } : boom()) }
    })
  ],
  ["at once", iterable(boom)],
  ["at the first step", iterable(() => ({ next: boom }))],
  [
    "at a payload",
    iterable(() => ({ next: () => Object.defineProperty({ done: false, value: 1 }, "value", { get: boom }) }))
  ],
  ["since it is none", null as never]
]

export const refusalSuite: Suite = (engine, options) => {
  virtual(engine, options, "refused arguments", (it) => {
    for (const [label, argument, refused] of fixed) {
      it.effect(`${label}: InvalidArgument, alone and within a batch, nothing written (G6)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const alone = yield* failsWith(queue.enqueue(1, refused), "InvalidArgument")
          expect(alone).toMatchObject({ argument, retryable: false })
          expect(alone.message).toContain(argument)
          const batch = queue.enqueueMany([1, 2, 3], (_, index) => (index === 2 ? refused : {}))
          expect((yield* failsWith(batch, "InvalidArgument")).argument).toBe(argument)
          yield* expectEmpty(queue)
        })
      )
    }

    it.effect("what options inherit is none (G201)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, Object.create({ priority: 5, orderingKey: "x", delay: "1 hour" }))
        expect(yield* queue.claim()).toMatchObject([{ priority: 0, orderingKey: undefined }])
      })
    )

    it.effect("an iterable that throws, at whichever step: InvalidArgument, nothing written (G6)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        for (const [label, payloads] of throwing) {
          const error = yield* failsWith(queue.enqueueMany(payloads), "InvalidArgument")
          expect(error.argument, label).toBe("payloads")
          expect(error.message, label).toContain("payloads: the iterable threw: ")
        }
        const closing = iterable(() => ({ next: () => ({ done: false, value: 1n }), return: boom }))
        yield* failsWith(queue.enqueueMany(closing), "InvalidPayload")
        yield* expectEmpty(queue)
      })
    )

    it.effect("an expiry at or before the due time: InvalidArgument, nothing written (G6)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* Testing.advance("1 hour")
        for (const [label, argument, refused] of relative(yield* Clock.currentTimeMillis)) {
          const alone = yield* failsWith(queue.enqueue(label, refused), "InvalidArgument")
          expect(alone.argument, label).toBe(argument)
          const batch = queue.enqueueMany([1, 2, 3], (_, index) => (index === 1 ? refused : {}))
          expect((yield* failsWith(batch, "InvalidArgument")).argument, label).toBe(argument)
          yield* expectEmpty(queue)
        }
      })
    )

    it.effect("a queue name that is none: InvalidArgument from every operation, nothing run (G6)", () =>
      Effect.gen(function* () {
        const names = [
          "",
          "a b",
          "a;b",
          "a'b",
          'a"b',
          "ä",
          "a\u0000",
          "a\n",
          "x".repeat(129),
          "$1",
          "a*b",
          "__proto__\u200b"
        ]
        for (const name of [...names, 5 as never, null as never, {} as never]) {
          const queue = Queue.make(name, { payload: Schema.Unknown })
          const calls: ReadonlyArray<Effect.Effect<unknown, { readonly _tag: string }, Queue.Queue>> = [
            queue.enqueue(1),
            queue.enqueueMany([1]),
            queue.enqueueMany([]),
            queue.claim(),
            queue.deadLetters.list()
          ]
          for (const call of calls) {
            expect(yield* failsWith(call, "InvalidArgument")).toMatchObject({ argument: "queue name" })
          }
        }
        const longest = Queue.make(`aZ0_.:/-${"x".repeat(120)}`, { payload: Schema.Unknown })
        yield* longest.enqueue(1)
        expect(yield* longest.claim()).toHaveLength(1)
      })
    )

    it.effect("a definition that is none: InvalidArgument from every operation (G6)", () =>
      Effect.gen(function* () {
        const definitions: ReadonlyArray<readonly [string, Partial<Queue.Options<unknown, unknown>>]> = [
          ["maxAttempts", { maxAttempts: 0 }],
          ["priority", { priority: 40_000 }],
          ["expires", { expires: -1 }],
          ["maxCrashes", { maxCrashes: -1 }],
          ["maxCrashes", { maxCrashes: Number.NaN }]
        ]
        for (const [argument, definition] of definitions) {
          const queue = freshQueue(definition)
          expect((yield* failsWith(queue.enqueue(1), "InvalidArgument")).argument).toBe(argument)
          expect((yield* failsWith(queue.claim(), "InvalidArgument")).argument).toBe(argument)
          yield* expectEmpty(queue)
        }
      })
    )
  })

  virtual(engine, options, "refused payloads", (it) => {
    for (const [label, payload] of unencodable) {
      it.effect(`${label}: InvalidPayload under Unknown and Any, nothing written (G5)`, () =>
        Effect.gen(function* () {
          const unknown = freshQueue()
          const any = Queue.make(unknown.name, { payload: Schema.Any })
          for (const queue of [unknown, any]) {
            const error = yield* failsWith(queue.enqueue(payload), "InvalidPayload")
            expect(error).toMatchObject({ queue: queue.name, index: 0, retryable: false })
            expect(error.message.length).toBeLessThan(2_000)
          }
          yield* expectEmpty(unknown)
        })
      )
    }

    it.effect("what the Schema does not encode, or throws over: InvalidPayload, nothing written (G5)", () =>
      Effect.gen(function* () {
        const struct = Queue.make(freshQueue().name, { payload: Schema.Struct({ n: Schema.Number }) })
        for (const payload of [{ n: "x" }, {}, null, undefined]) {
          yield* failsWith(struct.enqueue(payload as never), "InvalidPayload")
        }
        const explode = (): never => {
          throw new Error("no")
        }
        const explosive = Queue.make(struct.name, {
          payload: Schema.transform(Schema.String, Schema.String, { decode: (text) => text, encode: explode })
        })
        yield* failsWith(explosive.enqueue("a"), "InvalidPayload")
        const dates = Queue.make(struct.name, { payload: Schema.DateFromSelf })
        yield* failsWith(dates.enqueue(new Date(0)), "InvalidPayload")
        yield* expectEmpty(struct)
      })
    )

    it.effect("one bad payload of a hundred: its index, nothing written (G2, G5)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const payloads = Array.from({ length: 100 }, (_, n) => (n === 57 ? Number.NaN : n))
        expect((yield* failsWith(queue.enqueueMany(payloads), "InvalidPayload")).index).toBe(57)
        yield* expectEmpty(queue)
        const failing = queue.enqueueMany(payloads.keys(), (_, index) => {
          if (index === 57) throw new Error("no options for this one")
          return {}
        })
        expect((yield* failsWith(failing, "InvalidArgument")).message).toContain("no options for this one")
        yield* expectEmpty(queue)
      })
    )

    it.effect("takes what just fits: 1 MiB, 500 levels, 16 KiB of headers (G5, G6)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const big = "x".repeat(1024 * 1024 - 2)
        const wide = "é".repeat(512 * 1024 - 1)
        const deep = nested(500)
        const headers = { a: "x".repeat(16 * 1024 - 8) }
        yield* queue.enqueueMany([big, wide, deep], { headers })
        const jobs = yield* queue.claim({ limit: 3 })
        expect(jobs.map(({ payload }) => payload)).toEqual([big, wide, deep])
        expect(jobs.map((job) => job.headers)).toEqual([headers, headers, headers])
      })
    )
  })
}
