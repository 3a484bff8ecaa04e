/** Schedules: stored recurrences, of whose boundaries each gives one job. */
import { SqlClient } from "@effect/sql"
import { layer } from "@effect/vitest"
import { Queue, Schedules, Telemetry, transaction } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Context, Effect, Exit, Layer, Metric, Option, Schema, TestClock } from "effect"
import { describe, expect } from "vitest"
import type { EngineUnderTest } from "../support/engines.js"
import { claimOne, deadRows, failsWith, freshName, freshQueue, live, liveRows, type Suite, virtual } from "./support.js"
import { eventually, observe } from "./workerSupport.js"

const scheduler = { sqlite: { scheduler: false }, postgres: { scheduler: false } } as const

type AnyQueue = Queue.Definition<unknown, unknown>

const every = (queue: AnyQueue, options: Partial<Schedules.EveryRule> & Schedules.JobOptions & Policies = {}) =>
  Schedules.make(freshName("schedule"), { every: "1 minute", queue, payload: "go", ...options })

interface Policies {
  readonly catchUp?: Schedules.CatchUp
  readonly overlap?: Schedules.Overlap
}

const fireDue = Effect.flatMap(Schedules.Schedules, (schedules) => schedules.fireDue)

const headersOf = (row: { readonly headers: string | null }): Record<string, string> => JSON.parse(row.headers ?? "{}")

/** The boundaries of the live jobs of a queue, in milliseconds, by id. */
const boundaries = (queue: AnyQueue) =>
  Effect.map(liveRows(queue), (rows) => rows.map((row) => Schedules.boundary({ headers: headersOf(row) })?.getTime()))

const info = (schedule: { readonly name: string }) =>
  Effect.map(Schedules.get(schedule.name), (found) => Option.getOrThrow(found))

/** Time passes to a moment after the next full minute. */
const nextMinute = Effect.gen(function* () {
  const now = yield* Clock.currentTimeMillis
  const minute = (Math.floor(now / 60_000) + 1) * 60_000
  yield* TestClock.setTime(minute + 500)
  return minute
})

const minutesLater = (minutes: number) => TestClock.adjust(`${minutes} minutes`)

const numbersTo = (count: number) => Array.from({ length: count }, (_, index) => index)

/** One more Layer over the same database. */
const anotherProcess = (engine: EngineUnderTest, options: Parameters<EngineUnderTest["beside"]>[0]) =>
  Effect.map(Layer.build(Layer.fresh(engine.beside(options))), (context) => Context.get(context, Schedules.Schedules))

export const schedulesSuite: Suite = (engine, options) => {
  const table = engine.table("schedules")

  /** While somebody's job is in this queue, nothing can be enqueued there; answers what ends that. */
  const shut = (queue: AnyQueue) =>
    Effect.gen(function* () {
      const sql = yield* SqlClient.SqlClient
      const jobs = engine.table("jobs")
      const index = `one_of_${queue.name.replace("-", "_")}`
      yield* sql.unsafe(`CREATE UNIQUE INDEX ${index} ON ${jobs} (queue) WHERE queue = '${queue.name}'`)
      yield* queue.enqueue("in the way")
      return sql.unsafe(`DROP INDEX ${jobs.replace(/"jobs"|"_alkstore_jobs"/, "")}${index}`)
    })

  /** The boundaries of what came behind it. */
  const behind = (queue: AnyQueue) => Effect.map(boundaries(queue), (found) => found.slice(1))

  const byHand = { virtual: true, silent: options.silent, ...scheduler }

  describe("schedules", () => {
    // Without wakes it would be found by the poll
    if (!options.silent)
      layer(engine.layer(byHand))("and a worker that waits", (it) => {
        type Act = (name: string, queue: AnyQueue) => Effect.Effect<unknown, unknown, Schedules.Schedules | Queue.Queue>
        const acts: Readonly<Record<string, Act>> = {
          "is triggered": (name) => Schedules.trigger(name),
          "is fired": () => fireDue,
          "is paused when a boundary is owed": (name) => Schedules.pause(name),
          "is changed when a boundary is owed": (name, queue) =>
            Schedules.put(Schedules.make(name, { every: "1 hour", queue, payload: "changed" }))
        }
        for (const [what, act] of Object.entries(acts))
          it.effect(`the job of a schedule that ${what} starts at once (G57)`, () =>
            Effect.gen(function* () {
              const queue = freshQueue()
              const ran: Array<unknown> = []
              const schedule = every(queue)
              yield* Schedules.put(schedule)
              yield* observe(queue, { handler: ({ payload }) => Effect.sync(() => void ran.push(payload)) })
              yield* Testing.advance("1 minute")
              expect(ran).toEqual([])
              yield* act(schedule.name, queue)
              yield* Testing.settle
              expect(ran).toEqual(["go"])
            })
          )
      })

    layer(engine.layer(byHand))("fired by hand", (it) => {
      it.effect("G100 putting the same again changes nothing, and none fires when it is put", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue, { every: "10 seconds" })
          yield* nextMinute
          expect(yield* Schedules.put(schedule)).toBe("created")
          const first = yield* info(schedule)
          for (const _ of numbersTo(3)) {
            yield* TestClock.adjust("3 seconds")
            expect(yield* Schedules.put(schedule)).toBe("unchanged")
          }
          expect(yield* info(schedule)).toEqual(first)
          yield* fireDue
          expect(yield* liveRows(queue)).toEqual([])
          yield* TestClock.adjust("1 seconds")
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([first.nextAt?.getTime()])
        })
      )

      it.effect("G101 a boundary gives one job, with the schedule's options and headers that say which", () =>
        Effect.gen(function* () {
          const queue = freshQueue({ maxAttempts: 7, priority: 2 })
          const schedule = every(queue, { priority: 5, headers: { a: "b" }, expires: "1 hour" })
          yield* Schedules.put(schedule)
          const minute = yield* nextMinute
          for (const _ of numbersTo(3)) yield* fireDue
          const rows = yield* liveRows(queue)
          expect(rows).toMatchObject([{ priority: 5, maxAttempts: 7, payload: '"go"', state: "ready" }])
          expect(rows[0]?.expiresAt).toBe((rows[0]?.dueAt ?? 0) + 3_600_000)
          expect(headersOf(rows[0] as (typeof rows)[number])).toEqual({
            a: "b",
            "alkstore-schedule": schedule.name,
            "alkstore-boundary": new Date(minute).toISOString()
          })
          expect(yield* info(schedule)).toMatchObject({
            fired: 1,
            lastAt: new Date(minute),
            nextAt: new Date(minute + 60_000)
          })
        })
      )

      it.effect("G102 two that fire at the same time give one job to each boundary", () =>
        Effect.gen(function* () {
          const other = yield* anotherProcess(engine, byHand)
          const one = yield* Schedules.Schedules
          const queues = numbersTo(10).map(() => freshQueue())
          for (const queue of queues) yield* Schedules.put(every(queue))
          for (const _ of numbersTo(5)) {
            yield* nextMinute
            yield* Effect.all([one.fireDue, other.fireDue, one.fireDue, other.fireDue], { concurrency: "unbounded" })
          }
          // What one had locked while the other passed over it was fired by the one
          for (const queue of queues) {
            const found = yield* boundaries(queue)
            expect(found).toHaveLength(5)
            expect(new Set(found).size).toBe(5)
          }
        }).pipe(Effect.scoped)
      )

      it.effect("G103 boundaries that nobody fired: the latest, all up to a hundred, or none", () =>
        Effect.gen(function* () {
          const queues = { latest: freshQueue(), all: freshQueue(), many: freshQueue(), skipping: freshQueue() }
          yield* Schedules.put(every(queues.latest))
          yield* Schedules.put(every(queues.all, { every: "1 hour", catchUp: "all" }))
          yield* Schedules.put(every(queues.many, { catchUp: "all" }))
          yield* Schedules.put(every(queues.skipping, { catchUp: "skip" }))
          const start = yield* nextMinute
          yield* minutesLater(3 * 24 * 60)
          yield* TestClock.adjust("20 seconds")
          const now = yield* Clock.currentTimeMillis
          const last = Math.floor(now / 60_000) * 60_000
          yield* fireDue
          yield* fireDue
          expect(yield* boundaries(queues.latest)).toEqual([last])
          const hours = (yield* boundaries(queues.all)) as ReadonlyArray<number>
          expect(hours).toHaveLength(72)
          expect(hours).toEqual(hours.map((_, index) => (hours[0] as number) + index * 3_600_000))
          expect(hours[0]).toBeGreaterThanOrEqual(start)
          expect(yield* boundaries(queues.many)).toEqual(numbersTo(100).map((index) => last - (99 - index) * 60_000))
          expect(yield* boundaries(queues.skipping)).toEqual([])
          const next = yield* nextMinute
          yield* fireDue
          expect((yield* boundaries(queues.latest)).at(-1)).toBe(next)
          expect((yield* boundaries(queues.many)).at(-1)).toBe(next)
          expect(yield* boundaries(queues.skipping)).toEqual([next])
        })
      )

      it.effect("G104 paused, it fires none, a put does not resume it, and paused time is not caught up", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue, { catchUp: "all" })
          yield* Schedules.put(schedule)
          const owed = yield* nextMinute
          yield* Schedules.pause(schedule.name)
          // What was due before the pause is not lost
          expect(yield* boundaries(queue)).toEqual([owed])
          yield* minutesLater(10)
          yield* fireDue
          expect(yield* Schedules.put(schedule)).toBe("unchanged")
          const changed = Schedules.make(schedule.name, { every: "30 seconds", queue, payload: "go", catchUp: "all" })
          expect(yield* Schedules.put(changed)).toBe("changed")
          yield* minutesLater(10)
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([owed])
          expect(yield* info(schedule)).toMatchObject({ nextAt: undefined, pausedAt: expect.any(Date) })
          yield* Schedules.resume(schedule.name)
          yield* Schedules.resume(schedule.name)
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([owed])
          expect(yield* info(schedule)).toMatchObject({ pausedAt: undefined, nextAt: expect.any(Date) })
          const next = yield* nextMinute
          yield* fireDue
          expect((yield* boundaries(queue)).at(-1)).toBe(next)
        })
      )

      it.effect(
        "G103 what could not be fired for longer than a scheduler may be late is owed, whatever is caught up",
        () =>
          Effect.forEach(["skip", "latest", "all"] as const, (catchUp) =>
            Effect.gen(function* () {
              const queue = freshQueue()
              const schedule = every(queue, { catchUp })
              yield* Schedules.put(schedule)
              const open = yield* shut(queue)
              const minute = yield* nextMinute
              for (const _ of numbersTo(7)) yield* Effect.zipRight(fireDue, TestClock.adjust("5 seconds"))
              yield* open
              yield* TestClock.adjust("10 seconds")
              yield* fireDue
              expect(yield* behind(queue)).toEqual([minute])
              expect(yield* info(schedule)).toMatchObject({ fired: 1, lastError: undefined })
            })
          )
      )

      it.effect(
        "G104 resumed, it fires what was due before its pause and could not be fired, and nothing of the pause",
        () =>
          Effect.forEach(["skip", "latest", "all"] as const, (catchUp) =>
            Effect.gen(function* () {
              const queue = freshQueue()
              const schedule = every(queue, { catchUp })
              yield* Schedules.put(schedule)
              const open = yield* shut(queue)
              const minute = yield* nextMinute
              yield* fireDue
              yield* Schedules.pause(schedule.name)
              yield* minutesLater(10)
              yield* open
              yield* fireDue
              const changed = { every: "1 minute", queue, payload: "changed", catchUp } as const
              yield* Schedules.put(Schedules.make(schedule.name, changed))
              expect(yield* behind(queue)).toEqual([])
              yield* Schedules.resume(schedule.name)
              yield* fireDue
              expect(yield* behind(queue)).toEqual([minute])
              const next = yield* nextMinute
              yield* fireDue
              expect(yield* behind(queue)).toEqual([minute, next])
            })
          )
      )

      for (const catchUp of ["skip", "latest", "all"] as const)
        it.effect(
          `G104 resumed when it still cannot be fired, it owes what no boundary of the pause followed: ${catchUp}`,
          () =>
            Effect.gen(function* () {
              const queue = freshQueue()
              const schedule = every(queue, { catchUp })
              yield* Schedules.put(schedule)
              const open = yield* shut(queue)
              const minute = yield* nextMinute
              yield* fireDue
              for (const payload of ["go", "changed"]) {
                yield* Schedules.pause(schedule.name)
                yield* Schedules.put(Schedules.make(schedule.name, { every: "1 minute", queue, payload, catchUp }))
                yield* TestClock.adjust("10 seconds")
                yield* Schedules.resume(schedule.name)
              }
              expect(yield* info(schedule)).toMatchObject({ fired: 0, nextAt: new Date(minute) })
              yield* open
              yield* fireDue
              expect(yield* behind(queue)).toEqual([minute])
            })
        )

      for (const catchUp of ["skip", "latest", "all"] as const)
        it.effect(
          `G104 resumed when it still cannot be fired, it owes that, and nothing of its pauses: ${catchUp}`,
          () =>
            Effect.gen(function* () {
              const queue = freshQueue()
              const schedule = every(queue, { catchUp })
              yield* Schedules.put(schedule)
              const open = yield* shut(queue)
              const minute = yield* nextMinute
              yield* fireDue
              yield* minutesLater(1)
              for (const _ of numbersTo(2)) {
                yield* Schedules.pause(schedule.name)
                yield* minutesLater(3)
                yield* Schedules.resume(schedule.name)
              }
              yield* open
              yield* fireDue
              const owed = [minute, minute + 60_000]
              expect(yield* behind(queue)).toEqual(catchUp === "all" ? owed : owed.slice(1))
              const next = yield* nextMinute
              yield* fireDue
              expect((yield* behind(queue)).slice(-1)).toEqual([next])
            })
        )

      it.effect("G103 what was tried in time is owed, also to a scheduler that comes late to the next attempt", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue, { every: "1 hour", catchUp: "skip" })
          yield* Schedules.put(schedule)
          const open = yield* shut(queue)
          const now = yield* Clock.currentTimeMillis
          const hour = (Math.floor(now / 3_600_000) + 1) * 3_600_000
          yield* TestClock.setTime(hour + 500)
          yield* fireDue
          yield* open
          // A boundary passes that nobody tries
          yield* TestClock.adjust("90 minutes")
          yield* fireDue
          expect(yield* behind(queue)).toEqual([hour])
          yield* fireDue
          expect(yield* info(schedule)).toMatchObject({ fired: 1, nextAt: new Date(hour + 7_200_000) })
        })
      )

      it.effect(
        "G108 what cannot be fired, and was not tried before, keeps nobody from a pause or a change that owes it still",
        () =>
          Effect.gen(function* () {
            const queue = freshQueue()
            const schedule = every(queue)
            yield* Schedules.put(schedule)
            const open = yield* shut(queue)
            const minute = yield* nextMinute
            yield* Schedules.put(Schedules.make(schedule.name, { every: "1 minute", queue, payload: "changed" }))
            yield* Schedules.pause(schedule.name)
            yield* open
            yield* Schedules.resume(schedule.name)
            expect(yield* behind(queue)).toEqual([minute])
          })
      )

      it.effect("G104 the only boundary of a pause is not caught up either", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue)
          yield* Schedules.put(schedule)
          yield* nextMinute
          yield* Schedules.pause(schedule.name)
          yield* minutesLater(1)
          yield* Schedules.resume(schedule.name)
          yield* fireDue
          expect(yield* liveRows(queue)).toHaveLength(1)
        })
      )

      it.effect("G104 a rule that comes back after a pause owes nothing of it, whenever the rule was changed", () =>
        Effect.gen(function* () {
          for (const changedWhilePaused of [false, true]) {
            const queue = freshQueue()
            const schedule = every(queue, { every: "1 hour", catchUp: "all" })
            const other = Schedules.make(schedule.name, { every: "100 days", queue, payload: "go" })
            yield* Schedules.put(schedule)
            if (!changedWhilePaused) yield* Schedules.put(other)
            yield* Schedules.pause(schedule.name)
            if (changedWhilePaused) yield* Schedules.put(other)
            // One boundary of the first rule
            yield* minutesLater(60)
            yield* Schedules.resume(schedule.name)
            yield* Schedules.put(schedule)
            yield* fireDue
            expect(yield* boundaries(queue)).toEqual([])
            // What passes once it is resumed is owed as ever
            yield* Schedules.put(other)
            yield* minutesLater(60)
            yield* Schedules.put(schedule)
            yield* fireDue
            expect(yield* boundaries(queue)).toHaveLength(1)
          }
        })
      )

      it.effect("what they enqueue is counted as enqueued (G140)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const { deduplicated, enqueued } = Telemetry.metrics(queue.name)
          const counts = Effect.map(
            Effect.all([Metric.value(enqueued), Metric.value(deduplicated)]),
            ([{ count: added }, { count: doubles }]) => [added, doubles]
          )
          const schedule = every(queue, { dedupeKey: "k" })
          yield* Schedules.put(schedule)
          yield* nextMinute
          yield* fireDue
          expect(yield* counts).toEqual([1, 0])
          yield* minutesLater(1)
          yield* Schedules.pause(schedule.name)
          expect(yield* counts).toEqual([1, 1])
          yield* Schedules.trigger(schedule.name)
          expect(yield* counts).toEqual([1, 2])
          yield* queue.clear
          yield* Schedules.trigger(schedule.name)
          expect(yield* counts).toEqual([2, 2])
        })
      )

      it.effect("G105 a trigger enqueues one job now, paused or not, and moves no boundary", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue)
          yield* Schedules.put(schedule)
          const before = yield* info(schedule)
          const receipt = yield* Schedules.trigger(schedule.name)
          yield* Schedules.pause(schedule.name)
          yield* Schedules.trigger(schedule.name)
          yield* Schedules.resume(schedule.name)
          const rows = yield* liveRows(queue)
          expect(rows).toHaveLength(2)
          expect(rows[0]?.id).toBe(receipt.id)
          expect(rows.map(headersOf)).toEqual([0, 1].map(() => ({ "alkstore-schedule": schedule.name })))
          expect(yield* boundaries(queue)).toEqual([undefined, undefined])
          expect((yield* info(schedule)).nextAt).toEqual(before.nextAt)
        })
      )

      it.effect("G106 without overlap, a job that has expired skips no boundary, though nobody has swept it", () =>
        Effect.gen(function* () {
          const schedule = every(freshQueue(), { overlap: "skip", expires: "10 seconds" })
          yield* Schedules.put(schedule)
          for (const _ of numbersTo(3)) yield* Effect.zipRight(nextMinute, fireDue)
          expect(yield* info(schedule)).toMatchObject({ fired: 3, skipped: 0 })
        })
      )

      it.effect("G106 without overlap, a boundary is skipped while a job of the schedule is live, and no longer", () =>
        Effect.gen(function* () {
          const queue = freshQueue({ maxAttempts: 1 })
          const schedule = every(queue, { overlap: "skip", catchUp: "all" })
          yield* Schedules.put(schedule)
          yield* nextMinute
          yield* fireDue
          yield* minutesLater(2)
          yield* fireDue
          expect(yield* liveRows(queue)).toHaveLength(1)
          expect(yield* info(schedule)).toMatchObject({ fired: 1, skipped: 2 })
          // Running is live as well
          const job = yield* claimOne(queue, { visibilityTimeout: "1 hour" })
          yield* nextMinute
          yield* fireDue
          expect(yield* info(schedule)).toMatchObject({ fired: 1, skipped: 3 })
          // A dead one is not
          yield* job.retry()
          expect(yield* deadRows(queue)).toHaveLength(1)
          const next = yield* nextMinute
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([next])
          expect(yield* info(schedule)).toMatchObject({ fired: 2, skipped: 3 })
          // One that was triggered is one of its own
          yield* (yield* claimOne(queue)).ack
          yield* Schedules.trigger(schedule.name)
          yield* nextMinute
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([undefined])
        })
      )

      it.effect("G107 one that cannot be fired stops no other, says why, and is tried again with a backoff", () =>
        Effect.gen(function* () {
          const sql = yield* SqlClient.SqlClient
          const good = freshQueue()
          const bad = freshQueue()
          yield* Schedules.put(every(good, { catchUp: "all" }))
          const spoiled = {
            "time_zone = 'Mars/Olympus'": Schedules.make(freshName("a"), { cron: "* * * * *", queue: bad, payload: 1 }),
            "cron = 'xx'": Schedules.make(freshName("b"), { cron: "* * * * *", queue: bad, payload: 1 }),
            "catch_up = 'sometimes'": every(bad),
            "overlap = 'perhaps'": every(bad),
            "options = 'not JSON'": every(bad),
            "options = '{\"priority\":1e9}'": every(bad),
            "every_ms = 0": every(bad)
          }
          for (const [change, schedule] of Object.entries(spoiled)) {
            yield* Schedules.put(schedule)
            yield* sql.unsafe(`UPDATE ${table} SET ${change} WHERE name = '${schedule.name}'`)
          }
          const starts: Array<number> = []
          for (const _ of numbersTo(4)) {
            starts.push(yield* nextMinute)
            yield* fireDue
          }
          expect(yield* boundaries(good)).toEqual(starts)
          expect(yield* liveRows(bad)).toEqual([])
          for (const [change, schedule] of Object.entries(spoiled)) {
            const { lastError, nextAt } = yield* info(schedule)
            expect({ change, error: lastError?.message }).toEqual({ change, error: expect.stringMatching(/\w{3}/) })
            // It owes its first boundary still
            expect({ change, nextAt }).toEqual({ change, nextAt: new Date(starts[0] as number) })
          }
          const [mars] = Object.values(spoiled)
          expect((yield* info(mars as Schedules.Definition)).lastError?.message).toContain("Mars/Olympus")
          expect(yield* Schedules.list).toEqual(
            expect.arrayContaining([expect.objectContaining({ name: mars?.name, lastError: expect.anything() })])
          )
          // In the same minute it is not tried at each look
          const tries = (yield* info(mars as Schedules.Definition)).lastError?.failures as number
          for (const _ of numbersTo(5)) yield* fireDue
          expect((yield* info(mars as Schedules.Definition)).lastError?.failures).toBe(tries)
          // A put mends it
          yield* Schedules.put(mars as Schedules.Definition)
          expect((yield* info(mars as Schedules.Definition)).lastError).toBeUndefined()
          for (const schedule of Object.values(spoiled)) yield* Schedules.remove(schedule.name)
        })
      )

      it.effect("G107 a boundary whose insert fails is owed until it succeeds", () =>
        Effect.gen(function* () {
          const sql = yield* SqlClient.SqlClient
          const queue = freshQueue()
          const other = freshQueue()
          const schedule = every(queue)
          yield* Schedules.put(schedule)
          yield* Schedules.put(every(other))
          const jobs = engine.table("jobs")
          const one = `CREATE UNIQUE INDEX one_of_${queue.name.replace("-", "_")} ON ${jobs} (queue) WHERE queue = '${queue.name}'`
          yield* sql.unsafe(one)
          const blocker = yield* queue.enqueue("in the way")
          const minute = yield* nextMinute
          yield* fireDue
          expect(yield* boundaries(other)).toEqual([minute])
          expect(yield* info(schedule)).toMatchObject({ fired: 0, lastError: { failures: 1 } })
          const job = yield* claimOne(queue)
          expect(job.id).toBe(blocker.id)
          yield* job.ack
          yield* TestClock.adjust("3 seconds")
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([minute])
          expect(yield* info(schedule)).toMatchObject({ fired: 1, lastError: undefined })
          yield* sql.unsafe(
            `DROP INDEX ${engine.table("jobs").replace(/"jobs"|"_alkstore_jobs"/, "")}one_of_${queue.name.replace("-", "_")}`
          )
        })
      )

      const changes = {
        "a pause": (schedule: Schedules.Definition) => Schedules.pause(schedule.name),
        "another payload": (schedule: Schedules.Definition, queue: AnyQueue) =>
          Schedules.put(Schedules.make(schedule.name, { every: "1 minute", queue, payload: "other" })),
        "another period": (schedule: Schedules.Definition, queue: AnyQueue) =>
          Schedules.put(Schedules.make(schedule.name, { every: "2 hours", queue, payload: "go" }))
      }
      it.effect.each(Object.entries(changes))(
        "G108 a boundary that could not be fired for a while is fired before a change, once it can be: %s",
        ([, change]) =>
          Effect.gen(function* () {
            const queue = freshQueue()
            const schedule = every(queue)
            yield* Schedules.put(schedule)
            const open = yield* shut(queue)
            const minute = yield* nextMinute
            yield* fireDue
            expect(yield* info(schedule)).toMatchObject({ fired: 0, lastError: { failures: 1 } })
            // It cannot yet: the change stands all the same, and nothing of the attempt
            yield* Schedules.put(
              Schedules.make(schedule.name, { every: "1 minute", queue, payload: "go", priority: 1 })
            )
            expect(yield* liveRows(queue)).toHaveLength(1)
            yield* TestClock.adjust("2 seconds")
            yield* fireDue
            expect(yield* info(schedule)).toMatchObject({ fired: 0, lastError: { failures: 1 } })
            yield* open
            yield* change(schedule, queue)
            const fired = (yield* liveRows(queue)).slice(1)
            expect(fired).toMatchObject([{ payload: '"go"', priority: 1 }])
            expect(fired.map((row) => Schedules.boundary({ headers: headersOf(row) })?.getTime())).toEqual([minute])
          })
      )

      // One with an ordering key, which went on without it, has a new id then
      it.effect.each([undefined, "k"])(
        "G106 a job of the schedule that was dead is live again when it has been requeued, ordering key %s",
        (orderingKey) =>
          Effect.gen(function* () {
            const queue = freshQueue()
            const schedule = every(queue, { overlap: "skip", orderingKey })
            yield* Schedules.put(schedule)
            yield* nextMinute
            yield* fireDue
            const dead = yield* claimOne(queue)
            yield* dead.fail("dead")
            yield* minutesLater(1)
            yield* fireDue
            yield* (yield* claimOne(queue)).ack
            yield* queue.deadLetters.requeue({ reason: "failed" })
            yield* minutesLater(1)
            yield* fireDue
            expect(yield* info(schedule)).toMatchObject({ fired: 2, skipped: 1 })
            const again = yield* claimOne(queue)
            expect(again.id === dead.id).toBe(orderingKey === undefined)
            yield* again.ack
            yield* minutesLater(1)
            yield* fireDue
            expect(yield* info(schedule)).toMatchObject({ fired: 3, skipped: 1 })
          })
      )

      it.effect("G106 a job of somebody else's that holds the key of a boundary is not the schedule's", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue, { overlap: "skip", dedupeKey: "k", onDuplicate: "keep" })
          yield* Schedules.put(schedule)
          yield* queue.enqueue("the application's", { dedupeKey: "k" })
          for (const _ of numbersTo(2)) {
            yield* nextMinute
            yield* fireDue
            yield* Schedules.trigger(schedule.name)
          }
          expect(yield* info(schedule)).toMatchObject({ fired: 0, skipped: 0 })
        })
      )

      it.effect("G106 of hundreds it knows the latest", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue, { overlap: "skip" })
          yield* Schedules.put(schedule)
          for (const _ of numbersTo(110)) yield* Schedules.trigger(schedule.name)
          const jobs = yield* queue.claim({ limit: 109 })
          yield* Effect.forEach(jobs, (job) => job.ack, { discard: true })
          yield* nextMinute
          yield* fireDue
          expect(yield* info(schedule)).toMatchObject({ fired: 0, skipped: 1 })
        })
      )

      it.effect("G106 one that it has replaced is", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue, { overlap: "skip", dedupeKey: "k", onDuplicate: "replace" })
          yield* Schedules.put(schedule)
          yield* queue.enqueue("the application's", { dedupeKey: "k" })
          for (const _ of numbersTo(2)) yield* Effect.zipRight(nextMinute, fireDue)
          expect(yield* info(schedule)).toMatchObject({ fired: 0, skipped: 1 })
        })
      )

      it.effect("G108 a boundary that is due is fired before a change, by what was there before", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue)
          yield* Schedules.put(schedule)
          const minute = yield* nextMinute
          const yearly = Schedules.make(schedule.name, { cron: "@yearly", queue, payload: "yearly" })
          expect(yield* Schedules.put(yearly)).toBe("changed")
          expect(yield* boundaries(queue)).toEqual([minute])
          expect((yield* liveRows(queue))[0]?.payload).toBe('"go"')
          yield* minutesLater(10)
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([minute])
          // And back: from its next boundary on, with none before the change
          expect(yield* Schedules.put(schedule)).toBe("changed")
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([minute])
          const next = yield* nextMinute
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([minute, next])
        })
      )

      it.effect("G108 two versions that put in turns starve nobody", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const name = freshName("schedule")
          const versions = ([2, 3] as const).map((seconds) =>
            Schedules.make(name, { every: `${seconds} seconds`, queue, payload: seconds })
          )
          yield* nextMinute
          for (const second of numbersTo(60)) {
            yield* Schedules.put(versions[second % 2] as Schedules.Definition)
            yield* TestClock.adjust("1 second")
            if (second % 7 === 0) yield* fireDue
          }
          const found = (yield* boundaries(queue)) as ReadonlyArray<number>
          // Every second, third, fourth and sixth of six
          expect(found.length).toBeGreaterThanOrEqual(38)
          expect(new Set(found).size).toBe(found.length)
          for (const boundary of found) expect(boundary % 2_000 === 0 || boundary % 3_000 === 0).toBe(true)
        })
      )

      it.effect.each(["skip", "latest", "all"] as const)(
        "G108 though each boundary falls into the other's time, with catchUp %s",
        (catchUp) =>
          Effect.gen(function* () {
            const queue = freshQueue()
            const name = freshName("schedule")
            const start = yield* nextMinute
            // The one is in force for 20 s, in which a boundary of the other passes
            const versions = [25, 5].map((second) =>
              Schedules.make(name, {
                every: "40 seconds",
                anchor: new Date(start + second * 1_000),
                queue,
                payload: second,
                catchUp
              })
            )
            for (const step of numbersTo(20)) {
              yield* Schedules.put(versions[step % 2] as Schedules.Definition)
              yield* fireDue
              yield* TestClock.adjust("20 seconds")
              yield* fireDue
            }
            expect(yield* boundaries(queue)).toEqual(numbersTo(18).map((step) => start + 25_000 + step * 20_000))
          })
      )

      it.effect("G109 no boundary comes twice, even when the clock steps back", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue)
          yield* Schedules.put(schedule)
          const minute = yield* nextMinute
          yield* fireDue
          // As if this process's clock were five minutes behind the one that fired: the rows are what counts
          const sql = yield* SqlClient.SqlClient
          const ahead = 5 * 60_000
          yield* sql.unsafe(
            `UPDATE ${table} SET next_at = next_at + ${ahead}, fire_at = fire_at + ${ahead}, last_at = last_at + ${ahead} WHERE name = '${schedule.name}'`
          )
          const faster = Schedules.make(schedule.name, { every: "30 seconds", queue, payload: "go" })
          yield* Schedules.put(faster)
          yield* Schedules.put(schedule)
          yield* Schedules.pause(schedule.name)
          yield* Schedules.resume(schedule.name)
          for (const _ of numbersTo(5)) {
            yield* nextMinute
            yield* fireDue
          }
          expect(yield* boundaries(queue)).toEqual([minute])
          yield* nextMinute
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([minute, minute + 6 * 60_000])
          // Nor when it is due again: what was fired last is what counts
          yield* sql.unsafe(`UPDATE ${table} SET next_at = last_at, fire_at = last_at WHERE name = '${schedule.name}'`)
          yield* fireDue
          expect(yield* boundaries(queue)).toEqual([minute, minute + 6 * 60_000])
        })
      )

      it.effect("G110 what a transaction did to schedules is gone when it is rolled back", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = every(queue)
          const other = every(queue)
          yield* Schedules.put(other)
          const body = Effect.gen(function* () {
            yield* Schedules.put(schedule)
            yield* Schedules.trigger(schedule.name)
            yield* Schedules.pause(other.name)
            return yield* Effect.fail("no" as const)
          })
          expect(Exit.isFailure(yield* Effect.exit(transaction(body)))).toBe(true)
          expect(Option.isNone(yield* Schedules.get(schedule.name))).toBe(true)
          expect((yield* info(other)).pausedAt).toBeUndefined()
          expect(yield* liveRows(queue)).toEqual([])
          yield* transaction(Effect.zipRight(Schedules.put(schedule), Schedules.trigger(schedule.name)))
          expect(yield* liveRows(queue)).toHaveLength(1)
        })
      )

      it.effect(
        "G114 a layer puts schedules; those that are gone are removed when it prunes, but none put by hand",
        () =>
          Effect.gen(function* () {
            const queue = freshQueue()
            const [first, second, manual] = [every(queue), every(queue), every(queue)]
            const names = Effect.map(Schedules.list, (all) =>
              all.filter((one) => one.queue === queue.name).map((one) => one.name)
            )
            const start = (...[definitions, options]: Parameters<typeof Schedules.layer>) =>
              Effect.scoped(Effect.asVoid(Layer.build(Layer.fresh(Schedules.layer(definitions, options)))))
            yield* Schedules.put(manual)
            yield* start([first, second])
            yield* Schedules.pause(first.name)
            const before = yield* info(first)
            yield* start([first])
            expect(yield* names).toEqual([first.name, second.name, manual.name].sort())
            expect(yield* info(first)).toEqual(before)
            yield* start([first], { prune: true })
            expect(yield* names).toEqual([first.name, manual.name].sort())
            yield* failsWith(start([first, first]), "InvalidArgument")
            yield* start([], { prune: true })
            expect(yield* names).toEqual([manual.name])
          })
      )

      it.effect("G115 what cannot be is refused when it is put, and nothing is stored", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const name = freshName("schedule")
          const base = { queue, payload: 1 }
          const refused: ReadonlyArray<readonly [string, Schedules.Definition]> = [
            ["cron", Schedules.make(name, { ...base, cron: "0 0 30 2 *" })],
            ["cron", Schedules.make(name, { ...base, cron: "60 * * * *" })],
            ["timeZone", Schedules.make(name, { ...base, cron: "@daily", timeZone: "Mars/Olympus" })],
            ["every", Schedules.make(name, { ...base, every: "1 millis" })],
            ["priority", Schedules.make(name, { ...base, every: "1 hour", priority: 1e9 })],
            ["headers", Schedules.make(name, { ...base, every: "1 hour", headers: { big: "x".repeat(16_300) } })],
            ["catchUp", Schedules.make(name, { ...base, every: "1 hour", catchUp: "never" as "all" })],
            ["overlap", Schedules.make(name, { ...base, every: "1 hour", overlap: "no" as "skip" })],
            ["schedule name", Schedules.make("", { ...base, every: "1 hour" })],
            [
              "queue name",
              Schedules.make(name, { ...base, every: "1 hour", queue: Queue.make("a b", { payload: Schema.Unknown }) })
            ]
          ]
          for (const [argument, schedule] of refused)
            expect((yield* failsWith(Schedules.put(schedule), "InvalidArgument")).argument).toBe(argument)
          yield* failsWith(
            Schedules.put(Schedules.make(name, { ...base, every: "1 hour", payload: () => 1 })),
            "InvalidPayload"
          )
          expect(Option.isNone(yield* Schedules.get(name))).toBe(true)
          for (const call of [Schedules.pause(name), Schedules.resume(name), Schedules.trigger(name)])
            yield* failsWith(Effect.asVoid(call), "ScheduleNotFound")
          expect(yield* Schedules.remove(name)).toBe(false)
          const schedule = every(queue)
          yield* Schedules.put(schedule)
          expect(yield* Schedules.remove(schedule.name)).toBe(true)
          expect(Option.isNone(yield* Schedules.get(schedule.name))).toBe(true)
        })
      )

      it.effect("G115 a name that none can have is refused wherever it is given", () =>
        Effect.gen(function* () {
          for (const name of ["", "a\u0000", "\ud800", "x".repeat(513), 5 as never]) {
            const calls = [
              Schedules.get(name),
              Schedules.pause(name),
              Schedules.resume(name),
              Schedules.trigger(name),
              Schedules.remove(name)
            ]
            for (const call of calls)
              expect((yield* failsWith(Effect.asVoid(call), "InvalidArgument")).argument).toBe("schedule name")
          }
        })
      )

      it.effect("its jobs can have an ordering key and a dedupe key, and its queue is known", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const keyed = freshQueue({ maxCrashes: 3 })
          yield* Schedules.put(every(keyed, { orderingKey: "one at a time" }))
          expect(yield* Queue.names).toContain(keyed.name)
          const schedule = every(queue, { dedupeKey: "only one" })
          yield* Schedules.put(schedule)
          yield* nextMinute
          yield* fireDue
          yield* nextMinute
          yield* fireDue
          expect(yield* liveRows(queue)).toMatchObject([{ dedupeKey: "only one" }])
          const [first, ...more] = yield* keyed.claim({ limit: 10 })
          expect(more).toEqual([])
          yield* (first as NonNullable<typeof first>).ack
          expect(yield* keyed.claim({ limit: 10 })).toHaveLength(1)
          expect(yield* info(schedule)).toMatchObject({ fired: 1 })
        })
      )
    })

    virtual(engine, { ...options, scheduler: true }, "with the scheduler", (it) => {
      it.effect("G111 fires at each boundary as time passes, without drift, days quickly", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          // Without wakes it looks each second
          const period = options.silent ? 60_000 : 3_600_000
          const count = options.silent ? 10 : 72
          yield* nextMinute
          const schedule = every(queue, { every: period, anchor: new Date(1_234) })
          yield* Schedules.put(schedule)
          yield* Testing.advance(count * period)
          const found = (yield* boundaries(queue)) as ReadonlyArray<number>
          expect(found).toHaveLength(count)
          expect(found).toEqual(found.map((_, index) => (found[0] as number) + index * period))
          expect((found[0] as number) % period).toBe(1_234)
          // Not a moment late: it sleeps until the boundary
          if (!options.silent) {
            const rows = yield* liveRows(queue)
            expect(rows.map((row) => row.enqueuedAt)).toEqual(found)
          }
          yield* Schedules.remove(schedule.name)
        })
      )

      it.effect("a change is noticed by a scheduler that sleeps", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const schedule = Schedules.make(freshName("schedule"), { cron: "@yearly", queue, payload: 1 })
          yield* Schedules.put(schedule)
          yield* Testing.advance("10 seconds")
          yield* Schedules.put(Schedules.make(schedule.name, { every: "10 seconds", queue, payload: 1 }))
          yield* Testing.advance("30 seconds")
          expect(yield* boundaries(queue)).toHaveLength(3)
          yield* Schedules.pause(schedule.name)
          yield* Testing.advance("30 seconds")
          expect(yield* boundaries(queue)).toHaveLength(3)
          yield* Schedules.resume(schedule.name)
          yield* Testing.advance("30 seconds")
          expect(yield* boundaries(queue)).toHaveLength(6)
          yield* Schedules.remove(schedule.name)
          yield* Testing.advance("30 seconds")
          expect(yield* boundaries(queue)).toHaveLength(6)
        })
      )

      it.effect("G102 several schedulers give one job to each boundary", () =>
        Effect.gen(function* () {
          const others = { virtual: true, silent: options.silent, scheduler: true }
          yield* anotherProcess(engine, others)
          yield* anotherProcess(engine, others)
          const queue = freshQueue()
          const schedule = every(queue, { every: "5 seconds", catchUp: "all" })
          yield* Schedules.put(schedule)
          yield* Testing.advance("2 minutes")
          const found = (yield* boundaries(queue)) as ReadonlyArray<number>
          expect(found).toHaveLength(24)
          expect(found).toEqual(found.map((_, index) => (found[0] as number) + index * 5_000))
          yield* Schedules.remove(schedule.name)
        }).pipe(Effect.scoped)
      )
    })

    live(engine, options, "in real time", (it) => {
      it.effect("G102 two schedulers give one job to each boundary, and a change is heard from the other", () =>
        Effect.gen(function* () {
          const other = yield* anotherProcess(engine, { silent: options.silent })
          const queue = freshQueue()
          const schedule = every(queue, { every: "1 second", catchUp: "all" })
          yield* other.put({ ...(yield* schedule.prepare) })
          const found = yield* eventually("four boundaries", boundaries(queue), (all) => all.length >= 4)
          expect(found.slice(0, 4)).toEqual(numbersTo(4).map((index) => (found[0] as number) + index * 1_000))
          // Without a wake it may have been found late, not so with one
          const rows = yield* liveRows(queue)
          for (const [index, row] of rows.slice(0, 4).entries())
            expect(row.enqueuedAt).toBeGreaterThanOrEqual(found[index] as number)
          expect(yield* other.remove(schedule.name)).toBe(true)
        }).pipe(Effect.scoped)
      )
    })
  })
}
