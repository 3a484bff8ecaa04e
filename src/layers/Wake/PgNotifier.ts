/**
 * PostgreSQL: tells other processes of jobs that are committed already, on the connection that listens. A NOTIFY inside
 * the enqueue's own transaction would take a lock of the whole database at its commit, wait for the disk, and be one for
 * each; these wait for nothing, and those of some milliseconds go together. A crash between commit and notification costs
 * other processes one poll, never a job.
 */
import { Effect } from "effect"
import type pg from "pg"
import { notifyPause } from "../../schedule/Polling.js"

export interface Notifier {
  /** Whether it will tell: otherwise the NOTIFY has to be in the transaction. */
  readonly ready: () => boolean
  /** At once when nothing was told just before. */
  readonly tell: (topic: string) => void
  /** Tells on this connection until it fails or the fiber is interrupted; then what is left is told, if that is possible. */
  readonly run: (client: pg.Client) => Effect.Effect<never, unknown>
}

/** None: every NOTIFY is in its transaction. */
export const noNotifier: Notifier = { ready: () => false, tell: () => undefined, run: () => Effect.never }

/** Of what is committed already: nothing to wait for the disk for. For this statement only, whoever's connection it is. */
const text = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, t) FROM unnest($2::text[]) AS t"

/** `prepare`: as a named statement. */
export const makeNotifier = (channel: string, prepare: boolean): Notifier => {
  let pending = new Set<string>()
  let ready = false
  const waiting = Effect.unsafeMakeLatch(false)

  const send = (client: pg.Client) =>
    Effect.async<void, unknown>((resume) => {
      const topics = pending
      pending = new Set()
      const query = { text, values: [channel, [...topics]], ...(prepare ? { name: "alkstore_notify" } : {}) }
      client.query(query, (error: unknown) => {
        if (error) for (const topic of topics) pending.add(topic)
        resume(error ? Effect.fail(error) : Effect.void)
      })
    })

  return {
    ready: () => ready,
    tell: (topic) => {
      pending.add(topic)
      waiting.unsafeOpen()
    },
    run: (client) => {
      const round = Effect.uninterruptible(Effect.zipRight(waiting.close, send(client)))
      const left = Effect.suspend(() => (pending.size === 0 ? Effect.void : send(client)))
      return Effect.suspend(() => {
        ready = true
        if (pending.size > 0) waiting.unsafeOpen()
        return Effect.forever(Effect.zipRight(waiting.await, Effect.zipRight(round, Effect.sleep(notifyPause))))
      }).pipe(
        Effect.ensuring(
          Effect.suspend(() => {
            ready = false
            return Effect.either(Effect.timeoutOption(Effect.interruptible(left), 1_000))
          })
        )
      )
    }
  }
}
