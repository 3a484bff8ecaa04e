/**
 * alkstore: durable job queues and workers for Effect, on PostgreSQL and SQLite.
 *
 * @since 0.1.0
 */
export * as Backoff from "./schedule/Backoff.js"
export * as Clock from "./services/Clock.js"
export * as Errors from "./services/Errors.js"
export * as Job from "./services/Job.js"
export * as Lock from "./services/Lock.js"
export * as Queue from "./services/Queue.js"
export { transaction } from "./services/Queue.js"
export * as Schedules from "./services/Schedules.js"
export * as Transfer from "./services/Transfer.js"
export * as Wake from "./services/Wake.js"
export * as Outbox from "./workers/Outbox.js"
export * as Supervisor from "./workers/Supervisor.js"
export * as Telemetry from "./workers/Telemetry.js"
export * as Worker from "./workers/Worker.js"
