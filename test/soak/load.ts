/** The load: jobs of every kind, at a steady rate, each in the books before it is sent. */
import { SqlClient } from "@effect/sql"
import { type Queue, Schedules, transaction } from "alkstore"
import { Duration, Effect, Random, Schedule } from "effect"
import type { Books, Want } from "./account.js"
import { Exact, Fragile, lanes, Mail, pad, type Task, Unattended, Work } from "./config.js"

const task = (serial: number, act: Task["act"], key?: string): Task => ({
  serial,
  act,
  pad,
  ...(key === undefined ? {} : { key })
})

interface Failure {
  readonly _tag: string
}

/** An error says whether anything can have been written. */
const failed = (books: Books, serials: ReadonlyArray<number>, error: Failure) =>
  Effect.sync(() => {
    for (const serial of serials) books.set(serial, error._tag === "StoreError" ? "never" : "maybe")
  })

const send = <E extends Failure, R>(
  books: Books,
  serials: ReadonlyArray<number>,
  enqueue: Effect.Effect<ReadonlyArray<Queue.Receipt>, E, R>
) =>
  Effect.matchEffect(enqueue, {
    onFailure: (error) => failed(books, serials, error),
    onSuccess: (receipts) =>
      Effect.sync(() => {
        receipts.forEach(({ deduplicated }, n) => {
          const serial = serials[n]
          if (serial === undefined) return
          if (deduplicated) books.merged()
          books.set(serial, deduplicated ? "never" : "sure")
        })
      })
  })

type Target = typeof Work

const one = (books: Books, want: Want, queue: Target, act: Task["act"], options?: Parameters<Target["enqueue"]>[1]) =>
  Effect.suspend(() => {
    const serial = books.open(want)
    return send(
      books,
      [serial],
      Effect.map(queue.enqueue(task(serial, act), options), (receipt) => [receipt])
    )
  })

const many = (books: Books, queue: Target, want: Want) =>
  Effect.suspend(() => {
    const serials = Array.from({ length: 10 }, () => books.open(want))
    return send(books, serials, queue.enqueueMany(serials.map((serial) => task(serial, "do"))))
  })

/** A row, a job and a message in one transaction, which every fifth rolls back. */
const order = (books: Books) =>
  Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    const job = books.open("done")
    const mail = books.open("done")
    const kept = (yield* Random.next) > 0.2
    books.order(job, mail, kept)
    const key = lanes[mail % lanes.length]
    yield* transaction(
      Effect.gen(function* () {
        yield* sql`INSERT INTO soak_orders ${sql.insert({ serial: job, mail })}`
        yield* Work.enqueue(task(job, "do"))
        yield* Mail.publish(task(mail, "do", key))
        if (!kept) yield* Effect.fail("the order is withdrawn")
      })
    ).pipe(
      Effect.option,
      Effect.tap(({ _tag }) =>
        Effect.sync(() => {
          for (const serial of [job, mail]) books.set(serial, _tag === "Some" ? "sure" : "maybe")
        })
      )
    )
  })

/** Enqueued for later, and cancelled about when it starts. */
const cancel = (books: Books) =>
  Effect.gen(function* () {
    const serial = books.open("either")
    const { id } = yield* Effect.tapError(Work.enqueue(task(serial, "linger"), { delay: "500 millis" }), (error) =>
      failed(books, [serial], error)
    )
    yield* Effect.sleep(Duration.millis(yield* Random.nextIntBetween(0, 1_000)))
    const answer = yield* Effect.option(Work.cancel(id))
    books.set(serial, "sure", answer._tag === "Some" && answer.value === "cancelled" ? "cancelled" : "either")
  }).pipe(Effect.ignore)

const kinds = (books: Books) =>
  [
    [20, one(books, "done", Work, "do")],
    [3, many(books, Work, "done")],
    [2, many(books, Exact, "once")],
    [10, one(books, "once", Exact, "do")],
    [
      10,
      Effect.flatMap(Random.nextIntBetween(1, 2_000), (delay) =>
        one(books, "done", Work, "do", { delay: Duration.millis(delay) })
      )
    ],
    [
      10,
      Effect.flatMap(Random.nextIntBetween(0, 20), (n) =>
        one(books, "done", Work, "linger", {
          dedupeKey: `key ${n}`,
          ...(n % 2 === 0 ? { dedupeWindow: "500 millis" } : {})
        })
      )
    ],
    [6, one(books, "done", Work, "retry", { priority: 5 })],
    [2, one(books, "done", Work, "revive")],
    [3, one(books, "done", Work, "lock")],
    [3, cancel(books)],
    [6, order(books)],
    [4, one(books, "done", Fragile, "do", { maxAttempts: 1_000 })],
    [4, one(books, "dies", Fragile, "die")],
    [3, one(books, "expires", Unattended, "do", { expires: "300 millis" })]
  ] as const

/** How many jobs an element of `kinds` enqueues, on the average. */
const mean = (75 * 1 + 5 * 10 + 6 * 2) / 86

/** The commits of a key are made one after another, and so must its jobs be done. */
const inLanes = (books: Books) =>
  Effect.gen(function* () {
    const serial = books.open("once")
    const key = lanes[serial % lanes.length] ?? ""
    const sent = Exact.enqueue(task(serial, "ordered", key), { orderingKey: key })
    yield* send(
      books,
      [serial],
      Effect.tapError(
        Effect.map(sent, (receipt) => [receipt]),
        // What has been sent, and not been answered, may be written for a while
        () => Effect.sleep("500 millis")
      )
    )
  })

export const tick = Schedules.make("soak every second", {
  every: "1 second",
  queue: Exact,
  payload: task(0, "tick"),
  catchUp: "all"
})

/** Starts what it enqueues, and waits for none of it unless too much is under way: then the database is in trouble. */
export const load = (books: Books, rate: number) =>
  Effect.gen(function* () {
    const all = kinds(books)
    const weights = all.flatMap(([weight, effect]) => Array.from({ length: weight }, () => effect))
    const perTick = Math.max(1, Math.round(rate / mean / 20))
    const round = Effect.gen(function* () {
      if (books.unanswered() > rate) return
      for (let n = 0; n < perTick; n++)
        yield* Effect.forkDaemon(
          Effect.flatMap(Random.nextIntBetween(0, weights.length), (at) => weights[at] ?? Effect.void)
        )
    })
    const revived = Effect.ignore(Work.deadLetters.requeue({ reason: "failed" }))
    yield* Effect.all(
      [
        Effect.repeat(round, Schedule.spaced("50 millis")),
        Effect.repeat(Effect.uninterruptible(inLanes(books)), Schedule.spaced("100 millis")),
        Effect.repeat(revived, Schedule.spaced("500 millis"))
      ],
      { concurrency: "unbounded", discard: true }
    )
  })
