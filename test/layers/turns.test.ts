/** Turns at a connection: taken at once when free, waited for in order, never lost and never given twice. */

import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { SqlClient } from "@effect/sql"
import { SqliteClient } from "@effect/sql-sqlite-node"
import * as Sqlite from "alkstore/Sqlite"
import { Cause, Deferred, Effect, Exit, Fiber, Scope } from "effect"
import { describe, expect, it } from "vitest"
import { type Lane, makeTurns, type Turns } from "../../src/layers/Database/turns.js"

const run = <A, E>(effect: Effect.Effect<A, E>) => Effect.runPromise(effect)

/** Somebody who has a turn until he is told to end. */
const holder = (turns: Turns, lane: Lane = "first") =>
  Effect.gen(function* () {
    const begun = yield* Deferred.make<void>()
    const end = yield* Deferred.make<void>()
    const use = () => Effect.zipRight(Deferred.succeed(begun, undefined), Deferred.await(end))
    const fiber = yield* Effect.fork(turns.take(use, lane))
    return { begun, fiber, end: Effect.zipRight(Deferred.succeed(end, undefined), Fiber.join(fiber)) }
  })

const turnsOfOthers = Effect.yieldNow().pipe(Effect.repeatN(20))

describe("turns", () => {
  it("that are free are taken without waiting for anything", () => {
    const turns = makeTurns(1)
    expect(Effect.runSync(turns.take(() => Effect.succeed(7)))).toBe(7)
    expect(Effect.runSync(Effect.scoped(Effect.map(turns.hold, turns.free)))).toBe(false)
    expect(turns.free()).toBe(true)
  })

  it("end whatever becomes of who has them", () => {
    const turns = makeTurns(1)
    const ends: ReadonlyArray<() => Effect.Effect<unknown, string>> = [
      () => Effect.fail("refused"),
      () => Effect.die("a defect"),
      () => {
        throw new Error("thrown")
      },
      () => Effect.interrupt
    ]
    for (const use of ends) {
      expect(Exit.isFailure(Effect.runSync(Effect.exit(turns.take(use))))).toBe(true)
      expect(turns.free()).toBe(true)
    }
  })

  it("come in the order in which they were waited for, one at a time", () =>
    run(
      Effect.gen(function* () {
        const turns = makeTurns(1)
        const first = yield* holder(turns)
        yield* Deferred.await(first.begun)
        const order: Array<number> = []
        let within = 0
        const others = yield* Effect.forEach([1, 2, 3], (n) =>
          Effect.tap(
            Effect.fork(
              turns.take(() => {
                order.push(n)
                expect(++within).toBe(1)
                return Effect.ensuring(
                  turnsOfOthers,
                  Effect.sync(() => void within--)
                )
              })
            ),
            () => Effect.yieldNow()
          )
        )
        expect(turns.free()).toBe(false)
        yield* first.end
        yield* Fiber.joinAll(others)
        expect(order).toEqual([1, 2, 3])
        expect(turns.free()).toBe(true)
      })
    ))

  it.each<Lane>(["many", "patient"])("of the %s leave the last one to others", (lane) =>
    run(
      Effect.gen(function* () {
        const turns = makeTurns(2)
        const one = yield* holder(turns, lane)
        yield* Deferred.await(one.begun)
        const second = yield* holder(turns, lane)
        yield* turnsOfOthers
        expect(yield* Deferred.isDone(second.begun)).toBe(false)
        for (const other of ["first", lane === "many" ? "patient" : "many"] as const)
          expect(yield* turns.take(() => Effect.succeed("a lease"), other)).toBe("a lease")
        yield* one.end
        yield* Deferred.await(second.begun)
        yield* second.end
      })
    )
  )

  it("go to the lanes by turns, whoever has waited for longer; thousands may wait", () =>
    run(
      Effect.gen(function* () {
        const turns = makeTurns(2)
        const first = yield* holder(turns)
        const second = yield* holder(turns)
        yield* Deferred.await(second.begun)
        const order: Array<string> = []
        const waits = (lane: Lane, count: number) =>
          Effect.forEach(Array.from({ length: count }), () =>
            Effect.fork(turns.take(() => Effect.sync(() => void order.push(lane)), lane))
          )
        const many = yield* waits("many", 2_000)
        yield* turnsOfOthers
        const others = [...(yield* waits("patient", 2)), ...(yield* waits("first", 2))]
        yield* turnsOfOthers
        yield* first.end
        yield* Fiber.joinAll(others)
        yield* second.end
        yield* Fiber.joinAll(many)
        expect(order.slice(0, 6).sort()).toEqual(["first", "first", "many", "many", "patient", "patient"])
        expect(order).toHaveLength(2_004)
        expect(turns.free()).toBe(true)
      })
    ))

  it("of any lane are all there is where there is but one", () => {
    expect(Effect.runSync(makeTurns(1).take(() => Effect.succeed(7), "many"))).toBe(7)
  })

  it("are neither lost nor given twice, however interrupts and ends meet", () =>
    run(
      Effect.gen(function* () {
        for (let pause = 0; pause < 40; pause++) {
          const turns = makeTurns(1)
          const first = yield* holder(turns)
          yield* Deferred.await(first.begun)
          let within = 0
          const use = () => {
            expect(++within).toBe(1)
            return Effect.ensuring(
              Effect.yieldNow(),
              Effect.sync(() => void within--)
            )
          }
          const waiting = yield* Effect.forEach([1, 2, 3, 4], () => Effect.fork(turns.take(use)))
          yield* Effect.yieldNow()
          const interrupting = yield* Effect.fork(
            Effect.zipRight(
              Effect.repeatN(Effect.yieldNow(), pause),
              Fiber.interruptAll([waiting[0], waiting[2]].filter((fiber) => fiber !== undefined))
            )
          )
          yield* first.end
          yield* Fiber.join(interrupting)
          for (const exit of yield* Effect.forEach(waiting, Fiber.await))
            expect(Exit.isSuccess(exit) || Cause.isInterruptedOnly(exit.cause)).toBe(true)
          expect(turns.free()).toBe(true)
          expect(yield* turns.take(() => Effect.succeed("free"))).toBe("free")
        }
      }).pipe(Effect.withMaxOpsBeforeYield(11))
    ))
})

/** With the client that the Layer of a file provides. */
const withFile = <A, E>(effect: Effect.Effect<A, E, SqliteClient.SqliteClient | SqlClient.SqlClient>) => {
  const folder = mkdtempSync(join(tmpdir(), "alkstore-client-"))
  return run(
    effect.pipe(
      Effect.provide(Sqlite.layerFile(join(folder, "jobs.db"), { sweeper: false, scheduler: false })),
      Effect.ensuring(Effect.sync(() => rmSync(folder, { recursive: true })))
    )
  )
}

describe("the client of a file", () => {
  it("is both tags' service; export, backup and transactions are the stock client's", () =>
    withFile(
      Effect.gen(function* () {
        const sql = yield* SqliteClient.SqliteClient
        expect(yield* SqlClient.SqlClient).toBe(sql)
        expect(sql.config.filename).toMatch(/jobs\.db$/)
        yield* sql`CREATE TABLE letters (n INTEGER)`
        yield* sql.withTransaction(
          Effect.gen(function* () {
            yield* sql`INSERT INTO letters VALUES (1)`
            const inner = sql.withTransaction(Effect.zipRight(sql`INSERT INTO letters VALUES (2)`, Effect.fail("no")))
            expect(yield* Effect.flip(inner)).toBe("no")
          })
        )
        expect(yield* sql`SELECT n FROM letters`).toEqual([{ n: 1 }])
        expect((yield* sql.export).byteLength).toBeGreaterThan(0)
        const copy = `${sql.config.filename}.copy`
        expect((yield* sql.backup(copy)).remainingPages).toBe(0)
      })
    ))

  it("keeps others out of a transaction, and lets them in at its end, however it ends", () =>
    withFile(
      Effect.gen(function* () {
        const sql = yield* SqlClient.SqlClient
        yield* sql`CREATE TABLE letters (n INTEGER)`
        for (const end of [Effect.void, Effect.fail("no"), Effect.die("a defect"), Effect.interrupt]) {
          const inside = yield* Deferred.make<void>()
          const go = yield* Deferred.make<void>()
          const transaction = yield* Effect.fork(
            Effect.exit(
              sql.withTransaction(
                Effect.zipRight(
                  sql`INSERT INTO letters VALUES (1)`,
                  Effect.zipRight(
                    Deferred.succeed(inside, undefined),
                    Effect.zipRight(Deferred.await(go), end as Effect.Effect<void, string>)
                  )
                )
              )
            )
          )
          yield* Deferred.await(inside)
          const gone = yield* Effect.fork(sql`SELECT 1 AS one`)
          const other = yield* Effect.fork(sql`SELECT count(*) AS n FROM letters`)
          yield* turnsOfOthers
          expect(yield* Fiber.poll(other)).toMatchObject({ _tag: "None" })
          // Who waits can be interrupted, and takes no turn with it
          yield* Fiber.interrupt(gone)
          yield* Deferred.succeed(go, undefined)
          yield* Fiber.join(transaction)
          expect(yield* Fiber.join(other)).toEqual([{ n: 1 }])
        }
      })
    ))

  it("lends its connection until the scope ends", () =>
    withFile(
      Effect.gen(function* () {
        const sql = yield* SqlClient.SqlClient
        const scope = yield* Scope.make()
        const connection = yield* Scope.extend(sql.reserve, scope)
        expect(yield* connection.execute("SELECT 1 AS one", [], undefined)).toEqual([{ one: 1 }])
        const other = yield* Effect.fork(sql`SELECT 2 AS two`)
        yield* turnsOfOthers
        expect(yield* Fiber.poll(other)).toMatchObject({ _tag: "None" })
        yield* Scope.close(scope, Exit.void)
        expect(yield* Fiber.join(other)).toEqual([{ two: 2 }])
      })
    ))
})
