/** SQLite: a lock whose COMMIT was refused was never taken, and its token may be somebody else's by now. */
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Lock } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import BetterSqlite from "better-sqlite3"
import { Effect, Exit, Fiber, Layer } from "effect"
import { expect, it } from "vitest"
import { activity } from "../../src/layers/Database/Database.js"
import { temporaryFile } from "../support/engines.js"
import { live, wait } from "../support/outages.js"

it("G71, G67: who is interrupted after that gives back nothing that another process has taken meanwhile", () =>
  live(
    Effect.gen(function* () {
      const filename = yield* temporaryFile
      // Without a write-ahead log a reader makes COMMIT wait
      const engine = Layer.provide(
        Sqlite.layer({ sweeper: false, scheduler: false, watch: false, busyLimit: "1 hour" }),
        SqliteClient.layer({ filename, disableWAL: true })
      )
      const mine = yield* Layer.build(engine)
      const other = yield* Effect.acquireRelease(
        Effect.sync(() => new BetterSqlite(filename)),
        (db) => Effect.sync(() => db.close())
      )
      other.exec("BEGIN")
      other.prepare("SELECT * FROM _alkstore_locks").all()
      const before = activity.total
      const waiter = yield* Effect.fork(Effect.provide(Lock.acquire("a"), mine))
      yield* wait("its COMMIT has been refused", () => activity.total > before + 2)
      const interrupting = yield* Effect.fork(Fiber.interrupt(waiter))
      yield* Effect.yieldNow()
      // Under the very token that was rolled back
      other.exec(`COMMIT; BEGIN IMMEDIATE;
        INSERT INTO _alkstore_locks (name, token, owner, acquired_at, expires_at, ttl_ms)
        SELECT 'a', value + 1, 'another process', unixepoch() * 1000, (unixepoch() + 3600) * 1000, 3600000 FROM _alkstore_tokens;
        UPDATE _alkstore_tokens SET value = value + 1; COMMIT`)
      expect(Exit.isInterrupted(yield* Fiber.join(interrupting))).toBe(true)
      expect(other.prepare("SELECT owner FROM _alkstore_locks").all()).toEqual([{ owner: "another process" }])
    })
  ))
