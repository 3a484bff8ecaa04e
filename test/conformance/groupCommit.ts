/** Calls that are made at the same moment, which may share a commit: each with a fate of its own. */
import { SqlClient } from "@effect/sql"
import { Queue, transaction } from "alkstore"
import {
  Chunk,
  Context,
  Deferred,
  Effect,
  Either,
  Exit,
  Fiber,
  FiberId,
  Layer,
  Logger,
  LogLevel,
  TestClock
} from "effect"
import { expect } from "vitest"
import type { EngineUnderTest } from "../support/engines.js"
import { makeRecorder } from "../support/tracer.js"
import { claimOne, freshQueue, live, liveRows, refuse, type Suite, virtual } from "./support.js"
import { eventually, numbers } from "./workerSupport.js"

/** All at the same moment, each with what became of it. */
const atOnce = <A, E, R>(calls: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.forEach(calls, Effect.either, { concurrency: "unbounded" })

const payloadsOf = (queue: { readonly name: string }) =>
  Effect.map(liveRows(queue), (rows) => rows.map(({ payload }) => JSON.parse(payload)))

/** A queue that is known already: nothing is written before its first jobs. */
const knownQueue = Effect.gen(function* () {
  const queue = freshQueue()
  yield* queue.enqueue("first")
  yield* (yield* claimOne(queue)).ack
  return queue
})

/** What was forked has got as far as it can without anything from outside. */
const begun = Effect.repeatN(Effect.yieldNow(), 50)

const soon = <A, E, R>(what: string, self: Effect.Effect<A, E, R>) =>
  Effect.timeoutFail(Effect.disconnect(self), {
    duration: "8 seconds",
    onTimeout: () => new Error(`${what} waits for somebody`)
  })

/**
 * Holds up what is enqueued outside of it while `use` runs: by the one connection, or where there are more by the table,
 * so that one flush has been sent and the rest waits behind it.
 */
const heldUp = <A, E, R>(
  engine: EngineUnderTest,
  use: (sent: Effect.Effect<void, unknown>) => Effect.Effect<A, E, R>
) =>
  Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    const jobs = engine.table("jobs")
    const held = yield* Deferred.make<void>()
    const end = yield* Deferred.make<void>()
    const lock = engine.besideTransactions
      ? Effect.asVoid(sql.unsafe(`LOCK TABLE ${jobs} IN SHARE ROW EXCLUSIVE MODE`))
      : Effect.void
    const open = yield* Effect.fork(
      transaction(Effect.all([lock, Deferred.succeed(held, undefined), Deferred.await(end)]))
    )
    yield* Deferred.await(held)
    const waits = sql.unsafe(`SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '${jobs}'::regclass`)
    const sent = engine.besideTransactions
      ? Effect.asVoid(eventually("the flush has been sent", waits, ({ length }) => length > 0))
      : begun
    const answer = yield* Effect.ensuring(use(sent), Deferred.succeed(end, undefined))
    yield* Fiber.join(open)
    return answer
  })

export const groupCommitSuite: Suite = (engine, options) => {
  live(engine, options, "calls at the same moment", (it) => {
    it.effect("each gets its own receipt or its own error: a bad row fails its caller alone (G190)", () =>
      Effect.gen(function* () {
        const queue = yield* knownQueue
        const other = yield* knownQueue
        const bad = `NEW.queue = '${queue.name}' AND NEW.payload LIKE '%bad%'`
        yield* refuse(engine.engine, "refuse_enqueues", engine.table("jobs"), bad)
        const single = (n: number) => (n % 7 === 3 ? queue.enqueue(`bad ${n}`) : queue.enqueue(n))
        const elsewhere = numbers(40).map((n) => (n === 9 ? "bad only in the other" : n + 100))
        const results = yield* atOnce(
          numbers(80).map((n) => (n % 2 === 0 ? single(n / 2) : other.enqueue(elsewhere[(n - 1) / 2])))
        )
        const rows = new Map((yield* liveRows(queue)).map(({ id, payload }) => [id, JSON.parse(payload)]))
        const mine = results.filter((_, index) => index % 2 === 0)
        for (const [n, result] of mine.entries()) {
          if (n % 7 === 3) {
            const error = Either.isLeft(result) ? result.left : undefined
            expect(error).toMatchObject({ _tag: "StoreError" })
            expect(String(error?.message)).toContain("boom")
          } else expect(Either.isRight(result) && rows.get(result.right.id)).toBe(n)
        }
        expect([...rows.values()]).toEqual(numbers(40).filter((n) => n % 7 !== 3))
        expect(yield* payloadsOf(other)).toEqual(elsewhere)
        const others = yield* liveRows(other)
        const receipts = results.filter((_, index) => index % 2 === 1)
        expect(receipts.map((result) => Either.isRight(result) && result.right.id)).toEqual(others.map(({ id }) => id))
      })
    )

    it.effect("each job is in the queue of its call, and its receipt the caller's (G190, G192)", () =>
      Effect.gen(function* () {
        const queues = yield* Effect.replicateEffect(knownQueue, 3)
        const calls = numbers(30).map((n) => (queues[n % 3] as (typeof queues)[number]).enqueue(n))
        const receipts = yield* Effect.all(calls, { concurrency: "unbounded" })
        for (const [which, queue] of queues.entries()) {
          const own = numbers(30).filter((n) => n % 3 === which)
          const rows = yield* liveRows(queue)
          expect(rows.map(({ id, payload }) => [id, Number(payload)])).toEqual(own.map((n) => [receipts[n]?.id, n]))
        }
      })
    )

    it.effect("batches are whole or not there, each for itself, however many there are (G190, G2)", () =>
      Effect.gen(function* () {
        const queue = yield* knownQueue
        const bad = `NEW.queue = '${queue.name}' AND NEW.payload = '"bad"'`
        yield* refuse(engine.engine, "refuse_batches", engine.table("jobs"), bad)
        const batches = numbers(8).map((n) => numbers(400).map((index) => n * 1_000 + index))
        const results = yield* atOnce([
          ...batches.map((batch) => queue.enqueueMany(batch)),
          queue.enqueueMany(["never", "bad", "never"]),
          Effect.map(queue.enqueue("single"), (receipt) => [receipt])
        ])
        const rows = new Map((yield* liveRows(queue)).map(({ id, payload }) => [id, JSON.parse(payload)]))
        const answered = results.map((result) =>
          Either.isRight(result) ? result.right.map(({ id }) => id) : undefined
        )
        expect(answered.map((ids) => ids?.map((id) => rows.get(id)))).toEqual([...batches, undefined, ["single"]])
        expect(rows.size).toBe(8 * 400 + 1)
      })
    )

    it.effect("each gets the receipts of its own jobs, whatever they differ in (G190)", () =>
      Effect.gen(function* () {
        const queue = yield* knownQueue
        const expires = new Date(Date.now() + 3_600_000)
        const kinds: ReadonlyArray<Queue.EnqueueOptions> = [
          {},
          { priority: 5 },
          { delay: "1 hour" },
          { maxAttempts: 3, headers: { kind: "three" } },
          { expires: "2 hours" },
          { expires },
          { dedupeKey: "same" },
          { orderingKey: "order" }
        ]
        const calls = numbers(24).map((n) => queue.enqueueMany([n, n + 100], kinds[n % kinds.length]))
        const late = queue.enqueue("late", { expires: new Date(0) })
        const [refused, ...results] = yield* atOnce([Effect.map(late, (receipt) => [receipt]), ...calls])
        expect(refused).toMatchObject({ left: { _tag: "InvalidArgument", argument: "expires" } })
        const rows = yield* liveRows(queue)
        const byId = new Map(rows.map((row) => [row.id, row]))
        const same = rows.filter(({ dedupeKey }) => dedupeKey !== null)
        expect(same).toHaveLength(1)
        expect(rows).toHaveLength(2 * 24 - 5)
        for (const [n, result] of results.entries()) {
          if (Either.isLeft(result)) return expect.fail(String(result.left))
          const kind = n % kinds.length
          if (kind === 6) {
            expect(result.right.map(({ id }) => id)).toEqual([same[0]?.id, same[0]?.id])
            continue
          }
          const own = result.right.map(({ id }) => byId.get(id))
          expect(own.map((row) => Number(row?.payload))).toEqual([n, n + 100])
          expect(own[0]?.priority).toBe(kind === 1 ? 5 : 0)
          expect(own[0]?.maxAttempts === 3).toBe(kind === 3)
          expect(own[0]?.headers?.includes("three") ?? false).toBe(kind === 3)
          expect(result.right[0]?.state === "delayed").toBe(kind === 2)
          expect(own[1]?.orderingKey).toBe(kind === 7 ? "order" : null)
          expect(own[0]?.expiresAt === null).toBe(kind !== 4 && kind !== 5)
        }
      })
    )

    it.effect(
      "claims, acks and enqueues beside each other: what is refused to one is refused to nobody else (G190)",
      () =>
        Effect.gen(function* () {
          const queue = yield* knownQueue
          const other = yield* knownQueue
          yield* refuse(
            engine.engine,
            "refuse_beside",
            engine.table("jobs"),
            `NEW.queue = '${queue.name}' AND NEW.payload = '"bad"'`
          )
          yield* queue.enqueueMany(numbers(10))
          yield* other.enqueueMany(numbers(10))
          const jobs = yield* queue.claim({ limit: 10, visibilityTimeout: "1 minute" })
          yield* jobs[3]?.release ?? Effect.void
          const results = yield* atOnce<unknown, unknown, Queue.Queue>([
            ...jobs.map((job) => job.ack),
            ...numbers(5).map((n) => queue.enqueue(n === 2 ? "bad" : `new ${n}`)),
            ...numbers(5).map(() => Effect.map(other.claim(), (jobs) => jobs.map(({ payload }) => payload)))
          ])
          const failed = results.flatMap((result, index) => (Either.isLeft(result) ? [[index, result.left]] : []))
          expect(failed).toMatchObject([
            [3, { _tag: "LeaseLost" }],
            [12, { _tag: "StoreError" }]
          ])
          expect((yield* payloadsOf(queue)).sort()).toEqual([3, "new 0", "new 1", "new 3", "new 4"])
          const claimed = results
            .slice(15)
            .flatMap((result) => (Either.isRight(result) ? (result.right as Array<number>) : []))
          expect(claimed.sort()).toEqual([0, 1, 2, 3, 4])
        })
    )

    it.effect("who is interrupted before its turn was never there, who is after it is; others go on (G191)", () =>
      Effect.gen(function* () {
        const queue = yield* knownQueue
        const fibers = yield* heldUp(engine, (sent) =>
          Effect.gen(function* () {
            const [first, second] = yield* Effect.all([
              Effect.forkDaemon(queue.enqueue("first")),
              Effect.forkDaemon(queue.enqueue("second"))
            ])
            yield* sent
            const others = yield* Effect.forEach(["a", "b", "c", "d", "e"], (text) =>
              Effect.forkDaemon(queue.enqueue(text))
            )
            yield* begun
            const sooner = [first, second]
            for (const fiber of sooner) yield* Fiber.interruptAsFork(fiber, FiberId.none)
            for (const index of [3, 0]) {
              const exit = yield* soon("an interrupt", Fiber.interrupt(others[index] as (typeof others)[number]))
              expect(Exit.isInterrupted(exit)).toBe(true)
            }
            // Whose jobs have been sent waits to know what became of them
            if (engine.besideTransactions) expect(sooner.map((fiber) => fiber.unsafePoll())).toEqual([null, null])
            else yield* soon("the first ones' interrupt", Effect.forEach(sooner, Fiber.await))
            return { sooner, others }
          })
        )
        const [a, b, c, d, e] = yield* soon("the others", Effect.forEach(fibers.others, Fiber.await))
        expect([a, b, c, d, e].map((exit) => exit?._tag)).toEqual([
          "Failure",
          "Success",
          "Success",
          "Failure",
          "Success"
        ])
        yield* soon("the first ones", Effect.forEach(fibers.sooner, Fiber.await))
        yield* soon("a later one", queue.enqueue("later"))
        const sooner = engine.besideTransactions ? ["first", "second"] : []
        expect(yield* payloadsOf(queue)).toEqual([...sooner, "b", "c", "e", "later"])
      })
    )

    it.effect("at whatever moment some are interrupted: their fate is decided then, and nobody else's (G191)", () =>
      Effect.gen(function* () {
        const queue = yield* knownQueue
        const fates = { never: 0, stands: 0 }
        for (let moment = 0; moment < 40; moment++) {
          const name = (n: number) => `${moment}: ${n}`
          const fibers = yield* Effect.forEach(numbers(6), (n) => Effect.fork(queue.enqueue(name(n))))
          yield* Effect.repeatN(Effect.yieldNow(), moment)
          const cut = [0, 2, 5]
          for (const n of cut) yield* Fiber.interruptAsFork(fibers[n] as (typeof fibers)[number], FiberId.none)
          yield* soon(
            "who is interrupted",
            Effect.forEach(cut, (n) => Fiber.await(fibers[n] as (typeof fibers)[number]))
          )
          const then = new Set(yield* payloadsOf(queue))
          const exits = yield* soon("the others", Effect.forEach(fibers, Fiber.await))
          const rows = yield* payloadsOf(queue)
          for (const [n, exit] of exits.entries()) {
            const times = rows.filter((payload) => payload === name(n)).length
            if (cut.includes(n)) {
              expect([times, then.has(name(n))]).toEqual(times === 1 ? [1, true] : [0, false])
              if (Exit.isSuccess(exit)) expect(times).toBe(1)
              fates[times === 1 ? "stands" : "never"]++
            } else expect([n, exit._tag, times]).toEqual([n, "Success", 1])
          }
        }
        expect(Math.min(fates.never, fates.stands)).toBeGreaterThan(0)
      })
    )

    it.effect("their jobs have ids in the order of the calls (G192)", () =>
      Effect.gen(function* () {
        const queue = yield* knownQueue
        const calls = numbers(60).map((n) =>
          n % 5 === 0
            ? queue.enqueueMany([`${n}`, `${n}, too`], { priority: n % 3 })
            : Effect.map(queue.enqueue(`${n}`), (receipt) => [receipt])
        )
        const ids = (yield* Effect.all(calls, { concurrency: "unbounded" })).flat().map(({ id }) => id)
        expect(ids).toEqual([...ids].sort((a, b) => a - b))
        expect(new Set(ids).size).toBe(72)
      })
    )

    it.effect("each carries its own span, and the work they share nobody's (G192)", () =>
      Effect.gen(function* () {
        const queue = yield* knownQueue
        const { named, spans, tracer } = makeRecorder()
        const logs: Array<unknown> = []
        const logger = Logger.make<unknown, void>(({ message }) => void logs.push(message))
        yield* Effect.forEach(
          numbers(10),
          (n) => queue.enqueue(n).pipe(Effect.withSpan(`request ${n}`), Effect.annotateLogs("request", n)),
          { concurrency: "unbounded" }
        ).pipe(
          Effect.withTracer(tracer),
          Effect.provide(Logger.replace(Logger.defaultLogger, logger)),
          Logger.withMinimumLogLevel(LogLevel.All)
        )
        expect(logs).toEqual([])
        expect(spans).toHaveLength(20)
        const sends = named(`send ${queue.name}`)
        for (const row of yield* liveRows(queue)) {
          const own = sends.find(({ parent }) => parent?.spanId === named(`request ${row.payload}`)[0]?.spanId)
          expect(JSON.parse(row.headers ?? "{}")).toMatchObject({
            traceparent: `00-${own?.traceId}-${own?.spanId}-01`
          })
          expect(own?.attributes.get("messaging.message.id")).toBe(String(row.id))
        }
      })
    )

    it.scoped("a transaction that one of them is called in, or beside, takes nobody's job with it (G192)", () =>
      Effect.gen(function* () {
        const queue = yield* knownQueue
        const foreign = Context.get(yield* Layer.build(Layer.fresh(engine.client)), SqlClient.SqlClient)
        const gone = { _tag: "Gone" } as const
        const independent = (text: string) =>
          Queue.outsideTransaction(queue.enqueue(text)).pipe(
            Effect.zipRight(begun),
            Effect.zipRight(Effect.fail(gone)),
            foreign.withTransaction
          )
        const inside = Effect.forEach(["inside", "inside too"], (text) => queue.enqueue(text), {
          concurrency: "unbounded"
        }).pipe(Effect.zipRight(begun), Effect.zipRight(Effect.fail(gone)), transaction)
        const results = yield* atOnce<unknown, unknown, Queue.Queue>([
          independent("independent"),
          ...numbers(4).map((n) => queue.enqueue(n)),
          inside,
          ...numbers(4).map((n) => queue.enqueue(4 + n)),
          independent("independent too")
        ])
        expect(results.map((result) => (Either.isLeft(result) ? result.left : "done"))).toEqual([
          gone,
          ...numbers(4).map(() => "done"),
          gone,
          ...numbers(4).map(() => "done"),
          gone
        ])
        const rows = yield* payloadsOf(queue)
        expect(rows.map(String).sort()).toEqual([...numbers(8).map(String), "independent", "independent too"])
      })
    )
  })

  virtual(engine, options, "a call that is alone", (it) => {
    it.effect("waits for no timer (G190)", () =>
      Effect.gen(function* () {
        const queue = yield* knownQueue
        const before = Chunk.size(yield* TestClock.sleeps())
        for (const n of numbers(3)) {
          const fiber = yield* Effect.fork(Effect.zipRight(queue.enqueue(n), queue.enqueueMany([n, n])))
          while (fiber.unsafePoll() === null) {
            expect(Chunk.size(yield* TestClock.sleeps())).toBe(before)
            yield* Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
          }
          expect((yield* Fiber.join(fiber)).length).toBe(2)
        }
        yield* claimOne(queue)
      })
    )
  })
}
