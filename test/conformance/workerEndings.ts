/** How a handler may end, and what becomes of its job. */
import { SqlClient } from "@effect/sql"
import { Job, Queue, Worker } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Cause, Clock, Effect, Schedule, Schema, type Scope } from "effect"
import { expect } from "vitest"
import {
  deadRows,
  expectEmpty,
  freshName,
  freshQueue,
  liveRows,
  onlyLetter,
  onlyRow,
  type Suite,
  virtual
} from "./support.js"
import { numbers, observe, stoppable } from "./workerSupport.js"

/** A handler that keeps the times of its runs. */
const timed = <E>(end: (job: Job.Job<unknown>) => Effect.Effect<unknown, E>) => {
  const times: Array<number> = []
  const handler = (job: Job.Job<unknown>) =>
    Effect.flatMap(Clock.currentTimeMillis, (now) => {
      times.push(now)
      return end(job)
    })
  return { handler, times, gaps: () => times.slice(1).map((time, index) => time - (times[index] as number)) }
}

export const workerEndingsSuite: Suite = (engine, options) => {
  virtual(engine, options, "a handler", (it) => {
    it.effect("that succeeds acks its job, and tells so (G39, G77)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const seen: Array<unknown> = []
        const { tags, worker } = yield* observe(queue, {
          handler: (job) => Effect.sync(() => seen.push([job.payload, job.attempt, job.headers, job.queue]))
        })
        yield* queue.enqueue({ n: 1 }, { headers: { trace: "t" } })
        yield* Testing.advance("1 second")
        expect(seen).toEqual([[{ n: 1 }, 1, { trace: "t" }, queue.name]])
        yield* expectEmpty(queue)
        expect(tags()).toEqual(["Started", "Acked"])
        expect(yield* worker.status).toMatchObject({ state: "running", running: 0, acked: 1, retried: 0, dead: 0 })
      })
    )

    it.effect("that fails is run again after its backoff, and dead with its errors after maxAttempts (G45, G46)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const jobs: Array<Job.Job<unknown>> = []
        const { gaps, handler } = timed((job) => {
          jobs.push(job)
          return Effect.fail(`failed at ${job.attempt}`)
        })
        const { of, worker } = yield* observe(queue, { handler, retry: Schedule.spaced("10 seconds") })
        yield* queue.enqueue(1, { maxAttempts: 3 })
        yield* Testing.advance("5 seconds")
        expect(yield* onlyRow(queue)).toMatchObject({ state: "delayed", attempt: 1, failures: 1, worker: null })
        yield* Testing.advance("30 seconds")
        expect(gaps()).toEqual([10_000, 10_000])
        expect(jobs.map(({ attempt, failures, errors }) => [attempt, failures, errors.length])).toEqual([
          [1, 0, 0],
          [2, 1, 1],
          [3, 2, 2]
        ])
        expect(yield* liveRows(queue)).toEqual([])
        const letter = yield* onlyLetter(queue)
        expect(letter).toMatchObject({ reason: "exhausted", attempts: 3, failures: 3, crashes: 0 })
        expect(letter.errors).toMatchObject(
          [1, 2, 3].map((attempt) => ({ attempt, kind: "failure", message: `failed at ${attempt}` }))
        )
        expect(of("Retried").map(({ delayMillis, error }) => [delayMillis, error?.message])).toEqual([
          [10_000, "failed at 1"],
          [10_000, "failed at 2"]
        ])
        expect(of("Died")).toMatchObject([{ reason: "exhausted", error: { message: "failed at 3" } }])
        expect(yield* worker.status).toMatchObject({ retried: 2, dead: 1 })
      })
    )

    it.effect("that fails without a policy waits 1 s, 2 s, 4 s, … give or take a fifth (G46)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of } = yield* observe(queue, { handler: () => Effect.fail("no") })
        yield* queue.enqueue(1)
        yield* Testing.advance("2 minutes")
        const delays = of("Retried").map(({ delayMillis }) => delayMillis)
        expect(delays.length).toBeGreaterThanOrEqual(5)
        for (const [index, delay] of delays.entries()) {
          expect(delay / 2 ** index).toBeGreaterThanOrEqual(799)
          expect(delay / 2 ** index).toBeLessThanOrEqual(1_201)
        }
      })
    )

    it.effect("that is Fatal is dead at once, whatever attempts are left (G47)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of } = yield* observe(queue, { handler: () => Job.fatal("no such address") })
        yield* queue.enqueue(1, { maxAttempts: 5 })
        yield* Testing.advance("1 second")
        expect(yield* liveRows(queue)).toEqual([])
        expect(yield* onlyLetter(queue)).toMatchObject({
          reason: "failed",
          attempts: 1,
          errors: [{ kind: "failure", message: "no such address" }]
        })
        expect(of("Died")).toMatchObject([{ reason: "failed" }])
      })
    )

    it.effect("that says RetryAfter waits so long, the Schedule is not asked, maxAttempts is obeyed (G47)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const asked: Array<unknown> = []
        const { gaps, handler } = timed((job) => Job.retryAfter(`${2 * job.attempt} seconds`, "rate limited"))
        yield* observe(queue, {
          handler,
          retry: Schedule.tapInput(Schedule.spaced("1 hour"), (input) => Effect.sync(() => asked.push(input)))
        })
        yield* queue.enqueue(1, { maxAttempts: 3 })
        yield* Testing.advance("30 seconds")
        expect(gaps()).toEqual([2_000, 4_000])
        expect(asked).toEqual([])
        const letter = yield* onlyLetter(queue)
        expect(letter).toMatchObject({ reason: "exhausted", attempts: 3, failures: 3 })
        expect(letter.errors.map(({ message }) => message)).toEqual(["rate limited", "rate limited", "rate limited"])
      })
    )

    it.effect("that says Snooze comes again with its attempt not spent (G47)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const attempts: Array<number> = []
        const { gaps, handler, times } = timed((job) => {
          attempts.push(job.attempt)
          return attempts.length < 4 ? Job.snooze("7 seconds") : Effect.void
        })
        const { of } = yield* observe(queue, { handler })
        yield* queue.enqueue(1, { maxAttempts: 1 })
        yield* Testing.advance("1 minute")
        expect(times).toHaveLength(4)
        expect(gaps()).toEqual([7_000, 7_000, 7_000])
        expect(attempts).toEqual([1, 1, 1, 1])
        expect(of("Released").map(({ delayMillis }) => delayMillis)).toEqual([7_000, 7_000, 7_000])
        yield* expectEmpty(queue)
      })
    )

    it.effect("whose RetryAfter or Snooze has no sensible delay has failed, no more (G48)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* observe(queue, {
          handler: ({ payload }): Effect.Effect<never, Job.RetryAfter | Job.Snooze> =>
            payload === 0 ? Job.retryAfter("soon" as never) : Job.snooze(Number.NaN),
          retry: Schedule.spaced("2 seconds")
        })
        yield* queue.enqueueMany([0, 1], { maxAttempts: 2 })
        yield* Testing.advance("10 seconds")
        expect(yield* deadRows(queue)).toMatchObject([
          { reason: "exhausted", attempts: 2 },
          { reason: "exhausted", attempts: 2 }
        ])
      })
    )

    it.effect("whose Schedule has ended, or wants no more of this error, is dead (G46)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of } = yield* observe(queue, {
          handler: ({ payload }) => Effect.fail(payload as string),
          retry: Schedule.spaced("1 second").pipe(
            Schedule.intersect(Schedule.recurs(2)),
            Schedule.whileInput((failure: Job.JobFailure<string>) => failure.error !== "hopeless")
          )
        })
        yield* queue.enqueueMany(["hopeless", "passing"])
        yield* Testing.advance("20 seconds")
        const letters = yield* deadRows(queue)
        expect(letters.map(({ attempts, payload, reason }) => [payload, attempts, reason]).sort()).toEqual([
          ['"hopeless"', 1, "exhausted"],
          ['"passing"', 3, "exhausted"]
        ])
        expect(of("Retried")).toHaveLength(2)
      })
    )

    it.effect("whose Schedule means elapsed time gets it, real time since the first failure (G45)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { handler, times } = timed(() => Effect.fail("no"))
        const policy = { handler, retry: Schedule.spaced("10 seconds").pipe(Schedule.upTo("35 seconds")) }
        // A worker that is stopped and started between is no new beginning
        const first = yield* stoppable(queue, policy)
        yield* queue.enqueue(1)
        yield* Testing.advance("15 seconds")
        yield* first.stop
        yield* observe(queue, policy)
        yield* Testing.advance("1 minute")
        expect(times).toHaveLength(5)
        expect(yield* onlyLetter(queue)).toMatchObject({ reason: "exhausted", attempts: 5 })
      })
    )

    it.effect("whose Schedule dies is run again after the default delay (G48)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of } = yield* observe(queue, {
          handler: () => Effect.fail("no"),
          retry: Schedule.mapEffect(Schedule.forever, () => Effect.die("a broken policy"))
        })
        yield* queue.enqueue(1, { maxAttempts: 2 })
        yield* Testing.advance("10 seconds")
        expect(of("Retried")).toMatchObject([{ delayMillis: 1_000 }])
        expect(yield* onlyLetter(queue)).toMatchObject({ reason: "exhausted", attempts: 2 })
      })
    )

    it.effect("may end in any way at all: a failed attempt, and the worker goes on (G48, G49)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const names = Object.keys(hostile)
        const { of, worker } = yield* observe(queue, {
          handler: ({ payload }) => (hostile[payload as string] ?? (() => Effect.void))(),
          retry: Schedule.spaced("1 second")
        })
        yield* queue.enqueueMany([...names, "a good one"], { maxAttempts: 2 })
        yield* Testing.advance("10 seconds")
        expect(yield* liveRows(queue)).toEqual([])
        const letters = yield* deadRows(queue)
        expect(letters.map(({ payload }) => JSON.parse(payload)).sort()).toEqual([...names].sort())
        for (const letter of letters) {
          expect(letter).toMatchObject({ reason: "exhausted", attempts: 2, failures: 2, crashes: 0 })
          expect(letter.errors.map(({ attempt }) => attempt)).toEqual([1, 2])
          for (const error of letter.errors) {
            expect(["failure", "defect"]).toContain(error.kind)
            expect(error.message).toBeTypeOf("string")
            expect(Buffer.byteLength(JSON.stringify(error))).toBeLessThanOrEqual(8 * 1024)
          }
        }
        expect(of("Restarted")).toEqual([])
        expect(yield* worker.status).toMatchObject({ running: 0, acked: 1, dead: names.length, stuck: 0 })
        expect(yield* worker.health).toMatchObject({ healthy: true, problems: [] })
      })
    )
  })

  virtual(engine, options, "a payload that this worker cannot read", (it) => {
    it.effect("costs no attempt, comes again later and later, and holds nobody up (G26)", () =>
      Effect.gen(function* () {
        const name = freshName()
        const producer = Queue.make(name, { payload: Schema.Unknown })
        const done: Array<number> = []
        const { of } = yield* observe(Queue.make(name, { payload: Schema.Number }), {
          handler: (job) => Effect.sync(() => done.push(job.payload)),
          concurrency: 1
        })
        yield* producer.enqueueMany(["not a number", 1, 2, 3], { maxAttempts: 1 })
        yield* Testing.advance("1 second")
        expect(done).toEqual([1, 2, 3])
        expect(of("Undecodable")[0]?.reason).toContain("Expected number")
        // Without wakes every second is a poll
        yield* Testing.advance(options.silent ? "2 minutes" : "15 minutes")
        expect(yield* onlyRow(producer)).toMatchObject({ state: "delayed", attempt: 0, failures: 0, errors: [] })
        const times = of("Undecodable").map(({ at }) => at)
        const gaps = times.slice(1).map((at, index) => at - (times[index] as number))
        expect(gaps.slice(0, 3)).toEqual([1_000, 1_000, 2_000])
        expect(Math.min(...gaps)).toBeGreaterThanOrEqual(1_000)
        expect(gaps.at(-1)).toBeGreaterThanOrEqual(options.silent ? 30_000 : 299_000)
        expect(gaps.at(-1)).toBeLessThanOrEqual(301_000)
        expect(yield* deadRows(producer)).toEqual([])
      })
    )

    it.effect("is run, the first attempt, by a worker that can (G26)", () =>
      Effect.gen(function* () {
        const name = freshName()
        const old = Queue.make(name, { payload: Schema.Number })
        const later = Queue.make(name, { payload: Schema.String })
        const before = yield* stoppable(old, { handler: () => Effect.void })
        yield* later.enqueue("new", { maxAttempts: 1 })
        yield* Testing.advance("20 seconds")
        yield* before.stop
        const seen: Array<unknown> = []
        yield* observe(later, { handler: (job) => Effect.sync(() => seen.push([job.payload, job.attempt])) })
        yield* Testing.advance("5 minutes")
        expect(seen).toEqual([["new", 1]])
        yield* expectEmpty(later)
      })
    )

    it.effect("is dead (undecodable) after a day (G26)", () =>
      Effect.gen(function* () {
        const name = freshName()
        const producer = Queue.make(name, { payload: Schema.Unknown })
        const { of } = yield* observe(Queue.make(name, { payload: Schema.Number }), { handler: () => Effect.void })
        yield* producer.enqueue("not a number")
        yield* Testing.advance("2 seconds")
        const { id } = yield* onlyRow(producer)
        const sql = yield* SqlClient.SqlClient
        // As if that had begun a day ago, but for a minute
        yield* sql.unsafe(
          `UPDATE ${engine.table("jobs")} SET undecodable_since = undecodable_since - 86340000 WHERE id = ${id}`
        )
        yield* Testing.advance("10 seconds")
        expect(yield* deadRows(producer)).toEqual([])
        yield* Testing.advance("5 minutes")
        expect(yield* liveRows(producer)).toEqual([])
        expect(yield* onlyLetter(producer)).toMatchObject({
          reason: "undecodable",
          attempts: 1,
          errors: [{ kind: "undecodable" }]
        })
        expect(of("Died")).toMatchObject([{ reason: "undecodable" }])
      })
    )

    it.effect("a tag without a handler is one; the others go to theirs (G26, G80)", () =>
      Effect.gen(function* () {
        class Open extends Schema.TaggedClass<Open>()("Open", { account: Schema.String }) {}
        class Close extends Schema.TaggedClass<Close>()("Close", { account: Schema.String }) {}
        const queue = Queue.make(freshName(), { payload: Schema.Union(Open, Close) })
        const seen: Array<unknown> = []
        const note = ({ attempt, payload }: { readonly attempt: number; readonly payload: Open | Close }) =>
          Effect.sync(() => seen.push([payload._tag, payload.account, attempt]))
        const { of, stop } = yield* stoppable(queue, { handlers: { Open: note } })
        yield* queue.enqueueMany([new Close({ account: "a" }), new Open({ account: "b" })])
        yield* Testing.advance("5 seconds")
        expect(seen).toEqual([["Open", "b", 1]])
        expect(of("Undecodable")[0]?.reason).toContain("no handler")
        expect(yield* liveRows(queue)).toMatchObject([{ attempt: 0 }])
        yield* stop
        yield* observe(queue, { handlers: { Open: note, Close: note } })
        yield* Testing.advance("10 seconds")
        expect(seen).toEqual([
          ["Open", "b", 1],
          ["Close", "a", 1]
        ])
        yield* expectEmpty(queue)
      })
    )
  })

  virtual(engine, options, "a worker's options", (it) => {
    const bad: ReadonlyArray<readonly [string, Worker.PolicyOptions<never>]> = [
      ["concurrency", { concurrency: 0 }],
      ["concurrency", { concurrency: 1.5 }],
      ["concurrency", { concurrency: Number.NaN }],
      ["concurrency", { concurrency: Number.POSITIVE_INFINITY }],
      ["prefetch", { prefetch: -1 }],
      ["visibilityTimeout", { visibilityTimeout: 0 }],
      ["visibilityTimeout", { visibilityTimeout: "99 millis" }],
      ["visibilityTimeout", { visibilityTimeout: "2 days" }],
      ["visibilityTimeout", { visibilityTimeout: "soon" as never }],
      ["timeout", { timeout: 0 }],
      ["timeout", { timeout: "-1 seconds" }],
      ["stuckAfter", { stuckAfter: Number.NaN }],
      ["shutdownGrace", { shutdownGrace: -1 }]
    ]
    it.effect.each(bad)("refuses what makes no sense: %s %o", ([argument, policy]) =>
      Effect.gen(function* () {
        const error = yield* Effect.flip(Worker.fork(freshQueue(), { handler: () => Effect.void, ...policy }))
        expect(error).toMatchObject({ _tag: "InvalidArgument", argument })
      })
    )

    it.effect("refuses a queue whose definition is wrong", () =>
      Effect.gen(function* () {
        const queue = Queue.make("no spaces please", { payload: Schema.Number })
        const error = yield* Effect.flip(Worker.fork(queue, { handler: () => Effect.void }))
        expect(error).toMatchObject({ _tag: "InvalidArgument", argument: "queue name" })
      })
    )
  })
}

const throwing = (): object =>
  new Proxy(
    {},
    {
      get: () => {
        throw new Error("get")
      },
      getPrototypeOf: () => {
        throw new Error("getPrototypeOf")
      },
      has: () => {
        throw new Error("has")
      },
      ownKeys: () => {
        throw new Error("ownKeys")
      }
    }
  )

const raise = (value: unknown) => (): never => {
  throw value
}

const circular = (): Error => {
  const error = new Error("circular")
  error.cause = error
  return error
}

const badMessage = (): Error =>
  Object.defineProperty(new Error(), "message", {
    get: () => {
      throw new Error("no message for you")
    }
  })

/** Ways for a handler to end that are no success. */
const hostile: Readonly<Record<string, () => Effect.Effect<unknown, unknown, Scope.Scope>>> = {
  "throws null": raise(null),
  "throws undefined": raise(undefined),
  "throws a frozen object": raise(Object.freeze({ _tag: "Frozen", message: 1 })),
  "throws a Proxy whose traps throw": () => raise(throwing())(),
  "throws in a promise": () => Effect.promise(() => Promise.reject(null)),
  "returns no Effect": () => undefined as never,
  "dies of null": () => Effect.die(null),
  "dies of a Proxy whose traps throw": () => Effect.die(throwing()),
  "fails with null": () => Effect.fail(null),
  "fails with undefined": () => Effect.fail(undefined),
  "fails with a Proxy whose traps throw": () => Effect.fail(throwing()),
  "interrupts itself": () => Effect.interrupt,
  "fails with nothing at all": () => Effect.failCause(Cause.empty),
  "fails twice at once": () => Effect.all([Effect.fail("one"), Effect.die("two")], { concurrency: 2, discard: true }),
  "fails in a finalizer": () => Effect.addFinalizer(() => Effect.die("finalizer")).pipe(Effect.scoped),
  "fails in a finalizer of the job's": () => Effect.addFinalizer(() => Effect.die("finalizer")),
  "fails deep inside": () =>
    Effect.failCause(
      numbers(2_000).reduce<Cause.Cause<unknown>>((cause, n) => Cause.sequential(cause, Cause.fail(n)), Cause.empty)
    ),
  "NUL in the message": () => Effect.fail(new Error("a\u0000b")),
  "a lone surrogate in the message": () => Effect.fail(`a\ud800b`),
  "50 MB of message": () => Effect.fail(new Error("x".repeat(50 * 1024 * 1024))),
  "an error that is its own cause": () => Effect.fail(circular()),
  "a message that throws": () => Effect.fail(badMessage()),
  "a message that is no text": () => Effect.fail(Object.assign(new Error(), { message: { not: "text" } })),
  "an empty message": () => Effect.fail(new Error("")),
  "an empty text": () => Effect.fail(""),
  "a toJSON that throws": () => Effect.fail({ toJSON: raise("no") }),
  "a circular object": () => {
    const loop: Record<string, unknown> = {}
    loop.loop = loop
    return Effect.fail(loop)
  },
  "a BigInt": () => Effect.fail(1n),
  "a Symbol": () => Effect.die(Symbol("odd")),
  "a Map": () => Effect.fail(new Map([[1, 2]])),
  "a function": () => Effect.fail(() => 1),
  "a tag that is no text": () => Effect.fail({ _tag: 7 }),
  "a tag with NUL": () => Effect.fail({ _tag: "a\u0000" })
}
