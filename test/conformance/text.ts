/** Text of every kind, in payloads, keys, headers and names: it comes back as it went in, and is never SQL. */
import { Queue } from "alkstore"
import { Effect, FastCheck, Schema } from "effect"
import { expect } from "vitest"
import { claimOne, freshName, freshQueue, liveRows, type Suite, virtual } from "./support.js"

const sqlLooking = [
  "'; DROP TABLE jobs; --",
  '"; DROP TABLE jobs; --',
  "' OR '1'='1",
  "%",
  "_",
  "$1",
  ":now",
  ":queue",
  "?",
  "/* comment */",
  "\\",
  "\\'",
  "{1}",
  "NULL"
]

/** Distinct for us, though an engine's collation, trimming or normalisation could take some for one another. */
const wellFormed = [
  ...sqlLooking,
  "a",
  "A",
  "a ",
  " a",
  "\u00e9",
  "e\u0301",
  "\u2028\u2029",
  "\ufeff",
  "\uffff\ufffe",
  "\ufffd",
  "\t\r\n\u0001\u001f\u007f",
  "😀👩‍👩‍👧‍👦🏴󠁧󠁢󠁥󠁮󠁧󠁿",
  "\u202eright to left",
  "ß",
  "ss",
  "ı",
  "İ"
]

const any = [...wellFormed, "", "\u0000", "a\u0000b", "\ud83d", "\ude00", "\ude00\ud83d", "\ud83d\ud83d\ude00"]

export const textSuite: Suite = (engine, options) => {
  virtual(engine, options, "text", (it) => {
    it.effect("any string comes back, as a payload, inside one and as a property's name (G4)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const payloads: ReadonlyArray<unknown> = [
          ...any,
          ...any.map((text) => ({ [text]: [text, { text }] })),
          Object.fromEntries(any.map((text, index) => [text, index]))
        ]
        yield* queue.enqueueMany(payloads)
        const jobs = yield* queue.claim({ limit: 1_000 })
        expect(jobs.map(({ payload }) => payload)).toEqual(payloads)
      })
    )

    it.effect("any JSON comes back (G4)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const samples = FastCheck.sample(FastCheck.jsonValue({ stringUnit: "binary", maxDepth: 4 }), {
          numRuns: 300,
          seed: 20_260_101
        })
        const payloads = samples.map((sample): unknown => JSON.parse(JSON.stringify(sample)))
        yield* queue.enqueueMany(samples)
        const jobs = yield* queue.claim({ limit: 1_000 })
        expect(jobs.map(({ payload }) => JSON.stringify(payload))).toEqual(
          payloads.map((value) => JSON.stringify(value))
        )
      })
    )

    it.effect("-0 becomes 0 and undefined properties are left out, as in JSON (G4)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue({ zero: -0, none: undefined, numbers: [1e308, 5e-324, 2 ** 53 + 2] })
        const job = yield* claimOne(queue)
        expect(Object.is((job.payload as { zero: number }).zero, 0)).toBe(true)
        expect(Object.keys(job.payload as object)).toEqual(["zero", "numbers"])
        expect((job.payload as { numbers: unknown }).numbers).toEqual([1e308, 5e-324, 2 ** 53 + 2])
      })
    )

    it.effect("__proto__ and constructor are names like any other (G4)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const text = '{"__proto__":{"polluted":true},"constructor":{"prototype":{"polluted":true}},"a":1}'
        yield* queue.enqueue(JSON.parse(text), {
          headers: JSON.parse('{"__proto__":"h","constructor":"c"}') as Record<string, string>
        })
        const job = yield* claimOne(queue)
        expect(JSON.stringify(job.payload)).toBe(text)
        expect(Object.entries(job.headers)).toEqual([
          ["__proto__", "h"],
          ["constructor", "c"]
        ])
        expect(Object.getPrototypeOf(job.payload)).toBe(Object.prototype)
        expect(({} as { polluted?: unknown }).polluted).toBeUndefined()
      })
    )

    it.effect("headers come back, names and values of any text (G4)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const headers = Object.fromEntries(any.map((text) => [text, text]))
        yield* queue.enqueue(1, { headers })
        expect((yield* claimOne(queue)).headers).toEqual(headers)
      })
    )

    it.effect("keys are told apart byte by byte, and are never SQL (G6, G9)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const receipts = yield* queue.enqueueMany(wellFormed, (text) => ({ dedupeKey: String(text) }))
        expect(receipts.filter(({ deduplicated }) => deduplicated)).toEqual([])
        for (const [index, text] of wellFormed.entries()) {
          expect(yield* queue.enqueue("again", { dedupeKey: text })).toMatchObject({
            id: receipts[index]?.id,
            deduplicated: true
          })
        }
        const jobs = yield* queue.claim({ limit: 1_000 })
        expect(jobs.map(({ dedupeKey }) => dedupeKey)).toEqual(wellFormed)
        yield* Effect.forEach(jobs, (job) => job.ack)
        expect(yield* queue.enqueue("free", { dedupeKey: sqlLooking[0] })).toMatchObject({ deduplicated: false })
      })
    )

    it.effect("queue names that look like SQL, patterns or paths are inert and told apart (G6)", () =>
      Effect.gen(function* () {
        const base = freshName("n")
        const names = ["--", "a_b", "aXb", "A_B", "a_b.c", "a:b", ":now", "../..", "a/b", "SELECT"].map(
          (name) => `${name}/${base}`
        )
        const queues = names.map((name) => Queue.make(name, { payload: Schema.Unknown }))
        for (const queue of queues) yield* queue.enqueue(queue.name)
        for (const queue of queues) {
          expect(yield* liveRows(queue)).toHaveLength(1)
          expect((yield* queue.claim({ limit: 10 })).map(({ payload }) => payload)).toEqual([queue.name])
        }
      })
    )
  })
}
