/**
 * Telemetry: the metrics of queues, and the poller of their gauges. Counters, histograms and spans need nothing of it.
 *
 * @since 0.1.0
 */
import { type Duration, Effect, Layer } from "effect"
import { forkLoop } from "../schedule/forkLoop.js"
import * as Maintenance from "../schedule/Maintenance.js"
import type { InvalidArgument, QueueError } from "../services/Errors.js"
import { checkDuration, checkOptions, checkQueueName } from "../services/input.js"
import { metrics, record } from "../services/metrics.js"
import { Queue, type Service } from "../services/QueueStore.js"
import { supervise } from "./supervise.js"

export { metrics, type QueueMetrics } from "../services/metrics.js"

/**
 * @since 0.1.0
 * @category models
 */
export interface GaugeOptions {
  /** Whose gauges: queues or their names. Default: every queue of the namespace, also those defined later. */
  readonly queues?: ReadonlyArray<string | { readonly name: string }> | undefined
  /** How often they are counted. Default 15 s, at least 100 ms. */
  readonly every?: Duration.DurationInput | undefined
}

const states = ["ready", "delayed", "blocked", "leased"] as const

const measure = (queue: Service, name: string) =>
  Effect.map(queue.counts(name), (counts) => {
    const of = metrics(name)
    for (const state of states) record(of.depth(state), counts[state].count)
    record(of.deadLetters, counts.dead.count)
    record(of.oldestReadyAge, counts.oldestReadyMillis ?? 0)
  })

/** A queue that cannot be counted keeps its last numbers, and none of the others from being counted. */
const patient = <A, R>(what: string, self: Effect.Effect<A, QueueError, R>) =>
  Effect.catchAll(self, (error) => Effect.logWarning(`telemetry: ${what} could not be counted; tried again`, error))

/**
 * Keeps the gauges of queues up to date until the scope closes: `alkstore_queue_depth`, `alkstore_dead_letters`,
 * `alkstore_queue_oldest_ready_age`. They tell of the whole database, so one process of a fleet is enough.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (options: GaugeOptions = {}): Layer.Layer<never, InvalidArgument, Queue> =>
  Layer.scopedDiscard(
    Effect.gen(function* () {
      const queue = yield* Queue
      yield* checkOptions(options, ["queues", "every"])
      const { every = "15 seconds", queues } = options
      const millis = yield* checkDuration("every", every, { min: 100, max: 86_400_000 })
      const names = queues?.map((each) => (typeof each === "string" ? each : each.name))
      for (const name of names ?? []) yield* checkQueueName(name)
      const all = names === undefined ? queue.queues : Effect.succeed(names)
      const pass = Effect.flatMap(all, (found) =>
        Effect.forEach(found, (name) => patient(`queue ${name}`, measure(queue, name)), { discard: true })
      )
      const loop = patient("the queues", pass).pipe(
        Effect.repeat(Maintenance.gauges(millis)),
        Effect.zipRight(Effect.never)
      )
      yield* supervise("telemetry", loop, () => {}).pipe(queue.detached, forkLoop)
    })
  )
