/** The Queue service: what operators and programs ask of dead letters, live jobs and queues. */
import { Queue } from "alkstore"
import { Effect } from "effect"
import type { Service as Operations } from "../../../src/services/Operations.js"
import {
  acksOf,
  type Case,
  claimed,
  died,
  enqueue,
  ids,
  job,
  type Operation,
  settings,
  sweepLater,
  type World
} from "../world.js"
import type { CasesOf } from "./enumerate.js"

const store = Queue.Queue
type Store = Queue.Service

const every = { ids: null, reasons: null, from: null, until: null, error: null, orderingKey: null }
const all = { ids: null, dedupeKey: null, orderingKey: null, states: null, from: null, until: null }

/** `before`, then a call on the queue of that name. */
const calling = (
  name: string,
  before: (queue: string, world: World) => Operation,
  call: (service: Store, queue: string, world: World) => Operation,
  more: Partial<Case> = {}
): Case => ({
  name,
  ...more,
  prepare: (world) =>
    Effect.gen(function* () {
      const queue = world.name("queue")
      yield* before(queue, world)
      return call(yield* store, queue, world)
    })
})

const two = (queue: string) => enqueue(queue, job("a", { dedupeKey: "a" }), job("b"))
const letters = (queue: string) => died(queue, job("a", { dedupeKey: "a" }), job("b", { orderingKey: "k" }))

const retained = (queue: string) =>
  Effect.gen(function* () {
    const service = yield* store
    yield* service.define(settings(queue, { retainCompletedMillis: 9_000_000 }), "producer")
    const rows = yield* claimed(queue, job("a"))
    yield* service.settle(queue, acksOf(rows))
  })

/** A letter that holds its ordering key, and one that waits behind it. */
const blocked = (queue: string) =>
  Effect.gen(function* () {
    yield* Effect.flatMap(store, (service) => service.define(settings(queue, { onDead: "block" }), "producer"))
    yield* died(queue, job("dead", { orderingKey: "k" }))
    yield* enqueue(queue, job("behind", { orderingKey: "k" }))
  })

/** The ids are looked up before. */
const onJobs = (
  name: string,
  before: Parameters<typeof calling>[1],
  call: (service: Store, queue: string, found: ReadonlyArray<number>) => Operation,
  more: Partial<Case> = {}
): Case => ({
  name,
  ...more,
  prepare: (world) =>
    Effect.gen(function* () {
      const queue = world.name("queue")
      yield* before(queue, world)
      const found = yield* ids(queue)
      return call(yield* store, queue, found)
    })
})

export const operationCases: CasesOf<Operations> = {
  listDead: [calling("two letters", letters, (service, queue) => service.listDead(queue, { limit: 9 }))],
  requeue: [
    calling(
      "two letters, with keys",
      letters,
      (service, queue) =>
        service.requeue(queue, every, { to: queue, delayMillis: 0, accepts: () => Effect.succeed(true) }),
      { later: sweepLater }
    ),
    calling(
      "one that holds its ordering key, to another queue",
      blocked,
      (service, queue, world) =>
        service.requeue(queue, every, { to: world.name("other"), delayMillis: 0, accepts: () => Effect.succeed(true) }),
      { later: sweepLater }
    )
  ],
  purgeDead: [
    calling("one that holds its ordering key", blocked, (service, queue) => service.purgeDead(queue, every), {
      later: sweepLater
    })
  ],
  listCompleted: [calling("one job", retained, (service, queue) => service.listCompleted(queue, { limit: 9 }))],
  cancel: [
    onJobs("jobs that wait, one with a key", two, (service, queue, found) => service.cancel(queue, found)),
    onJobs(
      "one that is leased, and one behind it",
      (queue) =>
        Effect.zipRight(
          claimed(queue, job("leased", { orderingKey: "k" })),
          enqueue(queue, job("behind", { orderingKey: "k" }), job("last", { orderingKey: "k" }))
        ),
      (service, queue, found) => service.cancel(queue, found.slice(0, 2)),
      { later: sweepLater }
    )
  ],
  change: [
    onJobs("another time and priority", two, (service, queue, found) =>
      service.change(queue, found, { delayMillis: 3_600_000, runAt: null, priority: 7 })
    )
  ],
  select: [calling("all", two, (service, queue) => service.select(queue, all, { after: 0, limit: 9 }))],
  clear: [
    calling(
      "two that wait and one that is leased",
      (queue) =>
        Effect.zipRight(
          claimed(queue, job("leased", { orderingKey: "k" })),
          enqueue(queue, job("a", { orderingKey: "k" }), job("b"))
        ),
      (service, queue) => service.clear(queue),
      { later: sweepLater }
    )
  ],
  setPaused: [
    calling(
      "stops",
      (queue) => Effect.flatMap(store, (service) => service.define(settings(queue), "producer")),
      (service, queue) => service.setPaused(queue, true)
    ),
    calling(
      "resumes",
      (queue) =>
        Effect.flatMap(store, (service) =>
          Effect.zipRight(service.define(settings(queue), "producer"), service.setPaused(queue, true))
        ),
      (service, queue) => service.setPaused(queue, false)
    )
  ],
  signals: [onJobs("of two jobs", two, (service, queue, found) => service.signals(queue, found))],
  counts: [calling("of two jobs", two, (service, queue) => service.counts(queue), { later: sweepLater })],
  queues: [calling("all", two, (service) => service.queues)],
  running: [
    calling(
      "one job",
      (queue) => claimed(queue, job("a")),
      (service, queue) => service.running(queue, { limit: 9 })
    )
  ],
  find: [onJobs("a live one", two, (service, _, [id = 0]) => service.find(id))]
}
