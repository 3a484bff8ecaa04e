/**
 * PostgreSQL wakes: LISTEN on the namespace's one channel, on a connection of its own that is probed and re-established;
 * every (re)connection wakes everybody, since a notification may have been missed. The stock `PgClient.listen` goes
 * silently deaf when its connection dies.
 */
import { type Duration, Effect, Layer } from "effect"
import pg from "pg"
import { forkLoop } from "../../schedule/forkLoop.js"
import { listenProbe, reconnect } from "../../schedule/Reconnect.js"
import { Wake } from "../../services/Wake.js"
import type { Echoes } from "./echoes.js"
import { makeWakeHub } from "./WakeHub.js"

export interface PgWakeOptions {
  readonly connection: pg.ClientConfig
  readonly channel: string
  readonly pollInterval: Duration.Duration
  readonly connectTimeoutMillis: number
  readonly probeTimeoutMillis: number
  /** Which notifications need not be heard. */
  readonly echoes: Echoes
}

const call = (start: (done: (error: unknown) => void) => void) =>
  Effect.async<void, unknown>((resume) => start((error) => resume(error ? Effect.fail(error) : Effect.void)))

/** Ends politely within a second, or not. */
const close = (client: pg.Client) =>
  call((done) => void client.end(done)).pipe(
    Effect.interruptible,
    Effect.timeoutOption(1_000),
    Effect.either,
    Effect.zipRight(
      Effect.sync(() => {
        const socket = (client as unknown as { connection?: { stream?: { destroy?: () => void } } }).connection?.stream
        if (typeof socket?.destroy === "function") socket.destroy()
      })
    )
  )

export const layer = (options: PgWakeOptions) =>
  Layer.scoped(
    Wake,
    Effect.gen(function* () {
      const hub = makeWakeHub({ _tag: "Degraded", reason: "not listening yet" }, options.pollInterval)

      /** Listens until the connection is lost: always fails. */
      const listen = Effect.gen(function* () {
        const lost = yield* Effect.makeLatch(false)
        const client = yield* Effect.acquireRelease(
          Effect.sync(
            () =>
              new pg.Client({
                ...options.connection,
                application_name: "alkstore-wake",
                keepAlive: true,
                connectionTimeoutMillis: options.connectTimeoutMillis,
                query_timeout: options.probeTimeoutMillis
              })
          ),
          close
        )
        client.on("error", () => lost.unsafeOpen())
        client.on("end", () => lost.unsafeOpen())
        client.on("notification", ({ payload, processId }) => {
          if (payload === undefined || payload === "") hub.wakeAll()
          else if (!options.echoes.covers(processId, payload)) hub.wake([payload])
        })
        yield* call((done) => void client.connect(done))
        yield* call((done) => void client.query(`LISTEN ${pg.escapeIdentifier(options.channel)}`, done))
        options.echoes.listening()
        hub.setState({ _tag: "Live" })
        hub.wakeAll()
        const probe = call((done) => void client.query(`SELECT 1`, done)).pipe(Effect.repeat(listenProbe))
        yield* Effect.raceFirst(lost.await, probe)
        return yield* Effect.fail(new Error("the LISTEN connection was lost"))
      })

      yield* Effect.scoped(listen).pipe(
        Effect.tapError((error) =>
          Effect.sync(() =>
            hub.setState({ _tag: "Degraded", reason: error instanceof Error ? error.message : String(error) })
          )
        ),
        Effect.retry(reconnect),
        Effect.sandbox,
        Effect.retry(reconnect),
        Effect.withTracerEnabled(false),
        forkLoop
      )
      return hub.service
    })
  )
