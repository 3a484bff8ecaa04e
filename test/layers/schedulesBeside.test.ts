/** Two processes at one schedule, one of which fails. What is written then has one text for both engines. */

import { Reactivity } from "@effect/experimental"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Queue, Schedules } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Effect, Layer, Option, Schema } from "effect"
import { expect, test } from "vitest"
import { makeClock } from "../../src/layers/Clock/ProcessClock.js"
import type { Database } from "../../src/layers/Database/Database.js"
import { makeSqliteDatabase } from "../../src/layers/Database/SqliteDatabase.js"
import { sqliteNames } from "../../src/layers/engine.js"
import * as SqlSchedules from "../../src/layers/Schedules/SqlSchedules.js"
import { gone } from "../conformance/workerSupport.js"
import { temporaryFile } from "../support/engines.js"
import { live } from "../support/outages.js"

const Any = Queue.make("any", { payload: Schema.Unknown })
const fireDue = Effect.flatMap(Schedules.Schedules, (schedules) => schedules.fireDue)

test("G107: a boundary that one could not fire, and another has fired meanwhile, is put off by nobody", () =>
  live(
    Effect.gen(function* () {
      const filename = yield* temporaryFile
      const quiet = { sweeper: false, scheduler: false, watch: false }
      const there = yield* Layer.build(Sqlite.layerFile(filename, quiet))
      const clock = yield* makeClock("process")
      const settings = { busyTimeout: 10, busyLimit: "5 seconds", synchronous: "NORMAL" } as const
      const db = yield* makeSqliteDatabase(
        yield* SqliteClient.make({ filename }),
        sqliteNames("_alkstore_"),
        clock,
        settings
      )
      const failing: Database = {
        ...db,
        apart: (access, operation, ...rest) =>
          operation === "schedule_fire"
            ? Effect.zipRight(Effect.ignore(Effect.provide(fireDue, there)), Effect.fail(gone(operation)))
            : db.apart(access, operation, ...rest)
      }
      yield* Effect.provide(Schedules.put(Schedules.make("pulse", { every: "1 hour", queue: Any, payload: 1 })), there)
      new BetterSqlite(filename)
        .exec("UPDATE _alkstore_schedules SET next_at = next_at - 3600000, fire_at = fire_at - 3600000")
        .close()
      const here = Layer.provide(SqlSchedules.layer(failing, { notify: false }), Layer.succeedContext(there))
      expect(yield* Effect.provide(fireDue, here)).toBe(0)
      const schedule = Option.getOrThrow(yield* Effect.provide(Schedules.get("pulse"), there))
      expect(schedule).toMatchObject({ fired: 1, lastError: undefined })
      expect(yield* Effect.provide(Any.list(), there)).toHaveLength(1)
    }).pipe(Effect.provide(Reactivity.layer))
  ))
