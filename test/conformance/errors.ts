/** The error history: bounded, safe to store, and never in the way of the job. */
import { Data, Effect } from "effect"
import { expect } from "vitest"
import { claimOne, freshQueue, onlyLetter, onlyRow, type Suite, virtual } from "./support.js"

class Refused extends Data.TaggedError("Refused")<{ readonly why: string }> {}

const circular: Record<string, unknown> = { name: "circle" }
circular.self = circular

const refuse = (): never => {
  throw new Error("no")
}

/** Throws whatever is asked of it. */
const wall: object = new Proxy(
  {},
  { get: refuse, has: refuse, ownKeys: refuse, getPrototypeOf: refuse, getOwnPropertyDescriptor: refuse }
)

const withGetter = (name: string) => Object.defineProperty(new Error("e"), name, { get: refuse })

const revoked = (() => {
  const { proxy, revoke } = Proxy.revocable({}, {})
  revoke()
  return proxy as object
})()

const hostile: ReadonlyArray<readonly [string, unknown]> = [
  ["NUL", "a\u0000b"],
  ["a lone surrogate", `${"x".repeat(10)}\ud83d`],
  ["a circle", circular],
  ["a Proxy that throws", wall],
  ["a revoked Proxy", revoked],
  ["a message that throws", withGetter("message")],
  ["a name that throws", withGetter("name")],
  ["a stack that throws", withGetter("stack")],
  ["a message that is no text", Object.assign(new Error("e"), { message: { a: 1 } })],
  ["a name that is no text", Object.assign(new Error("e"), { name: 5, _tag: {} })],
  ["toString that throws", { toString: refuse, toJSON: refuse }],
  ["toJSON that answers undefined", { toJSON: () => undefined }],
  ["an object without a prototype", Object.create(null)],
  ["a symbol", Symbol("s")],
  ["a BigInt", { n: 1n }],
  ["a function", () => 1],
  ["null", null],
  ["nothing", undefined],
  ["an empty text", ""],
  ["a tag with NUL", { _tag: "a\u0000b", message: "c" }],
  ["a megabyte", "x".repeat(1024 * 1024)],
  ["a megabyte of control characters", "\u0001".repeat(1024 * 1024)],
  ["a megabyte of emoji", "😀".repeat(256 * 1024)],
  ["a long tag", { _tag: "t".repeat(100_000) }]
]

export const errorsSuite: Suite = (engine, options) => {
  virtual(engine, options, "errors", (it) => {
    for (const [label, error] of hostile) {
      it.effect(`${label}: the job moves on, and the error is stored in at most 8 KiB (G49)`, () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue(1, { maxAttempts: 3 })
          yield* (yield* claimOne(queue)).retry({ delay: 0, error })
          const row = yield* onlyRow(queue)
          expect(row).toMatchObject({ state: "ready", failures: 1 })
          yield* (yield* claimOne(queue)).fail(error)
          const letter = yield* onlyLetter(queue)
          expect(letter).toMatchObject({ reason: "failed", failures: 2 })
          expect(letter.errors).toHaveLength(2)
          for (const stored of letter.errors) {
            expect(typeof stored.message).toBe("string")
            expect(stored.message).not.toMatch(/\p{Surrogate}/u)
            expect(stored.message).not.toContain("\u0000")
            expect(Buffer.byteLength(JSON.stringify(stored))).toBeLessThanOrEqual(8 * 1024)
          }
        })
      )
    }

    it.effect("keeps message and tag of what can be read", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const errors = ["text", new TypeError("typed"), new Refused({ why: "closed" }), { code: 5 }, 7, circular]
        for (const error of errors) yield* (yield* claimOne(queue)).retry({ delay: 0, error })
        const stored = (yield* onlyRow(queue)).errors.map(({ message, tag }) => [message, tag])
        expect(stored.slice(0, 5)).toEqual([
          ["text", undefined],
          ["typed", "TypeError"],
          [expect.any(String), "Refused"],
          ['{"code":5}', undefined],
          ["7", undefined]
        ])
        expect(stored[5]?.[0]).not.toBe("")
      })
    )

    it.effect("keeps the last ten, oldest first, and counts all (G49)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, { maxAttempts: 15 })
        for (let n = 1; n <= 14; n++) yield* (yield* claimOne(queue)).retry({ delay: 0, error: `failure ${n}` })
        const job = yield* claimOne(queue)
        const expected = Array.from({ length: 10 }, (_, n) => [n + 5, `failure ${n + 5}`])
        expect(job.errors.map(({ attempt, message }) => [attempt, message])).toEqual(expected)
        expect(job.failures).toBe(14)
        yield* job.retry({ error: "the end" })
        const letter = yield* onlyLetter(queue)
        expect(letter).toMatchObject({ reason: "exhausted", failures: 15, attempts: 15 })
        expect(letter.errors.map(({ message }) => message)).toEqual([
          ...expected.slice(1).map(([, message]) => message),
          "the end"
        ])
      })
    )
  })
}
