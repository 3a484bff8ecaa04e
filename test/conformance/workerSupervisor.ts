/** Several workers under one restart policy. */
import { Queue, Supervisor } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Deferred, Effect, Exit, Fiber, Schedule, Schema, Scope, Stream } from "effect"
import { expect } from "vitest"
import * as Errors from "../../src/services/Errors.js"
import { expectEmpty, freshName, freshQueue, live, liveRows, type Suite, virtual } from "./support.js"
import { eventually, makeGate, numbers, until } from "./workerSupport.js"

type Seen = Supervisor.Event & { readonly at: number }

/** A supervisor whose events are kept, until the test closes it. */
const supervise = <S extends Supervisor.Spec<unknown>>(specs: ReadonlyArray<S>, options: Supervisor.Options = {}) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const supervisor = yield* Scope.extend(Supervisor.make(specs, options), scope)
    yield* Effect.addFinalizer(() => Scope.close(scope, Exit.void))
    const events: Array<Seen> = []
    yield* Effect.fork(
      Stream.runForEach(supervisor.events, (event) =>
        Effect.map(Clock.currentTimeMillis, (at) => void events.push({ ...event, at }))
      )
    )
    yield* Effect.repeatN(Effect.yieldNow(), 5)
    return {
      supervisor,
      events,
      of: <Tag extends Supervisor.Event["_tag"]>(tag: Tag) =>
        events.filter((event): event is Extract<Seen, { readonly _tag: Tag }> => event._tag === tag),
      close: Scope.close(scope, Exit.void)
    }
  })

const failed = (queue: string) => new Errors.WorkerFailed({ queue, message: "it was told to" })

/** A worker that fails when it is told to, and counts its starts. */
const fragile = <R>(spec: Supervisor.Spec<R>) => {
  const starts: Array<number> = []
  let fail: Effect.Effect<boolean> = Effect.succeed(false)
  const start: typeof spec.start = (observe) =>
    Effect.gen(function* () {
      starts.push(yield* Clock.currentTimeMillis)
      const worker = yield* spec.start(observe)
      const failure = yield* Deferred.make<never, Errors.WorkerFailed>()
      fail = Deferred.fail(failure, failed(spec.queue))
      return { ...worker, failure: Effect.raceFirst(worker.failure, Deferred.await(failure)) }
    })
  return { spec: { ...spec, start }, starts, fail: Effect.suspend(() => fail) }
}

/** A worker whose start dies, or whose life ends at once, again and again. */
const doomed = (name: string): Supervisor.Spec<never> & { readonly starts: Array<number> } => {
  const starts: Array<number> = []
  return {
    name,
    queue: name,
    starts,
    start: () =>
      Effect.flatMap(Clock.currentTimeMillis, (now) => {
        starts.push(now)
        return Effect.die(`${name} cannot start`)
      })
  }
}

const gaps = (times: ReadonlyArray<number>) => times.slice(1).map((time, index) => time - (times[index] as number))

export const workerSupervisorSuite: Suite = (engine, options) => {
  virtual(engine, options, "a supervisor", (it) => {
    it.scoped("runs its workers; their status is one value, their events one stream, by name (G134)", () =>
      Effect.gen(function* () {
        const [a, b] = [freshQueue(), freshQueue()]
        const specs = [
          Supervisor.worker(a, { handler: () => Effect.void }),
          Supervisor.worker(b, { handler: () => Effect.fail("no"), name: "second", retry: Schedule.stop }),
          Supervisor.worker(b, { handler: () => Effect.fail("no"), name: "third", retry: Schedule.stop })
        ]
        const { of, supervisor } = yield* supervise(specs)
        yield* a.enqueueMany(numbers(3))
        yield* b.enqueue(1)
        yield* Testing.advance("2 seconds")
        expect(of("Acked").map(({ job, worker }) => [worker, job.queue])).toEqual(
          numbers(3).map(() => [a.name, a.name])
        )
        expect(of("Died").map(({ job }) => job.queue)).toEqual([b.name])
        const status = yield* supervisor.status
        expect(Object.keys(status)).toEqual([a.name, "second", "third"])
        expect(status[a.name]).toMatchObject({
          state: "running",
          restarts: 0,
          lastFailure: undefined,
          worker: { state: "running", acked: 3 }
        })
        expect((status.second?.worker?.dead ?? 0) + (status.third?.worker?.dead ?? 0)).toBe(1)
        const worker = yield* supervisor.worker("second")
        expect(worker?.queue).toBe(b.name)
        expect(yield* supervisor.worker("nobody")).toBeUndefined()
      })
    )

    it.scoped("starts a worker that failed again, by its Schedule; it works on (G131)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { fail, spec, starts } = fragile(
          Supervisor.worker(queue, { handler: () => Effect.void, shutdownGrace: 0 })
        )
        const restart = Schedule.fromDelays("10 seconds", "20 seconds", "1 second")
        const { of, supervisor } = yield* supervise([spec], { restart })
        yield* queue.enqueue(1)
        yield* Testing.advance("2 seconds")
        yield* fail
        yield* Testing.advance("5 seconds")
        expect((yield* supervisor.status)[queue.name]).toMatchObject({
          state: "restarting",
          restarts: 1,
          lastFailure: "it was told to",
          worker: { state: "stopped", acked: 1 }
        })
        yield* Testing.advance("6 seconds")
        yield* fail
        yield* Testing.advance("21 seconds")
        yield* queue.enqueue(2)
        yield* Testing.advance("2 seconds")
        expect(starts).toHaveLength(3)
        expect(of("Restarting").map(({ delayMillis, restarts }) => [delayMillis, restarts])).toEqual([
          [10_000, 1],
          [20_000, 2]
        ])
        expect(of("Acked")).toHaveLength(2)
        expect((yield* supervisor.status)[queue.name]).toMatchObject({ state: "running", restarts: 2 })
        yield* expectEmpty(queue)
      })
    )

    // Without wakes all others would poll through it
    if (!options.silent)
      it.scoped("starts it after days, if its Schedule says so (G131)", () =>
        Effect.gen(function* () {
          const { fail, spec, starts } = fragile(Supervisor.worker(freshQueue(), { handler: () => Effect.void }))
          yield* supervise([spec], { restart: Schedule.spaced("50 hours") })
          yield* fail
          yield* Testing.advance("49 hours")
          expect(starts).toHaveLength(1)
          yield* Testing.advance("2 hours")
          expect(starts).toHaveLength(2)
        })
      )

    it.scoped("starts a worker whose handlers hang again, with new slots (G50, G131)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let hangs = true
        const spec = Supervisor.worker(queue, {
          concurrency: 1,
          timeout: "1 second",
          stuckAfter: "1 second",
          shutdownGrace: 0,
          retry: Schedule.spaced("1 second"),
          handler: () => Effect.suspend(() => (hangs ? Effect.uninterruptible(gate.wait) : Effect.void))
        })
        const { of } = yield* supervise([spec], { restart: Schedule.spaced("1 second") })
        yield* queue.enqueueMany(numbers(2))
        for (let n = 0; n < 60 && of("Restarting").length === 0; n++) yield* Testing.advance("1 second")
        expect(of("Failed")).toHaveLength(1)
        hangs = false
        for (let n = 0; n < 60 && of("Acked").length < 2; n++) yield* Testing.advance("1 second")
        expect(of("Acked")).toHaveLength(2)
        yield* gate.open
        yield* Testing.settle
        yield* expectEmpty(queue)
      })
    )

    it.scoped("gives a worker up that keeps failing, and says so; the others go on (G132)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const bad = doomed("bad")
        const { of, supervisor } = yield* supervise([bad, Supervisor.worker(queue, { handler: () => Effect.void })], {
          restart: Schedule.spaced("1 second"),
          maxRestarts: 3
        })
        const failure = yield* Effect.fork(Effect.flip(supervisor.failure))
        const all = yield* Effect.fork(Effect.flip(supervisor.allFailed))
        yield* Testing.advance("1 minute")
        expect(bad.starts).toHaveLength(4)
        expect(gaps(bad.starts)).toEqual([1_000, 1_000, 1_000])
        expect(of("GaveUp")).toMatchObject([{ worker: "bad" }])
        expect(of("GaveUp")[0]?.reason).toContain("bad cannot start")
        expect((yield* supervisor.status).bad).toMatchObject({ state: "gaveUp", restarts: 3, worker: undefined })
        expect(yield* Fiber.join(failure)).toMatchObject({ _tag: "WorkerFailed", queue: "bad" })
        expect(all.unsafePoll()).toBeNull()
        yield* queue.enqueue(1)
        yield* Testing.advance("2 seconds")
        expect(of("Acked")).toHaveLength(1)
        yield* Fiber.interrupt(all)
      })
    )

    it.scoped("whose workers all gave up has failed for good (G132)", () =>
      Effect.gen(function* () {
        const { of, supervisor } = yield* supervise([doomed("one"), doomed("two")], {
          restart: Schedule.spaced("1 second"),
          maxRestarts: 1
        })
        const all = yield* Effect.fork(Effect.flip(supervisor.allFailed))
        yield* Testing.advance("10 seconds")
        expect(of("GaveUp")).toHaveLength(2)
        expect(yield* Fiber.join(all)).toMatchObject({ _tag: "WorkerFailed" })
      })
    )

    it.scoped("forgets restarts that lie longer back than the time for which they count (G132)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { fail, spec, starts } = fragile(
          Supervisor.worker(queue, { handler: () => Effect.void, shutdownGrace: 0 })
        )
        const { of } = yield* supervise([spec], {
          restart: Schedule.spaced("1 second"),
          maxRestarts: 2,
          within: "30 seconds"
        })
        for (let n = 0; n < 6; n++) {
          yield* Testing.advance("20 seconds")
          yield* fail
        }
        yield* Testing.advance("20 seconds")
        expect(starts).toHaveLength(7)
        expect(of("GaveUp")).toEqual([])
      })
    )

    const ends: ReadonlyArray<readonly [string, Schedule.Schedule<unknown>, number]> = [
      ["ends", Schedule.recurs(1), 2],
      ["dies", Schedule.mapEffect(Schedule.forever, () => Effect.die("no policy")), 1]
    ]
    for (const [how, restart, starts] of ends) {
      it.scoped(`gives a worker up whose Schedule ${how} (G132)`, () =>
        Effect.gen(function* () {
          const bad = doomed("bad")
          const { supervisor } = yield* supervise([bad], { restart, maxRestarts: 100 })
          yield* Testing.advance("1 minute")
          expect(bad.starts).toHaveLength(starts)
          expect((yield* supervisor.status).bad).toMatchObject({ state: "gaveUp", restarts: starts - 1 })
        })
      )
    }

    it.effect("refuses what cannot be run, and leaves nothing behind (G6, G131)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const good = Supervisor.worker(queue, { handler: () => Effect.void, name: "good" })
        const cases: ReadonlyArray<readonly [ReadonlyArray<typeof good>, Supervisor.Options, string]> = [
          [[good, good], {}, "name"],
          [[good], { maxRestarts: -1 }, "maxRestarts"],
          [[good], { within: 0 }, "within"],
          [[good, Supervisor.worker(queue, { handler: () => Effect.void, concurrency: 0 })], {}, "concurrency"],
          [
            [
              good,
              Supervisor.worker(Queue.make("no spaces", { payload: Schema.Null }), { handler: () => Effect.void })
            ],
            {},
            "queue name"
          ]
        ]
        for (const [specs, policy, argument] of cases) {
          const error = yield* Effect.flip(Effect.scoped(Supervisor.make(specs, policy)))
          expect(error).toMatchObject({ _tag: "InvalidArgument", argument })
        }
        yield* queue.enqueue(1)
        yield* Testing.advance("5 seconds")
        expect(yield* liveRows(queue)).toMatchObject([{ state: "ready" }])
      })
    )
  })

  live(engine, options, "a supervisor that is closed", (it) => {
    it.scoped("drains all its workers at once (G81, G133)", () =>
      Effect.gen(function* () {
        const queues = numbers(3).map(() => freshQueue())
        const gate = yield* makeGate
        const policy = { handler: () => gate.wait, shutdownGrace: "20 seconds" } as const
        const { close, of, supervisor } = yield* supervise(queues.map((queue) => Supervisor.worker(queue, policy)))
        for (const queue of queues) yield* queue.enqueue(1)
        yield* until("all run", () => of("Started").length === 3)
        const closing = yield* Effect.fork(close)
        yield* until("all drain", () => of("Draining").length === 3)
        expect(of("Stopped")).toEqual([])
        yield* gate.open
        yield* closing
        expect(of("Acked")).toHaveLength(3)
        for (const queue of queues) {
          yield* expectEmpty(queue)
          expect((yield* supervisor.status)[queue.name]).toMatchObject({
            state: "stopped",
            worker: { state: "stopped", acked: 1 }
          })
        }
      })
    )

    it.scoped("while a worker waits for its restart, ends at once (G133)", () =>
      Effect.gen(function* () {
        const bad = doomed("bad")
        const { close, of, supervisor } = yield* supervise([bad], { restart: Schedule.spaced("1 hour") })
        yield* eventually("it waits", supervisor.status, (status) => status.bad?.state === "restarting")
        yield* close
        expect(bad.starts).toHaveLength(1)
        expect((yield* supervisor.status).bad?.state).toBe("stopped")
        expect(of("GaveUp")).toEqual([])
      })
    )

    it.scoped("is a Layer, and its service says how it goes (G133, G134)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const done: Array<unknown> = []
        const name = freshName("named")
        const layer = Supervisor.layer([
          Supervisor.worker(queue, { name, handler: ({ payload }) => Effect.sync(() => done.push(payload)) })
        ])
        const program = Effect.gen(function* () {
          const supervisor = yield* Supervisor.Supervisor
          yield* queue.enqueue("hello")
          yield* eventually("done", supervisor.status, (status) => status[name]?.worker?.acked === 1)
        })
        yield* Effect.provide(program, layer)
        yield* queue.enqueue("unheard")
        expect(done).toEqual(["hello"])
        expect(yield* liveRows(queue)).toMatchObject([{ state: "ready" }])
      })
    )
  })
}
