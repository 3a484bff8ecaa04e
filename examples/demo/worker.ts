/**
 * The worker process. It tells the main process what it does, one JSON line per event; SIGTERM drains it.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Backoff, Worker } from "alkstore"
import { Effect, Layer } from "effect"
import { Database, Emails } from "./shop.js"

const tell = (event: object) => Effect.sync(() => process.stdout.write(`${JSON.stringify(event)}\n`))

const EmailWorker = Worker.layer(Emails, {
  handler: ({ attempt, payload: { order, to } }) =>
    Effect.gen(function* () {
      yield* tell({ event: "started", to, order, attempt })
      if (to.startsWith("flaky") && attempt < 3) return yield* Effect.fail("the mail server is busy")
      if (to.startsWith("poison")) return yield* Effect.fail("there is no such address")
      // Long enough to be killed in; the next attempt is quick
      if (to.startsWith("slow") && attempt === 1) yield* Effect.sleep("1 minute")
      if (to.startsWith("careful")) yield* Effect.sleep("1 second")
      yield* tell({ event: "sent", to, order, attempt })
    }),
  visibilityTimeout: "2 seconds",
  retry: Backoff.exponential({ base: "300 millis" }),
  shutdownGrace: "5 seconds"
})

const Ready = Layer.effectDiscard(tell({ event: "ready" }))

EmailWorker.pipe(Layer.provideMerge(Ready), Layer.provide(Database), Layer.launch, NodeRuntime.runMain)
