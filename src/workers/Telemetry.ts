/**
 * Telemetry: the metrics of queues. Spans need nothing but a tracer (see the guide to telemetry).
 *
 * @since 0.1.0
 */
export { metrics, type QueueMetrics } from "../services/metrics.js"
