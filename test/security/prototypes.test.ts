/** No payload, header, name or record reaches a prototype, and none is lost for being called as a prototype's property. */
import { Lock, Outbox, Queue, Schedules, Supervisor, Transfer, Worker } from "alkstore"
import { Chunk, Effect, ManagedRuntime, Option, Schedule, Schema, Stream } from "effect"
import fc from "fast-check"
import { afterAll, afterEach, describe, expect, it } from "vitest"
import { type EngineServices, postgres, sqliteFile } from "../support/engines.js"
import { runs, seed } from "../support/form.js"
import { wait } from "../support/outages.js"

const names = ["__proto__", "constructor", "prototype", "toString", "valueOf", "hasOwnProperty", "__defineGetter__"]

/** Any JSON whose properties are called so; made by the parser, as whatever comes from outside is. */
const polluting: fc.Arbitrary<string> = fc.letrec<{ value: unknown; text: string }>((tie) => ({
  value: fc.oneof(
    { depthSize: "small", withCrossShrink: true },
    fc.constantFrom("1", '"x"', "null", '"__proto__"'),
    tie("text")
  ),
  text: fc
    .uniqueArray(fc.tuple(fc.constantFrom(...names, "a"), tie("value")), { selector: ([name]) => name, maxLength: 4 })
    .map((entries) => `{${entries.map(([name, value]) => `${JSON.stringify(name)}:${String(value)}`).join(",")}}`)
})).text

const headers: Record<string, string> = JSON.parse(`{${names.map((name) => `"${name}":"of ${name}"`).join(",")}}`)

/** Everything that objects, lists and functions inherit: names, values and accessors, by identity. */
const inherited = (): ReadonlyArray<unknown> =>
  [Object.prototype, Array.prototype, Function.prototype].flatMap((of) =>
    Reflect.ownKeys(of).flatMap((name) => {
      const { get, set, value } = Object.getOwnPropertyDescriptor(of, name) ?? {}
      return [name, get, set, value]
    })
  )
const untouched = inherited()
const isUntouched = () => inherited().every((part, index) => part === untouched[index])

const Any = Queue.make("any", { payload: Schema.Unknown })

describe.each([postgres, sqliteFile])("$name", (engine) => {
  const runtime = ManagedRuntime.make(engine.layer({ scheduler: false }))
  const run = <A, E>(effect: Effect.Effect<A, E, EngineServices>) => runtime.runPromise(effect)
  afterAll(() => runtime.dispose())
  afterEach(() => expect([isUntouched(), inherited().length]).toEqual([true, untouched.length]))

  const one = <A, I>(queue: Queue.Definition<A, I>) =>
    Effect.map(queue.claim(), ([job]) => {
      if (job === undefined) return expect.fail("nothing to claim")
      return job
    })

  it("G201: payloads come back with all of their properties, and none is anybody else's", () =>
    fc.assert(
      fc.asyncProperty(fc.array(polluting, { minLength: 1, maxLength: 20 }), (texts) =>
        run(
          Effect.gen(function* () {
            yield* Any.enqueueMany(texts.map((text): unknown => JSON.parse(text)))
            const jobs = yield* Any.claim({ limit: 100 })
            yield* Effect.forEach(jobs, ({ ack }) => ack)
            expect(jobs.map(({ payload }) => JSON.stringify(payload))).toEqual(
              texts.map((text) => JSON.stringify(JSON.parse(text)))
            )
            for (const { payload } of jobs) expect(Object.getPrototypeOf(payload)).toBe(Object.prototype)
            expect(Reflect.get({}, "a")).toBeUndefined()
          })
        )
      ),
      { seed, numRuns: runs(15, 500) }
    ))

  it("G201: so do headers, wherever they go", () =>
    run(
      Effect.gen(function* () {
        const entries = Object.entries(headers)
        const Feed = Outbox.make("feed", { message: Schema.Number })
        yield* Any.enqueue(1, { headers })
        yield* Feed.publish(1, { headers })
        yield* Schedules.put(Schedules.make("s", { every: "1 day", queue: Any, payload: 2, headers }))
        yield* Schedules.trigger("s")
        yield* Effect.flatMap(one(Any), (job) => job.fail("no"))
        const records = yield* Stream.runCollect(Transfer.toJsonLines(Transfer.export({ force: true })))
        yield* Any.deadLetters.requeue({ reason: "failed" })
        const [first, second, message] = [yield* one(Any), yield* one(Any), yield* one(Feed.queue)]
        for (const job of [first, second, message]) {
          expect(Object.entries(job.headers)).toEqual(expect.arrayContaining(entries))
          yield* job.ack
        }
        // The export has what was dead then; here it comes in as new
        const copied = Chunk.map(records, (line) =>
          line.replace(/"origin":"[^"]*"/, '"origin":"elsewhere","__proto__":{"a":1}')
        )
        expect((yield* Transfer.import(Transfer.fromJsonLines(Stream.fromChunk(copied)))).complete).toBe(true)
        yield* Any.deadLetters.requeue({ reason: "failed" })
        const moved = yield* Any.claim({ limit: 10 })
        expect(moved).toHaveLength(2)
        for (const job of moved) expect(Object.entries(job.headers)).toEqual(expect.arrayContaining(entries))
        yield* Effect.forEach([...moved, yield* one(Feed.queue)], ({ ack }) => ack)
        yield* Schedules.remove("s")
      })
    ))

  it.each(names)(
    "G201: %s is a name like any other: of a queue, a lock, a schedule, a worker, a handler's tag",
    (name) =>
      run(
        Effect.gen(function* () {
          const Tagged = Schema.Struct({ _tag: Schema.String })
          const queue = Queue.make(name, { payload: Tagged })
          const handled: Array<string> = []
          const handlers = Object.fromEntries([[name, () => Effect.sync(() => handled.push(name))]])
          yield* Schedules.put(Schedules.make(name, { cron: "@daily", queue, payload: { _tag: name } }))
          yield* Schedules.trigger(name)
          const held = yield* Lock.withLock(name)(Lock.list)
          expect(held.map((lock) => lock.name)).toContain(name)
          const supervisor = yield* Supervisor.make([
            Supervisor.worker(queue, { name, handlers: handlers as never, retry: Schedule.stop })
          ])
          yield* wait("it is handled", () => handled.length === 1)
          const status = yield* supervisor.status
          expect(Object.keys(status)).toEqual([name])
          expect(Object.values(status)).toMatchObject([{ state: "running" }])
          expect(yield* queue.counts).toMatchObject({ queue: name })
          expect(Option.map(yield* Schedules.get(name), (schedule) => schedule.name)).toEqual(Option.some(name))
          expect(yield* Schedules.remove(name)).toBe(true)
        }).pipe(Effect.scoped)
      )
  )

  it("G201: a tag for which there is no handler of its own is nobody's, whatever objects inherit", () =>
    run(
      Effect.gen(function* () {
        const queue = Queue.make("tagged", { payload: Schema.Struct({ _tag: Schema.String }) })
        const tags = new Set<string>()
        const worker = yield* Worker.make(queue, { handlers: {} as never })
        yield* Effect.forkScoped(Stream.runForEach(worker.events, ({ _tag }) => Effect.sync(() => tags.add(_tag))))
        yield* queue.enqueueMany(names.map((_tag) => ({ _tag })))
        const back = Effect.map(queue.counts, ({ delayed }) => delayed.count === names.length)
        yield* Effect.repeat(back, { until: (all) => all, schedule: Schedule.spaced(20) })
        expect(tags.has("Undecodable")).toBe(true)
        expect([tags.has("Acked"), tags.has("Retried")]).toEqual([false, false])
        for (const { attempt, errors } of yield* queue.list()) expect([attempt, errors]).toEqual([0, []])
        expect(yield* queue.deadLetters.list()).toEqual([])
      }).pipe(Effect.scoped)
    ))

  it("G201: an option or a criterion counts only as one's own, and no expression is looked up in a prototype", () =>
    run(
      Effect.gen(function* () {
        const inherits: Queue.JobFilter = Object.create({ all: true })
        const refused: ReadonlyArray<Effect.Effect<unknown, unknown, EngineServices>> = [
          Any.enqueue(1, JSON.parse('{"__proto__":{"priority":7,"delay":"1 hour","dedupeKey":"k"}}')),
          Any.cancelMany(inherits),
          Any.cancelMany(JSON.parse('{"__proto__":{"all":true}}')),
          Any.deadLetters.purge(JSON.parse('{"__proto__":{"all":true}}')),
          ...names.flatMap((cron) => [
            Schedules.put(Schedules.make("rule", { cron, queue: Any, payload: 1 })),
            Schedules.put(Schedules.make("rule", { cron: `@every ${cron}`, queue: Any, payload: 1 })),
            Schedules.put(Schedules.make("rule", { cron: "@daily", timeZone: cron, queue: Any, payload: 1 }))
          ])
        ]
        for (const call of refused) expect(yield* Effect.flip(call)).toMatchObject({ _tag: "InvalidArgument" })
        expect(yield* Any.claim()).toEqual([])
      })
    ))
})
