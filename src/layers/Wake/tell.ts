/**
 * SQLite: tells other processes what has become ready or is asked for, after the commit that made it so and in one of its
 * own: it waits for nobody, and what gathers meanwhile goes together. When it is lost, polling finds what it was about.
 */
import { Effect, type Scope } from "effect"
import type { StoreError } from "../../services/Errors.js"
import { type Database, detached } from "../Database/Database.js"
import { type Names, type Session, statement } from "../engine.js"

/** Who is further behind finds what it has missed by polling. */
const kept = 1_000

const makeWrite = (n: Names) => {
  const put = statement(
    n,
    "wake",
    `INSERT INTO ${n.wakes} (topic, changed) SELECT value, (SELECT coalesce(max(changed), 0) + 1 FROM ${n.wakes}) FROM json_each(:topics) WHERE true
    ON CONFLICT (topic) DO UPDATE SET changed = excluded.changed`
  )
  const forget = statement(
    n,
    "wake_forget",
    `DELETE FROM ${n.wakes} WHERE changed < (SELECT max(changed) FROM ${n.wakes}) - ${kept}`
  )
  return (session: Session, topics: ReadonlySet<string>): Effect.Effect<void, StoreError> =>
    Effect.zipRight(
      session.execute(put, { topics: JSON.stringify([...topics]) }),
      Effect.asVoid(session.execute(forget, {}))
    )
}

export const makeTell = (db: Database, scope: Scope.Scope) => {
  const write = makeWrite(db.names)
  let waiting = new Set<string>()
  let telling = false
  const round: Effect.Effect<void> = Effect.suspend(() => {
    if (waiting.size === 0) {
      telling = false
      return Effect.void
    }
    const topics = waiting
    waiting = new Set()
    return db
      .apart("write", "wake", (session) => write(session, topics))
      .pipe(
        Effect.catchAllCause((cause) =>
          Effect.logDebug("other processes could not be told of a change; they poll", cause)
        ),
        Effect.zipRight(round)
      )
  })
  return (topics: ReadonlyArray<string>): Effect.Effect<void> =>
    Effect.suspend(() => {
      for (const topic of topics) waiting.add(topic)
      if (telling || waiting.size === 0) return Effect.void
      telling = true
      return Effect.asVoid(Effect.forkIn(Effect.interruptible(detached(round)), scope))
    })
}
