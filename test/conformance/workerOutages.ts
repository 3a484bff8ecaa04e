/** A database that is gone while a worker starts, is full or is paused: whichever of its fibers finds out tells of it. */
import type { Queue } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Duration, Effect, Layer, Logger, LogLevel } from "effect"
import { expect } from "vitest"
import { Schedules } from "../../src/services/ScheduleStore.js"
import { scheduleTopic, Wake } from "../../src/services/Wake.js"
import * as Scheduler from "../../src/workers/Scheduler.js"
import { expectEmpty, freshQueue, type Suite, virtual } from "./support.js"
import { gone, makeGate, observe, withQueue } from "./workerSupport.js"

/** A Queue service that answers nothing but that it is gone, as long as a test says so, and after a moment. */
const outage = () => {
  const network = { down: false }
  const first = (operation: string) =>
    Effect.suspend(() =>
      network.down ? Effect.zipRight(Effect.sleep("50 millis"), Effect.fail(gone(operation))) : Effect.void
    )
  const replace = (real: Queue.Service): Partial<Queue.Service> => ({
    define: (...given) => Effect.zipRight(first("define"), real.define(...given)),
    claim: (...given) => Effect.zipRight(first("claim"), real.claim(...given)),
    renew: (...given) => Effect.zipRight(first("renew"), real.renew(...given)),
    settle: (...given) => Effect.zipRight(first("settle"), real.settle(...given))
  })
  return { network, replace }
}

/** Keeps the warnings of what runs with it. */
const keeping = () => {
  const warnings: Array<string> = []
  const logger = Logger.make<unknown, void>((entry) => {
    if (LogLevel.greaterThanEqual(entry.logLevel, LogLevel.Warning)) warnings.push(Logger.stringLogger.log(entry))
  })
  return { warnings, layer: Logger.add(logger) }
}

export const workerOutagesSuite: Suite = (engine, options) => {
  virtual(engine, options, "a worker whose database is gone", (it) => {
    it.effect("before its first claim: it says so, once, and comes back (G75, G77)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { network, replace } = outage()
        const { layer, warnings } = keeping()
        network.down = true
        const { of, tags, worker } = yield* Effect.provide(
          withQueue(replace, observe(queue, { handler: () => Effect.void })),
          layer
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("30 seconds")
        expect(tags()).toEqual(["Outage"])
        expect(of("Outage")[0]?.reason).toContain("the connection is gone")
        const sick = yield* worker.health
        expect(sick.healthy).toBe(false)
        expect(sick.problems.join()).toContain("the connection is gone")
        expect(warnings.filter((text) => text.includes(queue.name))).toHaveLength(1)
        network.down = false
        yield* Testing.advance("10 seconds")
        expect(tags()).toEqual(["Outage", "Recovered", "Started", "Acked"])
        expect(yield* worker.health).toMatchObject({ healthy: true, problems: [] })
        yield* expectEmpty(queue)
      })
    )

    it.effect("while every slot is taken, so that nothing is claimed: the renewals say so (G75)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { network, replace } = outage()
        const gate = yield* makeGate
        const { tags, worker } = yield* withQueue(
          replace,
          observe(queue, { handler: () => gate.wait, concurrency: 1, visibilityTimeout: "1 minute" })
        )
        yield* queue.enqueue(1, { maxAttempts: 1 })
        yield* Testing.advance("2 seconds")
        network.down = true
        yield* Testing.advance("30 seconds")
        expect(tags()).toEqual(["Started", "Outage"])
        expect((yield* worker.health).problems).toEqual(["renewing leases fails: renew: the connection is gone"])
        network.down = false
        yield* Testing.advance("10 seconds")
        expect(tags()).toEqual(["Started", "Outage", "Recovered"])
        expect(yield* worker.health).toMatchObject({ healthy: true, problems: [] })
        yield* gate.open
        yield* Testing.advance("2 seconds")
        yield* expectEmpty(queue)
      })
    )

    it.effect("until there is no lease left to renew: what works since is enough for it to be over (G75)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { of, worker } = yield* withQueue(
          () => ({ renew: () => Effect.fail(gone("renew")) }),
          observe(queue, { handler: () => Effect.sleep("20 seconds"), visibilityTimeout: "30 seconds" })
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("25 seconds")
        expect([of("Outage").length, of("Acked").length]).toEqual([1, 1])
        yield* Testing.advance("10 seconds")
        expect((yield* worker.health).problems).toEqual([])
        yield* worker.pause
        yield* worker.resume
        yield* Testing.advance("2 seconds")
        expect(of("Recovered")).toHaveLength(1)
      })
    )

    it.effect("while it is paused: what cannot be settled says so (G75)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const { network, replace } = outage()
        const { layer, warnings } = keeping()
        const gate = yield* makeGate
        const { tags, worker } = yield* Effect.provide(
          withQueue(replace, observe(queue, { handler: () => gate.wait, visibilityTimeout: "10 minutes" })),
          layer
        )
        yield* queue.enqueue(1)
        yield* Testing.advance("2 seconds")
        yield* worker.pause
        network.down = true
        yield* gate.open
        yield* Testing.advance("30 seconds")
        expect(tags()).toEqual(["Started", "Paused", "Outage"])
        expect((yield* worker.health).problems).toEqual(["settling fails: settle: the connection is gone"])
        expect(warnings.filter((text) => text.includes(queue.name))).toHaveLength(1)
        network.down = false
        yield* Testing.advance("10 seconds")
        expect(tags().slice(3).sort()).toEqual(["Acked", "Recovered"])
        expect(yield* worker.health).toMatchObject({ healthy: true, problems: [] })
        yield* expectEmpty(queue)
      })
    )

    it.effect("for all that it does: one outage, which is over when all of it works again (G75)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        let down: ReadonlyArray<string> = []
        const first = (verb: string) =>
          Effect.suspend(() => (down.includes(verb) ? Effect.fail(gone(verb)) : Effect.void))
        const { of, worker } = yield* withQueue(
          (real) => ({
            claim: (...given) => Effect.zipRight(first("claim"), real.claim(...given)),
            settle: (...given) => Effect.zipRight(first("settle"), real.settle(...given))
          }),
          observe(queue, { handler: () => Effect.sleep("4 seconds"), visibilityTimeout: "10 minutes" })
        )
        const problems = Effect.map(worker.health, (health) => health.problems.join())
        yield* queue.enqueue(1)
        yield* Testing.advance("2 seconds")
        down = ["claim", "settle"]
        yield* queue.enqueue(2)
        yield* Testing.advance("20 seconds")
        expect(yield* problems).toMatch(/claiming fails.*settling fails|settling fails.*claiming fails/)
        down = ["settle"]
        yield* Testing.advance("20 seconds")
        expect(of("Recovered")).toEqual([])
        expect(yield* problems).toBe("settling fails: settle: the connection is gone")
        down = []
        yield* Testing.advance("20 seconds")
        expect([of("Outage").length, of("Recovered").length, of("Acked").length]).toEqual([1, 1, 2])
        expect(yield* worker.health).toMatchObject({ healthy: true, problems: [] })
      })
    )

    it.effect("a claim that is never answered is told of by the worker's health (G75, G77)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const gate = yield* makeGate
        let silent = false
        const { worker } = yield* withQueue(
          (real) => ({
            claim: (request) => Effect.zipRight(silent ? gate.wait : Effect.void, real.claim(request))
          }),
          observe(queue, { handler: () => Effect.void })
        )
        yield* Testing.advance("2 seconds")
        silent = true
        const { pollInterval } = yield* Wake
        yield* queue.enqueue(1)
        yield* Testing.advance(Duration.times(pollInterval, 2))
        expect(yield* worker.health).toMatchObject({ healthy: true })
        yield* Testing.advance(Duration.times(pollInterval, 3))
        const { healthy, problems } = yield* worker.health
        expect([healthy, problems.join()]).toEqual([false, expect.stringContaining("has not claimed")])
        yield* gate.open
        yield* Testing.settle
        expect(yield* worker.health).toMatchObject({ healthy: true, problems: [] })
      })
    )

    it.effect("a scheduler leaves what it cannot fire alone for a second (G107)", () =>
      Effect.gen(function* () {
        const real = yield* Schedules
        const passes: Array<number> = []
        const fireDue = Effect.flatMap(Clock.currentTimeMillis, (now) =>
          // Whoever tries again and again at the same instant would let no time pass
          passes.push(now) > 10 ? Effect.never : Effect.succeed(0)
        )
        const start = yield* Clock.currentTimeMillis
        const replaced = { ...real, fireDue, nextInMillis: Effect.succeed(0) }
        yield* Effect.scoped(
          Effect.zipRight(
            Effect.provideService(Layer.build(Scheduler.layer), Schedules, replaced),
            Testing.advance("3 seconds")
          )
        )
        expect(passes).toEqual([0, 1, 2, 3].map((second) => start + second * 1_000))
      })
    )

    it.effect("a scheduler whose database is gone says so once, and why", () =>
      Effect.gen(function* () {
        const real = yield* Schedules
        const wake = yield* Wake
        const { layer, warnings } = keeping()
        let down = true
        const nextInMillis = Effect.suspend(() => (down ? Effect.fail(gone("next")) : Effect.succeed(undefined)))
        const built = Layer.build(Scheduler.layer)
        yield* Effect.scoped(
          Effect.gen(function* () {
            yield* Effect.provide(Effect.provideService(built, Schedules, { ...real, nextInMillis }), layer)
            for (let outages = 1; outages <= 2; outages++) {
              down = true
              yield* wake.wake([scheduleTopic])
              yield* Testing.advance("2 minutes")
              expect(warnings).toHaveLength(outages)
              expect(warnings.at(-1)).toContain("the connection is gone")
              down = false
              yield* Testing.advance("2 minutes")
            }
          })
        )
      })
    )
  })
}
