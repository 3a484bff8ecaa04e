/** A queue that many calls meet for the first time at the same moment: its settings are stored once. */
import { Deferred, Effect, Exit, Fiber } from "effect"
import { expect, test } from "vitest"
import type { Database } from "../../src/layers/Database/Database.js"
import { makeDefineQueue } from "../../src/layers/Queue/defineQueue.js"
import type { Verbs } from "../../src/layers/Queue/verbs.js"
import { storeError } from "../../src/layers/storeError.js"
import type { QueueSettings } from "../../src/services/QueueStore.js"

const settings = (name: string): QueueSettings => ({ name, deadLetterQueue: null }) as unknown as QueueSettings

/** A database that stores settings when it is told to; `inside` is where its callers stand. */
const scene = (
  store: (call: number) => Effect.Effect<void, ReturnType<typeof storeError>>,
  inside = false,
  engine = "postgres"
) => {
  let calls = 0
  const define = { upsert: () => Effect.suspend(() => store(++calls)), known: () => Effect.succeed(false) }
  const run = (_access: unknown, _operation: unknown, verb: (session: unknown) => Effect.Effect<unknown>) => verb({})
  const db = {
    names: { engine },
    joins: Effect.succeed(inside),
    standing: (then: (stands: "inside" | "outside") => unknown) => then(inside ? "inside" : "outside"),
    apart: run,
    joined: run
  }
  const queue = makeDefineQueue(db as unknown as Database, { define } as unknown as Verbs)
  return { calls: () => calls, call: Effect.suspend(() => queue(settings("letters"), "producer")), queue }
}

const begun = Effect.repeatN(Effect.yieldNow(), 50)

const many = <A, E>(call: Effect.Effect<A, E>) => Effect.forEach(Array.from({ length: 20 }), () => Effect.fork(call))

test("G190: calls that come while one is under way wait for it; other settings are stored by themselves", () =>
  Effect.gen(function* () {
    const gate = yield* Deferred.make<void>()
    const { call, calls, queue } = scene(() => Deferred.await(gate))
    const waiting = yield* many(call)
    yield* begun
    expect(calls()).toBe(1)
    const other = yield* Effect.fork(queue(settings("parcels"), "producer"))
    yield* begun
    expect(calls()).toBe(2)
    yield* Deferred.succeed(gate, undefined)
    yield* Fiber.joinAll([...waiting, other])
    yield* call
    expect(calls()).toBe(2)
  }).pipe(Effect.runPromise))

test("G190: of a failure each makes its own attempt", () =>
  Effect.gen(function* () {
    const gate = yield* Deferred.make<void>()
    const broken = storeError("define", new Error("gone"), "connection")
    const { call, calls } = scene((n) =>
      n === 1
        ? Effect.zipRight(Deferred.await(gate), Effect.fail(broken))
        : n % 2 === 0
          ? Effect.fail(broken)
          : Effect.void
    )
    const waiting = yield* many(call)
    yield* begun
    expect(calls()).toBe(1)
    yield* Deferred.succeed(gate, undefined)
    const exits = yield* Effect.forEach(waiting, (fiber) => Fiber.await(fiber))
    expect(calls()).toBe(20)
    expect(exits.filter(Exit.isFailure)).toHaveLength(11)
  }).pipe(Effect.runPromise))

test("G191: when the first is interrupted, another takes its place, and the others wait for that one", () =>
  Effect.gen(function* () {
    const gate = yield* Deferred.make<void>()
    const { call, calls } = scene((n) => (n === 1 ? Effect.never : Deferred.await(gate)))
    const [first, ...waiting] = yield* many(call)
    yield* begun
    yield* Fiber.interrupt(first as Fiber.Fiber<void, unknown>)
    yield* begun
    expect(calls()).toBe(2)
    yield* Fiber.interrupt(waiting[5] as Fiber.Fiber<void, unknown>)
    yield* Deferred.succeed(gate, undefined)
    yield* Fiber.joinAll(waiting.filter((_, index) => index !== 5))
    expect(calls()).toBe(2)
  }).pipe(Effect.runPromise))

test("G192: inside a transaction nobody waits for another", () =>
  Effect.gen(function* () {
    const { call, calls } = scene(() => Effect.never, true)
    yield* many(call)
    yield* begun
    expect(calls()).toBe(20)
  }).pipe(Effect.runPromise))

test("G12: what was stored in a transaction of SQLite's may be rolled back, and is stored again", () =>
  Effect.gen(function* () {
    const { call, calls } = scene(() => Effect.void, true, "sqlite")
    yield* call
    yield* call
    expect(calls()).toBe(2)
    // On PostgreSQL it is never part of one
    const apart = scene(() => Effect.void, true)
    yield* apart.call
    yield* apart.call
    expect(apart.calls()).toBe(1)
  }).pipe(Effect.runPromise))
