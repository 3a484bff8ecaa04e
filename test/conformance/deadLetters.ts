/** Dead letters: nothing is lost on the way there and back, each goes back once, and filters mean what they say. */
import { SqlClient } from "@effect/sql"
import { Queue, transaction } from "alkstore"
import { Clock, Context, Effect, Layer, Schema, TestClock } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  failsWith,
  freshName,
  freshQueue,
  live,
  liveRows,
  onlyLetter,
  onlyRow,
  type Suite,
  sweep,
  virtual
} from "./support.js"

type AnyQueue = ReturnType<typeof freshQueue>

/** Enqueues a job and has it fail for good. */
export const kill = (queue: AnyQueue, payload: unknown, options: Queue.EnqueueOptions = {}, error: unknown = "no") =>
  Effect.gen(function* () {
    const { id } = yield* queue.enqueue(payload, { priority: 32_767, ...options })
    const job = yield* claimOne(queue)
    expect(job.id).toBe(id)
    yield* job.fail(error)
    return id
  })

let planted = 0

/** Letters by the hundred, without a life before: died one after the other. */
export const plant = (table: string, queue: AnyQueue, count: number, columns: Readonly<Record<string, string>> = {}) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) => {
    const all = { priority: "0", reason: "'failed'", died_at: "n", payload: "CAST(n AS TEXT)", ...columns }
    // Apart from the ids of all jobs, also of those that SQLite numbers from the greatest on
    const base = ++planted * 1_000_000_000
    return sql.unsafe(
      `INSERT INTO ${table} (id, queue, attempt, max_attempts, enqueued_at, due_at, ${Object.keys(all).join(", ")})
      SELECT ${base} + n, '${queue.name}', 1, 20, 1, 1, ${Object.values(all).join(", ")}
      FROM (WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < ${count}) SELECT n FROM s) AS numbers`
    )
  })

const strange = "\u0000 \ud800 'quoted' \"double\" 100% _ \\ \u2028 😀 "

export const deadLettersSuite: Suite = (engine, options) => {
  const letters = engine.table("dead_letters")
  /** The same database through another Layer: another process, as far as the store can tell. */
  const elsewhere = (kind: { readonly virtual: boolean }) =>
    Effect.map(
      Layer.build(Layer.fresh(engine.beside({ ...kind, silent: options.silent }))),
      (context) =>
        <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
          Effect.mapInputContext(self, (outer: Context.Context<R>) => Context.merge(outer, context))
    )

  virtual(engine, options, "dead letters, there and back", (it) => {
    it.effect("a letter keeps all that its job had, and the job all that the letter had (G51, G145)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const given = {
          priority: -7,
          maxAttempts: 2,
          dedupeKey: "clé 'k' 😀",
          headers: { trace: "a\u0000b", ключ: strange }
        } satisfies Queue.EnqueueOptions
        const receipt = yield* queue.enqueue({ text: strange }, given)
        const first = yield* claimOne(queue)
        yield* first.heartbeat({ done: strange })
        yield* first.retry({ delay: 0, error: new TypeError(`first ${strange}`) })
        yield* TestClock.adjust("1 second")
        yield* (yield* claimOne(queue)).retry({ error: { _tag: "Odd", why: "second" } })
        const letter = yield* onlyLetter(queue)
        expect(letter).toMatchObject({
          id: receipt.id,
          reason: "exhausted",
          attempts: 2,
          failures: 2,
          priority: -7,
          maxAttempts: 2,
          dedupeKey: given.dedupeKey,
          payload: JSON.stringify({ text: strange }),
          progress: JSON.stringify({ done: strange }),
          history: []
        })
        expect(JSON.parse(letter.headers ?? "")).toEqual(given.headers)
        expect(letter.errors.map(({ tag }) => tag)).toEqual(["TypeError", "Odd"])
        expect(yield* queue.deadLetters.get(receipt.id)).toEqual(letter)
        expect(yield* liveRows(queue)).toEqual([])

        yield* TestClock.adjust("1 minute")
        expect(yield* queue.deadLetters.requeue({ id: receipt.id })).toEqual({
          requeued: 1,
          keyHeld: 0,
          notAccepted: 0,
          left: []
        })
        expect(yield* deadRows(queue)).toEqual([])
        const row = yield* onlyRow(queue)
        expect(row).toMatchObject({
          id: receipt.id,
          state: "ready",
          attempt: 0,
          crashes: 0,
          failures: 0,
          errors: [],
          priority: -7,
          maxAttempts: 2,
          dedupeKey: given.dedupeKey,
          payload: letter.payload,
          headers: letter.headers,
          progress: letter.progress,
          enqueuedAt: letter.enqueuedAt
        })
        expect(row.dueAt).toBe(letter.diedAt + 60_000)
        const again = yield* claimOne(queue)
        expect(again).toMatchObject({
          id: receipt.id,
          attempt: 1,
          failures: 0,
          errors: [],
          payload: { text: strange },
          headers: given.headers,
          progress: { done: strange }
        })
        expect(again.history).toEqual([
          {
            id: receipt.id,
            queue: queue.name,
            reason: "exhausted",
            diedAt: letter.diedAt,
            attempts: 2,
            crashes: 0,
            failures: 2,
            errors: letter.errors
          }
        ])
        expect(yield* queue.enqueue(0, { dedupeKey: given.dedupeKey })).toMatchObject({
          id: receipt.id,
          deduplicated: true
        })
      })
    )

    it.effect("lives add up as history, to five (G145)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { id } = yield* queue.enqueue(1)
        for (let life = 1; life <= 7; life++) {
          const job = yield* claimOne(queue)
          expect(job).toMatchObject({ id, attempt: 1 })
          expect(job.history.map(({ errors }) => errors[0]?.message)).toEqual(
            Array.from({ length: life - 1 }, (_, n) => `life ${n + 1}`).slice(-5)
          )
          yield* job.fail(`life ${life}`)
          yield* TestClock.adjust("1 second")
          expect((yield* queue.deadLetters.requeue({ all: true })).requeued).toBe(1)
        }
        const row = yield* onlyRow(queue)
        expect(row.history.map(({ errors }) => errors[0]?.message)).toEqual([
          "life 3",
          "life 4",
          "life 5",
          "life 6",
          "life 7"
        ])
        expect(row.history.map(({ diedAt }) => diedAt)).toEqual(
          [...row.history.map(({ diedAt }) => diedAt)].sort((a, b) => a - b)
        )
      })
    )

    it.effect("an expires duration starts again, from when it is due; an instant is dropped (G145)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const now = yield* Clock.currentTimeMillis
        yield* queue.enqueue("duration", { expires: "10 seconds" })
        yield* queue.enqueue("instant", { expires: new Date(now + 10_000) })
        yield* TestClock.adjust("1 minute")
        yield* sweep(queue)
        expect((yield* deadRows(queue)).map(({ reason }) => reason)).toEqual(["expired", "expired"])
        yield* queue.deadLetters.requeue({ reason: "expired" }, { delay: "1 hour" })
        const at = (yield* Clock.currentTimeMillis) + 3_600_000
        expect(yield* liveRows(queue)).toMatchObject([
          { payload: '"duration"', state: "delayed", dueAt: at, expiresAt: at + 10_000 },
          { payload: '"instant"', state: "delayed", dueAt: at, expiresAt: null }
        ])
        yield* TestClock.adjust("1 hour")
        expect(yield* queue.claim({ limit: 2 })).toHaveLength(2)
      })
    )

    it.effect("a requeued job goes on as any: retries, dies, and its dedupe key is free then (G145)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ maxAttempts: 2 })
        yield* kill(queue, 1, { dedupeKey: "k" })
        yield* queue.deadLetters.requeue({ all: true })
        yield* (yield* claimOne(queue)).retry({ delay: 0 })
        yield* (yield* claimOne(queue)).retry({ delay: 0 })
        expect(yield* onlyLetter(queue)).toMatchObject({ reason: "exhausted", attempts: 2 })
        expect(yield* queue.enqueue(2, { dedupeKey: "k" })).toMatchObject({ deduplicated: false })
      })
    )

    it.effect("an error that cannot be printed, and none at all, go there and back (G49, G145)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const hostile = new Proxy(
          {},
          {
            get: () => {
              throw new Error("no")
            },
            ownKeys: () => {
              throw new Error("no")
            }
          }
        )
        yield* kill(queue, 1, {}, hostile)
        yield* kill(queue, 2, {}, undefined)
        yield* kill(queue, 3, {}, "\u0000\ud800")
        const found = yield* queue.deadLetters.list({ error: "cannot be printed" })
        expect(found.map(({ payload }) => payload)).toEqual(["1"])
        expect((yield* queue.deadLetters.list({ error: "\u0000\ud800" })).map(({ payload }) => payload)).toEqual(["3"])
        expect((yield* queue.deadLetters.requeue({ all: true })).requeued).toBe(3)
        expect((yield* queue.claim({ limit: 3 })).every(({ history }) => history[0]?.errors.length === 1)).toBe(true)
      })
    )
  })

  virtual(engine, options, "requeue", (it) => {
    it.effect("a second time finds nothing; a letter that is not there is none (G146)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const id = yield* kill(queue, 1)
        expect((yield* queue.deadLetters.requeue({ id })).requeued).toBe(1)
        expect(yield* queue.deadLetters.requeue({ id })).toEqual({ requeued: 0, keyHeld: 0, notAccepted: 0, left: [] })
        expect(yield* queue.deadLetters.get(id)).toBeUndefined()
        yield* onlyRow(queue)
        expect((yield* freshQueue().deadLetters.requeue({ id })).requeued).toBe(0)
      })
    )

    it.effect("a letter whose dedupe key a live job holds stays, and goes when the key is free (G146)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const id = yield* kill(queue, "dead", { dedupeKey: "k" })
        yield* queue.enqueue("alive", { dedupeKey: "k" })
        const held = { requeued: 0, keyHeld: 1, notAccepted: 0, left: [id] }
        expect(yield* queue.deadLetters.requeue({ id })).toEqual(held)
        const holder = yield* claimOne(queue)
        expect(yield* queue.deadLetters.requeue({ id })).toEqual(held)
        expect(yield* onlyLetter(queue)).toMatchObject({ id, payload: '"dead"' })
        yield* holder.ack
        expect((yield* queue.deadLetters.requeue({ id })).requeued).toBe(1)
        expect(yield* queue.enqueue(0, { dedupeKey: "k" })).toMatchObject({ id, deduplicated: true })
      })
    )

    it.effect("of several letters with one key the one that died first goes, the others stay (G146)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const ids: Array<number> = []
        for (const n of [1, 2, 3]) {
          ids.push(yield* kill(queue, n, { dedupeKey: "k" }))
          yield* TestClock.adjust(10)
        }
        expect(yield* queue.deadLetters.requeue({ all: true })).toEqual({
          requeued: 1,
          keyHeld: 2,
          notAccepted: 0,
          left: ids.slice(1)
        })
        expect(yield* onlyRow(queue)).toMatchObject({ id: ids[0], payload: "1" })
      })
    )

    it.effect("a key that only its own window holds lets the letter go; another's window does not (G146, G155)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const window = { dedupeKey: "k", dedupeWindow: "1 hour" } as const
        const own = yield* kill(queue, "own", window)
        expect(yield* queue.enqueue(0, window)).toMatchObject({ id: own, state: "ended", deduplicated: true })
        expect((yield* queue.deadLetters.requeue({ id: own })).requeued).toBe(1)
        expect(yield* queue.enqueue(0, window)).toMatchObject({ id: own, state: "ready", deduplicated: true })
        yield* (yield* claimOne(queue)).fail()
        yield* TestClock.adjust("2 hours")
        const other = yield* kill(queue, "other", window)
        // The one whose window it is goes first, though it died last
        expect(yield* queue.deadLetters.requeue({ all: true })).toEqual({
          requeued: 1,
          keyHeld: 1,
          notAccepted: 0,
          left: [own]
        })
        expect(yield* onlyRow(queue)).toMatchObject({ id: other })
        yield* (yield* claimOne(queue)).ack
        expect(yield* queue.deadLetters.requeue({ id: own })).toMatchObject({ requeued: 0, keyHeld: 1 })
        yield* TestClock.adjust("1 hour")
        expect(yield* queue.deadLetters.requeue({ id: own })).toMatchObject({ requeued: 1 })
      })
    )

    it.effect("the same with an ordering key, whose letters become new jobs (G146, G155)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* kill(queue, 1, { dedupeKey: "k", dedupeWindow: "1 hour", orderingKey: "o" })
        expect((yield* queue.deadLetters.requeue({ all: true })).requeued).toBe(1)
        expect(yield* queue.enqueue(0, { dedupeKey: "k" })).toMatchObject({
          id: (yield* onlyRow(queue)).id,
          deduplicated: true
        })
        expect((yield* claimOne(queue)).history).toHaveLength(1)
      })
    )

    it.effect("the key of a job that was deleted by hand keeps no letter back (G146)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const sql = yield* SqlClient.SqlClient
        yield* kill(queue, 1, { dedupeKey: "k" })
        const { id } = yield* queue.enqueue(2, { dedupeKey: "k" })
        yield* sql.unsafe(`DELETE FROM ${engine.table("jobs")} WHERE id = ${id}`)
        expect((yield* queue.deadLetters.requeue({ all: true })).requeued).toBe(1)
      })
    )

    it.effect(
      "to another queue: the letters whose payload its Schema accepts; key and ordering are that queue's (G146)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const numbers = Queue.make(freshName("numbers"), { payload: Schema.Number.pipe(Schema.positive()) })
          yield* numbers.enqueue(9, { dedupeKey: "held" })
          const accepted = yield* kill(queue, 1, { dedupeKey: "k" })
          const text = yield* kill(queue, "text")
          const negative = yield* kill(queue, -1)
          const held = yield* kill(queue, 2, { dedupeKey: "held" })
          const sql = yield* SqlClient.SqlClient
          yield* kill(queue, 3)
          yield* sql.unsafe(`UPDATE ${letters} SET payload = '{"torn' WHERE queue = '${queue.name}' AND payload = '3'`)
          const result = yield* queue.deadLetters.requeue({ all: true }, { to: numbers })
          expect(result).toMatchObject({ requeued: 1, keyHeld: 1, notAccepted: 3 })
          expect(result.left).toEqual(expect.arrayContaining([text, negative, held]))
          expect(yield* deadRows(queue)).toHaveLength(4)
          expect(yield* liveRows(queue)).toEqual([])
          const row = (yield* liveRows(numbers)).find(({ id }) => id === accepted)
          expect(row).toMatchObject({ payload: "1", dedupeKey: "k" })
          expect(row?.history[0]).toMatchObject({ queue: queue.name, id: accepted })
          expect((yield* numbers.claim({ limit: 5 })).map(({ payload }) => payload).sort()).toEqual([1, 9])
        })
    )

    it.effect(
      "to another queue that is invalid, or by a wrong delay or filter: refused, and nothing moves (G147)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const id = yield* kill(queue, 1)
          const { requeue, purge } = queue.deadLetters
          const bad: ReadonlyArray<Effect.Effect<unknown, { readonly _tag: string }, Queue.Queue>> = [
            requeue({}),
            purge({}),
            requeue({ id: undefined }),
            purge({ reason: undefined, error: undefined }),
            requeue({ reason: "lost" as "failed" }),
            requeue({ id: -1 }),
            requeue({ id: 1.5 }),
            requeue({ error: "" }),
            requeue({ error: null as unknown as string }),
            requeue({ resaon: "failed" } as {}),
            purge({ all: false as unknown as true }),
            purge({ state: "ready" } as {}),
            requeue({ id, diedAfter: new Date(Number.NaN) }),
            requeue({ all: true }, { delay: "soon" as "1 second" }),
            requeue({ all: true }, { delay: -1 }),
            requeue({ all: true }, { to: Queue.make("no space allowed", { payload: Schema.Unknown }) }),
            queue.deadLetters.list({ limit: 1_001 }),
            queue.deadLetters.list({ reasons: "failed" } as {})
          ]
          for (const call of bad) yield* failsWith(call, "InvalidArgument")
          expect(yield* onlyLetter(queue)).toMatchObject({ id })
          expect(yield* liveRows(queue)).toEqual([])
        })
    )

    it.effect("by filter: only what fits, and cancelled ones only when they are named (G147)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const waiting = yield* queue.enqueue("cancelled")
        expect(yield* queue.cancel(waiting.id)).toBe("cancelled")
        yield* kill(queue, "failed", {}, "disk full")
        yield* TestClock.adjust("1 minute")
        const later = new Date(yield* Clock.currentTimeMillis)
        yield* kill(queue, "later", { orderingKey: "o" }, "disk broken")
        const count = (filter: Queue.DeadLetterFilter) =>
          Effect.map(queue.deadLetters.requeue(filter), ({ requeued }) => requeued)
        const still = (n: number) => Effect.map(deadRows(queue), (rows) => expect(rows).toHaveLength(n))
        expect(yield* count({ reason: "expired" })).toBe(0)
        expect(yield* count({ error: "disk sunk" })).toBe(0)
        expect(yield* count({ orderingKey: "p" })).toBe(0)
        expect(yield* count({ diedBefore: later, error: "broken" })).toBe(0)
        expect(yield* count({ reason: [], all: true })).toBe(0)
        expect(yield* count({ id: [], all: true })).toBe(0)
        yield* still(3)
        expect(yield* count({ diedAfter: later })).toBe(1)
        yield* still(2)
        expect(yield* count({ all: true })).toBe(1)
        expect(yield* onlyLetter(queue)).toMatchObject({ reason: "cancelled" })
        expect(yield* count({ diedBefore: later })).toBe(0)
        expect(yield* count({ reason: ["cancelled", "cancelled", "failed"] })).toBe(1)
        yield* still(0)
        const again = yield* queue.enqueue("again")
        yield* queue.cancel(again.id)
        expect(yield* count({ id: [again.id, again.id] })).toBe(1)
        expect(yield* liveRows(queue)).toHaveLength(4)
      })
    )

    it.effect("by filter over many pages: all go, those whose key is held stay and are told (G146, G147)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        // Twelve hundred, of which every tenth has a key that a live job holds; many died in one millisecond
        yield* plant(letters, queue, 1_200, { died_at: "n / 300", dedupe_key: "'k' || n" })
        yield* queue.enqueueMany(
          Array.from({ length: 120 }, (_, n) => n),
          (_, n) => ({ dedupeKey: `k${(n + 1) * 10}` })
        )
        yield* plant(letters, queue, 3, { reason: "'cancelled'" })
        const result = yield* queue.deadLetters.requeue({ all: true })
        expect(result).toMatchObject({ requeued: 1_080, keyHeld: 120, notAccepted: 0 })
        expect(result.left).toHaveLength(100)
        const left = yield* deadRows(queue)
        expect(
          left.filter(({ reason }) => reason !== "cancelled").every(({ payload }) => Number(payload) % 10 === 0)
        ).toBe(true)
        expect(left).toHaveLength(123)
        const rows = yield* liveRows(queue)
        expect(rows).toHaveLength(1_200)
        expect(new Set(rows.map(({ dedupeKey }) => dedupeKey)).size).toBe(1_200)
      })
    )

    it.effect("by several reasons over many pages: each letter once (G147)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const reasons = "CASE n % 3 WHEN 0 THEN 'failed' WHEN 1 THEN 'exhausted' ELSE 'crashed' END"
        yield* plant(letters, queue, 1_700, { reason: reasons, died_at: "n / 7" })
        const paged: Array<number> = []
        let after: { readonly diedAt: number; readonly id: number } | undefined
        for (;;) {
          const page = yield* queue.deadLetters.list({ reason: ["failed", "crashed"], limit: 300, after })
          paged.push(...page.map(({ payload }) => Number(payload)))
          after = page.at(-1)
          if (page.length < 300) break
        }
        const expected = Array.from({ length: 1_700 }, (_, n) => n + 1).filter((n) => n % 3 !== 1)
        expect(new Set(paged).size).toBe(paged.length)
        expect([...paged].sort((a, b) => a - b)).toEqual(expected)
        expect(yield* queue.deadLetters.purge({ reason: "exhausted" })).toBe(1_700 - expected.length)
        expect((yield* queue.deadLetters.requeue({ reason: ["crashed", "failed"] })).requeued).toBe(expected.length)
        expect(yield* deadRows(queue)).toEqual([])
        expect(yield* liveRows(queue)).toHaveLength(expected.length)
      })
    )

    it.effect("in the caller's transaction, over pages: all of it or nothing (G159)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const other = freshQueue({ deadLetterQueue: freshName("letters") })
        yield* plant(letters, queue, 700)
        yield* queue.enqueue("waits", { dedupeKey: "w", dedupeWindow: "1 hour" })
        const before = { dead: yield* deadRows(queue), live: yield* liveRows(queue) }
        const undone = transaction(
          Effect.gen(function* () {
            expect((yield* queue.deadLetters.requeue({ diedAfter: new Date(300) })).requeued).toBe(401)
            expect((yield* queue.deadLetters.requeue({ diedBefore: new Date(10) }, { to: other })).requeued).toBe(9)
            expect(yield* queue.deadLetters.purge({ all: true })).toBe(290)
            expect(yield* queue.deadLetters.list()).toEqual([])
            return yield* Effect.fail({ _tag: "Mine" } as const)
          })
        )
        yield* failsWith(undone, "Mine")
        expect({ dead: yield* deadRows(queue), live: yield* liveRows(queue) }).toEqual(before)
        expect(yield* liveRows(other)).toEqual([])
        yield* transaction(queue.deadLetters.requeue({ all: true }))
        expect(yield* deadRows(queue)).toEqual([])
        expect(yield* liveRows(queue)).toHaveLength(701)
      })
    )

    it.effect("purge deletes what fits, for good, and nothing else (G149)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const beside = freshQueue()
        yield* plant(letters, queue, 1_234)
        yield* plant(letters, beside, 2)
        yield* queue.enqueue("alive")
        expect(yield* queue.deadLetters.purge({ diedBefore: new Date(235) })).toBe(234)
        expect(yield* queue.deadLetters.purge({ reason: "expired" })).toBe(0)
        expect(yield* queue.deadLetters.purge({ all: true })).toBe(1_000)
        expect(yield* queue.deadLetters.purge({ all: true })).toBe(0)
        expect(yield* deadRows(queue)).toEqual([])
        yield* onlyRow(queue)
        expect(yield* deadRows(beside)).toHaveLength(2)
      })
    )
  })

  virtual(engine, options, "dead letters, listed", (it) => {
    it.effect("newest first, page by page, without gaps or repeats where many died at once (G56, G148)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* plant(letters, queue, 250, { died_at: "n / 50" })
        const pages: Array<number> = []
        let after: Queue.DeadRow | undefined
        for (;;) {
          const page: ReadonlyArray<Queue.DeadRow> = yield* queue.deadLetters.list({ limit: 33, after })
          pages.push(...page.map(({ id }) => id))
          after = page.at(-1) ?? after
          if (page.length < 33) break
        }
        expect(pages).toEqual((yield* deadRows(queue)).map(({ id }) => id))
        expect(new Set(pages).size).toBe(250)
        expect(yield* queue.deadLetters.list()).toHaveLength(100)
        expect(yield* queue.deadLetters.list({ limit: 0 })).toEqual([])
      })
    )

    it.effect("by the text of an error: as it is, whatever characters it has, and only in errors' texts (G148)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const texts = [
          `it's "quoted"`,
          "100% of _all_",
          "back\\slash",
          "new\nline",
          "😀 é e\u0301",
          "'; DROP TABLE jobs; --",
          "plain"
        ]
        for (const text of texts) yield* kill(queue, text, {}, new RangeError(`<${text}>`))
        for (const text of texts)
          expect(
            (yield* queue.deadLetters.list({ error: `<${text}>` })).map(({ payload }) => JSON.parse(payload)),
            text
          ).toEqual([text])
        expect(yield* queue.deadLetters.list({ error: "PLAIN" })).toEqual([])
        expect(yield* queue.deadLetters.list({ error: "%" })).toHaveLength(1)
        expect(yield* queue.deadLetters.list({ error: "_" })).toHaveLength(1)
        // What is only in how errors are stored is in none of them
        for (const stored of ["message", "attempt", '"kind"', ":", "{"])
          expect(yield* queue.deadLetters.list({ error: stored }), stored).toEqual([])
        // The name of an error is its own
        expect(yield* queue.deadLetters.list({ error: "RangeError" })).toHaveLength(texts.length)
        expect(yield* queue.deadLetters.list({ error: "RangeError", reason: "exhausted" })).toEqual([])
      })
    )

    it.effect("a letter without errors is in no list by error, and in every other (G148)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1, { expires: "1 second" })
        yield* TestClock.adjust("1 minute")
        yield* sweep(queue)
        expect(yield* queue.deadLetters.list({ error: "e" })).toEqual([])
        expect(yield* queue.deadLetters.list({ reason: "expired", diedAfter: new Date(0) })).toHaveLength(1)
        expect(yield* queue.deadLetters.list({ diedBefore: new Date(0) })).toEqual([])
      })
    )
  })

  live(engine, options, "requeues, many at once", (it) => {
    it.scoped("from several processes: one job of each letter (G146)", () =>
      Effect.gen(function* () {
        const there = yield* elsewhere({ virtual: false })
        const queue = freshQueue()
        yield* plant(letters, queue, 600, { dedupe_key: "'k' || (n % 300)" })
        const one = queue.deadLetters.requeue({ all: true })
        const results = yield* Effect.all([one, there(one), one, there(one)], { concurrency: "unbounded" })
        const moved = results.reduce((sum, { requeued }) => sum + requeued, 0)
        expect(moved).toBe(300)
        const rows = yield* liveRows(queue)
        expect(rows).toHaveLength(300)
        expect(new Set(rows.map(({ dedupeKey }) => dedupeKey)).size).toBe(300)
        expect(yield* deadRows(queue)).toHaveLength(300)
        const keys = yield* Effect.flatMap(SqlClient.SqlClient, (sql) =>
          sql.unsafe<{ n: number | string }>(
            `SELECT count(*) AS n FROM ${engine.table("dedupe_keys")} k JOIN ${engine.table("jobs")} j ON j.id = k.job_id WHERE k.queue = '${queue.name}' AND k.free_at IS NULL`
          )
        )
        expect(Number(keys[0]?.n)).toBe(300)
      })
    )

    it.scoped("requeues, purges and enqueues of the same keys: nothing twice, nothing lost (G9, G146)", () =>
      Effect.gen(function* () {
        const there = yield* elsewhere({ virtual: false })
        const queue = freshQueue()
        yield* plant(letters, queue, 200, { dedupe_key: "'k' || n", dedupe_window_ms: "1" })
        const fresh = queue.enqueueMany(
          Array.from({ length: 200 }, (_, n) => n),
          (_, n) => ({ dedupeKey: `k${n + 1}` })
        )
        const [receipts, a, b, purged] = yield* Effect.all(
          [
            fresh,
            queue.deadLetters.requeue({ all: true }),
            there(queue.deadLetters.requeue({ all: true })),
            there(queue.deadLetters.purge({ diedBefore: new Date(50) }))
          ],
          { concurrency: "unbounded" }
        )
        const rows = yield* liveRows(queue)
        expect(new Set(rows.map(({ dedupeKey }) => dedupeKey)).size).toBe(200)
        expect(rows).toHaveLength(200)
        const added = receipts.filter(({ deduplicated }) => !deduplicated).length
        expect(added + a.requeued + b.requeued).toBe(200)
        expect((yield* deadRows(queue)).length).toBe(200 - a.requeued - b.requeued - purged)
      })
    )

    it.effect("letters that die again while they are requeued are not gone through for ever (G147)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* plant(letters, queue, 1_000)
        const poison = Effect.forever(
          Effect.flatMap(queue.claim({ limit: 500 }), (jobs) =>
            Effect.zipRight(
              Effect.forEach(jobs, (job) => job.fail("poison"), { concurrency: 20, discard: true }),
              Effect.sleep(1)
            )
          )
        )
        const result = yield* Effect.raceFirst(
          queue.deadLetters.requeue({ all: true }),
          Effect.zipRight(poison, Effect.never)
        )
        expect(result.requeued).toBe(1_000)
      })
    )
  })
}
