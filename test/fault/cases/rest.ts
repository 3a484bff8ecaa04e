/** Wake and Clock, which ask nothing of the database, and Transfer. */
import { Clock, Queue, Transfer, Wake } from "alkstore"
import { Chunk, Effect, Stream } from "effect"
import { tables } from "../state.js"
import { acksOf, claimed, died, enqueue, job, settings, sweepLater, type World } from "../world.js"
import { type CasesOf, drained, silent } from "./enumerate.js"

export const wakeCases: CasesOf<Wake.Service> = {
  subscribe: silent(({ name }) => Effect.map(Wake.Wake, (service) => Effect.scoped(service.subscribe(name("queue"))))),
  wake: silent(({ name }) => Effect.map(Wake.Wake, (service) => service.wake([name("queue")]))),
  state: silent(() => Effect.map(Wake.Wake, (service) => service.state))
}

export const clockCases: CasesOf<Clock.Service> = {
  now: silent(() => Effect.map(Clock.Clock, (service) => service.now)),
  monotonic: silent(() => Effect.map(Clock.Clock, (service) => service.monotonic)),
  monotonicOf: silent(() =>
    Effect.map(Clock.Clock, (service) =>
      Effect.withFiberRuntime<number>((fiber) => Effect.succeed(service.monotonicOf(fiber)))
    )
  ),
  stall: silent(() => Effect.map(Clock.Clock, (service) => service.stall(0))),
  lull: silent(() => Effect.map(Clock.Clock, (service) => service.lull(1))),
  breath: silent(() => Effect.map(Clock.Clock, (service) => service.breath(Effect.void)))
}

/** Something of each kind. */
const furnish = ({ name }: World) =>
  Effect.gen(function* () {
    const queue = name("queue")
    const store = yield* Queue.Queue
    yield* store.define(settings(queue, { retainCompletedMillis: 9_000_000 }), "producer")
    yield* died(queue, job("dead", { orderingKey: "l" }))
    const rows = yield* claimed(queue, job("done", { dedupeKey: "w", dedupeWindowMillis: 9_000_000 }))
    yield* store.settle(queue, acksOf(rows))
    yield* enqueue(queue, job("a", { dedupeKey: "a" }), job("b", { orderingKey: "k" }), job("c", { orderingKey: "k" }))
    yield* store.setPaused(queue, true)
  })

/** What another namespace has exported. */
const elsewhere = (world: World) =>
  Effect.gen(function* () {
    const transfer = yield* Transfer.Transfer
    yield* furnish(world)
    const records = yield* Stream.runCollect(transfer.export({ completed: true }))
    yield* world.operator(tables.map((table) => `DELETE FROM ${world.database.table(table)}`).join("; "))
    return Chunk.map(records, (record) =>
      record.type === "alkstore" ? { ...record, origin: world.name("origin") } : record
    )
  })

export const transferCases: CasesOf<Transfer.Service> = {
  origin: [{ name: "is read", prepare: () => Effect.map(Transfer.Transfer, ({ origin }) => origin), alone: true }],
  export: [
    {
      name: "of each kind",
      prepare: (world) =>
        Effect.map(Effect.zipRight(furnish(world), Transfer.Transfer), (service) =>
          drained(service.export({ completed: true }))
        ),
      errors: ["QueuesInUse"],
      alone: true
    }
  ],
  import: [
    {
      name: "of each kind",
      prepare: (world) =>
        Effect.map(Effect.zip(elsewhere(world), Transfer.Transfer), ([records, service]) =>
          service.import(Stream.fromChunk(records))
        ),
      later: sweepLater,
      alone: true
    }
  ]
}
