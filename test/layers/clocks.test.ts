/** Whose clock the rows go by, when hosts disagree about the time. */
import { Queue } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Clock, Effect, Redacted, Schema } from "effect"
import { expect, inject, test } from "vitest"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.String })

/** A host whose clock is off by so much, which may change. */
const skewed = (millis: () => number): Clock.Clock => {
  const real = Clock.make()
  const now = () => real.unsafeCurrentTimeMillis() + millis()
  return Object.assign(Object.create(real) as Clock.Clock, {
    unsafeCurrentTimeMillis: now,
    currentTimeMillis: Effect.sync(now)
  })
}

const hour = 3_600_000

test("G64 PostgreSQL: rows go by the server's clock, whatever the hosts think", async () => {
  const url = Redacted.make(await createDatabase(inject("pgUrl")))
  const program = Effect.gen(function* () {
    const real = Date.now()
    const from = (millis: number) => Effect.withClock(skewed(() => millis))
    yield* from(-hour)(Letters.enqueue("from the past"))
    yield* from(hour)(Letters.enqueue("from the future"))
    yield* from(-hour)(Letters.enqueue("delayed", { delay: "30 minutes" }))
    const jobs = yield* from(hour)(Letters.claim({ limit: 10 }))
    expect(jobs.map(({ payload }) => payload)).toEqual(["from the past", "from the future"])
    for (const { enqueuedAt } of jobs) expect(Math.abs(enqueuedAt.getTime() - real)).toBeLessThan(hour / 10)
    // A host that is ahead does not find these leases ended
    expect(yield* from(hour)(Letters.claim({ limit: 10 }))).toEqual([])
  })
  await Effect.runPromise(Effect.provide(program, Pg.layerUrl(url, { sweeper: false })))
})

test("G64 SQLite: rows go by the host's clock, which never goes backwards within a process", async () => {
  let off = 0
  const program = Effect.gen(function* () {
    yield* Letters.enqueue("first")
    off = -hour
    yield* Letters.enqueue("second")
    const jobs = yield* Letters.claim({ limit: 10 })
    expect(jobs.map(({ payload }) => payload)).toEqual(["first", "second"])
    const [first = 0, second = 0] = jobs.map(({ enqueuedAt }) => enqueuedAt.getTime())
    expect(second).toBeGreaterThanOrEqual(first)
    off = hour
    expect(yield* Letters.claim({ limit: 10 })).toMatchObject([{ crashes: 1 }, { crashes: 1 }])
  })
  const layer = Sqlite.layerFile(":memory:", { sweeper: false })
  await Effect.runPromise(
    Effect.withClock(
      Effect.provide(program, layer),
      skewed(() => off)
    )
  )
})
