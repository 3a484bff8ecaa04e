/**
 * Ordering keys under disorder, in real time: producers in transactions that commit or roll back, claimers that ack,
 * retry, release, snooze, fail, cancel, or let their leases lapse. Two Layers over one database on PostgreSQL.
 */
import { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import { type Job, Queue, transaction } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Effect, Layer, ManagedRuntime, Redacted, Schedule, Schema } from "effect"
import { describe, expect, inject, test } from "vitest"
import { freshName } from "../conformance/support.js"
import { sqliteFile } from "../support/engines.js"
import { createDatabase } from "../support/postgres.js"

type Services = Pg.Services | SqlClient.SqlClient
type Party = ManagedRuntime.ManagedRuntime<Services, unknown>

const keys = ["a", "b", "c", "d", "e"] as const
const lapse = 150

/** Numbers that are the same for the same seed. */
const makeRandom = (seed: number) => {
  let state = seed >>> 0
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0
    let t = Math.imul(state ^ (state >>> 15), state | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
  const below = (n: number) => Math.floor(next() * n)
  return { below, pick: <A>(list: ReadonlyArray<A>): A => list[below(list.length)] as A }
}

interface Enqueued {
  readonly id: number
  readonly key: string
  /** Before the commit was asked for, and when its answer had come; by a counter that only grows. */
  readonly committing: number
  readonly committed: number
}

const makeLedger = () => {
  let clock = 0
  const jobs = new Map<number, Enqueued>()
  const leased = new Map<string, { readonly token: number; readonly id: number; readonly until: number }>()
  const ended = new Set<number>()
  const wrong: Array<string> = []
  return {
    wrong,
    jobs,
    ended,
    tick: () => ++clock,
    /** What a claim has answered: nobody else holds the key, and nobody who has come before waits. */
    claimed: (job: Job.Job<unknown>, asked: number) => {
      const key = String(job.orderingKey)
      const other = leased.get(key)
      // An answer that was long under way: its lease has ended meanwhile
      if (other !== undefined && other.token > job.lease.token) return
      if (other !== undefined && other.until > performance.now())
        wrong.push(`${job.id} of ${key} was claimed while ${other.id} was leased`)
      leased.set(key, { token: job.lease.token, id: job.id, until: asked + lapse - 10 })
      const mine = jobs.get(job.id)
      if (mine === undefined || ended.has(job.id)) return
      for (const before of jobs.values())
        if (before.key === key && before.id < job.id && !ended.has(before.id) && before.committed < mine.committing)
          wrong.push(`${job.id} of ${key} was claimed before ${before.id}, which had committed before it`)
    },
    free: (job: Job.Job<unknown>) => {
      if (leased.get(String(job.orderingKey))?.token === job.lease.token) leased.delete(String(job.orderingKey))
    },
    end: (id: number) => void ended.add(id)
  }
}

const chaos = async (parties: ReadonlyArray<Party>, seed: number) => {
  const queue = Queue.make(freshName("chaos"), { payload: Schema.Unknown, maxAttempts: 1_000, maxCrashes: 1_000 })
  const ledger = makeLedger()
  const { below, pick } = makeRandom(seed)
  let producing = 8
  const sleep = (most: number) => Effect.sleep(below(most))

  const enqueueSome = Effect.gen(function* () {
    const start = ledger.tick()
    const added: Array<readonly [number, string]> = []
    for (let n = below(3); n >= 0; n--) {
      const batch = Array.from({ length: 1 + below(3) }, () => pick(keys))
      const receipts = yield* queue.enqueueMany(batch, (key) => ({
        orderingKey: key as string,
        priority: below(3),
        delay: below(8) === 0 ? below(30) : 0
      }))
      receipts.forEach(({ id }, at) => {
        added.push([id, batch[at] as string])
      })
      yield* sleep(8)
    }
    return { added, start }
  })
  const inTransaction = transaction(Effect.map(enqueueSome, ({ added }) => ({ added, start: ledger.tick() })))
  const keep = ({ added, start: committing }: Effect.Effect.Success<typeof enqueueSome>) =>
    Effect.sync(() => {
      const committed = ledger.tick()
      for (const [id, key] of added) ledger.jobs.set(id, { id, key, committing, committed })
    })
  const produce = Effect.gen(function* () {
    // However many are rolled back, and whoever has had which chance
    for (let round = 0; round < 6 || ledger.jobs.size <= 100; round++) {
      const how = below(10)
      if (how < 3) yield* Effect.exit(transaction(Effect.zipRight(enqueueSome, Effect.fail("rolled back"))))
      else if (how < 5) yield* Effect.flatMap(enqueueSome, keep)
      else yield* Effect.flatMap(inTransaction, keep)
      // Somebody who waits, by hand
      const waiting = [...ledger.jobs.values()].filter(({ id }) => !ledger.ended.has(id))
      const victim = waiting.length > 0 && below(4) === 0 ? pick(waiting) : undefined
      if (victim !== undefined) {
        // It may wait no longer: then it is dead when its lease is given back
        ledger.end(victim.id)
        yield* queue.cancel(victim.id)
      }
      yield* sleep(20)
    }
    producing--
  })

  const treat = (job: Job.Job<unknown>, asked: number) =>
    Effect.gen(function* () {
      ledger.claimed(job, asked)
      yield* sleep(15)
      const act = producing === 0 ? 0 : below(10)
      // Before the statement: after it somebody else may hold the key already
      if (act !== 9) ledger.free(job)
      if (act < 4) ledger.end(job.id)
      if (act < 3) yield* below(2) === 0 ? job.ack : transaction(job.ack)
      else if (act === 3) yield* job.fail("no")
      else if (act < 6) yield* job.retry({ delay: below(20) })
      else if (act === 6) yield* job.release
      else if (act === 7) yield* job.snooze(1 + below(15))
      else if (act === 8) {
        ledger.end(job.id)
        yield* queue.cancel(job.id)
        yield* Effect.either(job.release)
      }
    }).pipe(Effect.catchTag("LeaseLost", () => Effect.void))
  const left = Effect.flatMap(Queue.Queue, (store) => store.list(queue.name, { limit: 1, after: 0 }))
  const consume = Effect.gen(function* () {
    const end = performance.now() + 40_000
    while (producing > 0 || (yield* left).length > 0) {
      if (performance.now() > end) return yield* Effect.dieMessage("jobs are left that nobody can claim")
      const asked = performance.now()
      const jobs = yield* queue.claim({ limit: 1 + below(4), visibilityTimeout: lapse })
      yield* Effect.forEach(jobs, (job) => treat(job, asked), { concurrency: "unbounded", discard: true })
      yield* sleep(10)
    }
  })

  const all = [
    ...Array.from({ length: 8 }, (_, n) => parties[n % parties.length]?.runPromise(produce)),
    ...Array.from({ length: 4 }, (_, n) => parties[n % parties.length]?.runPromise(consume))
  ]
  await Promise.all(all)
  expect(ledger.wrong).toEqual([])
  expect(ledger.jobs.size).toBeGreaterThan(100)
  return queue
}

const seeds = [1, 2, Date.now() % 1_000_000]

describe("PostgreSQL", () => {
  test.each(seeds)(
    "one of a key at a time, in order, and nothing is left; seed %i (G160, G164, G166)",
    async (seed) => {
      const url = await createDatabase(inject("pgUrl"))
      const party = (options: Pg.Options): Party =>
        ManagedRuntime.make(
          Layer.provideMerge(
            Pg.layer({ scheduler: false, ...options }),
            PgClient.layer({ url: Redacted.make(url), maxConnections: 8 })
          )
        )
      const parties = [party({ sweeper: false }), party({ sweeper: { schedule: Schedule.spaced(100) }, listen: false })]
      try {
        for (const each of parties) await each.runPromise(Effect.void)
        const queue = await chaos(parties, seed)
        const marks = Effect.flatMap(
          SqlClient.SqlClient,
          (sql) => sql`SELECT ordering_key FROM alkstore.lane_marks WHERE queue = ${queue.name}`
        )
        await parties[0]?.runPromise(queue.claim())
        expect(await parties[0]?.runPromise(marks)).toEqual([])
      } finally {
        await Promise.all(parties.map((each) => each.dispose()))
      }
    },
    60_000
  )
})

describe("SQLite", () => {
  test.each(seeds)(
    "one of a key at a time, in order, and nothing is left; seed %i (G160, G164, G166)",
    async (seed) => {
      const party = ManagedRuntime.make(sqliteFile.layer())
      try {
        await chaos([party], seed)
      } finally {
        await party.dispose()
      }
    },
    60_000
  )
})
