/**
 * A named lock: one process of the fleet at a time; renewed while it is held, and interrupted if it is lost.
 */
import { Lock } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, Option } from "effect"

const backup = Effect.gen(function* () {
  const rival = yield* Lock.tryAcquire("backup")
  yield* Effect.log(`backing up; somebody else could begin too: ${Option.isSome(rival)}`)
})

const program = Effect.gen(function* () {
  yield* backup.pipe(Lock.withLock("backup", { ttl: "30 seconds" }))
  // Every acquisition has a greater token than all before it: hand it to whatever the lock protects
  const lease = yield* Lock.acquire("backup", { ttl: "30 seconds", timeout: "1 second" })
  yield* Effect.log(`token ${lease.token}`)
  yield* Lock.release(lease)
})

program.pipe(Effect.provide(Sqlite.layerFile("locks.db")), Effect.runPromise)
