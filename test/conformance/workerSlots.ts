/** Slots: timeouts, handlers that do not end, and how many handlers run at once. */
import { Job, type Queue } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Effect, Schedule } from "effect"
import { expect } from "vitest"
import type { ClaimRequest } from "../../src/services/QueueStore.js"
import { deadRows, expectEmpty, freshQueue, live, liveRows, onlyRow, type Suite, sweep, virtual } from "./support.js"
import {
  eventually,
  gone,
  makeGate,
  makeGauge,
  numbers,
  observe,
  stoppable,
  until,
  withQueue
} from "./workerSupport.js"

/** Records what is asked of the store. */
const recordingClaims = (requests: Array<ClaimRequest>) => (real: Queue.Service) => ({
  claim: (request: ClaimRequest) => {
    requests.push(request)
    return real.claim(request)
  }
})

/** How many live jobs there are in each state, with each count of attempts. */
const tally = (queue: Queue.Definition<unknown>) =>
  Effect.map(liveRows(queue), (rows) => {
    const counts: Record<string, number> = {}
    for (const { attempt, state } of rows) {
      const kind = `${state}, attempt ${attempt}`
      counts[kind] = (counts[kind] ?? 0) + 1
    }
    return counts
  })

export const workerSlotsSuite: Suite = (engine, options) => {
  virtual(engine, options, "a handler that runs too long", (it) => {
    it.effect("is interrupted with its children, fails, and frees its slot (G50)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const ended: Array<string> = []
        const note = (what: string) => Effect.sync(() => void ended.push(what))
        const { of, worker } = yield* observe(queue, {
          handler: ({ payload }) =>
            payload === "quick"
              ? note("quick")
              : Effect.gen(function* () {
                  yield* Effect.addFinalizer(() => note("finalizer"))
                  yield* Effect.fork(Effect.onInterrupt(Effect.never, () => note("child")))
                  yield* Effect.promise((signal) => {
                    signal.addEventListener("abort", () => ended.push("signal"))
                    return new Promise(() => undefined)
                  })
                }),
          concurrency: 1,
          timeout: "1 minute",
          retry: Schedule.spaced("1 hour")
        })
        yield* queue.enqueueMany(["slow", "quick"])
        yield* Testing.advance("55 seconds")
        expect(ended).toEqual([])
        yield* Testing.advance("10 seconds")
        expect([...ended].sort()).toEqual(["child", "finalizer", "quick", "signal"])
        expect(of("TimedOut")).toHaveLength(1)
        expect(of("Stuck")).toEqual([])
        const row = yield* onlyRow(queue)
        expect(row).toMatchObject({ state: "delayed", attempt: 1, failures: 1, errors: [{ kind: "timeout" }] })
        expect(row.errors[0]?.message).toContain("60000 ms")
        expect(yield* worker.status).toMatchObject({ running: 0, stuck: 0, acked: 1, retried: 1 })
      })
    )

    it.effect("but ends before it counts as stuck has failed, no more (G50)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { tags } = yield* observe(queue, {
          handler: () => Effect.uninterruptible(Effect.sleep("65 seconds")),
          timeout: "1 minute",
          stuckAfter: "10 seconds",
          retry: Schedule.spaced("1 hour")
        })
        yield* queue.enqueue(1)
        yield* Testing.advance("2 minutes")
        expect(yield* onlyRow(queue)).toMatchObject({ failures: 1, errors: [{ kind: "timeout" }] })
        expect(tags()).toEqual(["Started", "TimedOut", "Retried"])
      })
    )

    it.effect("keeps its slot until it has ended: never more live handlers than concurrency (G50, G72)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gauge = makeGauge()
        const { of } = yield* observe(queue, {
          handler: () => gauge.during(Effect.onInterrupt(Effect.never, () => Effect.sleep("5 seconds"))),
          concurrency: 2,
          timeout: "10 seconds",
          stuckAfter: "10 seconds"
        })
        yield* queue.enqueueMany(numbers(8), { maxAttempts: 1 })
        yield* Testing.advance("2 minutes")
        expect(yield* deadRows(queue)).toHaveLength(8)
        expect(of("Stuck")).toEqual([])
        expect(gauge.most()).toBe(2)
      })
    )

    it.effect(
      "and ignores its interruption is stuck: its job fails, its slot is given up, all of it told (G50, G72)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const gate = yield* makeGate
          const { of, worker } = yield* observe(queue, {
            handler: ({ payload }) => (payload === "stuck" ? Effect.uninterruptible(gate.wait) : Effect.void),
            concurrency: 1,
            timeout: "1 minute",
            stuckAfter: "10 seconds"
          })
          yield* queue.enqueueMany(["stuck", "next"], { maxAttempts: 1 })
          yield* Testing.advance("65 seconds")
          expect(of("Stuck")).toEqual([])
          expect(of("Started")).toHaveLength(1)
          yield* Testing.advance("10 seconds")
          expect(of("Stuck")).toHaveLength(1)
          expect(yield* liveRows(queue)).toEqual([])
          expect(yield* deadRows(queue)).toMatchObject([
            { reason: "exhausted", attempts: 1, errors: [{ kind: "stuck" }] }
          ])
          expect(yield* worker.status).toMatchObject({ state: "running", running: 0, stuck: 1, acked: 1, dead: 1 })
          const sick = yield* worker.health
          expect(sick).toMatchObject({ healthy: false, stuck: 1 })
          expect(sick.problems).toHaveLength(1)
          yield* gate.open
          yield* Testing.advance("1 second")
          expect(yield* worker.status).toMatchObject({ running: 0, stuck: 0, acked: 1, dead: 1, lost: 0 })
          expect(yield* worker.health).toMatchObject({ healthy: true, stuck: 0 })
        })
    )

    it.effect("its slot goes to the next that is in hand, at once, also while nothing can be claimed (G50)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let down = false
        const { of, worker } = yield* withQueue(
          (real) => ({ claim: (request) => (down ? Effect.fail(gone("claim")) : real.claim(request)) }),
          observe(queue, {
            handler: ({ payload }) => (payload === "stuck" ? Effect.uninterruptible(gate.wait) : Effect.void),
            concurrency: 1,
            timeout: "2 seconds",
            stuckAfter: "1 second"
          })
        )
        // Known to be quick, it claims ahead while its one handler is busy
        yield* queue.enqueueMany(numbers(20))
        yield* Testing.advance("2 seconds")
        yield* queue.enqueueMany(["stuck", "next"])
        yield* Testing.advance("1 second")
        expect(yield* worker.status).toMatchObject({ running: 1, buffered: 1 })
        down = true
        yield* Testing.advance("5 seconds")
        expect(of("Started")[21]?.at).toBe(of("Stuck")[0]?.at)
        yield* gate.open
      })
    )

    it.effect("more of those than concurrency: the worker fails, visibly (G50)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        const { of, worker } = yield* observe(queue, {
          handler: () => Effect.uninterruptible(gate.wait),
          concurrency: 2,
          timeout: "10 seconds",
          stuckAfter: "1 second"
        })
        const failure = yield* Effect.fork(Effect.flip(worker.failure))
        yield* queue.enqueueMany(numbers(6), { maxAttempts: 1 })
        yield* Testing.advance("2 minutes")
        const error = yield* failure
        expect(error).toMatchObject({ _tag: "WorkerFailed", queue: queue.name, retryable: false })
        expect(of("Failed")).toHaveLength(1)
        expect(of("Started")).toHaveLength(4)
        expect(yield* worker.status).toMatchObject({ state: "failed" })
        expect((yield* worker.health).healthy).toBe(false)
        expect(yield* liveRows(queue)).toMatchObject([{ attempt: 0 }, { attempt: 0 }])
        yield* gate.open
      })
    )
  })

  virtual(engine, options, "what is claimed ahead", (it) => {
    it.effect("is no more than the handlers clear in 250 ms (G73)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const requests: Array<ClaimRequest> = []
        yield* withQueue(
          recordingClaims(requests),
          observe(queue, { handler: () => Effect.sleep("100 millis"), concurrency: 2 })
        )
        yield* queue.enqueueMany(numbers(40))
        yield* Testing.advance("2 seconds")
        const ahead = requests.map(({ prefetch }) => prefetch)
        expect(ahead[0]).toBe(0)
        expect(Math.max(...ahead)).toBe(5)
        yield* Testing.advance("5 seconds")
        yield* expectEmpty(queue)
      })
    )

    it.effect("is claimed while handlers of what was claimed before are still to begin (G73)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let begun = 0
        let claimed = 0
        /** How many were in hand and had not begun, at each claim. */
        const waiting: Array<number> = []
        const counting = (real: Queue.Service) => ({
          claim: (request: ClaimRequest) => {
            waiting.push(claimed - begun)
            return Effect.map(real.claim(request), (result) => {
              claimed += result.jobs.length
              return result
            })
          }
        })
        yield* queue.enqueueMany(numbers(1_500))
        const handler = () => Effect.sync(() => void begun++)
        yield* withQueue(counting, observe(queue, { handler, concurrency: 10 }))
        yield* Testing.advance("5 seconds")
        yield* expectEmpty(queue)
        expect(Math.max(...waiting)).toBeGreaterThan(100)
        // Half of what may be claimed ahead, and those that have a handler
        expect(Math.max(...waiting)).toBeLessThanOrEqual(260)
      })
    )

    it.effect("is less when the payloads are big: they are not to fill the memory", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const requests: Array<ClaimRequest> = []
        // As good as a megabyte in the database of each
        const payload = JSON.stringify("x".repeat(1024 * 1024))
        yield* withQueue(
          (real) => ({
            claim: (request) => {
              requests.push(request)
              return Effect.map(real.claim(request), (result) => ({
                ...result,
                jobs: result.jobs.map((job) => ({ ...job, payload }))
              }))
            }
          }),
          observe(queue, { handler: () => Effect.void, concurrency: 40 })
        )
        for (let round = 0; round < 3; round++) {
          yield* queue.enqueueMany(numbers(40))
          yield* Testing.advance("2 seconds")
        }
        yield* expectEmpty(queue)
        const last = requests.at(-1)?.prefetch
        expect(last).toBeGreaterThan(0)
        expect(last).toBeLessThanOrEqual(20)
      })
    )

    it.effect("is never more than the option allows; none for 0 (G73)", () =>
      Effect.gen(function* () {
        for (const prefetch of [0, 3]) {
          const queue = freshQueue()
          const requests: Array<ClaimRequest> = []
          yield* withQueue(
            recordingClaims(requests),
            observe(queue, { handler: () => Effect.void, concurrency: 2, prefetch })
          )
          yield* queue.enqueueMany(numbers(40))
          yield* Testing.advance("5 seconds")
          yield* expectEmpty(queue)
          expect(Math.max(...requests.map((request) => request.prefetch))).toBe(prefetch)
        }
      })
    )

    it.effect("has no job among it that crashed before or is on its last attempt (G25)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(numbers(4))
        yield* queue.claim({ limit: 4, visibilityTimeout: "1 second" })
        yield* Testing.advance("2 seconds")
        yield* sweep(queue)
        const gate = yield* makeGate
        let quick = true
        const { worker } = yield* observe(queue, {
          handler: () => Effect.suspend(() => (quick ? Effect.void : gate.wait)),
          concurrency: 2
        })
        yield* Testing.advance("2 seconds")
        yield* expectEmpty(queue)
        // The handlers are known to be quick; from here on they wait
        quick = false
        // At once: after a claim that has left some, nothing is claimed ahead
        yield* queue.enqueueMany(numbers(15), (n) => (Number(n) < 10 ? { maxAttempts: 1, priority: 1 } : {}))
        yield* Testing.advance("2 seconds")
        const leased = (yield* liveRows(queue)).filter(({ state }) => state === "leased")
        expect(leased.filter(({ maxAttempts }) => maxAttempts === 1)).toHaveLength(2)
        expect(yield* worker.status).toMatchObject({ running: 2, buffered: leased.length - 2 })
        expect(leased.length).toBeGreaterThan(2)
        yield* gate.open
        yield* Testing.advance("5 seconds")
        yield* expectEmpty(queue)
      })
    )

    it.effect("passes one of those once at most: the claim after that is for free handlers (G25)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const begun: Array<unknown> = []
        yield* queue.enqueueMany(numbers(150), (n) => (n === 30 ? { maxAttempts: 1 } : {}))
        yield* observe(queue, {
          handler: ({ payload }) =>
            Effect.zipRight(
              Effect.sync(() => begun.push(payload)),
              Effect.sleep("1 millis")
            ),
          concurrency: 2,
          prefetch: 20
        })
        yield* Testing.advance("2 seconds")
        yield* expectEmpty(queue)
        // What was in hand, and what has been claimed with the look that found it
        expect(begun.indexOf(30)).toBeLessThanOrEqual(75)
        expect(begun).toHaveLength(150)
      })
    )

    const hangs = { batchHandler: () => Effect.never, concurrency: 2, shutdownGrace: 0 } as const

    it.effect("of a batch: each that crashed before has a handler to itself, and no more are claimed (G25)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(numbers(50))
        yield* queue.claim({ limit: 50, visibilityTimeout: "1 second" })
        yield* Testing.advance("2 seconds")
        yield* sweep(queue)
        const { worker } = yield* observe(queue, hangs)
        yield* Testing.advance("5 seconds")
        expect(yield* worker.status).toMatchObject({ running: 2, buffered: 0 })
        expect(yield* tally(queue)).toEqual({
          "leased, attempt 2": 2,
          "ready, attempt 1": 48
        })
      })
    )

    it.effect(
      "of a batch: none on its last attempt is claimed that has to wait for one that crashed before (G25)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueueMany(numbers(2), { priority: 1 })
          yield* queue.claim({ limit: 2, visibilityTimeout: "1 second" })
          yield* Testing.advance("2 seconds")
          yield* sweep(queue)
          yield* queue.enqueueMany(numbers(5), { maxAttempts: 1 })
          const { worker } = yield* observe(queue, hangs)
          yield* Testing.advance("5 seconds")
          expect(yield* worker.status).toMatchObject({ running: 2, buffered: 0 })
          expect(yield* tally(queue)).toEqual({
            "leased, attempt 2": 2,
            "ready, attempt 0": 5
          })
        })
    )

    it.effect("of a batch: those on their last attempt are together in one (G25)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany(numbers(5), { maxAttempts: 1 })
        const { worker } = yield* observe(queue, hangs)
        yield* Testing.advance("1 second")
        expect(yield* worker.status).toMatchObject({ running: 5, buffered: 0 })
        expect(yield* tally(queue)).toEqual({ "leased, attempt 1": 5 })
      })
    )

    it.effect("jobs for free handlers only are taken as soon as one is free, however long the poll is (G25, G57)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of } = yield* observe(queue, { handler: () => Effect.sleep("3 seconds"), concurrency: 2 })
        yield* queue.enqueueMany(numbers(20), { maxAttempts: 1 })
        yield* Testing.advance("40 seconds")
        yield* expectEmpty(queue)
        expect(of("Acked")).toHaveLength(20)
      })
    )

    it.effect("goes back, attempt not spent, after a third of its visibility timeout without a handler (G73)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let quick = true
        const policy = {
          handler: () => Effect.suspend(() => (quick ? Effect.void : gate.wait)),
          concurrency: 1,
          visibilityTimeout: "30 seconds" as const
        }
        const { of, worker } = yield* observe(queue, policy)
        yield* queue.enqueueMany(numbers(3))
        yield* Testing.advance("2 seconds")
        quick = false
        yield* queue.enqueueMany(numbers(5))
        yield* Testing.advance("2 seconds")
        expect(yield* worker.status).toMatchObject({ running: 1, buffered: 4 })
        yield* Testing.advance("10 seconds")
        expect(of("Released").length).toBeGreaterThanOrEqual(4)
        const waiting = (yield* liveRows(queue)).slice(1)
        for (const row of waiting) expect(row).toMatchObject({ failures: 0, crashes: 0, errors: [] })
        for (const row of waiting) expect(row.attempt).toBe(row.state === "leased" ? 1 : 0)
        yield* gate.open
        yield* Testing.advance("10 seconds")
        yield* expectEmpty(queue)
      })
    )

    it.effect("goes back on pause, while what runs goes on (G76)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let quick = true
        const { of, tags, worker } = yield* observe(queue, {
          handler: () => Effect.suspend(() => (quick ? Effect.void : gate.wait)),
          concurrency: 1
        })
        yield* queue.enqueue(0)
        yield* Testing.advance("2 seconds")
        quick = false
        yield* queue.enqueueMany(numbers(5))
        yield* Testing.advance("2 seconds")
        yield* worker.pause
        yield* worker.pause
        yield* Testing.advance("30 seconds")
        expect((yield* liveRows(queue)).map(({ attempt, state }) => [state, attempt])).toEqual([
          ["leased", 1],
          ...numbers(4).map(() => ["ready", 0])
        ])
        expect(yield* worker.status).toMatchObject({ state: "paused", running: 1, buffered: 0 })
        expect(of("Paused")).toHaveLength(1)
        yield* gate.open
        yield* Testing.advance("1 second")
        expect(yield* liveRows(queue)).toHaveLength(4)
        yield* worker.resume
        yield* worker.resume
        yield* Testing.settle
        yield* expectEmpty(queue)
        expect(of("Resumed")).toHaveLength(1)
        expect(tags().filter((tag) => tag === "Acked")).toHaveLength(6)
      })
    )
  })

  live(engine, options, "handlers at the same time", (it) => {
    it.effect("are never more than concurrency, in a mix of everything; each job ends once (G72)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gauge = makeGauge()
        const napped = new Set<number>()
        const ends = new Map<number, number>()
        const { of, worker } = yield* observe(queue, {
          handler: ({ attempt, payload, failures }): Effect.Effect<void, string | Job.Snooze> =>
            gauge.during(
              Effect.gen(function* () {
                const n = payload as number
                yield* Effect.sleep(n % 7)
                if (n % 5 === 1 && failures === 0) yield* Effect.fail("once")
                if (n % 5 === 2 && failures === 0) yield* Effect.die("once")
                if (n % 5 === 3 && !napped.has(n)) {
                  napped.add(n)
                  yield* Job.snooze(20 * (n % 2))
                }
                expect(attempt).toBe(failures + 1)
                ends.set(n, (ends.get(n) ?? 0) + 1)
              })
            ),
          concurrency: 7,
          retry: Schedule.spaced("5 millis")
        })
        yield* queue.enqueueMany(
          numbers(200).map((n) => n + 1),
          (n) => ({ priority: (n as number) % 3 })
        )
        yield* eventually("all jobs done", liveRows(queue), (rows) => rows.length === 0)
        expect(yield* deadRows(queue)).toEqual([])
        expect(gauge.most()).toBe(7)
        expect([...ends.values()].filter((times) => times === 1)).toHaveLength(200)
        expect(gauge.now()).toBe(0)
        yield* until("all is told", () => of("Acked").length === 200)
        expect(yield* worker.status).toMatchObject({ running: 0, settling: 0, acked: 200, retried: 80, lost: 0 })
      })
    )

    it.effect("a stopped worker's place is taken by another at once, its jobs' attempts not spent (G81)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const first = yield* stoppable(queue, { handler: () => Effect.never, shutdownGrace: 0 })
        yield* queue.enqueueMany(numbers(5))
        yield* until("all run", () => first.of("Started").length === 5)
        const attempts: Array<number> = []
        yield* observe(queue, { handler: (job) => Effect.sync(() => void attempts.push(job.attempt)) })
        yield* first.stop
        yield* eventually("all jobs done", liveRows(queue), (rows) => rows.length === 0, 500)
        expect(attempts).toEqual([1, 1, 1, 1, 1])
      })
    )
  })
}
