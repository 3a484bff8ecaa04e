/** Dead-letter queues: an envelope of each dead letter, in the transaction of its death, for whoever works there. */
import { SqlClient } from "@effect/sql"
import { Queue, transaction, Worker } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, Layer, Schema, TestClock } from "effect"
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
import { eventually } from "./workerSupport.js"

const strange = "\u0000 \ud800 'quoted' \"double\" \\ 😀"

/** A queue with a dead-letter queue, typed. */
const pair = (options: Partial<Queue.Options<unknown, unknown>> = {}) => {
  const letters = Queue.make(freshName("letters"), {
    payload: Queue.deadEnvelope(Schema.Unknown),
    priority: 3,
    maxAttempts: 7
  })
  return { letters, queue: freshQueue({ ...options, deadLetterQueue: letters }) }
}

export const deadLetterQueuesSuite: Suite = (engine, options) => {
  virtual(engine, options, "dead-letter queues", (it) => {
    it.effect("an envelope has the payload, the reason, the errors and where it came from (G150)", () =>
      Effect.gen(function* () {
        const { letters, queue } = pair()
        // Known by its own defaults
        yield* letters.claim()
        const headers = { trace: strange }
        const { id } = yield* queue.enqueue(
          { text: strange },
          { headers, dedupeKey: `k'"\\ 😀`, orderingKey: "o'", priority: -4 }
        )
        const before = yield* onlyRow(queue)
        yield* TestClock.adjust("1 second")
        yield* (yield* claimOne(queue)).fail(new RangeError(strange))
        const letter = yield* onlyLetter(queue)
        const row = yield* onlyRow(letters)
        expect(row).toMatchObject({
          state: "ready",
          priority: 3,
          maxAttempts: 7,
          attempt: 0,
          dedupeKey: null,
          orderingKey: null
        })
        const job = yield* claimOne(letters)
        expect(job.headers).toEqual(headers)
        expect(job.payload).toEqual({
          payload: { text: strange },
          reason: "failed",
          errors: letter.errors,
          origin: {
            id,
            queue: queue.name,
            attempts: 1,
            priority: -4,
            enqueuedAt: before.enqueuedAt,
            diedAt: letter.diedAt,
            dedupeKey: `k'"\\ 😀`,
            orderingKey: "o'"
          }
        })
        // The letter itself stays where it was
        expect(letter.id).toBe(id)
      })
    )

    it.effect(
      "it is typed by the payload's Schema; what that refuses goes the way of what cannot be decoded (G150)",
      () =>
        Effect.gen(function* () {
          const Mail = Schema.Struct({ to: Schema.String, at: Schema.DateFromNumber })
          const letters = Queue.make(freshName("letters"), { payload: Queue.deadEnvelope(Mail) })
          const mails = Queue.make(freshName("mails"), { payload: Mail, deadLetterQueue: letters })
          yield* mails.enqueue({ to: "ann", at: new Date(5) })
          yield* (yield* claimOne(mails)).fail()
          expect((yield* claimOne(letters)).payload.payload.at.getTime()).toBe(5)
          const loose = Queue.make(mails.name, { payload: Schema.Unknown, deadLetterQueue: letters })
          yield* loose.enqueue("no mail")
          yield* (yield* claimOne(loose)).fail()
          expect(yield* letters.claim()).toEqual([])
          expect((yield* liveRows(letters)).map(({ attempt }) => attempt)).toEqual([1, 0])
        })
    )

    const deaths: ReadonlyArray<
      readonly [string, string, (queue: ReturnType<typeof freshQueue>) => Effect.Effect<unknown, unknown, Queue.Queue>]
    > = [
      ["its last retry", "exhausted", (queue) => Effect.flatMap(claimOne(queue), (job) => job.retry())],
      ["expiry, met by a sweep of all", "expired", () => Effect.zipRight(TestClock.adjust("2 minutes"), sweep())],
      ["expiry, met by a claim", "expired", (queue) => Effect.zipRight(TestClock.adjust("2 minutes"), queue.claim())],
      [
        "a crash, met by a sweep",
        "crashed",
        (queue) => claimOne(queue).pipe(Effect.zipRight(TestClock.adjust("1 minute")), Effect.zipRight(sweep()))
      ],
      [
        "a crash, met by a claim",
        "crashed",
        (queue) => claimOne(queue).pipe(Effect.zipRight(TestClock.adjust("1 minute")), Effect.zipRight(queue.claim()))
      ]
    ]
    for (const [label, reason, die] of deaths) {
      it.scoped(`after ${label} there is one too, and its worker runs at once (G150)`, () =>
        Effect.gen(function* () {
          const { letters, queue } = pair({ maxAttempts: 1, expires: "2 minutes" })
          const seen: Array<string> = []
          yield* Worker.fork(letters, {
            shutdownGrace: 0,
            handler: (job) => Effect.sync(() => void seen.push(job.payload.reason))
          })
          yield* queue.enqueue(1)
          // It has looked, found nothing, and waits
          yield* Testing.settle
          yield* die(queue)
          if (options.silent) yield* Testing.advance("1 minute")
          yield* Testing.settle
          expect(seen).toEqual([reason])
          expect(yield* onlyLetter(queue)).toMatchObject({ reason })
        })
      )
    }

    it.effect("a sweep of several queues wakes the worker of each dead-letter queue (G150)", () =>
      Effect.gen(function* () {
        const pairs = [pair(), pair(), pair()]
        for (const { queue } of pairs) yield* queue.enqueueMany([1, 2], { expires: "1 second" })
        yield* TestClock.adjust("1 minute")
        yield* sweep()
        for (const { letters } of pairs) expect(yield* liveRows(letters)).toHaveLength(2)
      })
    )

    it.effect("not of a cancelled job, waiting or leased (G150)", () =>
      Effect.gen(function* () {
        const { letters, queue } = pair()
        const [waiting, leased] = yield* queue.enqueueMany(["waiting", "leased"], (payload) => ({
          priority: payload === "leased" ? 1 : 0
        }))
        const job = yield* claimOne(queue)
        expect(yield* queue.cancel(waiting?.id ?? 0)).toBe("cancelled")
        expect(yield* queue.cancel(leased?.id ?? 0)).toBe("requested")
        yield* job.release
        expect((yield* deadRows(queue)).map(({ reason }) => reason)).toEqual(["cancelled", "cancelled"])
        expect(yield* liveRows(letters)).toEqual([])
      })
    )

    it.effect("it commits or rolls back with the death (G150, G159)", () =>
      Effect.gen(function* () {
        const { letters, queue } = pair()
        yield* queue.enqueue(1)
        const job = yield* claimOne(queue)
        yield* Effect.either(transaction(Effect.zipRight(job.fail(), Effect.fail("mine"))))
        expect(yield* liveRows(letters)).toEqual([])
        expect(yield* deadRows(queue)).toEqual([])
        // An envelope that cannot be written keeps its letter from being one as well: never one without the other
        const sql = yield* SqlClient.SqlClient
        const guard = freshName("guard").replace("-", "_")
        const table = engine.table("jobs")
        if (engine.engine === "postgres")
          yield* sql.unsafe(`ALTER TABLE ${table} ADD CONSTRAINT ${guard} CHECK (queue <> '${letters.name}')`)
        else
          yield* sql.unsafe(
            `CREATE TRIGGER ${guard} BEFORE INSERT ON ${table} WHEN NEW.queue = '${letters.name}' BEGIN SELECT RAISE(ABORT, 'refused'); END`
          )
        yield* failsWith(job.fail(), "StoreError")
        expect(yield* deadRows(queue)).toEqual([])
        expect(yield* onlyRow(queue)).toMatchObject({ state: "leased" })
        yield* sql.unsafe(
          engine.engine === "postgres" ? `ALTER TABLE ${table} DROP CONSTRAINT ${guard}` : `DROP TRIGGER ${guard}`
        )
        yield* job.fail()
        yield* onlyRow(letters)
      })
    )

    it.effect("settled in one statement, each has its own (G150)", () =>
      Effect.gen(function* () {
        const { letters, queue } = pair()
        const store = yield* Queue.Queue
        yield* queue.enqueueMany(Array.from({ length: 300 }, (_, n) => n))
        const jobs = yield* queue.claim({ limit: 300 })
        yield* store.settle(
          queue.name,
          jobs.map(({ id, lease }, n) =>
            n % 3 === 0
              ? ({ _tag: "Ack", id, token: lease.token } as const)
              : ({
                  _tag: "Bury",
                  id,
                  token: lease.token,
                  reason: n % 3 === 1 ? "failed" : "exhausted",
                  history: { crashes: 0, failures: 1, errors: null, failureTimes: null }
                } as const)
          )
        )
        const found = yield* letters.claim({ limit: 500 })
        expect(found).toHaveLength(200)
        expect(new Set(found.map(({ payload }) => payload.origin.id)).size).toBe(200)
        expect(
          found.every(({ payload }) => payload.reason === (Number(payload.payload) % 3 === 1 ? "failed" : "exhausted"))
        ).toBe(true)
        expect(found.every(({ payload }) => payload.errors.length === 0)).toBe(true)
      })
    )

    it.effect("dead letters of a dead-letter queue go to its own, if it has one (G150)", () =>
      Effect.gen(function* () {
        const last = freshQueue()
        const middle = freshQueue({ deadLetterQueue: last })
        const first = freshQueue({ deadLetterQueue: middle.name })
        yield* first.enqueue("payload")
        yield* (yield* claimOne(first)).fail("one")
        yield* (yield* claimOne(middle)).fail("two")
        const envelope = yield* claimOne(last)
        expect(envelope.payload).toMatchObject({
          reason: "failed",
          errors: [{ message: "two" }],
          origin: { queue: middle.name },
          payload: { payload: "payload", errors: [{ message: "one" }], origin: { queue: first.name } }
        })
        yield* envelope.fail()
        expect(yield* deadRows(last)).toHaveLength(1)
      })
    )

    it.effect("a circle is refused, of one, two or three, by every operation; also inside a transaction (G150)", () =>
      Effect.gen(function* () {
        const self = freshName()
        yield* failsWith(freshQueue({ deadLetterQueue: "no space" }).enqueue(1), "InvalidArgument")
        const own = Queue.make(self, { payload: Schema.Unknown, deadLetterQueue: self })
        yield* failsWith(own.enqueue(1), "InvalidArgument")
        yield* failsWith(own.deadLetters.list(), "InvalidArgument")
        const [a, b, c] = [freshName(), freshName(), freshName()]
        const define = (name: string, deadLetterQueue: string) =>
          Queue.make(name, { payload: Schema.Unknown, deadLetterQueue })
        yield* define(a, b).enqueue(1)
        const closing = define(b, a).enqueue(1)
        expect((yield* failsWith(closing, "InvalidArgument")).argument).toBe("deadLetterQueue")
        yield* failsWith(transaction(closing), "InvalidArgument")
        yield* failsWith(define(b, a).claim(), "InvalidArgument")
        yield* define(b, c).enqueue(1)
        yield* failsWith(define(c, a).enqueue(1), "InvalidArgument")
        yield* failsWith(transaction(define(c, a).enqueue(1)), "InvalidArgument")
        expect(yield* liveRows({ name: c })).toEqual([])
        // Opened elsewhere, the circle is none any more
        yield* Queue.make(a, { payload: Schema.Unknown }).enqueue(1)
        yield* define(c, a).enqueue(1)
      })
    )

    it.effect("of two processes that close one at the same moment, at most one may (G150)", () =>
      Effect.scoped(
        Effect.gen(function* () {
          const there = yield* Layer.build(Layer.fresh(engine.beside({ virtual: true, silent: options.silent })))
          const define = (name: string, deadLetterQueue: string) =>
            Effect.isSuccess(Queue.make(name, { payload: Schema.Unknown, deadLetterQueue }).enqueue(1))
          for (let n = 0; n < 12; n++) {
            const [a, b] = [freshName(), freshName()]
            const defined = yield* Effect.all([define(a, b), Effect.provide(define(b, a), there)], { concurrency: 2 })
            expect(defined.filter(Boolean)).toHaveLength(1)
          }
        })
      )
    )

    it.effect("the settings of a worker beat a producer's, whoever comes last (G55, G150, G151)", () =>
      Effect.gen(function* () {
        const store = yield* Queue.Queue
        const letters = freshQueue()
        const name = freshName()
        const producer = Queue.make(name, { payload: Schema.Unknown })
        const worker = Queue.make(name, {
          payload: Schema.Unknown,
          deadLetterQueue: letters,
          retainCompleted: "1 hour"
        })
        yield* producer.enqueueMany([1, 2])
        yield* store.define(worker.settings, "worker")
        yield* Queue.make(name, { payload: Schema.Unknown, maxAttempts: 3 }).enqueue(3)
        const [first, second] = yield* producer.claim({ limit: 2 })
        yield* first?.fail() ?? Effect.void
        yield* second?.ack ?? Effect.void
        yield* onlyRow(letters)
        expect(yield* producer.completed()).toHaveLength(1)
      })
    )
  })

  live(engine, options, "dead-letter queues, in real time", (it) => {
    it.scoped("a worker there takes the envelope as soon as the death is committed (G150)", () =>
      Effect.gen(function* () {
        const { letters, queue } = pair()
        const seen: Array<unknown> = []
        yield* Worker.fork(letters, {
          shutdownGrace: 0,
          handler: (job) => Effect.sync(() => void seen.push(job.payload.payload))
        })
        yield* Worker.fork(queue, { shutdownGrace: 0, handler: () => Effect.fail("no") })
        yield* queue.enqueue("payload", { maxAttempts: 1 })
        yield* eventually(
          "the envelope was worked on",
          Effect.sync(() => seen),
          (payloads) => payloads.length === 1
        )
        expect(seen).toEqual(["payload"])
      })
    )
  })
}
