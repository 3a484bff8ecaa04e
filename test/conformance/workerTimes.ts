/** When a worker starts what it has to do: wakes, due times, polls, pauses. */
import { layer } from "@effect/vitest"
import * as Testing from "alkstore/Testing"
import { Clock, Effect, Schedule, TestClock } from "effect"
import { expect } from "vitest"
import { expectEmpty, freshQueue, liveRows, type Suite, virtual } from "./support.js"
import { eventually, makeGate, numbers, observe, withQueue } from "./workerSupport.js"

/** Keeps when each payload ran. */
const diary = () => {
  const ran: Array<readonly [unknown, number]> = []
  const handler = ({ payload }: { readonly payload: unknown }) =>
    Effect.map(Clock.currentTimeMillis, (now) => void ran.push([payload, now]))
  return { ran, handler }
}

export const workerTimesSuite: Suite = (engine, options) => {
  virtual(engine, options, "a worker's times", (it) => {
    it.effect("a delayed job starts when it is due (G58)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { handler, ran } = diary()
        yield* observe(queue, { handler })
        const start = yield* Clock.currentTimeMillis
        yield* queue.enqueue("later", { delay: "2 minutes" })
        yield* Testing.advance("30 seconds")
        // One that is due before what the worker sleeps for
        yield* queue.enqueue("sooner", { delay: "30 seconds" })
        yield* Testing.advance("3 minutes")
        expect(ran).toEqual([
          ["sooner", start + 60_000],
          ["later", start + 120_000]
        ])
      })
    )

    it.effect(
      "a delayed job starts when it is due, also after a wait for a job and for a free handler at once (G58)",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const { handler, ran } = diary()
          const gate = yield* makeGate
          yield* observe(queue, {
            handler: (job) => (job.payload === "slow" ? gate.wait : handler(job)),
            concurrency: 1
          })
          // Known to be quick, it claims ahead while its one handler is busy
          yield* queue.enqueueMany(numbers(20))
          yield* Testing.advance("2 seconds")
          yield* queue.enqueue("slow")
          yield* Testing.advance("2 seconds")
          const start = yield* Clock.currentTimeMillis
          yield* queue.enqueue("later", { delay: "20 seconds" })
          yield* Testing.advance("2 seconds")
          yield* gate.open
          yield* Testing.advance("1 minute")
          expect(ran.slice(20)).toEqual([["later", start + 20_000]])
        })
    )

    it.effect("a job of a lapsed lease starts when the lease has ended (G31, G58)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { handler, ran } = diary()
        yield* queue.enqueue("crashed")
        const start = yield* Clock.currentTimeMillis
        yield* queue.claim({ visibilityTimeout: "2 minutes" })
        yield* observe(queue, { handler })
        yield* Testing.advance("3 minutes")
        expect(ran).toEqual([["crashed", start + 120_000]])
      })
    )

    it.effect("so it does while enough other jobs are ready: within a second of its lease's end (G31, G58)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { handler, ran } = diary()
        yield* queue.enqueue("crashed", { priority: 1 })
        const start = yield* Clock.currentTimeMillis
        yield* queue.claim({ visibilityTimeout: "2600 millis" })
        yield* queue.enqueueMany(numbers(50))
        yield* TestClock.adjust("1600 millis")
        yield* observe(queue, {
          handler: (job) => Effect.zipRight(handler(job), Effect.sleep("100 millis")),
          concurrency: 1,
          prefetch: 0
        })
        yield* Testing.advance("3 seconds")
        const at = ran.find(([payload]) => payload === "crashed")?.[1] ?? 0
        expect(ran.length).toBeGreaterThan(20)
        expect(at - start).toBeLessThanOrEqual(3_700)
        expect(at - start).toBeGreaterThanOrEqual(2_600)
      })
    )

    it.effect("a delay of 30 days, beyond what a timer can hold (G65)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { handler, ran } = diary()
        const { worker } = yield* observe(queue, { handler })
        const start = yield* Clock.currentTimeMillis
        yield* queue.enqueue("far", { delay: "30 days" })
        yield* Testing.advance("5 seconds")
        // A month of polls would take a minute
        yield* worker.pause
        yield* TestClock.setTime(start + 30 * 86_400_000 - 5_000)
        yield* worker.resume
        yield* Testing.settle
        expect(ran).toEqual([])
        yield* Testing.advance("10 seconds")
        expect(ran).toEqual([["far", start + 30 * 86_400_000]])
      })
    )

    it.effect("every worker of a queue is woken (G57, G62)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        const workers = yield* Effect.forEach(numbers(3), () =>
          observe(queue, { handler: () => gate.wait, concurrency: 1 })
        )
        yield* Testing.advance("5 seconds")
        yield* queue.enqueueMany(numbers(3))
        yield* Testing.advance("1 second")
        for (const { worker } of workers) expect(yield* worker.status).toMatchObject({ running: 1 })
        yield* gate.open
        yield* Testing.advance("1 second")
        yield* expectEmpty(queue)
      })
    )

    it.effect("nothing starts while it is paused; what was enqueued meanwhile starts on resume at once (G76)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { handler, ran } = diary()
        const { tags, worker } = yield* observe(queue, { handler })
        yield* Testing.advance("2 seconds")
        yield* worker.pause
        yield* queue.enqueueMany(["a", "b"])
        yield* Testing.advance("1 minute")
        expect(ran).toEqual([])
        expect(yield* worker.status).toMatchObject({ state: "paused" })
        expect((yield* worker.health).problems).toEqual([])
        yield* worker.resume
        yield* Testing.settle
        const now = yield* Clock.currentTimeMillis
        expect(ran).toEqual([
          ["a", now],
          ["b", now]
        ])
        expect(tags()).toEqual(["Paused", "Resumed", "Started", "Started", "Acked", "Acked"])
      })
    )

    it.effect(
      "what is ready and may not be claimed yet is looked for less and less often, until something changes",
      () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          let locked = true
          let claims: Array<number> = []
          const { worker } = yield* withQueue(
            (real) => ({
              claim: (request) =>
                Effect.flatMap(Clock.currentTimeMillis, (now) => {
                  claims.push(now)
                  // Whoever claims again and again at the same instant would let no time pass
                  if (claims.length > 20) return Effect.never
                  return locked
                    ? Effect.succeed({ jobs: [], more: true, nextInMillis: 0, last: undefined, paused: false })
                    : real.claim(request)
                })
            }),
            observe(queue, { handler: () => Effect.void })
          )
          const waits = () => claims.slice(1).map((at, n) => at - (claims[n] as number))
          yield* Testing.advance("4 seconds")
          expect(waits()).toEqual([5, 10, 20, 40, 80, 160, 320, 640, 1_000, 1_000])
          locked = false
          yield* Testing.advance("1 second")
          locked = true
          claims = []
          yield* worker.pause
          yield* worker.resume
          yield* Testing.advance("100 millis")
          expect(waits()).toEqual([5, 10, 20, 40])
        })
    )

    it.effect("with more ready than one claim takes, it goes on without waiting (G57)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { handler, ran } = diary()
        yield* observe(queue, { handler, concurrency: 3, prefetch: 0 })
        yield* queue.enqueueMany(numbers(100))
        yield* Testing.advance("1 second")
        expect(ran).toHaveLength(100)
        expect(new Set(ran.map(([, at]) => at)).size).toBe(1)
      })
    )
  })

  // Only a wake, or what the worker knows, can be in time
  if (!options.silent) {
    const minute = { pollInterval: "1 minute" as const }
    layer(engine.layer({ sqlite: minute, postgres: minute }), { excludeTestServices: true })(
      "with a poll a minute",
      (it) => {
        it.effect("jobs start at once, and when due, in real time (G57, G58)", () =>
          Effect.gen(function* () {
            const queue = freshQueue()
            const { handler, ran } = diary()
            yield* observe(queue, { handler })
            yield* Effect.sleep(200)
            const start = yield* Clock.currentTimeMillis
            yield* queue.enqueue("far", { delay: "2 seconds" })
            yield* queue.enqueue("near", { delay: "1 second" })
            yield* queue.enqueue("now")
            yield* eventually(
              "all ran",
              Effect.sync(() => ran.length),
              (count) => count === 3,
              2_000
            )
            expect(ran.map(([payload]) => payload)).toEqual(["now", "near", "far"])
            const after = ran.map(([, at]) => at - start)
            expect(after[0]).toBeLessThan(900)
            expect(after[1]).toBeGreaterThanOrEqual(995)
            expect(after[2]).toBeGreaterThanOrEqual(1_995)
            expect(after[2]).toBeLessThan(10_000)
          })
        )

        it.effect("so do jobs that are retried, snoozed or released by another worker (G57)", () =>
          Effect.gen(function* () {
            const queue = freshQueue()
            const [job] = yield* Effect.zipRight(queue.enqueue("again"), queue.claim())
            const { handler, ran } = diary()
            yield* observe(queue, {
              handler: (job) => (job.failures === 1 ? Effect.fail("again") : handler(job)),
              retry: Schedule.spaced("300 millis")
            })
            yield* Effect.sleep(200)
            yield* job?.retry({ delay: "300 millis" }) ?? Effect.void
            yield* eventually("all jobs done", liveRows(queue), (rows) => rows.length === 0, 1_000)
            expect(ran).toHaveLength(1)
          })
        )
      }
    )
  }
}
