/**
 * No wake is missed: a worker that comes to look and then to wait, and whoever makes a job claimable meanwhile, in every
 * order of their steps, on a real PostgreSQL and within a process on both engines. A step is a statement, a commit, the
 * subscription, the arrival of a notification, or a wake within the process. When no step is left the worker sleeps:
 * nothing may be claimable then.
 */
import { Queue, transaction } from "alkstore"
import { Effect, Scope, Schema } from "effect"
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest"
import { freshName } from "../conformance/support.js"
import { createDatabase } from "../support/postgres.js"
import { connectTo, steppedPostgres, steppedSqlite } from "../support/steppedEngines.js"
import { type Act, type AnyQueue, everyPlay, type Producer, type Way, type World } from "../support/steppedWorker.js"

const makeQueue = (options: Partial<Queue.Options<unknown, unknown>> = {}): AnyQueue =>
  Queue.make(freshName("wakes"), { payload: Schema.Unknown, ...options })

const leased = (queue: AnyQueue) =>
  Effect.map(queue.claim({ limit: 1, visibilityTimeout: "1 hour" }), ([job]) => job ?? expect.fail("nothing was claimed"))

interface Scene {
  readonly producers: ReadonlyArray<Producer>
  /** Jobs that the worker has at the end. */
  readonly gets: number
  readonly options?: Partial<Queue.Options<unknown, unknown>>
}

const same = { orderingKey: "k" }

const acts = (act: (queue: AnyQueue) => Act): Producer => (queue) => Effect.succeed(act(queue))
const one = acts((queue) => queue.enqueue("a"))
const inTransaction = acts((queue) => transaction(queue.enqueue("a")))

const scenes: Readonly<Record<string, Scene>> = {
  "an enqueue": { producers: [one], gets: 1 },
  "an enqueue of many": { producers: [acts((queue) => queue.enqueueMany(["a", "b", "c"]))], gets: 3 },
  "an enqueue of many that differ": {
    producers: [acts((queue) => queue.enqueueMany(["a", "b"], (_, n) => ({ priority: n, dedupeKey: `key ${n}` })))],
    gets: 2
  },
  "an enqueue in a transaction": { producers: [inTransaction], gets: 1 },
  "an enqueue with an ordering key": { producers: [acts((queue) => queue.enqueue("a", same))], gets: 1 },
  "an enqueue with an ordering key in a transaction": {
    producers: [acts((queue) => transaction(queue.enqueue("a", same)))],
    gets: 1
  },
  "a job that replaces a delayed one": {
    producers: [
      (queue) =>
        Effect.as(
          queue.enqueue("a", { delay: "1 hour", dedupeKey: "key" }),
          queue.enqueue("b", { dedupeKey: "key", onDuplicate: "replace" })
        )
    ],
    gets: 1
  },
  "a retry": {
    producers: [(queue) => Effect.zipRight(queue.enqueue("a"), Effect.map(leased(queue), (job) => job.retry({ delay: 0 })))],
    gets: 1
  },
  "a release in a transaction": {
    producers: [(queue) => Effect.zipRight(queue.enqueue("a"), Effect.map(leased(queue), (job) => transaction(job.release)))],
    gets: 1
  },
  "a delayed job made earlier": {
    producers: [
      (queue) => Effect.map(queue.enqueue("a", { delay: "1 hour" }), ({ id }) => queue.runNow({ id }))
    ],
    gets: 1
  },
  "a requeue": {
    producers: [
      (queue) =>
        Effect.zipRight(queue.enqueue("a"), leased(queue)).pipe(
          Effect.flatMap((job) => Effect.as(job.fail("dead"), queue.deadLetters.requeue({ id: job.id })))
        )
    ],
    gets: 1
  },
  "an ack that frees an ordering key": {
    producers: [
      (queue) =>
        Effect.zipRight(queue.enqueueMany(["a", "b"], same), Effect.map(leased(queue), (job) => job.ack))
    ],
    gets: 1
  },
  "an ack in a transaction that frees an ordering key": {
    producers: [
      (queue) =>
        Effect.zipRight(queue.enqueueMany(["a", "b"], same), Effect.map(leased(queue), (job) => transaction(job.ack)))
    ],
    gets: 1
  },
  "a cancellation that frees an ordering key": {
    producers: [
      (queue) =>
        Effect.zipLeft(
          Effect.map(queue.enqueue("a", { ...same, delay: "1 hour" }), ({ id }) => queue.cancel(id)),
          queue.enqueue("b", same)
        )
    ],
    gets: 1
  },
  "a purge that frees an ordering key": {
    options: { onDead: "block" },
    producers: [
      (queue) =>
        Effect.zipRight(queue.enqueueMany(["a", "b"], same), leased(queue)).pipe(
          Effect.flatMap((job) => Effect.as(job.fail("dead"), queue.deadLetters.purge({ id: job.id })))
        )
    ],
    gets: 1
  },
  "a queue that is resumed": {
    producers: [(queue) => Effect.as(Effect.zipRight(queue.enqueue("a"), queue.pause), queue.resume)],
    gets: 1
  },
  "a dead letter's envelope": {
    producers: [
      (queue) => {
        const from = makeQueue({ deadLetterQueue: queue })
        return Effect.zipRight(from.enqueue("a"), Effect.map(leased(from), (job) => job.fail("dead")))
      }
    ],
    gets: 1
  },
  "a transaction beside one that is rolled back": {
    producers: [inTransaction, acts((queue) => Effect.flip(transaction(Effect.zipRight(queue.enqueue("b"), Effect.fail("no")))))],
    gets: 1
  },
  "two transactions": { producers: [inTransaction, inTransaction], gets: 2 },
  "two transactions with an ordering key": {
    producers: [acts((queue) => transaction(queue.enqueue("a", same))), acts((queue) => transaction(queue.enqueue("b", same)))],
    gets: 1
  }
}

const pg = {} as { world: World; scope: Scope.CloseableScope }

beforeAll(async () => {
  pg.scope = await Effect.runPromise(Scope.make())
  const url = await createDatabase(inject("pgUrl"))
  const world = Effect.map(Effect.all([steppedPostgres(url), connectTo(url)]), ([engine, listener]) => ({ engine, listener }))
  pg.world = await Effect.runPromise(Scope.extend(world, pg.scope))
})

const live: Way = { subscribes: "first", channel: "live", apart: true, notify: true }

describe("PostgreSQL", () => {
  for (const [name, { gets, options, producers }] of Object.entries(scenes))
    for (const way of [live, {...live, subscribes: "late"}, {...live, notify: false}] as Way[])
    test(`${name} ${JSON.stringify(way)}`, async () => {
      const at = performance.now(); const all = await everyPlay(pg.world, way, { makeQueue: () => makeQueue(options), producers }, way === live ? undefined : x => x.missed > 0)
      console.log(name, JSON.stringify(way), all.length, 'missed', all.filter(x => x.missed > 0).length, 'wrong', all.filter(x => x.got !== gets).length, Math.round(performance.now() - at), all.slice(0,1).map(x => x.steps.join(', '))[0])
    })
})
