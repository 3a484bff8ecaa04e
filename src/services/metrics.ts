/**
 * The Effect metrics of queues, by name and queue. Made once per queue, so that counting a job tags and looks up nothing.
 *
 * @since 0.1.0
 */
import { Metric, MetricBoundaries, MetricKey, MetricLabel } from "effect"
import type { DeadReason, JobState } from "./JobState.js"

/**
 * The metrics of one queue: counters of what this process did, histograms in milliseconds, gauges of what
 * `Telemetry.layer` last found in the database. All are tagged with `queue`.
 *
 * @since 0.1.0
 * @category models
 */
export interface QueueMetrics {
  /** `alkstore_jobs_enqueued`: receipts of jobs that were added; also when the caller's transaction rolls back later. */
  readonly enqueued: Metric.Metric.Counter<number>
  /** `alkstore_jobs_deduplicated`: receipts of enqueues that met a live job with their dedupe key. */
  readonly deduplicated: Metric.Metric.Counter<number>
  /** `alkstore_jobs_claimed` */
  readonly claimed: Metric.Metric.Counter<number>
  /** `alkstore_jobs_acked` */
  readonly acked: Metric.Metric.Counter<number>
  /** `alkstore_jobs_retried`: given back, the attempt spent. */
  readonly retried: Metric.Metric.Counter<number>
  /** `alkstore_jobs_released`: given back, the attempt not spent. */
  readonly released: Metric.Metric.Counter<number>
  /** `alkstore_jobs_dead`, tagged with `reason` too. */
  readonly dead: (reason: DeadReason) => Metric.Metric.Counter<number>
  /** `alkstore_leases_lost`: leases of this process that ended before their job was settled. */
  readonly leasesLost: Metric.Metric.Counter<number>
  /** `alkstore_wake_latency`: from ready to claimed, of jobs that an idle worker was waiting for. */
  readonly wakeLatency: Metric.Metric.Histogram<number>
  /** `alkstore_job_wait_time`: from due to the start of the handler, of each attempt. */
  readonly waitTime: Metric.Metric.Histogram<number>
  /** `alkstore_job_run_time`: of each call of a handler, its finalizers included. */
  readonly runTime: Metric.Metric.Histogram<number>
  /** `alkstore_queue_depth`, tagged with `state` too: live jobs. */
  readonly depth: (state: JobState) => Metric.Metric.Gauge<number>
  /** `alkstore_dead_letters` */
  readonly deadLetters: Metric.Metric.Gauge<number>
  /** `alkstore_queue_oldest_ready_age`: in milliseconds; 0 when none is ready. */
  readonly oldestReadyAge: Metric.Metric.Gauge<number>
}

/** A millisecond to an hour; what an idle fleet does in one digit, and what a backlog makes of it. */
const boundaries = MetricBoundaries.fromIterable([
  1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000
])

/** Exporters read the unit of a histogram here. */
const milliseconds = MetricLabel.make("time_unit", "milliseconds")

const make = (queue: string): QueueMetrics => {
  const label = MetricLabel.make("queue", queue)
  const counter = (name: string, description: string, ...more: ReadonlyArray<MetricLabel.MetricLabel>) =>
    Metric.fromMetricKey(
      MetricKey.taggedWithLabels(MetricKey.counter(name, { description, incremental: true }), [label, ...more])
    )
  const histogram = (name: string, description: string) =>
    Metric.fromMetricKey(
      MetricKey.taggedWithLabels(MetricKey.histogram(name, boundaries, description), [label, milliseconds])
    )
  const gauge = (name: string, description: string, ...more: ReadonlyArray<MetricLabel.MetricLabel>) =>
    Metric.fromMetricKey(MetricKey.taggedWithLabels(MetricKey.gauge(name, { description }), [label, ...more]))

  return {
    enqueued: counter("alkstore_jobs_enqueued", "Jobs added"),
    deduplicated: counter("alkstore_jobs_deduplicated", "Enqueues that met a live job with their dedupe key"),
    claimed: counter("alkstore_jobs_claimed", "Jobs claimed"),
    acked: counter("alkstore_jobs_acked", "Jobs done"),
    retried: counter("alkstore_jobs_retried", "Jobs given back, the attempt spent"),
    released: counter("alkstore_jobs_released", "Jobs given back, the attempt not spent"),
    dead: perTag((reason) => counter("alkstore_jobs_dead", "Jobs dead-lettered", MetricLabel.make("reason", reason))),
    leasesLost: counter("alkstore_leases_lost", "Leases that ended before their job was settled"),
    wakeLatency: histogram("alkstore_wake_latency", "From ready to claimed, where a worker was idle"),
    waitTime: histogram("alkstore_job_wait_time", "From due to the start of the handler"),
    runTime: histogram("alkstore_job_run_time", "How long handlers ran"),
    depth: perTag((state) => gauge("alkstore_queue_depth", "Live jobs", MetricLabel.make("state", state))),
    deadLetters: gauge("alkstore_dead_letters", "Dead letters"),
    oldestReadyAge: gauge(
      "alkstore_queue_oldest_ready_age",
      "For how long the oldest ready job has been ready",
      milliseconds
    )
  }
}

/** Metrics appear in exports with their first use: reasons that never happen are not listed. */
const perTag = <K extends string, M>(makeOne: (key: K) => M): ((key: K) => M) => {
  const made = new Map<K, M>()
  return (key) => {
    const there = made.get(key)
    if (there !== undefined) return there
    const metric = makeOne(key)
    made.set(key, metric)
    return metric
  }
}

/**
 * The metrics of a queue, for reading them (`Metric.value`) or for one's own dashboards.
 *
 * @since 0.1.0
 * @category accessors
 */
export const metrics: (queue: string) => QueueMetrics = perTag(make)

const noTags: ReadonlyArray<MetricLabel.MetricLabel> = []

/** Receipts of jobs that were added to a queue, and of those that met another. */
export const countEnqueued = (queue: string, added: number, deduplicated: number): void => {
  if (added > 0) record(metrics(queue).enqueued, added)
  if (deduplicated > 0) record(metrics(queue).deduplicated, deduplicated)
}

/** Jobs of a queue that were dead-lettered without a worker: by the sweep, a claim that met them, or an operator. */
export const countDied = (queue: string, reasons: ReadonlyArray<DeadReason>): void => {
  for (const reason of reasons) record(metrics(queue).dead(reason), 1)
}

/** Expired jobs, by their queue. */
export const countExpired = (queues: ReadonlyArray<string>): void => {
  for (const queue of queues) record(metrics(queue).dead("expired"), 1)
}

/** Adds to a counter, sets a gauge or observes a value, without an effect. */
export const record = (metric: Pick<Metric.Metric.Gauge<number>, "unsafeUpdate">, value: number): void => {
  metric.unsafeUpdate(value, noTags)
}
