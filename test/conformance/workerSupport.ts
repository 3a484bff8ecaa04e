/** What the worker suites share: workers whose events are kept, waits for conditions, and a Queue that misbehaves. */
import { Errors, Queue, Worker } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Deferred, Effect, Fiber, Stream } from "effect"
import { expect } from "vitest"

export type Event = Worker.WorkerEvent

/** An event and the instant at which it was seen, by the test's clock. */
export type Seen = Event & { readonly at: number }

export interface Observed {
  readonly worker: Worker.Worker
  readonly events: ReadonlyArray<Seen>
  readonly of: <Tag extends Event["_tag"]>(tag: Tag) => ReadonlyArray<Extract<Seen, { readonly _tag: Tag }>>
  /** Of all events but those that a busy machine may add. */
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
      tags: () => events.map(({ _tag }) => _tag).filter((tag) => tag !== "EventLoopBlocked")
    } satisfies Observed as Observed
  })

/** Starts a worker that lives as long as the test; unless told otherwise, it waits for nobody at its end. */
export const observe = <A, I, E = never, R = never, H extends Worker.Handlers<A> = {}>(
  queue: Queue.Definition<A, I>,
  options: Worker.Options<A, E, R, H>
) => Effect.flatMap(Worker.fork(queue, { shutdownGrace: 0, ...options } as typeof options), watch)

/** Starts a worker that the test stops itself. */
export const stoppable = <A, I, E = never, R = never, H extends Worker.Handlers<A> = {}>(
  queue: Queue.Definition<A, I>,
  options: Worker.Options<A, E, R, H>
) =>
  Effect.gen(function* () {
    const started = yield* Deferred.make<Worker.Worker, Errors.InvalidArgument>()
    const life = Effect.zipRight(Effect.intoDeferred(Worker.make(queue, options), started), Effect.never)
    const fiber = yield* Effect.fork(Effect.scoped(life))
    return { ...(yield* Effect.flatMap(Deferred.await(started), watch)), stop: Effect.asVoid(Fiber.interrupt(fiber)) }
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

/**
 * Under TestClock: lets a second pass after the other until it holds. Statements of the application's own client on
 * PostgreSQL are not waited for by `Testing.advance`, so one step may end before what it started.
 */
export const passing = (what: string, holds: () => boolean) =>
  Effect.gen(function* () {
    for (let second = 0; second < 120; second++) {
      for (let look = 0; look < 8; look++) {
        if (holds()) return yield* Testing.settle
        yield* Testing.settle
      }
      yield* Testing.advance("1 second")
    }
    expect.fail(`waited in vain: ${what}`)
  })

/** Something that handlers wait for. */
export const makeGate = Effect.map(Deferred.make<void>(), (gate) => ({
  wait: Deferred.await(gate),
  open: Effect.asVoid(Deferred.succeed(gate, undefined))
}))

export const numbers = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, n) => n)

/** Keeps count of how many run at once. */
export const makeGauge = () => {
  let now = 0
  let most = 0
  const enter = Effect.sync(() => {
    now++
    most = Math.max(most, now)
  })
  const leave = Effect.sync(() => void now--)
  return {
    during: <A, E, R>(self: Effect.Effect<A, E, R>) =>
      Effect.acquireUseRelease(
        enter,
        () => self,
        () => leave
      ),
    now: () => now,
    most: () => most
  }
}

/** Runs an effect with a Queue service that is the real one but for what is replaced. */
export const withQueue = <A, E, R>(
  replace: (real: Queue.Service) => Partial<Queue.Service>,
  self: Effect.Effect<A, E, R>
) =>
  Effect.flatMap(Queue.Queue, (real) => {
    const replaced = replace(real)
    // Who looks at claims is to see all of them
    const receive: Partial<Queue.Service> = replaced.claim === undefined ? {} : { receive: () => Effect.void }
    return Effect.provideService(self, Queue.Queue, { ...real, ...receive, ...replaced })
  })

/** What every call answers while the database is not there. */
export const gone = (operation: string) =>
  new Errors.StoreError({
    reason: "connection",
    operation,
    message: `${operation}: the connection is gone`,
    cause: undefined
  })
