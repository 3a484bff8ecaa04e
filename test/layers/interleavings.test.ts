/**
 * Two transactions on one ordering key and a third party that claims and acks, in every order of their steps, on a real
 * PostgreSQL. No step may wait for a transaction that is open; what has committed is found by claims alone.
 */
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { Queue } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Deferred, Effect, Fiber, Layer, ManagedRuntime, Redacted, Schema } from "effect"
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest"
import { freshName } from "../conformance/support.js"
import { createDatabase } from "../support/postgres.js"

type Services = Pg.Services | SqlClient.SqlClient
type Party = ManagedRuntime.ManagedRuntime<Services, unknown>

/** No step takes long, unless it waits for somebody. */
const patienceMillis = 5_000

/** Nobody sweeps, listens or polls: what is found is found by claims. */
const options: Pg.Options = {
  sweeper: false,
  scheduler: false,
  listen: false,
  notify: false,
  statementTimeout: "20 seconds"
}

let url: string
let here: Party
let there: Party

const party = (): Party => {
  const client = PgClient.layer({ url: Redacted.make(url), maxConnections: 6 })
  return ManagedRuntime.make(Layer.provideMerge(Pg.layer(options), client))
}

beforeAll(async () => {
  url = await createDatabase(inject("pgUrl"))
  here = party()
  there = party()
  await here.runPromise(Effect.void)
  await there.runPromise(Effect.void)
})

afterAll(() => Promise.all([here.dispose(), there.dispose()]))

const bounded = <A, E, R>(what: string, self: Effect.Effect<A, E, R>) =>
  Effect.timeoutFail(Effect.disconnect(self), {
    duration: patienceMillis,
    onTimeout: () => new Error(`${what} waits for somebody`)
  })

/** All orders of steps of several parties, each of which keeps its own. */
const orders = <A>(parties: ReadonlyArray<ReadonlyArray<A>>): ReadonlyArray<ReadonlyArray<A>> => {
  const left = parties.filter((steps) => steps.length > 0)
  if (left.length === 0) return [[]]
  return left.flatMap((steps) =>
    orders(left.map((other) => (other === steps ? other.slice(1) : other))).map((rest) => [steps[0] as A, ...rest])
  )
}

type AnyQueue = Queue.Definition<string, string>
const makeQueue = (more: Partial<Queue.Options<string, string>> = {}): AnyQueue =>
  Queue.make(freshName("lanes"), { payload: Schema.String, ...more })

/** A transaction of the application's that stays open between its steps. */
const openTransaction = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  const steps: Array<Effect.Effect<void, unknown, Services>> = []
  let ready = yield* Deferred.make<void>()
  let idle = yield* Deferred.make<void, unknown>()
  const next: Effect.Effect<void, unknown, Services> = Effect.suspend(() =>
    Effect.flatMap(Deferred.await(ready), () => {
      const step = steps.shift()
      if (step === undefined) return Effect.void
      const done = idle
      return step.pipe(
        Effect.tapErrorCause((cause) => Deferred.failCause(done, cause)),
        Effect.zipRight(Deferred.make<void>()),
        Effect.flatMap((again) => {
          ready = again
          return Deferred.succeed(done, undefined)
        }),
        Effect.zipRight(next)
      )
    })
  )
  const fiber = yield* Effect.fork(sql.withTransaction(next))
  const go = (step?: Effect.Effect<void, unknown, Services>) =>
    Effect.gen(function* () {
      if (step !== undefined) steps.push(step)
      idle = yield* Deferred.make<void, unknown>()
      const done = idle
      yield* Deferred.succeed(ready, undefined)
      if (step === undefined) yield* Effect.asVoid(Effect.exit(Fiber.join(fiber)))
      else yield* Deferred.await(done)
    })
  return {
    run: (step: Effect.Effect<unknown, unknown, Services>) => go(Effect.asVoid(step)),
    commit: go(),
    // The step fails before the server is asked to roll back
    rollback: Effect.asVoid(Effect.zipRight(Effect.exit(go(Effect.fail("rolled back"))), Fiber.await(fiber)))
  }
})

/** Claims and acks until nothing is left; never two of the key at once, and nobody sweeps. */
const drainWith = (claim: Effect.Effect<ReadonlyArray<Claimed>, unknown>) =>
  Effect.gen(function* () {
    const order: Array<string> = []
    let idle = 0
    while (idle < 2) {
      const jobs = yield* claim
      expect(jobs.length).toBeLessThanOrEqual(1)
      if (jobs.length === 0) idle++
      else idle = 0
      for (const job of jobs) {
        order.push(job.payload)
        yield* job.ack
      }
    }
    return order
  })

interface Claimed {
  readonly payload: string
  readonly ack: Effect.Effect<void, unknown>
}

/** A third party in a process of its own. */
const claimer = (queue: AnyQueue) => {
  const held: Array<Claimed> = []
  const claim = Effect.promise(() =>
    there.runPromise(
      Effect.map(queue.claim({ limit: 10, visibilityTimeout: "1 hour" }), (jobs) =>
        jobs.map(({ ack, payload }): Claimed => ({ payload, ack: Effect.promise(() => there.runPromise(ack)) }))
      )
    )
  )
  return { held, claim }
}

const live = (queue: AnyQueue) =>
  Effect.flatMap(Queue.Queue, (store) => store.list(queue.name, { limit: 100, after: 0 }))

const same = { orderingKey: "k" }

type Step = "1 inserts" | "1 commits" | "1 rolls back" | "2 inserts" | "2 commits" | "2 rolls back" | "claim" | "ack"

const ends = ["commits", "rolls back"] as const
const thirds: ReadonlyArray<ReadonlyArray<Step>> = [
  ["claim", "ack"],
  ["claim", "ack", "claim", "ack"]
]

const interleaving = (steps: ReadonlyArray<Step>, before: boolean) =>
  Effect.gen(function* () {
    const queue = makeQueue()
    const { claim, held } = claimer(queue)
    /** What the claims must see, in the order in which it may come. */
    const waiting: Array<string> = []
    /** Who has been found to be the next: nobody that is enqueued, or commits, later comes before it. */
    let head: string | undefined
    if (before) {
      yield* queue.enqueue("0", same)
      waiting.push("0")
      head = "0"
    }
    const transactions = { "1": yield* openTransaction, "2": yield* openTransaction }
    /** Of those that are visible the first enqueued is next: ids are given at the insert. */
    const inserted: Array<string> = []
    for (const step of steps) {
      const [who = "", verb] = step.split(/ (.*)/)
      const transaction = transactions[who as "1" | "2"]
      const act = Effect.gen(function* () {
        if (step === "claim") {
          const jobs = yield* claim
          head ??= waiting[0]
          const expected = held.length > 0 || head === undefined ? [] : [head]
          expect(jobs.map(({ payload }) => payload)).toEqual(expected)
          held.push(...jobs)
        } else if (step === "ack") {
          const job = held.shift()
          if (job === undefined) return
          yield* job.ack
          waiting.splice(waiting.indexOf(job.payload), 1)
          head = waiting[0]
        } else if (verb === "inserts") {
          inserted.push(who)
          yield* transaction.run(queue.enqueue(who, same))
        } else if (verb === "commits") {
          yield* transaction.commit
          waiting.push(who)
          const place = (name: string) => (name === head ? -1 : inserted.indexOf(name))
          waiting.sort((a, b) => place(a) - place(b))
        } else yield* transaction.rollback
      })
      yield* bounded(`${step} of ${steps.join(", ")}`, act)
    }
    for (const job of held.splice(0)) {
      yield* job.ack
      waiting.splice(waiting.indexOf(job.payload), 1)
    }
    expect(yield* bounded("the drain", drainWith(claim))).toEqual(waiting)
    expect(yield* live(queue)).toEqual([])
  })

const run = (steps: ReadonlyArray<Step>, before = false) => here.runPromise(Effect.scoped(interleaving(steps, before)))

describe("two transactions on one key and a claimer (G166)", () => {
  for (const first of ends)
    for (const second of ends)
      for (const third of first === second && first === "rolls back" ? thirds.slice(0, 1) : thirds) {
        // Which of the two inserts first makes no difference but in their names
        const all = orders<Step>([["1 inserts", `1 ${first}`], ["2 inserts", `2 ${second}`], third]).filter(
          (steps) => steps.indexOf("1 inserts") < steps.indexOf("2 inserts")
        )
        test(`1 ${first}, 2 ${second}, with ${third.length} steps of the claimer: all ${all.length} orders`, async () => {
          expect(all.length).toBe(third.length === 2 ? 45 : 210)
          for (let at = 0; at < all.length; at += 10)
            await Promise.all(all.slice(at, at + 10).map((steps) => run(steps, third.length === 2)))
        })
      }
})

/** What a transaction may do to the jobs of a key besides adding to it. */
const deeds: Readonly<Record<string, (queue: AnyQueue, id: number) => Effect.Effect<unknown, unknown, Services>>> = {
  "cancels the next": (queue, id) => queue.cancel(id),
  "changes the next": (queue, id) => queue.setPriority({ id }, 5),
  "replaces the next": (queue) => queue.enqueue("next", { ...same, dedupeKey: "next", onDuplicate: "replace" }),
  "adds one more": (queue) => queue.enqueue("more", same)
}

describe("a transaction that has the next job of a key locked (G166)", () => {
  for (const [deed, act] of Object.entries(deeds))
    for (const end of ends)
      test(`${deed}, and ${end}: nobody waits, nothing is left`, () =>
        here.runPromise(
          Effect.scoped(
            Effect.gen(function* () {
              const queue = makeQueue()
              const { claim } = claimer(queue)
              yield* queue.enqueue("head", same)
              const { id } = yield* queue.enqueue("next", { ...same, dedupeKey: "next" })
              yield* queue.enqueue("last", same)
              yield* queue.enqueue("beside", { orderingKey: "other" })
              yield* queue.enqueue("beside 2", { orderingKey: "other" })
              const transaction = yield* openTransaction
              yield* transaction.run(act(queue, id))
              const jobs = yield* bounded("a claim", claim)
              expect(jobs.map(({ payload }) => payload)).toEqual(["head", "beside"])
              for (const job of jobs) yield* bounded("an ack", job.ack)
              const [after, ...more] = yield* bounded("a claim after the acks", claim)
              yield* bounded("an enqueue", queue.enqueue("behind", same))
              yield* end === "commits" ? transaction.commit : transaction.rollback
              const done = [after, ...more].flatMap((job) => (job === undefined ? [] : [job]))
              for (const job of done) yield* job.ack
              const rest = yield* drainWith(claim)
              const cancelled = deed === "cancels the next" && end === "commits"
              const added = deed === "adds one more" && end === "commits"
              expect([...done.map(({ payload }) => payload), ...rest].filter((name) => name !== "beside 2")).toEqual([
                ...(cancelled ? [] : ["next"]),
                "last",
                ...(added ? ["more"] : []),
                "behind"
              ])
              expect(yield* live(queue)).toEqual([])
            })
          )
        ))
})

describe("a job that is acked in a transaction (G166)", () => {
  for (const end of ends)
    test(`which ${end}: the next waits for it, and nobody else does`, () =>
      here.runPromise(
        Effect.scoped(
          Effect.gen(function* () {
            const queue = makeQueue()
            const { claim } = claimer(queue)
            yield* queue.enqueueMany(["1", "2"], same)
            const [head] = yield* queue.claim()
            const transaction = yield* openTransaction
            yield* transaction.run(head?.ack ?? Effect.die("nothing was claimed"))
            expect(yield* bounded("a claim", claim)).toEqual([])
            yield* bounded("an enqueue", queue.enqueue("3", same))
            expect(yield* bounded("a claim", claim)).toEqual([])
            yield* end === "commits" ? transaction.commit : transaction.rollback
            if (end === "rolls back") {
              expect(yield* claim).toEqual([])
              yield* head?.ack ?? Effect.void
            }
            expect(yield* drainWith(claim)).toEqual(["2", "3"])
          })
        )
      ))
})
