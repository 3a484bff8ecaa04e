/** The Queue service: enqueue, claim, settle, renew, sweep, transactions. */
import { Queue } from "alkstore"
import { Effect } from "effect"
import type { Service as Operations } from "../../../src/services/Operations.js"
import type { NewJob, Receiver } from "../../../src/services/QueueStore.js"
import {
  acksOf,
  bury,
  type Case,
  claim,
  claimed,
  died,
  enqueue,
  expire,
  job,
  lapse,
  type Operation,
  settings,
  sweepLater,
  type World
} from "../world.js"
import { type CasesOf, silent } from "./enumerate.js"
import { strangersLease } from "./strangersLease.js"

const store = Queue.Queue

/** An enqueue that fails says whether anything may have been written. */
const enqueues = {
  errors: ["EnqueueUncertain"],
  clean: ({ _tag }: { readonly _tag: string }) => _tag === "StoreError"
}

const enqueueing = (
  name: string,
  jobs: ReadonlyArray<NewJob>,
  more: Partial<Case> = {},
  before: (world: World) => ReturnType<Case["prepare"]> = () => Effect.succeed(Effect.void)
): Case => ({
  name,
  ...enqueues,
  ...more,
  prepare: (world) => Effect.as(before(world), enqueue(world.name("queue"), ...jobs))
})

/** As a caller does: again what was not sent, and what is uncertain only after a look. */
const insisting = (queue: string, text: string): Operation => {
  const once = Effect.retry(enqueue(queue, job(text)), { times: 2, while: ({ _tag }) => _tag === "StoreError" })
  return Effect.catchTag(once, "EnqueueUncertain", () =>
    Effect.flatMap(
      Effect.flatMap(store, (service) => service.list(queue, { limit: 99, after: 0 })),
      (rows) => Effect.when(once, () => !rows.some(({ payload }) => payload === JSON.stringify(text)))
    )
  )
}

const history = {
  crashes: 0,
  failures: 1,
  errors: JSON.stringify([{ at: 1, attempt: 1, kind: "failure", message: "no" }]),
  failureTimes: "[1]"
}

/** What a claim meets and clears away: expired, lapsed, and more than a page's kinds of it. */
const littered = (world: World) =>
  Effect.gen(function* () {
    const queue = world.name("queue")
    yield* (yield* store).define(settings(queue, { maxCrashes: 0 }), "producer")
    yield* claimed(queue, job("crashed"))
    yield* lapse(world, queue)
    yield* enqueue(queue, job("expired", { expiresMillis: 3_600_000, dedupeKey: "e" }), job("good"))
    yield* expire(world, queue)
    return queue
  })

/** Two ordering keys whose heads have ended in transactions that could not see what came behind. */
const ordered = (world: World) =>
  Effect.gen(function* () {
    const queue = world.name("queue")
    const rows = yield* claimed(queue, job("head", { orderingKey: "k" }), job("other", { orderingKey: "l" }))
    yield* enqueue(queue, job("next", { orderingKey: "k" }), job("last", { orderingKey: "l" }))
    return { queue, rows }
  })

const renewing =
  <E>(
    how: (service: Queue.Service) => (renewals: Parameters<Queue.Service["renew"]>[0]) => Effect.Effect<unknown, E>
  ) =>
  ({ name }: World) =>
    Effect.gen(function* () {
      const service = yield* store
      const rows = yield* claimed(name("queue"), job("a"), job("b"))
      const renewals = rows.map(({ id, token }, index) => ({
        id,
        token,
        visibilityMillis: 60_000,
        progress: index === 0 ? '"half"' : undefined
      }))
      return how(service)(renewals)
    })

export const queueCases: Omit<CasesOf<Queue.Service>, keyof Operations> = {
  define: [
    {
      name: "of a producer, then of a worker, with dead letters elsewhere",
      prepare: (world) =>
        Effect.gen(function* () {
          const queue = yield* store
          const name = world.name("queue")
          yield* queue.define(settings(name), "producer")
          return queue.define(settings(name, { deadLetterQueue: world.name("dead"), maxCrashes: 2 }), "worker")
        }),
      errors: ["InvalidArgument"],
      alone: true
    }
  ],
  enqueue: [
    enqueueing("one job", [job("a")], { adds: true }),
    enqueueing(
      "jobs with keys of all kinds, as a whole",
      [
        job("a", { dedupeKey: "a", priority: 2, headers: '{"x":"y"}' }),
        job("b", { dedupeKey: "b", orderingKey: "k", delayMillis: 3_600_000 }),
        job("c", { dedupeKey: "c", orderingKey: "k", expiresMillis: 9_000_000 })
      ],
      { later: sweepLater }
    ),
    enqueueing(
      "a key that is held, and a payload that replaces",
      [job("new", { dedupeKey: "a", replace: true })],
      {},
      (world) => Effect.as(enqueue(world.name("queue"), job("old", { dedupeKey: "a" })), Effect.void)
    ),
    enqueueing("an instant of expiry", [job("a", { expiresAt: 4_000_000_000_000 })], { adds: true }),
    {
      ...enqueues,
      name: "three at the same moment",
      adds: true,
      alone: true,
      prepare: ({ name }) =>
        Effect.succeed(
          Effect.forEach(["a", "b", "c"], (text) => insisting(name("queue"), text), { concurrency: "unbounded" })
        )
    }
  ],
  receive: [
    {
      ...enqueues,
      name: "two jobs for a worker that waits, whose room is given back whatever becomes of them",
      adds: true,
      alone: true,
      prepare: (world) =>
        Effect.map(store, (service) => {
          const queue = world.name("queue")
          let reserved = 0
          const receiver: Receiver = {
            queue,
            worker: "waits",
            visibilityMillis: 60_000,
            reserve: (jobs) => {
              reserved += jobs
              return true
            },
            take: (jobs) => {
              reserved -= jobs
            }
          }
          const done = Effect.sync(() => {
            if (reserved !== 0) throw new Error(`room for ${reserved} jobs was not given back`)
          })
          return Effect.scoped(
            Effect.zipRight(service.receive(receiver), Effect.ensuring(enqueue(queue, job("a"), job("b")), done))
          )
        })
    }
  ],
  claim: [
    {
      name: "two ready jobs",
      prepare: ({ name }) =>
        Effect.as(
          enqueue(name("queue"), job("a", { dedupeKey: "a", dedupeScope: "waiting" }), job("b")),
          claim(name("queue"))
        )
    },
    {
      name: "past what has expired and lapsed",
      prepare: (world) => Effect.map(littered(world), (queue) => claim(queue)),
      // What was claimed is in hand, whatever becomes of the rest
      later: sweepLater,
      alone: true
    },
    {
      name: "past ordering keys whose heads have ended",
      prepare: (world) =>
        Effect.gen(function* () {
          const { queue, rows } = yield* ordered(world)
          const done = acksOf(rows)
          // In a transaction the pass is left to the next claim
          yield* Effect.flatMap(store, (service) => service.transaction(service.settle(queue, done)))
          return claim(queue)
        }),
      later: sweepLater,
      alone: true
    }
  ],
  settle: [
    strangersLease,
    {
      name: "one of each kind, with all that hangs on them",
      prepare: (world) =>
        Effect.gen(function* () {
          const queue = world.name("queue")
          const service = yield* store
          yield* service.define(
            settings(queue, { retainCompletedMillis: 9_000_000, deadLetterQueue: world.name("dead") }),
            "producer"
          )
          const [ack, back, dead] = yield* claimed(
            queue,
            job("ack", { dedupeKey: "a", dedupeWindowMillis: 9_000_000 }),
            job("back", { dedupeKey: "b" }),
            job("dead", { dedupeKey: "d" })
          )
          if (ack === undefined || back === undefined || dead === undefined) return yield* Effect.die("not claimed")
          return service.settle(queue, [
            { _tag: "Ack", id: ack.id, token: ack.token },
            {
              _tag: "Return",
              id: back.id,
              token: back.token,
              attempt: 1,
              delayMillis: 3_600_000,
              undecodableSince: null,
              history
            },
            bury(dead)
          ])
        })
    },
    {
      name: "heads of ordering keys, one of which is to hold its key",
      prepare: (world) =>
        Effect.gen(function* () {
          const service = yield* store
          yield* service.define(settings(world.name("queue"), { onDead: "block" }), "producer")
          const { queue, rows } = yield* ordered(world)
          const [head, other] = rows
          if (head === undefined || other === undefined) return yield* Effect.die("not claimed")
          return service.settle(queue, [{ _tag: "Ack", id: head.id, token: head.token }, bury(other)])
        }),
      later: sweepLater
    }
  ],
  renew: [{ name: "two leases, one with progress", alone: true, prepare: renewing((service) => service.renew) }],
  renewWithin: [{ name: "two leases, one with progress", prepare: renewing((service) => service.renewWithin) }],
  sweepExpired: [
    {
      name: "what has expired, lapsed and been retained, and keys that wait",
      prepare: (world) =>
        Effect.gen(function* () {
          const service = yield* store
          const queue = yield* littered(world)
          yield* service.define(settings(queue, { maxCrashes: 0, retainDeadMillis: 3_600_000 }), "worker")
          yield* died(world.name("old"), job("letter"))
          yield* service.define(settings(world.name("old"), { retainDeadMillis: 3_600_000 }), "producer")
          yield* world.operator(
            `UPDATE ${world.database.table("dead_letters")} SET died_at = 1 WHERE queue = '${world.name("old")}'`
          )
          const { queue: keyed, rows } = yield* ordered({ ...world, name: (suffix) => world.name(`keyed-${suffix}`) })
          yield* service.transaction(service.settle(keyed, acksOf(rows)))
          return service.sweepExpired()
        }),
      alone: true
    }
  ],
  list: [
    {
      name: "one job",
      prepare: ({ name }) =>
        Effect.as(
          enqueue(name("queue"), job("a")),
          Effect.flatMap(store, (service) => service.list(name("queue"), { limit: 9, after: 0 }))
        )
    }
  ],
  transaction: [
    {
      name: "an enqueue and a claim",
      alone: true,
      adds: true,
      clean: ({ reason }) => reason !== "uncertain",
      prepare: ({ name }) =>
        Effect.map(Effect.zipRight(enqueue(name("other"), job("before")), store), (service) =>
          service.transaction(Effect.zipRight(enqueue(name("queue"), job("a")), claim(name("other"))))
        )
    },
    {
      name: "one inside another that fails",
      alone: true,
      adds: true,
      clean: ({ reason }) => reason !== "uncertain",
      prepare: ({ name }) =>
        Effect.map(store, (service) =>
          service.transaction(
            Effect.zipRight(
              Effect.catchIf(
                service.transaction(
                  Effect.zipRight(enqueue(name("queue"), job("undone")), Effect.fail("on purpose" as const))
                ),
                (error) => error === "on purpose",
                () => Effect.void
              ),
              enqueue(name("queue"), job("a"))
            )
          )
        )
    }
  ],
  detached: silent(() => Effect.map(store, (service) => service.detached(Effect.void))),
  holdsWriteLock: silent(() => Effect.map(store, (service) => service.holdsWriteLock)),
  innerScope: silent(() => Effect.map(store, (service) => service.innerScope)),
  monotonic: silent(() => Effect.map(store, (service) => service.monotonic))
}
