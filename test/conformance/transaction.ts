/** Transactions: what joins the caller's, what stands beside it, and that a rollback leaves nothing. */
import { SqlClient } from "@effect/sql"
import { Errors, Lock, Queue, transaction } from "alkstore"
import { Effect, Layer, Option } from "effect"
import { expect } from "vitest"
import type { EngineServices, EngineUnderTest } from "../support/engines.js"
import {
  claimOne,
  expectEmpty,
  failsWith,
  freshName,
  freshQueue,
  live,
  liveRows,
  onlyLetter,
  onlyRow,
  type Suite,
  sweep,
  virtual
} from "./support.js"

type Transaction = <A, E>(
  self: Effect.Effect<A, E, EngineServices>
) => Effect.Effect<A, E | { readonly _tag: string }, EngineServices>

/** Ours, the client's own, and one within the other. */
const kinds: ReadonlyArray<readonly [string, Transaction]> = [
  ["transaction", transaction],
  ["withTransaction", (self) => Effect.flatMap(SqlClient.SqlClient, (sql) => sql.withTransaction(self))],
  [
    "transaction in withTransaction",
    (self) => Effect.flatMap(SqlClient.SqlClient, (sql) => sql.withTransaction(transaction(self)))
  ],
  [
    "withTransaction in transaction",
    (self) => Effect.flatMap(SqlClient.SqlClient, (sql) => transaction(sql.withTransaction(self)))
  ]
]

/** A table of the application's own. */
const makeTable = Effect.gen(function* () {
  const sql = yield* SqlClient.SqlClient
  const name = freshName("app").replace("-", "_")
  yield* sql.unsafe(`CREATE TABLE ${name} (n INTEGER)`)
  return {
    insert: (n: number) => sql.unsafe(`INSERT INTO ${name} VALUES (${n})`),
    rows: Effect.map(sql.unsafe<{ n: number }>(`SELECT n FROM ${name} ORDER BY n`), (rows) => rows.map(({ n }) => n))
  }
})

const payloads = (queue: { readonly name: string }) =>
  Effect.map(liveRows(queue), (rows) => rows.map(({ payload }) => Number(payload)))

export const transactionSuite: Suite = (engine, options) => {
  for (const [kind, inTransaction] of kinds) {
    virtual(engine, options, `in ${kind}`, (it) => {
      it.effect("an enqueue commits with the application's writes, and is seen inside before (G12)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const table = yield* makeTable
          yield* inTransaction(
            Effect.gen(function* () {
              yield* table.insert(1)
              yield* queue.enqueue(1, { dedupeKey: "k" })
              yield* queue.enqueueMany([2, 3])
              expect(yield* payloads(queue)).toEqual([1, 2, 3])
            })
          )
          expect(yield* table.rows).toEqual([1])
          expect(yield* payloads(queue)).toEqual([1, 2, 3])
        })
      )

      it.effect("a rollback leaves no job and no key, and the name and key are as good as new (G12)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const table = yield* makeTable
          const failing = inTransaction(
            Effect.gen(function* () {
              yield* table.insert(1)
              yield* queue.enqueue(1, { dedupeKey: "k" })
              yield* queue.enqueueMany([2, 3])
              return yield* Effect.fail({ _tag: "Mine" } as const)
            })
          )
          yield* failsWith(failing, "Mine")
          expect(
            (yield* Effect.exit(inTransaction(Effect.zipRight(queue.enqueue(4), Effect.die("defect")))))._tag
          ).toBe("Failure")
          yield* Effect.exit(inTransaction(Effect.zipRight(queue.enqueue(5), Effect.interrupt)))
          expect(yield* table.rows).toEqual([])
          yield* expectEmpty(queue)
          const receipt = yield* queue.enqueue(6, { dedupeKey: "k" })
          expect(receipt.deduplicated).toBe(false)
          expect((yield* claimOne(queue)).id).toBe(receipt.id)
        })
      )

      it.effect("claim and ack, rolled back: never claimed, no attempt counted (G13, G17)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueueMany([1, 2])
          const before = yield* liveRows(queue)
          yield* Effect.either(
            inTransaction(
              Effect.gen(function* () {
                const jobs = yield* queue.claim({ limit: 2 })
                expect(jobs.map(({ attempt }) => attempt)).toEqual([1, 1])
                yield* jobs[0]?.ack ?? Effect.void
                yield* jobs[1]?.fail() ?? Effect.void
                return yield* Effect.fail({ _tag: "Mine" } as const)
              })
            )
          )
          expect(yield* liveRows(queue)).toEqual(before)
          expect((yield* queue.claim({ limit: 2 })).map(({ attempt }) => attempt)).toEqual([1, 1])
        })
      )

      it.effect("claim and ack commit together (G17)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          yield* queue.enqueue(1)
          yield* inTransaction(Effect.flatMap(claimOne(queue), (job) => job.ack))
          yield* expectEmpty(queue)
        })
      )

      it.effect("receipts are of the jobs, whatever the application's other fibers write meanwhile (G12)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const table = yield* makeTable
          const [receipts] = yield* inTransaction(
            Effect.all([queue.enqueueMany([1, 2, 3]), Effect.repeatN(table.insert(1), 100)], {
              concurrency: 2
              // A turn for the other after a few steps
            }).pipe(Effect.withMaxOpsBeforeYield(11))
          )
          expect((yield* liveRows(queue)).map(({ id }) => id)).toEqual(receipts.map(({ id }) => id))
        })
      )

      it.effect("its fibers' calls at the same moment each write their own (G4, G12)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const payloads = Array.from({ length: 30 }, (_, n) => `payload ${n}`)
          for (const steps of [11, 13, 16, 19, 23]) {
            const receipts = yield* inTransaction(
              Effect.forEach(payloads, (payload) => queue.enqueue(payload), { concurrency: "unbounded" }).pipe(
                // A turn for the others after a few steps
                Effect.withMaxOpsBeforeYield(steps)
              )
            )
            const rows = new Map((yield* liveRows(queue)).map(({ id, payload }) => [id, payload]))
            expect(receipts.map(({ id }) => rows.get(id))).toEqual(payloads.map((payload) => JSON.stringify(payload)))
          }
        })
      )

      it.effect("a settle commits or rolls back with the application's writes (G13)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const table = yield* makeTable
          yield* queue.enqueue(1)
          const job = yield* claimOne(queue)
          const work = Effect.zipRight(table.insert(1), job.ack)
          yield* Effect.either(inTransaction(Effect.zipRight(work, Effect.fail({ _tag: "Mine" } as const))))
          expect(yield* table.rows).toEqual([])
          expect(yield* onlyRow(queue)).toMatchObject({ state: "leased" })
          yield* inTransaction(work)
          expect(yield* table.rows).toEqual([1])
          yield* expectEmpty(queue)
        })
      )

      it.effect("a settle whose lease is gone takes the application's writes with it (G13)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const table = yield* makeTable
          yield* queue.enqueue(1)
          const job = yield* claimOne(queue)
          yield* job.release
          const holder = yield* claimOne(queue)
          yield* failsWith(inTransaction(Effect.zipRight(table.insert(1), job.ack)), "LeaseLost")
          expect(yield* table.rows).toEqual([])
          yield* holder.ack
        })
      )

      it.effect("a duplicate key or a refused enqueue leaves the transaction usable (G9)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const table = yield* makeTable
          const { id } = yield* queue.enqueue(1, { dedupeKey: "k" })
          yield* inTransaction(
            Effect.gen(function* () {
              expect(yield* queue.enqueue(2, { dedupeKey: "k" })).toMatchObject({ id, deduplicated: true })
              yield* failsWith(queue.enqueue(Number.NaN), "InvalidPayload")
              yield* failsWith(queue.enqueue(3, { expires: new Date(-1) }), "InvalidArgument")
              yield* table.insert(1)
              yield* queue.enqueue(4)
            })
          )
          expect(yield* payloads(queue)).toEqual([1, 4])
          expect(yield* table.rows).toEqual([1])
        })
      )

      it.effect("parallel enqueues in one transaction all commit, or none (G12)", () =>
        Effect.gen(function* () {
          const queue = freshQueue()
          const all = Effect.all(
            Array.from({ length: 25 }, (_, n) =>
              n % 5 === 0
                ? queue.enqueueMany([n, n + 100], (_, index) => ({ dedupeKey: `${n}-${index}` }))
                : queue.enqueue(n, { dedupeKey: `k${n}` })
            ),
            { concurrency: "unbounded" }
          )
          yield* Effect.either(inTransaction(Effect.zipRight(all, Effect.fail({ _tag: "Mine" } as const))))
          yield* expectEmpty(queue)
          yield* inTransaction(all)
          expect(yield* liveRows(queue)).toHaveLength(30)
        })
      )
    })
  }

  virtual(engine, options, "transactions", (it) => {
    for (const [outer, outerTransaction] of kinds.slice(0, 2)) {
      for (const [inner, innerTransaction] of kinds.slice(0, 2)) {
        it.effect(`${inner} in ${outer}: what fails inside is undone alone (G12, G16)`, () =>
          Effect.gen(function* () {
            const queue = freshQueue()
            yield* outerTransaction(
              Effect.gen(function* () {
                yield* queue.enqueue(1)
                yield* Effect.either(
                  innerTransaction(
                    Effect.zipRight(queue.enqueue(2, { dedupeKey: "k" }), Effect.fail({ _tag: "Mine" } as const))
                  )
                )
                yield* innerTransaction(queue.enqueue(3, { dedupeKey: "k" }))
              })
            )
            expect(yield* payloads(queue)).toEqual([1, 3])
            const whole = outerTransaction(
              Effect.zipRight(innerTransaction(queue.enqueue(4)), Effect.fail({ _tag: "Mine" } as const))
            )
            yield* Effect.either(whole)
            expect(yield* payloads(queue)).toEqual([1, 3])
          })
        )
      }
    }

    it.effect("a batch that the database stops half-way leaves nothing (G2)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const sql = yield* SqlClient.SqlClient
        const index = freshName("poison").replace("-", "_")
        // Two equal payloads of this queue clash: the last of the batch with its first, statements apart
        yield* sql.unsafe(
          `CREATE UNIQUE INDEX ${index} ON ${engine.table("jobs")} (payload) WHERE queue = '${queue.name}'`
        )
        const batch = queue.enqueueMany(
          Array.from({ length: 5_200 }, (_, n) => (n === 5_199 ? 0 : n)),
          (_, n) => (n % 100 === 0 ? { dedupeKey: `k${n}` } : {})
        )
        const error = yield* failsWith(batch, "StoreError")
        expect(error).toMatchObject({ reason: "constraint", retryable: false })
        yield* expectEmpty(queue)
        yield* failsWith(transaction(Effect.zipRight(queue.enqueue("mine"), batch)), "StoreError")
        yield* expectEmpty(queue)
        expect((yield* queue.enqueue(1, { dedupeKey: "k0" })).deduplicated).toBe(false)
      })
    )

    it.effect("an enqueue that fails in one and is caught: the rest commits, or the transaction fails (G12, G16)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const table = yield* makeTable
        const sql = yield* SqlClient.SqlClient
        const index = freshName("poison").replace("-", "_")
        yield* sql.unsafe(
          `CREATE UNIQUE INDEX ${index} ON ${engine.table("jobs")} (payload) WHERE queue = '${queue.name}'`
        )
        const result = yield* Effect.either(
          transaction(Effect.zipRight(table.insert(1), Effect.either(queue.enqueueMany([1, 2, 1], () => ({})))))
        )
        // Never a success whose writes are gone, nor half a batch
        if (result._tag === "Left") expect(result.left).toMatchObject({ _tag: "StoreError" })
        expect(yield* table.rows).toEqual(result._tag === "Right" ? [1] : [])
        yield* expectEmpty(queue)
      })
    )

    it.effect("a failed COMMIT is a typed failure, and leaves no open transaction behind (G16, G88)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const sql = yield* SqlClient.SqlClient
        const parent = freshName("parent").replace("-", "_")
        const child = freshName("child").replace("-", "_")
        yield* sql.unsafe(`CREATE TABLE ${parent} (id INTEGER PRIMARY KEY)`)
        yield* sql.unsafe(`CREATE TABLE ${child} (id INTEGER REFERENCES ${parent} (id) DEFERRABLE INITIALLY DEFERRED)`)
        const orphan = Effect.zipRight(
          queue.enqueue(1, { dedupeKey: "k" }),
          sql.unsafe(`INSERT INTO ${child} VALUES (7)`)
        )
        const error = yield* failsWith(transaction(orphan), "StoreError")
        expect(error).toMatchObject({ reason: "constraint", retryable: false })
        yield* expectEmpty(queue)
        // A zombie transaction would swallow the first of these and fail the second
        yield* queue.enqueue(2, { dedupeKey: "k" })
        yield* Effect.either(transaction(Effect.zipRight(queue.enqueue(3), Effect.fail("mine"))))
        yield* transaction(queue.enqueue(4))
        expect(yield* payloads(queue)).toEqual([2, 4])
      })
    )

    it.effect("what the body fails or dies with stays the caller's own (G16)", () =>
      Effect.gen(function* () {
        expect(yield* Effect.flip(transaction(Effect.fail("mine")))).toBe("mine")
        expect(yield* transaction(Effect.succeed("value"))).toBe("value")
        const exit = yield* Effect.exit(transaction(Effect.die("defect")))
        expect(JSON.stringify(exit)).toContain("defect")
        // Which is not asked for twice, whatever it says
        const reason = "busy"
        const busy = new Errors.StoreError({ reason, operation: "mine", message: "mine", cause: undefined })
        let runs = 0
        const failing = Effect.suspend(() => {
          runs++
          return Effect.fail(busy)
        })
        expect((yield* failsWith(transaction(failing), "StoreError")).operation).toBe("mine")
        expect(runs).toBe(1)
      })
    )

    it.effect("a sweep is never part of one", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        if (engine.besideTransactions) yield* transaction(sweep(queue))
        else yield* failsWith(transaction(sweep(queue)), "TransactionOpen")
      })
    )
  })

  beside(engine, options)
  foreign(engine, options)

  live(engine, options, "transactions, many at once", (it) => {
    it.effect("of other fibers do not mix: each commits its own, or nothing (G12)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* Effect.all(
          Array.from({ length: 30 }, (_, n) =>
            Effect.either(
              transaction(
                Effect.gen(function* () {
                  yield* queue.enqueue(n)
                  yield* Effect.yieldNow()
                  if (n % 3 === 0) return yield* Effect.fail("mine")
                  yield* queue.enqueue(n + 100)
                })
              )
            )
          ),
          { concurrency: 8 }
        )
        const expected = Array.from({ length: 30 }, (_, n) => n).filter((n) => n % 3 !== 0)
        const found = [...(yield* payloads(queue))].sort((a, b) => a - b)
        expect(found).toEqual([...expected, ...expected.map((n) => n + 100)].sort((a, b) => a - b))
      })
    )
  })
}

/** What never joins: `outsideTransaction`, heartbeats and locks. */
const beside = (engine: EngineUnderTest, options: Parameters<Suite>[1]) =>
  virtual(engine, options, "beside an open transaction", (it) => {
    it.effect("outsideTransaction is independent, or refused where that cannot be (G15)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(0)
        const inside = transaction(
          Effect.gen(function* () {
            yield* Queue.outsideTransaction(queue.enqueue(1))
            yield* queue.enqueue(2)
            return yield* Effect.fail({ _tag: "Mine" } as const)
          })
        )
        yield* failsWith(inside, engine.besideTransactions ? "Mine" : "TransactionOpen")
        expect(yield* payloads(queue)).toEqual(engine.besideTransactions ? [0, 1] : [0])
        yield* Queue.outsideTransaction(queue.enqueue(3))
        expect((yield* payloads(queue)).at(-1)).toBe(3)
      })
    )

    it.effect("a heartbeat is independent, or refused (G18)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const job = yield* claimOne(queue)
        const inside = transaction(Effect.zipRight(job.heartbeat("beat"), Effect.fail({ _tag: "Mine" } as const)))
        yield* failsWith(inside, engine.besideTransactions ? "Mine" : "TransactionOpen")
        expect((yield* onlyRow(queue)).progress).toBe(engine.besideTransactions ? '"beat"' : null)
      })
    )

    it.effect("lock operations are independent, or refused (G18)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const calls = [
          Effect.asVoid(Lock.tryAcquire(name)),
          Effect.asVoid(Lock.acquire(freshName("lock"))),
          Effect.asVoid(Lock.list),
          Effect.asVoid(Lock.forceRelease(freshName("lock"))),
          Effect.void.pipe(Lock.withLock(freshName("lock")))
        ]
        for (const call of calls) {
          const inside = transaction(Effect.zipRight(call, Effect.fail({ _tag: "Mine" } as const)))
          yield* failsWith(inside, engine.besideTransactions ? "Mine" : "TransactionOpen")
        }
        expect(Option.isNone(yield* Lock.tryAcquire(name))).toBe(engine.besideTransactions)
      })
    )

    it.effect("a transaction within withLock is fine (G18)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* transaction(queue.enqueue(1)).pipe(Lock.withLock(freshName("lock")))
        expect(yield* payloads(queue)).toEqual([1])
      })
    )
  })

/** Transactions of another client. */
const foreign = (engine: EngineUnderTest, options: Parameters<Suite>[1]) =>
  virtual(engine, options, "in another client's transaction", (it) => {
    /** Runs within a transaction of a client of another database, with our own services. */
    const withForeign = <A, E, R>(self: Effect.Effect<A, E, R>) =>
      Effect.scoped(
        Effect.flatMap(Effect.orDie(Layer.build(engine.client)), (context) =>
          Effect.flatMap(Effect.provide(SqlClient.SqlClient, context), (sql) => sql.withTransaction(self))
        )
      )

    it.effect("every write is refused, and nothing is written (G14)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueueMany([1, "ready"])
        const job = yield* claimOne(queue)
        const before = yield* liveRows(queue)
        yield* withForeign(
          Effect.gen(function* () {
            const calls: ReadonlyArray<Effect.Effect<unknown, { readonly _tag: string }, Queue.Queue>> = [
              queue.enqueue(2),
              queue.enqueueMany([2, 3]),
              queue.claim(),
              job.ack,
              job.retry(),
              job.fail(),
              job.release,
              job.snooze(5)
            ]
            for (const call of calls) {
              expect(yield* failsWith(call, "ForeignTransaction")).toMatchObject({ retryable: false })
            }
            expect(yield* liveRows(queue)).toEqual(before)
          })
        )
        expect(yield* liveRows(queue)).toEqual(before)
      })
    )

    it.effect("outsideTransaction writes, whatever becomes of that transaction (G15)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const inside = Effect.gen(function* () {
          yield* Queue.outsideTransaction(queue.enqueue(1))
          const job = yield* Queue.outsideTransaction(claimOne(queue))
          yield* Queue.outsideTransaction(job.fail("done"))
          return yield* Effect.fail({ _tag: "Mine" } as const)
        })
        yield* Effect.either(withForeign(inside))
        expect(yield* onlyLetter(queue)).toMatchObject({ payload: "1", reason: "failed" })
      })
    )

    it.effect("a transaction within it is that client's too: refused (G14)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* failsWith(withForeign(transaction(queue.enqueue(1))), "ForeignTransaction")
        yield* expectEmpty(queue)
      })
    )

    it.effect("heartbeats and locks go on (G18)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const job = yield* claimOne(queue)
        const name = freshName("lock")
        yield* withForeign(Effect.zipRight(job.heartbeat("beat"), Lock.tryAcquire(name)))
        expect((yield* onlyRow(queue)).progress).toBe('"beat"')
        expect(Option.isNone(yield* Lock.tryAcquire(name))).toBe(true)
      })
    )
  })
