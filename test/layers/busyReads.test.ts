/** SQLite without a write-ahead log: reads meet writers. */
import { SqliteClient } from "@effect/sql-sqlite-node"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Effect, Fiber, Layer } from "effect"
import { expect, it } from "vitest"
import { activity } from "../../src/layers/Database/Database.js"
import { temporaryFile } from "../support/engines.js"
import { Letters, live, wait } from "../support/outages.js"

it("G16: a read that meets one waits for it, as a write does, and fails when it has waited for busyLimit", () =>
  live(
    Effect.gen(function* () {
      const filename = yield* temporaryFile
      const engine = (busyLimit: "1 hour" | "100 millis") =>
        Layer.build(
          Layer.provide(
            Sqlite.layer({ sweeper: false, scheduler: false, watch: false, busyLimit }),
            SqliteClient.layer({ filename, disableWAL: true })
          )
        )
      const patient = yield* engine("1 hour")
      const hasty = yield* engine("100 millis")
      yield* Effect.provide(Letters.enqueue("a"), patient)
      const other = yield* Effect.acquireRelease(
        Effect.sync(() => new BetterSqlite(filename)),
        (db) => Effect.sync(() => db.close())
      )
      other.exec("BEGIN EXCLUSIVE")
      const before = activity.total
      const waiter = yield* Effect.fork(Effect.provide(Letters.list(), patient))
      yield* wait("it has been refused", () => activity.total > before)
      expect(yield* Effect.flip(Effect.provide(Letters.list(), hasty))).toMatchObject({
        _tag: "StoreError",
        reason: "busy",
        retryable: true
      })
      other.exec("COMMIT")
      expect(yield* Fiber.join(waiter)).toHaveLength(1)
    })
  ))
