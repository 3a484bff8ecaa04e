/** Ordering keys under workers: handlers of one key never overlap and never overtake each other. */
import { Job } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Effect, Layer, Schedule } from "effect"
import { expect } from "vitest"
import { deadRows, expectEmpty, freshQueue, live, liveRows, type Suite, virtual } from "./support.js"
import { eventually, makeGate, numbers, observe, until } from "./workerSupport.js"

interface Message {
  readonly key: string
  readonly n: number
}

const messages = (keys: number, each: number): ReadonlyArray<Message> =>
  numbers(keys * each).map((at) => ({ key: `key ${at % keys}`, n: Math.floor(at / keys) }))

const byKey = (message: unknown) => ({ orderingKey: (message as Message).key })

/** Notes what runs of each key, and complains of overlaps. */
const makeBook = () => {
  const running = new Set<string>()
  const overlaps: Array<Message> = []
  const ended = new Map<string, Array<number>>()
  const started = new Map<string, Array<number>>()
  const note = (book: Map<string, Array<number>>, { key, n }: Message) => book.set(key, [...(book.get(key) ?? []), n])
  return {
    overlaps,
    ended,
    started,
    during: <A, E, R>(message: Message, self: Effect.Effect<A, E, R>) =>
      Effect.acquireUseRelease(
        Effect.sync(() => {
          if (running.has(message.key)) overlaps.push(message)
          running.add(message.key)
          note(started, message)
        }),
        () => Effect.tap(self, () => Effect.sync(() => note(ended, message))),
        () => Effect.sync(() => void running.delete(message.key))
      ),
    /** Every key has ended all of its messages, each once, in order. */
    expectOrder: (keys: number, each: number) => {
      expect(overlaps).toEqual([])
      expect(new Set(ended.keys()).size).toBe(keys)
      for (const [key, order] of ended) expect(order, key).toEqual(numbers(each))
    }
  }
}

export const workerOrderingSuite: Suite = (engine, options) => {
  virtual(engine, options, "workers and ordering keys", (it) => {
    it.effect("failures, snoozes, requests to wait and delays change no key's order (G160, G162)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const book = makeBook()
        yield* queue.enqueueMany(messages(7, 6), (message, at) => ({ ...byKey(message), delay: (at * 37) % 5_000 }))
        yield* observe(queue, {
          concurrency: 4,
          retry: Schedule.spaced("3 seconds"),
          handler: ({ attempt, failures, payload }) => {
            const message = payload as Message
            const trouble = (message.n * 5 + message.key.length + Number(message.key.slice(4))) % 4
            const work = Effect.gen(function* () {
              yield* Effect.sleep(((message.n * 13) % 7) * 100)
              if (trouble === 1 && failures < 2) return yield* Effect.fail("not yet")
              if (trouble === 2 && failures < 1) return yield* Job.retryAfter("7 seconds")
              if (trouble === 3 && attempt === 1 && (yield* Clock.currentTimeMillis) % 2 === 0)
                return yield* Job.snooze(1_001)
            })
            return book.during(message, work)
          }
        })
        yield* Testing.drain(queue, { within: "1 hour" })
        book.expectOrder(7, 6)
        yield* expectEmpty(queue)
      })
    )

    it.effect("a dead message lets its key go on, or holds it until it is requeued (G165)", () =>
      Effect.gen(function* () {
        const going = freshQueue()
        const holding = freshQueue({ onDead: "block" })
        const books = [makeBook(), makeBook()] as const
        let broken = true
        for (const [queue, book] of [[going, books[0]] as const, [holding, books[1]] as const]) {
          yield* queue.enqueueMany(messages(2, 4), byKey)
          yield* observe(queue, {
            handler: ({ payload }) => {
              const message = payload as Message
              const bad = broken && message.key === "key 0" && message.n === 1
              return book.during(message, bad ? Job.fatal("broken") : Effect.void)
            }
          })
        }
        yield* Testing.advance("10 seconds")
        expect(books[0].ended.get("key 0")).toEqual([0, 2, 3])
        expect(books[1].ended.get("key 0")).toEqual([0])
        for (const book of books) expect(book.ended.get("key 1")).toEqual([0, 1, 2, 3])
        broken = false
        yield* going.deadLetters.requeue({ reason: "failed" })
        yield* holding.deadLetters.requeue({ reason: "failed" })
        yield* Testing.advance("10 seconds")
        expect(books[0].ended.get("key 0")).toEqual([0, 2, 3, 1])
        expect(books[1].ended.get("key 0")).toEqual([0, 1, 2, 3])
        for (const queue of [going, holding]) yield* expectEmpty(queue)
      })
    )

    it.effect("the next of a key starts when the handler of a cancelled one has ended (G164)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const book = makeBook()
        const ended: Array<number> = []
        yield* queue.enqueueMany(messages(1, 3), byKey)
        yield* observe(queue, {
          handler: ({ payload }) => {
            const message = payload as Message
            const slow = Effect.onInterrupt(Effect.never, () =>
              Effect.zipRight(
                Effect.sleep("5 seconds"),
                Effect.flatMap(Clock.currentTimeMillis, (at) => Effect.sync(() => ended.push(at)))
              )
            )
            return book.during(message, message.n === 0 ? slow : Effect.void)
          }
        })
        yield* Testing.advance("1 second")
        const [head] = yield* liveRows(queue)
        expect(yield* queue.cancel(head?.id ?? 0)).toBe("requested")
        // Interrupted on a wake, at the latest by the next heartbeat
        yield* Testing.advance("1 minute")
        expect(ended).toHaveLength(1)
        expect(book.overlaps).toEqual([])
        expect(book.ended.get("key 0")).toEqual([1, 2])
        expect((yield* deadRows(queue)).map(({ reason }) => reason)).toEqual(["cancelled"])
      })
    )

    it.effect("a message whose handler hangs is given up as stuck, and its key goes on (G164)", () =>
      Effect.gen(function* () {
        const queue = freshQueue({ maxAttempts: 1 })
        const ran: Array<unknown> = []
        yield* queue.enqueueMany([0, 1], { orderingKey: "k" })
        yield* observe(queue, {
          timeout: "10 seconds",
          handler: ({ payload }) =>
            Effect.zipRight(
              Effect.sync(() => ran.push(payload)),
              payload === 0 ? Effect.never : Effect.void
            )
        })
        yield* Testing.advance("9 seconds")
        expect(ran).toEqual([0])
        yield* Testing.advance("10 seconds")
        expect(ran).toEqual([0, 1])
        expect((yield* deadRows(queue)).map(({ reason }) => reason)).toEqual(["exhausted"])
      })
    )
  })

  live(engine, options, "workers and ordering keys, in real time", (it) => {
    for (const transactional of [false, true])
      it.effect(
        `the next of a key starts when the one before has ended, without a poll${transactional ? ", in transactions" : ""} (G160)`,
        () =>
          Effect.gen(function* () {
            const queue = freshQueue()
            const book = makeBook()
            const gate = yield* makeGate
            yield* observe(queue, {
              transactional,
              handler: ({ payload }) => Effect.zipRight(gate.wait, book.during(payload as Message, Effect.yieldNow()))
            })
            // One that waits for a poll each time would take minutes
            yield* queue.enqueueMany(messages(1, 40), byKey)
            yield* gate.open
            yield* until("all have ended", () => book.ended.get("key 0")?.length === 40)
            book.expectOrder(1, 40)
          }),
        40_000
      )

    it.effect(
      "workers of two Layers share keys, and never run two of one at once (G160)",
      () =>
        Effect.gen(function* () {
          const [keys, each] = [15, 12]
          const queue = freshQueue()
          const book = makeBook()
          const other = yield* Layer.build(engine.beside({ silent: options.silent }))
          const policy = {
            concurrency: 6,
            retry: Schedule.spaced(5),
            handler: ({ failures, payload }: Job.Job<unknown>) => {
              const message = payload as Message
              const fails = failures === 0 && (message.n + message.key.length) % 3 === 0
              return book.during(message, Effect.zipRight(Effect.sleep(1), fails ? Effect.fail("once") : Effect.void))
            }
          }
          yield* observe(queue, policy)
          yield* Effect.provide(observe(queue, policy), other)
          yield* Effect.forEach(numbers(each), (n) =>
            queue.enqueueMany(messages(keys, each).slice(n * keys, (n + 1) * keys), byKey)
          )
          yield* eventually("all is done", liveRows(queue), (rows) => rows.length === 0)
          book.expectOrder(keys, each)
          yield* expectEmpty(queue)
        }).pipe(Effect.scoped),
      40_000
    )
  })
}
