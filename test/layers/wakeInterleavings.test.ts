/**
 * No wake is missed: one worker that comes to look and then to wait, beside one or two who make a job claimable meanwhile,
 * in every order of their steps. A step is a statement (a look that locks nothing goes with the next), a COMMIT, the
 * registration, the arrival of a notification or of a claim's answer, or a wake within the process. When no step is left
 * the worker sleeps: nothing may be claimable then. Up to some 850 orders of a case, some 5,000 in all.
 */
import { Queue, transaction } from "alkstore"
import { Effect, Exit, Schema, Scope } from "effect"
import { afterAll, beforeAll, describe, expect, inject, test, vi } from "vitest"
import { freshName } from "../conformance/support.js"
import { createDatabase } from "../support/postgres.js"
import { connectTo, steppedPostgres, steppedSqlite } from "../support/steppedEngines.js"
import {
  type Act,
  type AnyQueue,
  everyPlay,
  type Played,
  type Producer,
  type Way,
  type World
} from "../support/steppedWorker.js"

// Hundreds of orders a case: a busy machine takes a minute for some
vi.setConfig({ testTimeout: 180_000 })

const makeQueue = (options: Partial<Queue.Options<unknown, unknown>> = {}): AnyQueue =>
  Queue.make(freshName("wakes"), { payload: Schema.Unknown, ...options })

interface Case {
  readonly producers: ReadonlyArray<Producer>
  /** Jobs that the worker has at the end. */
  readonly gets: number
  /** Orders on PostgreSQL, at least. */
  readonly orders: number
  readonly options?: Partial<Queue.Options<unknown, unknown>>
  readonly concurrency?: number
  /** The worker waits already. */
  readonly idle?: true
  /** The worker looks again, or is told again, anyway: that it registers late does no harm. */
  readonly again?: true
}

const same = { orderingKey: "k" }
const later = { delay: "1 hour" } as const

const does =
  (act: (queue: AnyQueue) => Act): Producer =>
  (queue) =>
    Effect.succeed(act(queue))

const leased = (queue: AnyQueue) =>
  Effect.map(queue.claim({ visibilityTimeout: "1 hour" }), ([job]) => job ?? expect.fail("nothing was claimed"))

/** Of jobs that are there before, the first is leased. */
const holds =
  (act: (job: Effect.Effect.Success<ReturnType<typeof leased>>, queue: AnyQueue) => Act, count = 1): Producer =>
  (queue) =>
    Effect.zipRight(
      queue.enqueueMany(["a", "b"].slice(0, count), count > 1 ? same : {}),
      Effect.map(leased(queue), (job) => act(job, queue))
    )

/** Of two jobs with one key that are there before, the first is dead. */
const buries =
  (count: number, act: (queue: AnyQueue, id: number) => Act): Producer =>
  (queue) =>
    Effect.zipRight(queue.enqueueMany(["a", "b"].slice(0, count), count > 1 ? same : {}), leased(queue)).pipe(
      Effect.flatMap((job) => Effect.as(job.fail("dead"), act(queue, job.id)))
    )

const enqueues = does((queue) => queue.enqueue("a"))

const cases: Readonly<Record<string, Case>> = {
  "an enqueue": { producers: [enqueues], gets: 1, orders: 10 },
  "an enqueue of many": { producers: [does((queue) => queue.enqueueMany(["a", "b", "c"]))], gets: 3, orders: 10 },
  "an enqueue of many that differ": {
    producers: [does((queue) => queue.enqueueMany(["a", "b"], (_, n) => ({ priority: n, dedupeKey: `key ${n}` })))],
    gets: 2,
    orders: 20
  },
  "an enqueue in a transaction": { producers: [does((queue) => transaction(queue.enqueue("a")))], gets: 1, orders: 20 },
  "an enqueue with an ordering key in a transaction": {
    producers: [does((queue) => transaction(queue.enqueue("a", same)))],
    gets: 1,
    orders: 148
  },
  "a job that replaces a delayed one": {
    producers: [
      (queue) =>
        Effect.as(
          queue.enqueue("a", { ...later, dedupeKey: "key" }),
          queue.enqueue("b", { dedupeKey: "key", onDuplicate: "replace" })
        )
    ],
    gets: 1,
    orders: 35
  },
  "a delayed job made earlier": {
    producers: [(queue) => Effect.map(queue.enqueue("a", later), ({ id }) => queue.runNow({ id }))],
    gets: 1,
    orders: 10
  },
  "a retry": { producers: [holds((job) => job.retry({ delay: 0 }))], gets: 1, orders: 10 },
  "a release in a transaction": { producers: [holds((job) => transaction(job.release))], gets: 1, orders: 20 },
  "an ack that frees an ordering key, and its advance": {
    producers: [holds((job) => job.ack, 2)],
    gets: 1,
    orders: 849
  },
  "an ack in a transaction that frees an ordering key": {
    producers: [holds((job) => transaction(job.ack), 2)],
    gets: 1,
    orders: 148
  },
  "a cancellation in a transaction that frees an ordering key": {
    producers: [
      (queue) =>
        Effect.zipLeft(
          Effect.map(queue.enqueue("a", { ...same, ...later }), ({ id }) => transaction(queue.cancel(id))),
          queue.enqueue("b", same)
        )
    ],
    gets: 1,
    orders: 148
  },
  "a requeue": { producers: [buries(1, (queue, id) => queue.deadLetters.requeue({ id }))], gets: 1, orders: 180 },
  "a purge in a transaction that frees an ordering key": {
    options: { onDead: "block" },
    producers: [buries(2, (queue, id) => transaction(queue.deadLetters.purge({ id })))],
    gets: 1,
    orders: 239
  },
  "a dead letter's envelope": {
    producers: [
      (queue) => {
        const from = makeQueue({ deadLetterQueue: queue })
        return Effect.zipRight(
          from.enqueue("a"),
          Effect.map(leased(from), (job) => job.fail("dead"))
        )
      }
    ],
    gets: 1,
    orders: 10
  },
  "a queue that is resumed": {
    producers: [(queue) => Effect.as(Effect.zipRight(queue.enqueue("a"), queue.pause), queue.resume)],
    gets: 1,
    orders: 44
  },
  "two enqueues": { producers: [enqueues, enqueues], gets: 2, orders: 334 },
  "a transaction with a job that comes before those that are claimed one by one": {
    producers: [(queue) => Effect.as(queue.enqueueMany(["b", "c"]), transaction(queue.enqueue("a", { priority: 1 })))],
    concurrency: 1,
    again: true,
    gets: 3,
    orders: 358
  }
}

const scene = ({ concurrency, idle, options, producers }: Case) => ({
  makeQueue: () => makeQueue(options),
  producers,
  concurrency,
  idle
})

const ofMissed = (played: ReadonlyArray<Played>) =>
  played.filter(({ missed }) => missed > 0).map(({ missed, steps }) => `${missed}: ${steps.join(", ")}`)

/** All orders, and that nothing is missed in any. */
const expectNone = async (world: World, way: Way, one: Case) => {
  const all = await everyPlay(world, way, scene(one))
  expect(ofMissed(all)).toEqual([])
  expect(all.filter(({ got }) => got !== one.gets)).toEqual([])
  return all.length
}

/** That something is missed in one of the orders: so it would be seen. */
const expectSome = async (world: World, way: Way, one: Case) =>
  expect(ofMissed(await everyPlay(world, way, scene(one), ({ missed }) => missed > 0))).toHaveLength(1)

let postgres: World
let sqlite: World
const scope = Effect.runSync(Scope.make())

beforeAll(async () => {
  const url = await createDatabase(inject("pgUrl"))
  const opened = Effect.all({
    postgres: Effect.all({ engine: steppedPostgres(url), listener: connectTo(url) }),
    sqlite: Effect.all({ engine: steppedSqlite })
  })
  const worlds = await Effect.runPromise(Scope.extend(opened, scope))
  postgres = worlds.postgres
  sqlite = worlds.sqlite
})

afterAll(() => Effect.runPromise(Scope.close(scope, Exit.void)))

describe("PostgreSQL, processes of their own, while the channel is live (G193)", () => {
  const way: Way = { registers: "first", channel: "live", wakes: true }
  describe.each(Object.entries(cases))("%s", (_, one) => {
    test("is not missed, in any order", async () => {
      expect(await expectNone(postgres, way, one)).toBeGreaterThanOrEqual(one.orders)
    })
    test.runIf(!one.again)("would be, if the worker registered after its look", () =>
      expectSome(postgres, { ...way, registers: "late" }, one)
    )
    test("would be, without the notification", () => expectSome(postgres, { ...way, wakes: false }, one))
  })
})

/** A rollback sends nothing, and nobody claims what is locked. */
test("PostgreSQL: what a transaction had locked that rolls back is left to the poll (G193)", () => {
  const rolledBack = (queue: AnyQueue, id: number) =>
    Effect.flip(transaction(Effect.zipRight(queue.setPriority({ id }, 1), Effect.fail("no"))))
  const producer: Producer = (queue) => Effect.map(queue.enqueue("a"), ({ id }) => rolledBack(queue, id))
  const way: Way = { registers: "first", channel: "live", wakes: true }
  return expectSome(postgres, way, { producers: [producer], gets: 1, orders: 1 })
})

describe("PostgreSQL, while the channel comes up (G193)", () => {
  const one = cases["an enqueue in a transaction"] as Case
  const way = (channel: Way["channel"]): Way => ({ registers: "first", channel, wakes: true })
  test("LISTEN before the look: none is missed", () => expectNone(postgres, way("first"), one))
  test("LISTEN after the look: one would be", () => expectSome(postgres, way("late"), one))
  test("LISTEN, then all are woken, whenever: none is missed", () =>
    expectNone(postgres, way(["LISTEN", "wakeAll"]), cases["an enqueue"] as Case))
  test("LISTEN after all are woken: one would be", () => expectSome(postgres, way(["wakeAll", "LISTEN"]), one))
  test("LISTEN, and nobody is woken: one would be", () => expectSome(postgres, way(["LISTEN"]), one))
})

/**
 * On PostgreSQL what commits with a transaction of the caller's is told by the server alone; on SQLite two producers, or many
 * looks, have thousands of orders.
 */
const within = (engine: string) =>
  Object.entries(cases).filter(
    ([name, { again, producers }]) =>
      producers.length === 1 && !again && (engine === "SQLite" || !/transaction/.test(name))
  )

describe.each(["PostgreSQL", "SQLite"])("%s, within one process (G193)", (engine) => {
  const way: Way = { registers: "first", channel: "none", wakes: true }
  const world = () => (engine === "SQLite" ? sqlite : { engine: postgres.engine })
  describe.each(within(engine))("%s", (_, one) => {
    test("is not missed, in any order", async () => {
      expect(await expectNone(world(), way, one)).toBeGreaterThanOrEqual(6)
    })
    test("would be, if the worker registered after its look", () =>
      expectSome(world(), { ...way, registers: "late" }, one))
    test("would be, without the wake", () => expectSome(world(), { ...way, wakes: false }, one))
  })
})
