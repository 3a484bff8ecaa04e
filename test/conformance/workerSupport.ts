/** What the worker suites share: workers whose events are kept, waits for conditions, and a Queue that misbehaves. */
import { type Errors, Queue, Worker } from "alkstore"
import { Clock, Deferred, Effect, Exit, Scope, Stream } from "effect"
import { expect } from "vitest"

export type Event = Worker.WorkerEvent

/** An event and the instant at which it was seen, by the test's clock. */
export type Seen = Event & { readonly at: number }

export interface Observed {
  readonly worker: Worker.Worker
  readonly events: ReadonlyArray<Seen>
  readonly of: <Tag extends Event["_tag"]>(tag: Tag) => ReadonlyArray<Extract<Seen, { readonly _tag: Tag }>>
  readonly tags: () => ReadonlyArray<Event["_tag"]>
}

const watch = (worker: Worker.Worker) =>
  Effect.gen(function* () {
    const events: Array<Seen> = []
    const keep = (event: Event) => Effect.map(Clock.currentTimeMillis, (at) => void events.push({ ...event, at }))
    yield* Effect.fork(Stream.runForEach(worker.events, keep))
    // The reader has subscribed before anything is enqueued
    yield* Effect.repeatN(Effect.yieldNow(), 5)
    return {
      worker,
      events,
      of: (tag) => events.filter((event) => event._tag === tag) as never,
      tags: () => events.map(({ _tag }) => _tag)
    } satisfies Observed as Observed
  })

/** Starts a worker that lives as long as the test; unless told otherwise, it waits for nobody at its end. */
export const observe = <A, I, E, R>(queue: Queue.Definition<A, I>, options: Worker.Options<A, E, R>) =>
  Effect.flatMap(Worker.fork(queue, { shutdownGrace: 0, ...options } as Worker.Options<A, E, R>), watch)

/** Starts a worker that the test stops itself. */
export const stoppable = <A, I, E, R>(queue: Queue.Definition<A, I>, options: Worker.Options<A, E, R>) =>
  Effect.gen(function* () {
    const scope = yield* Effect.acquireRelease(Scope.make(), (open) => Scope.close(open, Exit.void))
    const observed = yield* Effect.flatMap(Scope.extend(Worker.make(queue, options), scope), watch)
    return { ...observed, stop: Scope.close(scope, Exit.void) }
  })

/** Looks again and again, in real time, until it holds; at most for so long. */
export const eventually = <A, E, R>(
  what: string,
  look: Effect.Effect<A, E, R>,
  holds: (value: A) => boolean,
  tries = 1_500
): Effect.Effect<A, E, R> =>
  Effect.flatMap(look, (value) => {
    if (holds(value)) return Effect.succeed(value)
    if (tries <= 0) return Effect.sync(() => expect.fail(`waited in vain: ${what}`))
    return Effect.zipRight(
      Effect.sleep(10),
      Effect.suspend(() => eventually(what, look, holds, tries - 1))
    )
  })

export const until = (what: string, holds: () => boolean) =>
  Effect.asVoid(eventually(what, Effect.sync(holds), (is) => is))

/** Something that handlers wait for. */
export const makeGate = Effect.map(Deferred.make<void>(), (gate) => ({
  wait: Deferred.await(gate),
  open: Effect.asVoid(Deferred.succeed(gate, undefined))
}))

export const numbers = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, n) => n)

/** Keeps count of how many run at once. */
export const makeGauge = () => {
  const gauge = { now: 0, most: 0 }
  const during = <A, E, R>(self: Effect.Effect<A, E, R>) =>
    Effect.acquireUseRelease(
      Effect.sync(() => {
        gauge.now++
        gauge.most = Math.max(gauge.most, gauge.now)
      }),
      () => self,
      () => Effect.sync(() => void gauge.now--)
    )
  return { ...gauge, during, read: () => gauge }
}

/** Runs an effect with a Queue service that is the real one but for what is replaced. */
export const withQueue = <A, E, R>(
  replace: (real: Queue.Service) => Partial<Queue.Service>,
  self: Effect.Effect<A, E, R>
) => Effect.flatMap(Queue.Queue, (real) => Effect.provideService(self, Queue.Queue, { ...real, ...replace(real) }))

/** A database that is not there. */
export const gone = (StoreError: typeof Errors.StoreError, operation: string) =>
  new StoreError({ reason: "connection", operation, message: `${operation}: the connection is gone`, cause: undefined })
