/** Transactions of the application, bad rows and other processes beside the library's own work. */
import { SqlClient } from "@effect/sql"
import { Queue, Schedules, transaction, Wake } from "alkstore"
import { Context, Deferred, Effect, Fiber, Layer, TestClock } from "effect"
import { expect } from "vitest"
import {
  claimOne,
  deadRows,
  freshName,
  freshQueue,
  live,
  liveRows,
  refuse,
  type Suite,
  sweep,
  virtual
} from "./support.js"
import { eventually, numbers } from "./workerSupport.js"

/** Holds a transaction open around what is done beside it. */
const whileOpen = <A, E, R, B, E2, R2>(inside: Effect.Effect<A, E, R>, beside: Effect.Effect<B, E2, R2>) =>
  Effect.gen(function* () {
    const done = yield* Deferred.make<A, E>()
    const end = yield* Deferred.make<void>()
    const open = yield* Effect.fork(
      transaction(Effect.zipRight(Effect.intoDeferred(inside, done), Deferred.await(end)))
    )
    yield* Deferred.await(done)
    const answer = yield* Effect.timeoutFail(beside, {
      duration: "8 seconds",
      onTimeout: () => ({ _tag: "Waited" as const })
    })
    yield* Deferred.succeed(end, undefined)
    yield* Fiber.join(open)
    return answer
  })

export const besideSuite: Suite = (engine, options) => {
  virtual(engine, options, "a row that cannot be moved", (it) => {
    it.effect("does not take claimed jobs out of their claimant's hands, nor stop expiry and the sweep (G187)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const other = freshQueue()
        yield* refuse(engine.engine, "refuse_letters", engine.table("dead_letters"), `NEW.payload = '"bad"'`)
        yield* queue.enqueue("bad", { expires: "1 second", priority: 1 })
        yield* queue.enqueueMany(["a", "b", "c"])
        yield* other.enqueue("expires", { expires: "10 seconds" })
        yield* other.enqueue("lapses", { priority: 1 })
        yield* claimOne(other, { visibilityTimeout: "5 seconds" })
        yield* TestClock.adjust("20 seconds")
        expect((yield* queue.claim({ limit: 2 })).length).toBeGreaterThan(0)
        const leased = (yield* liveRows(queue)).filter(({ state }) => state === "leased")
        expect(leased.map(({ payload }) => payload)).not.toContain('"bad"')
        const swept = yield* sweep()
        expect(swept.expired).toBe(1)
        expect(swept.recovered + swept.crashed).toBeGreaterThanOrEqual(1)
        expect(yield* deadRows(other)).toMatchObject([{ payload: '"expires"' }])
      })
    )

    it.effect("is neither copied nor half moved, and others of its page are moved (G187)", () =>
      Effect.gen(function* () {
        const letters = freshQueue()
        const queue = freshQueue({ deadLetterQueue: letters })
        yield* refuse(engine.engine, "refuse_envelopes", engine.table("jobs"), `NEW.queue = '${letters.name}'`)
        yield* queue.enqueue("dies", { maxAttempts: 1 })
        yield* queue.enqueueMany(["lives", "lives on"])
        yield* queue.claim({ limit: 3, visibilityTimeout: "1 second" })
        yield* TestClock.adjust("2 seconds")
        expect(yield* sweep(queue)).toMatchObject({ recovered: 2, crashed: 0 })
        expect(yield* deadRows(queue)).toEqual([])
        expect((yield* liveRows(queue)).map(({ payload, state }) => [payload, state])).toEqual([
          ['"dies"', "leased"],
          ['"lives"', "ready"],
          ['"lives on"', "ready"]
        ])
      })
    )

    // On PostgreSQL each of them costs a connection
    if (engine.engine === "sqlite")
      it.effect("of which there are more than a page holds up no expiry of others (G187)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const bad = `NEW.queue = '${queue.name}' AND NEW.payload = '"bad"'`
          yield* refuse(engine.engine, "refuse_many", engine.table("dead_letters"), bad)
          yield* queue.enqueueMany(
            numbers(501).map(() => "bad"),
            { expires: "1 second" }
          )
          yield* queue.enqueue("good", { expires: "2 seconds" })
          yield* TestClock.adjust("3 seconds")
          expect(yield* sweep(queue)).toMatchObject({ expired: 1 })
          expect(yield* deadRows(queue)).toMatchObject([{ payload: '"good"' }])
        })
      )

    for (const onDuplicate of ["keep", "replace"] as const)
      it.effect(
        `an expired job that nobody has swept does not swallow an enqueue of its key: ${onDuplicate} (G189)`,
        () =>
          Effect.gen(function* () {
            const queue = freshQueue()
            yield* queue.enqueue(1, { dedupeKey: "key", expires: "1 second" })
            yield* TestClock.adjust("2 seconds")
            const again = yield* queue.enqueue(2, { dedupeKey: "key", expires: "1 hour", onDuplicate })
            expect(again).toMatchObject({ deduplicated: false, replaced: false, state: "ready" })
            expect((yield* queue.claim({ limit: 5 })).map(({ payload }) => payload)).toEqual([2])
            expect(yield* deadRows(queue)).toMatchObject([{ reason: "expired", payload: "1" }])
          })
      )

    it.effect("a letter requeued at the head does not wait for letters after it (G165)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ onDead: "block" })
        yield* queue.enqueue("a", { orderingKey: "key" })
        yield* queue.enqueue("b", { orderingKey: "key", expires: "1 second" })
        yield* queue.enqueue("c", { orderingKey: "key" })
        yield* (yield* claimOne(queue)).fail("no")
        yield* TestClock.adjust("2 seconds")
        yield* sweep(queue)
        expect(yield* queue.claim({ limit: 5 })).toEqual([])
        yield* queue.deadLetters.requeue({ reason: "failed" })
        const a = yield* claimOne(queue)
        expect(a.payload).toBe("a")
        yield* a.ack
        // The next letter of the key holds what comes after it
        expect(yield* queue.claim({ limit: 5 })).toEqual([])
        yield* queue.deadLetters.purge({ reason: "expired" })
        expect((yield* claimOne(queue)).payload).toBe("c")
      })
    )
  })

  live(engine, options, "beside a transaction of the application's", (it) => {
    it.effect("a queue paused in it can be enqueued to in it, and elsewhere (G186)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* transaction(Effect.zipRight(queue.pause, queue.enqueue(1)))
        expect(yield* queue.claim()).toEqual([])
        yield* queue.resume
        expect(yield* queue.claim()).toHaveLength(1)
        if (!engine.besideTransactions) return
        const there = yield* Layer.build(engine.beside(options))
        const same = Queue.make(queue.name, { payload: queue.payload })
        yield* whileOpen(queue.pause, Effect.provide(same.enqueue(2), there))
      }).pipe(Effect.scoped)
    )

    if (!engine.besideTransactions) return

    it.effect("a requeue in it holds up neither the ack nor a claim of who has the key (G188)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const key = { dedupeKey: "key", dedupeScope: "waiting" } as const
        yield* queue.enqueue("dead", { dedupeKey: "key" })
        yield* (yield* claimOne(queue)).fail("no")
        yield* queue.enqueue("live", { dedupeKey: "key" })
        const job = yield* claimOne(queue)
        yield* whileOpen(queue.deadLetters.requeue({ all: true }), job.ack)
        yield* queue.enqueue("waiting", key)
        const jobs = yield* whileOpen(queue.deadLetters.requeue({ all: true }), queue.claim({ limit: 5 }))
        expect(jobs.map(({ payload }) => payload)).toContain("waiting")
      })
    )

    it.effect("a change of all in it leaves the leased ones to their holders: renewed and settled (G156, G188)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(["a", "b"])
        for (const change of [queue.setPriority({ all: true }, 3), queue.runNow({ all: true })]) {
          const job = yield* claimOne(queue)
          const inside = Effect.map(change, (done) => expect(done.leased).toBe(1))
          yield* whileOpen(inside, Effect.zipRight(job.heartbeat({ half: true }), job.ack))
        }
        expect(yield* liveRows(queue)).toEqual([])
      })
    )

    it.effect("claims and sweeps pass by the jobs that it has locked, a clear too (G21, G188)", () =>
      Effect.gen(function* () {
        const sql = yield* SqlClient.SqlClient
        const payloads = (jobs: ReadonlyArray<{ readonly payload: unknown }>) => jobs.map(({ payload }) => payload)
        const claimed = freshQueue()
        yield* claimed.enqueueMany(["a", "b"])
        expect(payloads(yield* whileOpen(claimed.claim(), claimed.claim({ limit: 5 })))).toEqual(["b"])

        const cleared = freshQueue()
        const [first] = yield* cleared.enqueueMany(["a", "b"])
        expect(yield* whileOpen(cleared.cancel(first?.id ?? 0), cleared.clear)).toBe(1)

        const expired = freshQueue()
        const [one] = yield* expired.enqueueMany(["a", "b"])
        yield* sql.unsafe(`UPDATE ${engine.table("jobs")} SET expires_at = 1 WHERE queue = '${expired.name}'`)
        yield* whileOpen(expired.cancel(one?.id ?? 0), sweep(expired))
        expect(payloads(yield* deadRows(expired))).toContain('"b"')
      })
    )

    it.effect("a requeue of all leaves to it the letters that it requeues", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const [first] = yield* queue.enqueueMany(["a", "b"])
        for (const job of yield* queue.claim({ limit: 2 })) yield* job.fail("no")
        yield* whileOpen(queue.deadLetters.requeue({ id: first?.id ?? 0 }), queue.deadLetters.requeue({ all: true }))
        expect(yield* deadRows(queue)).toEqual([])
        expect(yield* liveRows(queue)).toHaveLength(2)
      })
    )

    it.effect("retention leaves letters alone that it has locked (G188)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ retainDead: 1 })
        yield* queue.enqueue(1)
        yield* (yield* claimOne(queue)).fail("no")
        yield* Effect.sleep(5)
        const swept = yield* whileOpen(queue.deadLetters.requeue({ all: true }), Effect.exit(sweep(queue)))
        expect(swept._tag).toBe("Success")
        expect(yield* liveRows(queue)).toHaveLength(1)
      })
    )

    it.effect("two that replace the same keys in opposite orders do not wait for each other without end (G188)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const keys = numbers(300)
        const replace = (order: ReadonlyArray<number>) =>
          queue.enqueueMany(order, (n) => ({ dedupeKey: `key-${n}`, onDuplicate: "replace" }))
        yield* replace(keys)
        yield* Effect.all(
          numbers(10).map((n) => replace(n % 2 === 0 ? keys : [...keys].reverse())),
          { concurrency: 2 }
        )
        expect(yield* liveRows(queue)).toHaveLength(300)
      })
    )
  })

  if (options.silent || engine.name === "SQLite memory") return

  live(engine, options, "pauses", (it) => {
    it.scoped("and resumes wake other processes (G186)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const there = yield* Layer.build(engine.beside(options))
        const subscription = yield* Effect.provide(
          Effect.flatMap(Wake.Wake, (wake) => wake.subscribe(Wake.queueTopic(queue.name))),
          there
        )
        const woken = Effect.timeout(subscription.await, "3 seconds")
        yield* Effect.sleep(100)
        yield* Effect.timeoutOption(subscription.await, 50)
        yield* queue.pause
        yield* woken
        yield* queue.resume
        yield* woken
        yield* transaction(queue.pause)
        yield* woken
      })
    )

    it.scoped("and other changes of schedules wake the schedulers of other processes", () =>
      Effect.gen(function* () {
        const there = yield* Layer.build(engine.beside(options))
        const wake = Context.get(there, Wake.Wake)
        // Which wakes everybody: before there is a subscription
        yield* eventually("wakes", wake.state, ({ _tag }) => _tag === "Live")
        const subscription = yield* wake.subscribe(Wake.scheduleTopic)
        const woken = Effect.timeout(subscription.await, "3 seconds")
        const schedule = Schedules.make(freshName("schedule"), { every: "1 day", queue: freshQueue(), payload: 1 })
        yield* Schedules.put(schedule)
        yield* woken
        yield* Schedules.pause(schedule.name)
        yield* woken
        yield* Schedules.resume(schedule.name)
        yield* woken
        yield* transaction(Schedules.remove(schedule.name))
        yield* woken
      })
    )
  })
}
