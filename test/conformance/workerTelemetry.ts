/** Spans, trace context and metrics, from an enqueue to what became of its job. */
import { Job, Queue, Telemetry } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Cause, Effect, Exit, Layer, Logger, Metric, Schedule, TestClock, Tracer } from "effect"
import { expect } from "vitest"
import { makeRecorder, type Recorded } from "../support/tracer.js"
import { claimOne, deadRows, freshQueue, live, liveRows, onlyRow, type Suite, sweep, virtual } from "./support.js"
import { eventually, gone, observe, withQueue } from "./workerSupport.js"

const trace = "0af7651916cd43dd8448eb211c80319c"
const given = `00-${trace}-b7ad6b7169203331-01`

/** A worker that keeps the headers it sees. */
const listening = (queue: Queue.Definition<unknown>) =>
  Effect.gen(function* () {
    const headers: Array<Job.Job<unknown>["headers"]> = []
    const observed = yield* observe(queue, { handler: (job) => Effect.sync(() => headers.push(job.headers)) })
    return { headers, ...observed }
  })

const traceparent = (span: Recorded) => `00-${span.traceId}-${span.spanId}-01`

const linked = (span: Recorded | undefined) => span?.links.map(({ span: { spanId, traceId } }) => [traceId, spanId])

/** The counters of a queue that are not zero. */
const counts = (queue: { readonly name: string }) =>
  Effect.gen(function* () {
    const of = Telemetry.metrics(queue.name)
    const { acked, claimed, deduplicated, enqueued, leasesLost, released, retried } = of
    const counters = { enqueued, deduplicated, claimed, acked, retried, released, leasesLost }
    const found: Record<string, number> = {}
    for (const [name, counter] of Object.entries(counters)) {
      const { count } = yield* Metric.value(counter)
      if (count > 0) found[name] = count
    }
    for (const reason of ["exhausted", "crashed", "failed", "expired", "cancelled", "undecodable"] as const) {
      const { count } = yield* Metric.value(of.dead(reason))
      if (count > 0) found[reason] = count
    }
    return found
  })

export const workerTelemetrySuite: Suite = (engine, options) => {
  virtual(engine, options, "spans", (it) => {
    it.effect(
      "go from the enqueue to the attempt: one sends, the other processes and is linked to it (G135, G136)",
      () => {
        const { named, tracer } = makeRecorder()
        return Effect.gen(function* () {
          const queue = freshQueue()
          // A worker that is started in a span, as Layers often are, lives longer than that
          const { headers, worker } = yield* Effect.withSpan(listening(queue), "start")
          const { id } = yield* Effect.withSpan(queue.enqueue(1), "request")
          yield* Testing.advance("1 second")
          const [request] = named("request")
          const [send] = named(`send ${queue.name}`)
          const [process] = named(`process ${queue.name}`)
          expect(send).toMatchObject({
            kind: "producer",
            parent: { spanId: request?.spanId },
            exit: { _tag: "Success" }
          })
          expect(Object.fromEntries(send?.attributes ?? [])).toEqual({
            "messaging.system": "alkstore",
            "messaging.system.name": "alkstore",
            "messaging.destination.name": queue.name,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.message.id": String(id)
          })
          expect(headers).toEqual([{ traceparent: traceparent(send as Recorded) }])
          expect(process).toMatchObject({ kind: "consumer", parent: undefined, exit: { _tag: "Success" } })
          expect(process?.traceId).not.toBe(send?.traceId)
          expect(linked(process)).toEqual([[send?.traceId, send?.spanId]])
          expect(Object.fromEntries(process?.attributes ?? [])).toEqual({
            "messaging.system": "alkstore",
            "messaging.system.name": "alkstore",
            "messaging.destination.name": queue.name,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": String(id),
            "messaging.client.id": worker.id,
            "alkstore.attempt": 1
          })
        }).pipe(Effect.withTracer(tracer))
      }
    )

    it.effect(
      "of a handler are children of its attempt's; there is one attempt per span, with its error (G136)",
      () => {
        const { named, tracer } = makeRecorder()
        return Effect.gen(function* () {
          const queue = freshQueue()
          yield* observe(queue, {
            handler: ({ attempt }) =>
              Effect.withSpan(attempt < 3 ? Effect.fail(new RangeError(`no ${attempt}`)) : Effect.void, "inner"),
            retry: Schedule.spaced("1 minute")
          })
          yield* queue.enqueue(1)
          yield* Testing.advance("5 minutes")
          const [send] = named(`send ${queue.name}`)
          const attempts = named(`process ${queue.name}`)
          expect(attempts.map(({ attributes }) => attributes.get("alkstore.attempt"))).toEqual([1, 2, 3])
          expect(attempts.map(({ attributes }) => attributes.get("error.type"))).toEqual([
            "RangeError",
            "RangeError",
            undefined
          ])
          expect(
            attempts.map(({ exit }) => (exit?._tag === "Failure" ? Cause.pretty(exit.cause) : exit?._tag))
          ).toEqual([expect.stringContaining("no 1"), expect.stringContaining("no 2"), "Success"])
          expect(attempts.map(linked)).toEqual(Array(3).fill([[send?.traceId, send?.spanId]]))
          expect(named("inner").map(({ parent }) => parent?.spanId)).toEqual(attempts.map(({ spanId }) => spanId))
        }).pipe(Effect.withTracer(tracer))
      }
    )

    it.effect("tell what ended a handler: a timeout, Fatal, Snooze, a defect, nothing to read it with (G136)", () => {
      const { named, tracer } = makeRecorder()
      return Effect.gen(function* () {
        const queue = freshQueue()
        const ends: ReadonlyArray<Effect.Effect<unknown, unknown>> = [
          Effect.never,
          Job.fatal(new RangeError("out")),
          Job.snooze("1 hour"),
          Effect.die("gone"),
          Effect.fail({ _tag: "MailServerDown" })
        ]
        yield* observe(queue, {
          handler: (job) => ends[job.payload as number] as Effect.Effect<unknown, unknown>,
          timeout: "10 seconds",
          retry: Schedule.stop,
          concurrency: 1
        })
        yield* queue.enqueueMany([0, 1, 2, 3, 4])
        yield* Testing.advance("1 minute")
        const seen = named(`process ${queue.name}`).map(({ attributes, exit }) => [
          exit?._tag,
          attributes.get("error.type"),
          attributes.get("alkstore.snoozed")
        ])
        expect(seen).toEqual([
          ["Failure", "timeout", undefined],
          ["Failure", "RangeError", undefined],
          ["Success", undefined, true],
          ["Failure", "_OTHER", undefined],
          ["Failure", "MailServerDown", undefined]
        ])
      }).pipe(Effect.withTracer(tracer))
    })

    it.effect("of a batch ends as its handler does, whatever becomes of one of its jobs meanwhile (G136)", () => {
      const { named, tracer } = makeRecorder()
      return Effect.gen(function* () {
        const queue = freshQueue()
        let ends: Effect.Effect<never, TypeError> = Effect.never
        yield* observe(queue, {
          batchHandler: () => Effect.suspend(() => ends),
          timeout: "2 minutes",
          retry: Schedule.stop
        })
        const round = Effect.gen(function* () {
          const before = named(`process ${queue.name}`).length
          const [first] = yield* queue.enqueueMany([1, 2, 3])
          yield* Testing.advance("1 second")
          yield* queue.cancel((first as Queue.Receipt).id)
          yield* Testing.advance("3 minutes")
          return named(`process ${queue.name}`)[before]?.attributes
        })
        const late = yield* round
        expect(late?.get("error.type")).toBe("timeout")
        expect(late?.has("alkstore.interrupted")).toBe(false)
        ends = Effect.delay(Effect.fail(new TypeError("no")), "1 minute")
        const failed = yield* round
        expect(failed?.get("error.type")).toBe("TypeError")
        expect(failed?.has("alkstore.interrupted")).toBe(false)
      }).pipe(Effect.withTracer(tracer))
    })

    it.effect(
      "of many jobs: one sends them all, each is processed on its own; a batch is one, with all links (G135, G136)",
      () => {
        const { named, tracer } = makeRecorder()
        return Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueueMany([1, 2])
          yield* queue.enqueue(3)
          const [many, one] = named(`send ${queue.name}`)
          expect(many?.attributes.get("messaging.batch.message_count")).toBe(2)
          expect(many?.attributes.has("messaging.message.id")).toBe(false)
          const batches = Queue.make(queue.name, { payload: queue.payload })
          yield* observe(batches, {
            batchHandler: (jobs: ReadonlyArray<Job.Job<unknown>>) =>
              Effect.succeed(jobs.map((job) => (job.payload === 2 ? Exit.fail("no") : Exit.void))),
            batch: { size: 10 }
          } as never)
          yield* Testing.advance("1 second")
          const [first] = named(`process ${queue.name}`)
          expect(linked(first)).toEqual([many, many, one].map((span) => [span?.traceId, span?.spanId]))
          expect(first?.attributes.get("messaging.batch.message_count")).toBe(3)
          expect(first?.attributes.get("alkstore.batch.failed_count")).toBe(1)
          expect(first?.attributes.has("messaging.message.id")).toBe(false)
        }).pipe(Effect.withTracer(tracer))
      }
    )

    it.effect(
      "carry on what the caller has given, malformed or not, and what is malformed links to nothing (G135, G137)",
      () => {
        const { named, tracer } = makeRecorder()
        return Effect.gen(function* () {
          const queue = freshQueue()
          const { headers } = yield* listening(queue)
          const hostile = [
            "",
            "junk",
            given.toUpperCase().slice(1),
            `00-${"0".repeat(32)}-b7ad6b7169203331-01`,
            `${given}-x`
          ]
          for (const text of [given, ...hostile]) yield* queue.enqueue(1, { headers: { traceparent: text } })
          yield* queue.enqueue(1, { headers: { a: 'x,"traceparent":"y"', TraceParent: given } })
          yield* Testing.advance("1 second")
          expect(headers).toEqual([
            ...[given, ...hostile].map((text) => ({ traceparent: text })),
            { a: 'x,"traceparent":"y"', TraceParent: given }
          ])
          const spans = named(`process ${queue.name}`)
          expect(spans.map(linked)).toEqual([
            [[trace, "b7ad6b7169203331"]],
            [],
            [],
            [],
            [],
            [],
            [[trace, "b7ad6b7169203331"]]
          ])
        }).pipe(Effect.withTracer(tracer))
      }
    )

    it.effect("leave the caller's headers, and their limit, as they are (G135)", () => {
      const { named, tracer } = makeRecorder()
      return Effect.gen(function* () {
        const queue = freshQueue()
        const name = 'a","traceparent'
        const most = "x".repeat(16 * 1024 - JSON.stringify({ [name]: "" }).length)
        const { headers } = yield* listening(queue)
        yield* queue.enqueue(1, { headers: { [name]: most } })
        yield* Testing.advance("1 second")
        const [send] = named(`send ${queue.name}`)
        expect(headers).toEqual([{ [name]: most, traceparent: traceparent(send as Recorded) }])
        const refused = yield* Effect.flip(queue.enqueue(1, { headers: { [name]: `${most}x` } }))
        expect(refused).toMatchObject({ _tag: "InvalidArgument", argument: "headers" })
      }).pipe(Effect.withTracer(tracer))
    })

    it.effect("an enqueue in a transaction is one too, whether it commits or not (G135)", () => {
      const { named, tracer } = makeRecorder()
      return Effect.gen(function* () {
        const queue = freshQueue()
        yield* Queue.transaction(queue.enqueue(1))
        yield* Effect.ignore(Queue.transaction(Effect.zipRight(queue.enqueue(2), Effect.fail("no"))))
        const [committed, lost] = named(`send ${queue.name}`)
        expect([committed, lost].map((span) => span?.exit?._tag)).toEqual(["Success", "Success"])
        const row = yield* onlyRow(queue)
        expect(JSON.parse(row.headers ?? "")).toEqual({ traceparent: traceparent(committed as Recorded) })
      }).pipe(Effect.withTracer(tracer))
    })

    it.effect("are not made where nobody wants them, but a trace is carried through (G139)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { named, tracer } = makeRecorder()
        const { headers } = yield* listening(queue)
        const parent = Tracer.externalSpan({ traceId: trace, spanId: "b7ad6b7169203331", sampled: true })
        yield* queue.enqueue(1)
        yield* Effect.withParentSpan(queue.enqueue(2), parent)
        yield* queue.enqueue(3).pipe(Effect.withTracerEnabled(false), Effect.withTracer(tracer), Effect.withSpan("off"))
        yield* Testing.advance("1 second")
        expect(headers).toEqual([{}, { traceparent: given }, {}])
        expect(named(`send ${queue.name}`)).toEqual([])
      })
    )

    it.effect("a tracer that throws costs no job (G144)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { tracer } = makeRecorder()
        const ends: Array<string> = []
        const broken = (how: "span" | "attribute" | "end") =>
          Tracer.make({
            context: (run) => run(),
            span: (...args) => {
              if (how === "span") throw new Error("no span")
              const span = tracer.span(...args)
              const fail = () => {
                throw new Error(`no ${how}`)
              }
              return Object.assign(Object.create(span), { [how]: fail }) as Tracer.Span
            }
          })
        for (const how of ["span", "attribute", "end"] as const) {
          const each = freshQueue()
          yield* observe(each, { handler: () => Effect.sync(() => ends.push(how)) }).pipe(
            Effect.withTracer(broken(how))
          )
          yield* each.enqueue(1)
          yield* Testing.advance("1 second")
          expect(yield* liveRows(each)).toEqual([])
          expect(yield* deadRows(each)).toEqual([])
        }
        expect(ends).toEqual(["span", "attribute", "end"])
        expect(yield* liveRows(queue)).toEqual([])
      })
    )
  })

  virtual(engine, options, "metrics", (it) => {
    it.effect("count each transition once, by queue (G140)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const other = freshQueue()
        yield* other.enqueue(1)
        yield* observe(queue, {
          handler: ({ attempt, payload }): Effect.Effect<unknown, unknown> =>
            payload === "ack"
              ? Effect.void
              : payload === "fatal"
                ? Job.fatal("no")
                : payload === "snooze" && attempt === 1
                  ? Effect.flatMap(
                      Effect.sync(() => snoozed++),
                      (n) => (n === 0 ? Job.snooze("1 minute") : Effect.void)
                    )
                  : payload === "snooze"
                    ? Effect.void
                    : Effect.fail("no"),
          retry: Schedule.spaced("10 seconds")
        })
        let snoozed = 0
        yield* queue.enqueueMany(["ack", "ack", "fatal", "snooze"])
        yield* queue.enqueue("fail", { maxAttempts: 3, dedupeKey: "k" })
        yield* queue.enqueue("fail", { maxAttempts: 3, dedupeKey: "k" })
        yield* Testing.advance("5 minutes")
        expect(yield* counts(queue)).toEqual({
          enqueued: 5,
          deduplicated: 1,
          claimed: 8,
          acked: 3,
          retried: 2,
          released: 1,
          failed: 1,
          exhausted: 1
        })
        expect(yield* counts(other)).toEqual({ enqueued: 1 })
      })
    )

    it.effect("tell how long jobs waited for their handler, and how long it ran (G141)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* observe(queue, { handler: () => Effect.sleep("20 seconds"), concurrency: 1, prefetch: 0 })
        yield* queue.enqueueMany([1, 2, 3])
        yield* Testing.advance("2 minutes")
        const { runTime, waitTime } = Telemetry.metrics(queue.name)
        expect(yield* Metric.value(waitTime)).toMatchObject({ count: 3 })
        const { max, min, sum } = yield* Metric.value(waitTime)
        expect(min).toBeLessThan(2_000)
        expect(max).toBeGreaterThanOrEqual(40_000)
        expect(sum).toBeGreaterThanOrEqual(60_000)
        expect(yield* Metric.value(runTime)).toMatchObject({ count: 3, min: 20_000, max: 20_000, sum: 60_000 })
      })
    )

    it.effect("count what the sweep, a claim and an operator dead-letter (G140)", () =>
      Effect.gen(function* () {
        for (const finder of ["sweep", "claim"] as const) {
          const queue = freshQueue({ maxCrashes: 0 })
          yield* queue.enqueue("crashes")
          yield* claimOne(queue, { visibilityTimeout: "1 second" })
          yield* queue.enqueueMany(["expires", "expires"], { expires: "1 second" })
          const waiting = yield* queue.enqueue("waits", { delay: "1 hour" })
          yield* queue.cancel(waiting.id)
          yield* queue.cancel(waiting.id)
          yield* TestClock.adjust("10 seconds")
          if (finder === "sweep") yield* sweep(queue)
          else expect(yield* queue.claim({ limit: 10 })).toEqual([])
          expect(yield* counts(queue)).toEqual({ enqueued: 4, claimed: 1, crashed: 1, expired: 2, cancelled: 1 })
        }
      })
    )

    it.effect("count claims and settles by hand, and tell of them in spans (G135, G140)", () => {
      const { named, spans, tracer } = makeRecorder()
      return Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, 2, 3, 4])
        const [send] = named(`send ${queue.name}`)
        const [first, second, third, fourth] = yield* queue.claim({ limit: 10 })
        yield* first?.ack ?? Effect.void
        yield* second?.retry() ?? Effect.void
        yield* third?.release ?? Effect.void
        yield* fourth?.fail("no") ?? Effect.void
        expect((yield* Effect.flip(first?.ack ?? Effect.void))._tag).toBe("LeaseLost")
        expect(yield* counts(queue)).toEqual({ enqueued: 4, claimed: 4, acked: 1, retried: 1, released: 1, failed: 1 })
        const words = ["ack", "retry", "release", "fail", "ack"]
        const settles = spans.filter(({ attributes }) => attributes.get("messaging.operation.type") === "settle")
        expect(settles.map(({ name }) => name)).toEqual(words.map((word) => `${word} ${queue.name}`))
        expect(settles.map(({ attributes }) => attributes.get("error.type")).at(-1)).toBe("LeaseLost")
        expect(settles.map(linked)).toEqual(words.map(() => [[send?.traceId, send?.spanId]]))
        const [receive] = named(`receive ${queue.name}`)
        expect(receive).toMatchObject({ kind: "client", exit: { _tag: "Success" } })
        expect(receive?.attributes.get("messaging.batch.message_count")).toBe(4)
        expect(linked(receive)).toHaveLength(4)
      }).pipe(Effect.withTracer(tracer))
    })

    it.scoped("gauge how many jobs there are and how long the oldest has been ready, untraced (G142)", () => {
      const { spans, tracer } = makeRecorder()
      return Effect.gen(function* () {
        const queue = freshQueue()
        const other = freshQueue()
        yield* queue.enqueueMany([1, 2, 3])
        yield* queue.enqueue(4, { delay: "1 hour" })
        yield* other.enqueue(5)
        const [first] = yield* queue.claim({ visibilityTimeout: "1 hour" })
        const [second] = yield* queue.claim()
        yield* second?.fail("no") ?? Effect.void
        const before = spans.length
        yield* Layer.build(Telemetry.layer({ queues: [queue], every: "10 seconds" }))
        yield* Testing.advance("25 seconds")
        const gauges = (name: string) =>
          Effect.gen(function* () {
            const { deadLetters, depth, oldestReadyAge } = Telemetry.metrics(name)
            const value = (gauge: Metric.Metric.Gauge<number>) =>
              Effect.map(Metric.value(gauge), (state) => state.value)
            return [
              yield* value(depth("ready")),
              yield* value(depth("delayed")),
              yield* value(depth("leased")),
              yield* value(deadLetters),
              yield* value(oldestReadyAge)
            ]
          })
        const [ready, delayed, leased, dead, age = 0] = yield* gauges(queue.name)
        expect([ready, delayed, leased, dead]).toEqual([1, 1, 1, 1])
        expect(age).toBeGreaterThanOrEqual(20_000)
        expect(age).toBeLessThanOrEqual(25_000)
        expect(yield* gauges(other.name)).toEqual([0, 0, 0, 0, 0])
        expect(spans.slice(before)).toEqual([])
        yield* first?.ack ?? Effect.void
        yield* Layer.build(Telemetry.layer())
        yield* Testing.advance("20 seconds")
        expect((yield* gauges(queue.name)).slice(0, 4)).toEqual([1, 1, 0, 1])
        expect((yield* gauges(other.name))[0]).toBe(1)
        const later = freshQueue()
        yield* later.enqueue(6)
        yield* Testing.advance("20 seconds")
        expect((yield* gauges(later.name))[0]).toBe(1)
        const refused = yield* Effect.flip(Layer.build(Telemetry.layer({ every: 1 })))
        expect(refused).toMatchObject({ _tag: "InvalidArgument", argument: "every" })
      }).pipe(Effect.withTracer(tracer))
    })

    it.scoped("gauge the other queues when one cannot be counted (G142)", () =>
      Effect.gen(function* () {
        const [bad, good] = [freshQueue(), freshQueue()]
        yield* good.enqueue(1)
        yield* withQueue(
          (real) => ({ counts: (name) => (name === bad.name ? Effect.fail(gone("counts")) : real.counts(name)) }),
          Layer.build(Telemetry.layer({ queues: [bad, good] }))
        )
        yield* Testing.advance("1 second")
        expect(yield* Metric.value(Telemetry.metrics(good.name).depth("ready"))).toMatchObject({ value: 1 })
      })
    )

    it.effect("do not take an outage for the time that an idle worker took to notice a job (G141)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let down = false
        const { of } = yield* withQueue(
          (real) => ({ claim: (request) => (down ? Effect.fail(gone("claim")) : real.claim(request)) }),
          observe(queue, { handler: () => Effect.void })
        )
        yield* Testing.advance("2 seconds")
        down = true
        yield* queue.enqueue(1)
        yield* Testing.advance("1 minute")
        down = false
        yield* Testing.advance("10 seconds")
        expect(of("Acked")).toHaveLength(1)
        expect(yield* Metric.value(Telemetry.metrics(queue.name).wakeLatency)).toMatchObject({ count: 0 })
      })
    )

    it.effect("a handler that settles its own job is counted once (G140)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* observe(queue, { handler: (job) => job.ack })
        yield* queue.enqueue(1)
        yield* Testing.advance("1 second")
        expect(yield* counts(queue)).toEqual({ enqueued: 1, claimed: 1, acked: 1 })
      })
    )
  })

  live(engine, options, "what watches a worker", (it) => {
    it.scoped("sees nothing of its own statements, nor of the sweeper's (G138)", () => {
      const { spans, tracer } = makeRecorder()
      const often = { pollInterval: "30 millis", sweeper: { schedule: Schedule.spaced("30 millis") } } as const
      const layer = engine.layer({ silent: options.silent, sqlite: often, postgres: often })
      return Effect.gen(function* () {
        const queue = freshQueue()
        const swept = freshQueue()
        const built = spans.length
        let claims = 0
        let handled = 0
        yield* withQueue(
          (real) => ({
            claim: (request) =>
              Effect.suspend(() => {
                claims++
                return Effect.withSpan(real.claim(request), "claim")
              }),
            renew: (renewals) => Effect.withSpan(real.renew(renewals), "renew"),
            settle: (...args) => Effect.withSpan(real.settle(...args), "settle"),
            counts: (name) => Effect.withSpan(real.counts(name), "counts")
          }),
          Effect.gen(function* () {
            yield* Effect.withTracerEnabled(swept.enqueue(1, { expires: "50 millis" }), false)
            yield* Layer.build(Telemetry.layer({ every: "100 millis" }))
            yield* observe(queue, { handler: () => Effect.sync(() => handled++), visibilityTimeout: "300 millis" })
            yield* eventually(
              "six looks for work",
              Effect.sync(() => claims),
              (n) => n >= 6
            )
            yield* eventually("a sweep", deadRows(swept), (rows) => rows.length === 1).pipe(
              Effect.withTracerEnabled(false)
            )
            expect(spans.slice(built).map(({ name }) => name)).toEqual([])
            const before = spans.length
            yield* Effect.withTracerEnabled(queue.enqueue(1), false)
            yield* eventually(
              "the handler",
              Effect.sync(() => handled),
              (n) => n === 1
            )
            yield* eventually("the ack", liveRows(queue), (rows) => rows.length === 0).pipe(
              Effect.withTracerEnabled(false)
            )
            expect(spans.slice(before).map(({ name }) => name)).toEqual([`process ${queue.name}`])
          })
        )
      }).pipe(Effect.provide(Layer.provide(Layer.fresh(layer), Layer.setTracer(tracer))), Effect.withTracer(tracer))
    })

    it.effect("sees in the logs of a handler whose they are (G143)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const lines: Array<Record<string, unknown>> = []
        const logger = Logger.make(({ annotations }) => void lines.push(Object.fromEntries(annotations)))
        const { worker } = yield* observe(queue, { handler: () => Effect.log("here") }).pipe(
          Effect.provide(Logger.replace(Logger.defaultLogger, logger))
        )
        const { id } = yield* queue.enqueue(1)
        yield* eventually(
          "a line",
          Effect.sync(() => lines.length),
          (n) => n > 0
        )
        expect(lines[0]).toEqual({ queue: queue.name, job: id, attempt: 1, worker: worker.id })
      })
    )

    it.effect("sees how long an idle worker takes to notice a job (G141)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of } = yield* observe(queue, { handler: () => Effect.void })
        const { wakeLatency } = Telemetry.metrics(queue.name)
        for (const n of [1, 2, 3]) {
          yield* queue.enqueue(n)
          yield* eventually(
            "the ack",
            Effect.sync(() => of("Acked").length),
            (acked) => acked === n
          )
        }
        const { count, max } = yield* Metric.value(wakeLatency)
        expect(count).toBeGreaterThanOrEqual(1)
        expect(count).toBeLessThanOrEqual(3)
        expect(max).toBeLessThan(10_000)
      })
    )
  })
}
