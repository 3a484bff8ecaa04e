/** Statements of a SQLite connection that are prepared once and run again and again. */
import { Reactivity } from "@effect/experimental"
import { SqlClient, type SqlConnection } from "@effect/sql"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Queue } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Exit, Layer, Schema } from "effect"
import { describe, expect, it } from "vitest"
import { makeRun } from "../../src/layers/Database/prepared.js"
import { temporaryFile } from "../support/engines.js"
import { live } from "../support/outages.js"

type Connection = SqlConnection.Connection

interface Client {
  /** What it does with the stock client's connection. */
  readonly wrap: (stock: Connection) => Connection
  /** How often a text is prepared that is run several times. */
  readonly prepares: number
}

const clients: Record<string, Client> = {
  "the stock client": { wrap: (stock) => stock, prepares: 1 },
  "a client that copies the values at once": {
    wrap: (stock) => ({
      ...stock,
      executeUnprepared: (text, values, transform) => stock.executeUnprepared(text, [...(values ?? [])], transform)
    }),
    prepares: 0
  },
  "a client that prepares when it runs": {
    wrap: (stock) => ({
      ...stock,
      executeUnprepared: (...given) => Effect.suspend(() => stock.executeUnprepared(...given))
    }),
    prepares: 3
  },
  "a client that has no such thing": {
    wrap: (stock) => ({ ...stock, executeUnprepared: () => Effect.die("not here") }),
    prepares: 0
  },
  "a client that throws": {
    wrap: (stock) => ({
      ...stock,
      executeUnprepared: () => {
        throw new Error("not here")
      }
    }),
    prepares: 0
  }
}

describe.each(Object.entries(clients))("with %s", (_, { prepares, wrap }) => {
  const withRun = <A, E>(
    use: (run: Effect.Effect.Success<ReturnType<typeof makeRun>>, prepared: () => number) => Effect.Effect<A, E>
  ) =>
    live(
      Effect.gen(function* () {
        const client = yield* SqliteClient.make({ filename: ":memory:" })
        const stock = yield* Effect.scoped(client.reserve)
        let prepared = 0
        const counted: Connection = {
          ...stock,
          executeUnprepared: (...given) => {
            prepared++
            return stock.executeUnprepared(...given)
          }
        }
        const run = yield* makeRun(wrap(counted))
        const before = prepared
        return yield* use(run, () => prepared - before)
      }).pipe(Effect.provide(Reactivity.layer))
    )

  it("each run takes its own values", () =>
    withRun((run, prepared) =>
      Effect.gen(function* () {
        yield* run("make", "CREATE TABLE t (a)")
        const made = prepared()
        for (const a of [1, "two", null]) yield* run("put", "INSERT INTO t VALUES (:a)", { a })
        expect(prepared() - made).toBe(prepares)
        expect(yield* run("look", "SELECT a FROM t WHERE a IS :a", { a: "two" })).toEqual([{ a: "two" }])
        expect(yield* run("look", "SELECT a FROM t WHERE a IS :a", { a: null })).toEqual([{ a: null }])
        expect(yield* run("look", "SELECT a FROM t ORDER BY rowid")).toEqual([{ a: 1 }, { a: "two" }, { a: null }])
      })
    ))

  it("an effect that is run twice does the same twice", () =>
    withRun((run) =>
      Effect.gen(function* () {
        yield* run("make", "CREATE TABLE t (a)")
        const one = run("put", "INSERT INTO t VALUES (:a)", { a: 1 })
        const two = run("put", "INSERT INTO t VALUES (:a)", { a: 2 })
        for (const put of [one, two, one]) yield* put
        expect(yield* run("look", "SELECT a FROM t ORDER BY rowid")).toEqual([{ a: 1 }, { a: 2 }, { a: 1 }])
      })
    ))

  it("an error is that of its operation, and the next run a new one", () =>
    withRun((run) =>
      Effect.gen(function* () {
        yield* run("make", "CREATE TABLE t (a UNIQUE)")
        const put = (operation: string, a: number) => run(operation, "INSERT INTO t VALUES (:a)", { a })
        yield* put("first", 1)
        const refused = { reason: "constraint" }
        expect(yield* Effect.flip(put("second", 1))).toMatchObject({ ...refused, operation: "second" })
        expect(yield* Effect.flip(put("third", 1))).toMatchObject({ ...refused, operation: "third" })
        yield* put("fourth", 2)
        expect(yield* run("look", "SELECT a FROM t ORDER BY a")).toEqual([{ a: 1 }, { a: 2 }])
      })
    ))

  it("what could not be prepared is prepared when its table is there, and after it has changed", () =>
    withRun((run) =>
      Effect.gen(function* () {
        const look = run("look", "SELECT * FROM t WHERE a = :a", { a: 1 })
        for (let n = 0; n < 2; n++)
          expect(yield* Effect.flip(look)).toMatchObject({ reason: "schema", operation: "look" })
        yield* run("make", "CREATE TABLE t (a)")
        yield* run("put", "INSERT INTO t VALUES (1)")
        expect(yield* look).toEqual([{ a: 1 }])
        yield* run("change", "ALTER TABLE t ADD COLUMN b")
        expect(yield* look).toEqual([{ a: 1, b: null }])
        yield* run("drop", "DROP TABLE t")
        expect(yield* Effect.flip(look)).toMatchObject({ reason: "schema" })
        yield* run("make", "CREATE TABLE t (a)")
        yield* run("put", "INSERT INTO t VALUES (1)")
        expect(yield* look).toEqual([{ a: 1 }])
      })
    ))
})

it("the values of a run are let go", () =>
  live(
    Effect.gen(function* () {
      const client = yield* SqliteClient.make({ filename: ":memory:" })
      const stock = yield* Effect.scoped(client.reserve)
      const lists: Array<ReadonlyArray<unknown>> = []
      const run = yield* makeRun({
        ...stock,
        executeUnprepared: (text, values = [], transform) => {
          lists.push(values)
          return stock.executeUnprepared(text, values, transform)
        }
      })
      yield* run("make", "CREATE TABLE t (a UNIQUE)")
      const put = run("put", "INSERT INTO t VALUES (:a)", { a: 1 })
      yield* put
      expect(Exit.isFailure(yield* Effect.exit(put))).toBe(true)
      expect(lists.slice(1)).toEqual([[], []])
    }).pipe(Effect.provide(Reactivity.layer))
  ))

it("a fiber that wants large integers changes nothing for others (G186)", () =>
  live(
    Effect.gen(function* () {
      const file = yield* temporaryFile
      const here = yield* Layer.build(Sqlite.layerFile(file, { sweeper: false, scheduler: false }))
      const queue = Queue.make("large", { payload: Schema.Number })
      yield* Effect.gen(function* () {
        const inLarge = <A, E, R>(self: Effect.Effect<A, E, R>) =>
          Effect.provideService(self, SqlClient.SafeIntegers, true)
        yield* inLarge(queue.enqueue(1))
        yield* inLarge(queue.claim())
        yield* inLarge(queue.counts)
        yield* queue.enqueue(2)
        expect(yield* queue.pause).toBe(true)
        expect(yield* queue.claim()).toEqual([])
        expect(yield* queue.counts).toMatchObject({ paused: true })
        expect(yield* queue.resume).toBe(true)
        expect((yield* queue.claim()).map(({ payload }) => payload)).toEqual([2])
      }).pipe(Effect.provide(here))
    })
  ))
