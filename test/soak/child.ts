/** A worker process of a soak: until SIGTERM. Nothing but its own scope's end ends it then. */
import { setTimeout } from "node:timers/promises"
import { Supervisor } from "alkstore"
import { Cause, Effect, Exit, Fiber, Layer, Stream } from "effect"
import type { Asked, ChildConfig, Told } from "./config.js"
import { engineLayer } from "./engine.js"
import { workers } from "./handlers.js"
import { measure } from "./measure.js"

const config: ChildConfig = JSON.parse(process.argv[2] ?? "")

const tell = (told: Told): void => {
  if (process.connected) process.send?.(told)
}

/** Of jobs, only what explains that one runs twice; of workers, all that is not their everyday life. */
const quiet = new Set(["Started", "Acked", "Retried", "Released", "Died", "Draining", "Stopped", "Outage", "Recovered"])

const watching = Effect.flatMap(Supervisor.Supervisor, ({ events }) =>
  Stream.runForEach(events, (event) =>
    Effect.sync(() => {
      if (quiet.has(event._tag)) return
      const { _tag, worker, ...rest } = event
      const job = "job" in rest ? rest.job.jobId : undefined
      tell({
        _tag: "Event",
        event: _tag,
        ...(job === undefined ? {} : { job }),
        detail: JSON.stringify({ worker, ...rest })
      })
    })
  )
)

const program = Effect.gen(function* () {
  yield* Effect.forkScoped(watching)
  tell({ _tag: "Ready" })
  return yield* Effect.never
}).pipe(
  Effect.scoped,
  Effect.provide(
    Layer.provideMerge(Supervisor.layer(workers(config)), engineLayer(config.engine, config.database, true))
  )
)

process.on("message", (asked: Asked) => {
  if (asked._tag === "Measure") void measure().then((sample) => tell({ _tag: "Measured", sample }))
})
process.channel?.unref()

const fiber = Effect.runFork(program)
process.once("SIGTERM", () => fiber.unsafeInterruptAsFork(fiber.id()))
// A parent that is gone needs no worker
process.once("disconnect", () => fiber.unsafeInterruptAsFork(fiber.id()))
const exit = await Effect.runPromise(Fiber.await(fiber))
if (Exit.isFailure(exit) && !Cause.isInterruptedOnly(exit.cause)) {
  console.error(Cause.pretty(exit.cause))
  process.exitCode = 1
}
// Sockets that have been told to close take a moment
await setTimeout(200)
tell({ _tag: "Closed", sample: await measure() })
if (process.connected) process.disconnect()
