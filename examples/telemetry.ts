import { NodeSdk } from "@effect/opentelemetry"
import { InMemorySpanExporter, type ReadableSpan, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base"
import { Queue, Telemetry, Worker } from "alkstore"
import * as Sqlite from "alkstore/Sqlite"
import { Console, Effect, Layer, Metric, Schedule, Schema } from "effect"

const Emails = Queue.make("emails", { payload: Schema.Struct({ to: Schema.String }) })

// Any exporter will do: this one keeps its spans in memory
const exporter = new InMemorySpanExporter()
const OpenTelemetry = NodeSdk.layer(() => ({
  resource: { serviceName: "shop" },
  spanProcessor: new SimpleSpanProcessor(exporter)
}))

const send = (to: string, attempt: number) =>
  Effect.withSpan(attempt === 1 ? Effect.fail(new Error("mail server down")) : Effect.log(`sent to ${to}`), "smtp")

const describe = (span: ReadableSpan) =>
  [
    span.name,
    `  trace ${span.spanContext().traceId}, span ${span.spanContext().spanId}`,
    ...(span.parentSpanContext === undefined ? [] : [`  child of ${span.parentSpanContext.spanId}`]),
    ...span.links.map(({ context }) => `  linked to ${context.spanId} of trace ${context.traceId}`),
    ...(span.attributes["error.type"] === undefined ? [] : [`  failed: ${span.attributes["error.type"]}`])
  ].join("\n")

const program = Effect.gen(function* () {
  const worker = yield* Worker.make(Emails, {
    handler: (job) => send(job.payload.to, job.attempt),
    retry: Schedule.spaced("100 millis")
  })
  yield* Effect.withSpan(Emails.enqueue({ to: "ann@example.com" }), "POST /orders")
  yield* Effect.repeat(worker.status, { until: ({ acked }) => acked === 1, schedule: Schedule.spaced("10 millis") })
  for (const span of exporter.getFinishedSpans()) yield* Console.log(describe(span))

  const { acked, retried, runTime } = Telemetry.metrics("emails")
  const { count } = yield* Metric.value(runTime)
  yield* Console.log(`acked ${(yield* Metric.value(acked)).count}, retried ${(yield* Metric.value(retried)).count}`)
  yield* Console.log(`handlers ran ${count} times`)
})

program.pipe(
  Effect.scoped,
  Effect.provide(Layer.provideMerge(Sqlite.layerFile("app.db"), OpenTelemetry)),
  Effect.runPromise
)
