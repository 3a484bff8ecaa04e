/** Outboxes: what is published is committed with the caller's writes, and delivered in order per key, at least once. */
import { SqlClient } from "@effect/sql"
import { Job, Outbox, transaction } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, Either, Schedule, Schema } from "effect"
import { expect } from "vitest"
import { claimOne, deadRows, failsWith, freshName, live, liveRows, onlyLetter, type Suite, virtual } from "./support.js"
import { eventually, makeGauge, numbers, until } from "./workerSupport.js"

const Message = Schema.Struct({ of: Schema.String, n: Schema.Number })
type Message = typeof Message.Type

const freshOutbox = (options: Partial<Outbox.Options<Message, Message>> = {}) =>
  Outbox.make(freshName("outbox"), { message: Message, key: ({ of }) => of, ...options })

const message = (of: string, n: number): Message => ({ of, n })

/** Starts a relay that lives as long as the test and waits for nobody at its end. */
const relay = <E, R>(outbox: Outbox.Outbox<Message, Message>, options: Outbox.RelayOptions<Message, E, R>) =>
  Outbox.fork(outbox, { shutdownGrace: 0, ...options })

/** What has arrived, in order. */
const makeReceiver = () => {
  const arrived: Array<Outbox.Delivery<Message>> = []
  return {
    arrived,
    receive: (delivery: Outbox.Delivery<Message>) => Effect.sync(() => void arrived.push(delivery)),
    of: (key: string) => arrived.filter(({ message: { of } }) => of === key).map(({ message: { n } }) => n)
  }
}

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/

export const outboxSuite: Suite = (engine, options) => {
  virtual(engine, options, "an outbox", (it) => {
    it.effect("publishes with the transaction around it, or not at all (G170)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox()
        const { arrived, receive } = makeReceiver()
        yield* relay(outbox, { deliver: receive })
        const rolledBack = yield* transaction(
          Effect.gen(function* () {
            yield* outbox.publish(message("a", 0))
            yield* outbox.publishMany([message("a", 1), message("b", 2)])
            return yield* Effect.fail("no such order" as const)
          })
        ).pipe(Effect.either)
        expect(rolledBack).toEqual(Either.left("no such order"))
        expect(yield* liveRows(outbox.queue)).toEqual([])
        yield* Testing.advance("1 minute")
        expect(arrived).toEqual([])
        const id = yield* transaction(outbox.publish(message("a", 3)))
        yield* Testing.advance("1 minute")
        expect(arrived.map((delivery) => [delivery.id, delivery.message])).toEqual([[id, message("a", 3)]])
      })
    )

    it.effect("publishes many or none, each under an id of its own (G170, G174)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox()
        const { arrived, receive } = makeReceiver()
        const ids = yield* outbox.publishMany([message("a", 0), message("a", 1), message("b", 2)], (_, index) => ({
          headers: { index: String(index) }
        }))
        expect(new Set(ids).size).toBe(3)
        for (const id of ids) expect(id).toMatch(uuid)
        const bad = [message("a", 3), { of: "a", n: Number.NaN }]
        yield* failsWith(outbox.publishMany(bad), "InvalidPayload")
        const boom = (): never => {
          throw new Error("boom")
        }
        const throwing = { [Symbol.iterator]: boom }
        expect((yield* failsWith(outbox.publishMany(throwing), "InvalidArgument")).argument).toBe("messages")
        const options = yield* failsWith(outbox.publishMany([message("a", 0)], boom), "InvalidArgument")
        expect(options.argument).toBe("options")
        const rows = yield* liveRows(outbox.queue)
        expect(rows.map(Outbox.messageId)).toEqual(ids)
        expect(rows.map(({ orderingKey }) => orderingKey)).toEqual(["a", "a", "b"])
        expect(yield* outbox.publishMany([])).toEqual([])
        yield* relay(outbox, { deliver: receive })
        yield* Testing.advance("1 minute")
        const told = arrived.map(({ attempt, headers, id, key, message: { n } }) => [
          id,
          key,
          n,
          attempt,
          headers.index
        ])
        expect(told.sort((a, b) => Number(a[2]) - Number(b[2]))).toEqual([
          [ids[0], "a", 0, 1, "0"],
          [ids[1], "a", 1, 1, "1"],
          [ids[2], "b", 2, 1, "2"]
        ])
        expect(Object.keys(arrived[0]?.headers ?? {})).not.toContain(Outbox.messageIdHeader)
      })
    )

    it.effect("tells when a message was published, whenever it arrives (G174)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox()
        const { arrived, receive } = makeReceiver()
        yield* outbox.publish(message("a", 0))
        const [row] = yield* liveRows(outbox.queue)
        yield* Testing.advance("2 minutes")
        yield* relay(outbox, { deliver: receive })
        yield* Testing.advance("1 minute")
        expect(arrived.map(({ publishedAt }) => publishedAt.getTime())).toEqual([row?.enqueuedAt])
      })
    )

    it.effect("refuses a key that is none, before anything is written (G170)", () =>
      Effect.gen(function* () {
        const throws = freshOutbox({
          key: () => {
            throw new Error("no key")
          }
        })
        expect((yield* failsWith(throws.publish(message("a", 0)), "InvalidArgument")).message).toContain("no key")
        yield* failsWith(freshOutbox().publish(message("", 0)), "InvalidArgument")
        yield* failsWith(freshOutbox().publishMany([message("a", 0), message("", 1)]), "InvalidArgument")
        expect(yield* liveRows(throws.queue)).toEqual([])
      })
    )

    it.effect(
      "refuses options that a publish does not have, from whichever form, before anything is written (G6, G170)",
      () =>
        Effect.gen(function* () {
          const outbox = freshOutbox()
          for (const options of [
            { dely: "1 hour" },
            { dedupeKey: "a" },
            { orderingKey: "a" }
          ] as ReadonlyArray<object>) {
            const one = yield* failsWith(outbox.publish(message("a", 0), options), "InvalidArgument")
            const all = yield* failsWith(outbox.publishMany([message("a", 0)], options), "InvalidArgument")
            const each = yield* failsWith(
              outbox.publishMany([message("a", 0)], () => options),
              "InvalidArgument"
            )
            expect([one, all, each].map(({ argument }) => argument)).toEqual(["options", "options", "options"])
          }
          expect(yield* liveRows(outbox.queue)).toEqual([])
        })
    )

    it.effect("delivers in order per key, whatever fails in between, keys beside each other (G171)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox({ maxAttempts: 100 })
        const { of, receive } = makeReceiver()
        const keys = ["a", "b", "c", "d", "e"]
        const all = makeGauge()
        const each = new Map(keys.map((key) => [key, makeGauge()]))
        for (const n of numbers(10)) yield* outbox.publishMany(keys.map((key) => message(key, n)))
        yield* relay(outbox, {
          concurrency: 10,
          retry: Schedule.spaced("1 second"),
          deliver: (delivery) =>
            Effect.sleep("100 millis").pipe(
              Effect.zipRight(
                // Some fail once, some three times, one by a defect
                delivery.attempt <= (delivery.message.n % 3 === 0 ? 1 : delivery.message.n === 7 ? 3 : 0)
                  ? delivery.message.of === "c"
                    ? Effect.die("a defect")
                    : Effect.fail("not now")
                  : receive(delivery)
              ),
              (self) => all.during(each.get(delivery.message.of)?.during(self) ?? self)
            )
        })
        yield* Testing.advance("2 minutes")
        for (const key of keys) expect(of(key)).toEqual(numbers(10))
        for (const gauge of each.values()) expect(gauge.most()).toBe(1)
        expect(all.most()).toBe(5)
      })
    )

    it.effect("delivers messages without a key beside each other (G171)", () =>
      Effect.gen(function* () {
        const outbox = Outbox.make(freshName("outbox"), { message: Message })
        const gauge = makeGauge()
        const ids = yield* outbox.publishMany(numbers(4).map((n) => message("a", n)))
        const arrived: Array<string> = []
        yield* Outbox.fork(outbox, {
          shutdownGrace: 0,
          deliver: ({ id, key }) => {
            expect(key).toBeUndefined()
            return gauge.during(
              Effect.zipRight(
                Effect.sleep("1 second"),
                Effect.sync(() => arrived.push(id))
              )
            )
          }
        })
        yield* Testing.advance("1 minute")
        expect(gauge.most()).toBe(4)
        expect(new Set(arrived)).toEqual(new Set(ids))
      })
    )

    it.effect("interrupts a delivery that hangs after 30 s, and repeats it; other keys go on (G172)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox()
        const { arrived, of, receive } = makeReceiver()
        let interrupted = 0
        yield* outbox.publishMany([message("a", 0), message("a", 1), message("b", 2)])
        yield* relay(outbox, {
          retry: Schedule.spaced("10 seconds"),
          deliver: (delivery) =>
            delivery.message.n === 0 && delivery.attempt === 1
              ? Effect.onInterrupt(Effect.never, () => Effect.sync(() => void interrupted++))
              : receive(delivery)
        })
        yield* Testing.advance("29 seconds")
        expect([interrupted, of("a"), of("b")]).toEqual([0, [], [2]])
        yield* Testing.advance("3 seconds")
        expect([interrupted, of("a")]).toEqual([1, []])
        yield* Testing.advance("10 seconds")
        expect(of("a")).toEqual([0, 1])
        expect(arrived.find(({ message: { n } }) => n === 0)?.attempt).toBe(2)
      })
    )

    it.effect("obeys RetryAfter and Snooze, and later messages of the key wait (G172)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox()
        const { of, receive } = makeReceiver()
        const attempts: Array<number> = []
        yield* outbox.publishMany([message("a", 0), message("a", 1)])
        yield* relay(outbox, {
          retry: Schedule.spaced("1 hour"),
          deliver: (delivery): Effect.Effect<void, Job.RetryAfter | Job.Snooze> => {
            if (delivery.message.n === 1) return receive(delivery)
            attempts.push(delivery.attempt)
            if (attempts.length === 1) return Job.retryAfter("20 seconds", "rate limited")
            return attempts.length === 2 ? Job.snooze("20 seconds") : receive(delivery)
          }
        })
        yield* Testing.advance("19 seconds")
        expect(attempts).toEqual([1])
        yield* Testing.advance("5 seconds")
        expect(attempts).toEqual([1, 2])
        expect(of("a")).toEqual([])
        yield* Testing.advance("20 seconds")
        expect(attempts).toEqual([1, 2, 2])
        expect(of("a")).toEqual([0, 1])
      })
    )

    it.effect("holds the key of a dead message until it is requeued, then goes on in order (G173, G174)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox()
        const { arrived, of, receive } = makeReceiver()
        let down = true
        const ids = yield* outbox.publishMany([message("a", 0), message("a", 1), message("a", 2), message("b", 3)])
        yield* relay(outbox, {
          deliver: (delivery) => (delivery.message.n === 1 && down ? Job.fatal("no such topic") : receive(delivery))
        })
        yield* Testing.advance("1 minute")
        const letter = yield* onlyLetter(outbox.queue)
        expect(letter).toMatchObject({ reason: "failed", attempts: 1, orderingKey: "a" })
        expect(Outbox.messageId(letter)).toBe(ids[1])
        yield* outbox.publish(message("a", 4))
        yield* Testing.advance("2 minutes")
        expect([of("a"), of("b")]).toEqual([[0], [3]])
        down = false
        expect(yield* outbox.deadLetters.requeue({ all: true })).toMatchObject({ requeued: 1 })
        yield* Testing.advance("1 minute")
        expect(of("a")).toEqual([0, 1, 2, 4])
        expect(arrived.find(({ message: { n } }) => n === 1)?.id).toBe(ids[1])
      })
    )

    it.effect("goes on without a dead message that is purged, or at once with onDead continue (G173)", () =>
      Effect.gen(function* () {
        for (const onDead of ["block", "continue"] as const) {
          const outbox = freshOutbox({ onDead, maxAttempts: 2 })
          const { of, receive } = makeReceiver()
          yield* outbox.publishMany([message("a", 0), message("a", 1)])
          yield* relay(outbox, {
            retry: Schedule.spaced("1 second"),
            deliver: (delivery) => (delivery.message.n === 0 ? Effect.fail("no") : receive(delivery))
          })
          yield* Testing.advance("1 minute")
          expect(yield* onlyLetter(outbox.queue)).toMatchObject({ reason: "exhausted", attempts: 2 })
          expect(of("a")).toEqual(onDead === "block" ? [] : [1])
          if (onDead === "continue") continue
          expect(yield* outbox.deadLetters.purge({ all: true })).toBe(1)
          yield* Testing.advance("1 minute")
          expect(of("a")).toEqual([1])
        }
      })
    )

    it.effect("keeps a message's id over a lapsed lease, a failure and a requeue (G174)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox({ maxAttempts: 3 })
        const seen: Array<readonly [string, number]> = []
        const id = yield* outbox.publish(message("a", 0), { headers: { [Outbox.messageIdHeader]: "mine" } })
        // Somebody claims it and dies
        const { headers } = yield* claimOne(outbox.queue, { visibilityTimeout: "1 second" })
        expect(headers[Outbox.messageIdHeader]).toBe(id)
        yield* Testing.advance("2 seconds")
        let down = true
        yield* relay(outbox, {
          retry: Schedule.spaced("1 second"),
          deliver: (delivery) => {
            seen.push([delivery.id, delivery.attempt])
            return down ? Effect.fail("down") : Effect.void
          }
        })
        yield* Testing.advance("1 minute")
        expect((yield* onlyLetter(outbox.queue)).reason).toBe("exhausted")
        down = false
        yield* outbox.deadLetters.requeue({ reason: "exhausted" })
        yield* Testing.advance("1 minute")
        expect(seen).toEqual([
          [id, 2],
          [id, 3],
          [id, 1]
        ])
        expect(yield* deadRows(outbox.queue)).toEqual([])
      })
    )

    it.effect("does not deliver what was enqueued past publish: it would have no id (G174)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox()
        const { arrived, receive } = makeReceiver()
        yield* outbox.queue.enqueue(message("a", 0))
        yield* relay(outbox, { deliver: receive })
        yield* Testing.advance("1 minute")
        expect(arrived).toEqual([])
        expect((yield* onlyLetter(outbox.queue)).errors[0]?.message).toContain("Outbox.publish")
      })
    )

    it.effect("keeps delivered messages when it is told to (G170)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox({ retainCompleted: "1 day" })
        const { receive } = makeReceiver()
        const id = yield* outbox.publish(message("a", 0))
        yield* relay(outbox, { deliver: receive })
        yield* Testing.advance("1 minute")
        expect((yield* outbox.completed()).map(Outbox.messageId)).toEqual([id])
      })
    )
  })

  live(engine, options, "an outbox in real time", (it) => {
    it.scoped("delivers what many transactions published at once, in the order of each key (G170, G171)", () =>
      Effect.gen(function* () {
        const outbox = freshOutbox()
        const { arrived, of, receive } = makeReceiver()
        const sql = yield* SqlClient.SqlClient
        const table = freshName("orders").replace("-", "_")
        yield* sql.unsafe(`CREATE TABLE ${table} (n INTEGER PRIMARY KEY)`)
        yield* relay(outbox, {
          concurrency: 10,
          retry: Schedule.spaced("20 millis"),
          deliver: (delivery) =>
            delivery.attempt === 1 && delivery.message.n % 7 === 0 ? Effect.fail("not now") : receive(delivery)
        })
        const keys = ["a", "b", "c", "d"]
        // Each key has one publisher, every fifth of whose transactions is rolled back
        yield* Effect.forEach(
          keys,
          (key, index) =>
            Effect.forEach(numbers(25), (n) =>
              transaction(
                Effect.gen(function* () {
                  yield* sql.unsafe(`INSERT INTO ${table} VALUES (${index * 100 + n})`)
                  yield* outbox.publish(message(key, n))
                  if (n % 5 === 4) yield* Effect.fail("rolled back" as const)
                })
              ).pipe(
                Effect.catchIf(
                  (error) => error === "rolled back",
                  () => Effect.void
                )
              )
            ),
          { concurrency: "unbounded" }
        )
        const kept = numbers(25).filter((n) => n % 5 !== 4)
        yield* until("everything has arrived", () => arrived.length >= keys.length * kept.length)
        for (const key of keys) expect(of(key)).toEqual(kept)
        yield* eventually("nothing is left", liveRows(outbox.queue), (rows) => rows.length === 0)
        expect(yield* sql.unsafe(`SELECT count(*) AS n FROM ${table}`)).toMatchObject([
          { n: expect.toSatisfy((n) => Number(n) === arrived.length) }
        ])
      })
    )
  })
}
