/** Options that do not exist: whoever takes options refuses them by name (G6), before anything is done. */
import { type Job, Lock, Outbox, Queue, Schedules, Supervisor, Telemetry, Transfer, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import * as Testing from "alkstore/Testing"
import { Effect, Layer, Redacted, Schema, Stream } from "effect"
import { expect, it } from "vitest"

/** As they reach us from JavaScript and from JSON. */
const wrong = (options: object = {}) => ({ ...options, limt: 1 }) as never

const Letters = Queue.make("letters", { payload: Schema.String })

const rule = { every: "1 minute", queue: Letters, payload: "a" } as const

const handler = () => Effect.void

const launched = (layer: Layer.Layer<never, unknown, Queue.Queue>) => Effect.scoped(Layer.build(layer))

const claimed = Effect.zipRight(
  Letters.enqueue("a"),
  Effect.map(Letters.claim(), ([job]) => job as Job.Job<string>)
)

type All = Layer.Layer.Success<typeof Testing.layer>

const calls: Record<string, Effect.Effect<unknown, unknown, All>> = {
  "Queue.make": Queue.make("others", wrong({ payload: Schema.String })).enqueue("a" as never),
  "Outbox.make": Effect.suspend(() => Outbox.make("news", wrong({ message: Schema.String })).publish("a" as never)),
  enqueueStream: Letters.enqueueStream(Stream.make("a"), wrong()),
  claim: Letters.claim(wrong()),
  "job.retry": Effect.flatMap(claimed, (job) => job.retry(wrong())),
  list: Letters.list(wrong()),
  running: Letters.running(wrong()),
  completed: Letters.completed(wrong()),
  reschedule: Letters.reschedule({ all: true }, wrong({ delay: 5 })),
  "deadLetters.requeue": Letters.deadLetters.requeue({ all: true }, wrong()),
  "Schedules.make": Schedules.put(Schedules.make("a", wrong(rule))),
  "Schedules.make, of an enqueue": Schedules.put(Schedules.make("a", { ...rule, delay: 5 } as never)),
  "Schedules.layer": Effect.scoped(Layer.build(Schedules.layer([], wrong()))),
  "Worker.fork": Effect.scoped(Worker.fork(Letters, wrong({ handler }))),
  "Worker.fork, batch": Effect.scoped(Worker.fork(Letters, { batchHandler: handler, batch: wrong() })),
  "Supervisor.make": Effect.scoped(Supervisor.make([], wrong())),
  "Telemetry.layer": launched(Telemetry.layer(wrong())),
  "Lock.tryAcquire": Lock.tryAcquire("a", { timeout: 5 } as never),
  "Lock.acquire": Lock.acquire("a", wrong()),
  "Lock.withLock": Lock.withLock("a", wrong())(Effect.void),
  "Transfer.export": Stream.runDrain(Transfer.export(wrong())),
  "Testing.drain": Testing.drain(Letters, wrong()),
  "Testing.layerWithOptions": Effect.scoped(Layer.build(Testing.layerWithOptions(wrong()))),
  "Sqlite.layerFile": Effect.scoped(Layer.build(Sqlite.layerFile(":memory:", wrong()))),
  "Sqlite.layerFile, sweeper": Effect.scoped(Layer.build(Sqlite.layerFile(":memory:", { sweeper: wrong() }))),
  "Pg.layerUrl": Effect.scoped(Layer.build(Pg.layerUrl(Redacted.make("postgres://localhost/none"), wrong()))),
  "Pg.layerUrl, connection": Effect.scoped(
    Layer.build(Pg.layerUrl(Redacted.make("postgres://localhost/none"), { connection: wrong() }))
  )
}

const offending: Record<string, string> = {
  "Schedules.make, of an enqueue": "delay",
  "Lock.tryAcquire": "timeout"
}

it.each(Object.entries(calls))("%s", (name, call) =>
  Effect.runPromise(
    Effect.gen(function* () {
      const error = yield* Effect.flip(call)
      expect(error).toMatchObject({ _tag: "InvalidArgument" })
      expect((error as Error).message).toMatch(`: ${offending[name] ?? "limt"} is no option; there are `)
      expect(yield* Schedules.list).toEqual([])
      expect(yield* Lock.list).toEqual([])
      // The one that `job.retry` was to give back is still its claim's
      expect((yield* Letters.list()).map(({ state }) => state)).toEqual(name === "job.retry" ? ["leased"] : [])
    }).pipe(Effect.provide(Testing.layer))
  )
)
