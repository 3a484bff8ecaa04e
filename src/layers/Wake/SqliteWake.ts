/**
 * SQLite wakes: file events on the database's directory, confirmed by `PRAGMA data_version` on a read-only connection
 * of its own. An event comes before its commit can be read, so one look would miss half of them: it looks again after
 * 1 and 4 ms, and a slow poll runs under it all. File sizes and times prove nothing: the WAL is reused in place.
 */
import { existsSync, type FSWatcher, watch } from "node:fs"
import { basename, dirname, resolve } from "node:path"
import { Reactivity } from "@effect/experimental"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { type Duration, Effect, Layer } from "effect"
import { eventLooks, watchPoll } from "../../schedule/Polling.js"
import { reconnect } from "../../schedule/Reconnect.js"
import { Wake } from "../../services/Wake.js"
import { makeWakeHub } from "./WakeHub.js"

/** Looks at the version of the file until it has been the same for as long as a commit may take to be readable. */
const makeLook = (filename: string) =>
  Effect.gen(function* () {
    const reader = yield* SqliteClient.make({ filename, readonly: true, disableWAL: true })
    const connection = yield* Effect.scoped(reader.reserve)
    const read = Effect.map(connection.execute("PRAGMA data_version", [], undefined), ([row]) =>
      Number((row as { data_version?: unknown } | undefined)?.data_version)
    )
    let last = yield* read
    return Effect.map(read, (version) => {
      const changed = version !== last
      last = version
      return changed
    })
  })

export const layer = (filename: string, pollInterval: Duration.Duration) =>
  Layer.scoped(
    Wake,
    Effect.gen(function* () {
      const hub = makeWakeHub({ _tag: "Degraded", reason: "not watching yet" }, pollInterval)
      const path = resolve(filename)
      const name = basename(path)

      /** Watches until something breaks: always fails. */
      const observe = Effect.gen(function* () {
        const changed = yield* makeLook(path)
        const event = yield* Effect.makeLatch(false)
        const broken = yield* Effect.makeLatch(false)
        const watcher = yield* Effect.acquireRelease(
          Effect.try(() => watch(dirname(path), { persistent: false })),
          (watcher: FSWatcher) => Effect.sync(() => watcher.close())
        )
        watcher.on("error", () => broken.unsafeOpen())
        watcher.on("change", (_, file) => {
          if (file === null || String(file) === name || String(file) === `${name}-wal`) event.unsafeOpen()
        })
        hub.setState({ _tag: "Live" })
        hub.wakeAll()
        const look = Effect.map(changed, (yes) => {
          if (yes) hub.wakeAll()
        })
        const onEvent = Effect.zipRight(Effect.zipRight(event.await, event.close), Effect.repeat(look, eventLooks))
        const failed = Effect.fail(new Error("the watch on the database's directory broke"))
        // A directory that is deleted takes its watch with it without a word
        const lookAtAll = Effect.fail(new Error(`${path} is gone`)).pipe(
          Effect.when(() => !existsSync(path)),
          Effect.zipRight(look)
        )
        yield* Effect.raceFirst(
          Effect.zipRight(broken.await, failed),
          Effect.raceFirst(Effect.forever(onEvent), Effect.repeat(lookAtAll, watchPoll))
        )
        return yield* failed
      })

      yield* Effect.scoped(observe).pipe(
        Effect.provide(Reactivity.layer),
        Effect.sandbox,
        Effect.tapError((cause) =>
          Effect.sync(() => hub.setState({ _tag: "Degraded", reason: String(cause).slice(0, 500) }))
        ),
        Effect.retry(reconnect),
        Effect.withTracerEnabled(false),
        Effect.forkScoped
      )
      return hub.service
    })
  )
