/** What the tests of bad days share: a worker that keeps a diary, waits with an end, and logs that are kept. */
import { Queue, Worker } from "alkstore"
import type * as Pg from "alkstore/Pg"
import { type Context, Effect, Logger, Schema, type Scope, Stream } from "effect"
import { until } from "./until.js"

export const Letters = Queue.make("letters", { payload: Schema.String, maxAttempts: 5 })

/** Everything that was logged by what ran under `live`, as text with all that hangs on it. */
export const logs: Array<string> = []

const collecting = Logger.make<unknown, void>((entry) => {
  logs.push(Logger.stringLogger.log(entry))
})

export const live = <A, E>(effect: Effect.Effect<A, E, Scope.Scope>): Promise<A> =>
  Effect.runPromise(Effect.provide(Effect.scoped(effect), Logger.replace(Logger.defaultLogger, collecting)))

export const wait = (what: string, ask: () => unknown, millis?: number) =>
  Effect.promise(() => until(what, async () => ((await ask()) ? true : undefined), millis))

export interface Diary {
  readonly started: ReadonlyArray<string>
  readonly done: ReadonlyArray<string>
  readonly events: ReadonlyArray<Worker.WorkerEvent["_tag"]>
  readonly worker: Worker.Worker
}

/** A worker of `Letters` in an engine that is built already; each payload is noted when it starts and when it is done. */
export const diary = (
  engine: Context.Context<Pg.Services>,
  options: Worker.PolicyOptions<never> & { readonly handler?: Worker.Handler<string, never, never> } = {}
) =>
  Effect.gen(function* () {
    const started: Array<string> = []
    const done: Array<string> = []
    const events: Array<Worker.WorkerEvent["_tag"]> = []
    const { handler = () => Effect.void, ...policy } = options
    const worker = yield* Worker.make(Letters, {
      ...policy,
      handler: (job) =>
        Effect.sync(() => started.push(job.payload)).pipe(
          Effect.zipRight(handler(job)),
          Effect.zipRight(Effect.sync(() => done.push(job.payload)))
        )
    })
    yield* Effect.forkScoped(Stream.runForEach(worker.events, ({ _tag }) => Effect.sync(() => events.push(_tag))))
    return { started, done, events, worker } satisfies Diary
  }).pipe(Effect.provide(engine))
