/**
 * SQLite wakes: file events on the database's directory, confirmed by `PRAGMA data_version` on a read-only connection
 * of its own. An event comes before its commit can be read, so one look would miss half of them: it looks again after
 * 1 and 4 ms. File sizes and times prove nothing: the WAL is reused in place.
 *
 * A look that finds a commit reads what it is about: jobs with ids that are new, and what `tell` has left. So a commit
 * that is not for this process costs one read, whatever listens. Under it all the version is polled for, and when it has
 * moved at all, everybody looks for work: no listener polls as long as nothing is committed.
 */
import { existsSync, type FSWatcher, realpathSync, watch } from "node:fs"
import { basename, dirname, resolve } from "node:path"
import { Reactivity } from "@effect/experimental"
import type { SqlConnection } from "@effect/sql"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Duration, Effect, Layer, Schedule } from "effect"
import { forkLoop } from "../../schedule/forkLoop.js"
import { eventLooks, idleLooks } from "../../schedule/Polling.js"
import { reconnect } from "../../schedule/Reconnect.js"
import { queueTopic, Wake } from "../../services/Wake.js"
import type { Names, Row } from "../engine.js"
import { makeWakeHub, type WakeHub } from "./WakeHub.js"

/** How often a worker that knows of nothing to come looks nevertheless, while this wakes. */
const liveInterval = Duration.minutes(1)

/** New ids per look. */
const page = 1_000

const newsOf = (n: Names): string =>
  `SELECT 1 AS added, queue AS topic, max(id) AS at, count(*) AS found, sum(free) AS free FROM (SELECT queue, id, token IS NULL AS free FROM ${n.jobs} WHERE id > :id ORDER BY id LIMIT ${page}) GROUP BY queue
  UNION ALL SELECT 0, topic, changed, 0, 1 FROM ${n.wakes} WHERE changed > :change`

const lastOf = (n: Names): string =>
  `SELECT (SELECT max(id) FROM ${n.jobs}) AS id, (SELECT max(changed) FROM ${n.wakes}) AS change`

const value = (row: Row | undefined, name: string): number => Number(row?.[name] ?? 0)

/** What has been committed since the last look. `look` answers whether it was for anybody here. */
const makeLook = (connection: SqlConnection.Connection, n: Names, hub: WakeHub) =>
  Effect.gen(function* () {
    const read = (text: string, parameters: ReadonlyArray<unknown> = []) =>
      connection.execute(text, parameters, undefined) as Effect.Effect<ReadonlyArray<Row>, unknown>
    const version = Effect.map(read("PRAGMA data_version"), ([row]) => value(row, "data_version"))
    const [last] = yield* read(lastOf(n))
    let id = value(last, "id")
    let change = value(last, "change")
    let seen = yield* version
    const newsText = newsOf(n)
    const news = (heard: boolean): Effect.Effect<boolean, unknown> =>
      Effect.flatMap(read(newsText, [{ id, change }]), (rows) => {
        let found = 0
        const topics = rows.flatMap((row) => {
          const added = value(row, "added") === 1
          if (added) id = Math.max(id, value(row, "at"))
          else change = Math.max(change, value(row, "at"))
          found += value(row, "found")
          const topic = String(row.topic)
          // What is leased already is waited for by nobody
          if (value(row, "free") === 0) return []
          return [added ? queueTopic(topic) : topic]
        })
        const some = hub.wake(topics) || heard
        return found < page ? Effect.succeed(some) : news(some)
      })
    const look = Effect.flatMap(version, (now) => {
      if (now === seen) return Effect.succeed(false)
      seen = now
      return news(false)
    })
    return { version, look }
  })

/** The looks after an event, made once: they run with every commit of whatever process. */
const makeLooks = (look: Effect.Effect<boolean, unknown>): Effect.Effect<void, unknown> => {
  let fruitless = 0
  const note = (heard: boolean) => {
    fruitless = heard ? 0 : fruitless + 1
  }
  const seldom = Effect.map(Effect.zipRight(Effect.sleep(idleLooks.millis), look), note)
  const all = eventLooks.reduce(
    (before, millis) =>
      Effect.zipWith(before, Effect.zipRight(Effect.sleep(millis), look), (some, more) => some || more),
    look
  )
  const often = Effect.map(all, note)
  return Effect.suspend(() => (fruitless < idleLooks.after ? often : seldom))
}

export const layer = (filename: string, n: Names, pollInterval: Duration.Duration) =>
  Layer.scoped(
    Wake,
    Effect.gen(function* () {
      const hub = makeWakeHub({ _tag: "Degraded", reason: "not watching yet" }, pollInterval, liveInterval)
      const given = resolve(filename)

      /** Watches until something breaks: always fails. */
      const observe = Effect.gen(function* () {
        // Commits are seen where the file and its WAL are: beside the end of a link, not beside the link
        const path = yield* Effect.try({ try: () => realpathSync(given), catch: (error) => error })
        const name = basename(path)
        const reader = yield* SqliteClient.make({ filename: path, readonly: true, disableWAL: true })
        const connection = yield* Effect.scoped(reader.reserve)
        const { look, version } = yield* makeLook(connection, n, hub)
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
        const onEvent = Effect.zipRight(Effect.zipRight(event.await, event.close), makeLooks(look))
        const failed = Effect.fail(new Error("the watch on the database's directory broke"))
        let polled = yield* version
        // A directory that is deleted takes its watch with it without a word
        const poll = Effect.suspend(() =>
          existsSync(path)
            ? Effect.map(version, (now) => {
                if (now !== polled) hub.wakeAll()
                polled = now
              })
            : Effect.fail(new Error(`${path} is gone`))
        )
        yield* Effect.raceFirst(
          Effect.zipRight(broken.await, failed),
          Effect.raceFirst(Effect.forever(onEvent), Effect.repeat(poll, Schedule.spaced(pollInterval)))
        )
        return yield* failed
      })

      yield* Effect.scoped(observe).pipe(
        Effect.provide(Reactivity.layer),
        Effect.sandbox,
        Effect.tapError((cause) =>
          Effect.sync(() => {
            hub.setState({ _tag: "Degraded", reason: String(cause).slice(0, 500) })
            // Who rests long has to rest shorter
            hub.wakeAll()
          })
        ),
        Effect.retry(reconnect),
        Effect.withTracerEnabled(false),
        forkLoop
      )
      return hub.service
    })
  )
