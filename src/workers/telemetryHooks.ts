/**
 * What a worker's fibers tell of themselves: metrics of its queue, and a span for each run of its handler.
 */
import { Effect, Exit, FiberRef } from "effect"
import { Fatal, Snooze } from "../services/Job.js"
import { metrics, record } from "../services/metrics.js"
import type { ClaimedRow } from "../services/Settlement.js"
import { errorType, isTraced, processing, type Seen } from "../services/telemetry.js"
import { word } from "./decide.js"
import type { Run } from "./held.js"
import { endsOf } from "./perform.js"
import type { WorkerEvent } from "./WorkerEvent.js"

export interface TelemetryHooks {
  /** A claim has been answered. */
  readonly claimed: (rows: ReadonlyArray<ClaimedRow>) => void
  /** Whether the fetcher now waits for jobs to become ready, having taken all that were. */
  readonly waits: (idle: boolean) => void
  /** A handler is called; by the monotonic clock. */
  readonly started: (row: ClaimedRow, at: number) => void
  readonly ran: (millis: number) => void
  /** Each transition once. */
  readonly count: (event: WorkerEvent) => void
  /** A run, as a span if anybody wants spans; and what comes after it. */
  readonly span: <R>(
    run: Run,
    work: Effect.Effect<unknown, unknown, R>,
    after: (handled: Exit.Exit<unknown, unknown>) => Effect.Effect<void>
  ) => Effect.Effect<void, never, R>
}

const measures = (queue: string): Omit<TelemetryHooks, "span"> => {
  const of = metrics(queue)
  let idle = false
  return {
    claimed: (rows) => {
      const waited = idle
      idle = false
      if (rows.length === 0) return
      record(of.claimed, rows.length)
      if (!waited) return
      // What was blocked by another of its ordering key became ready later than it was due
      for (const row of rows)
        if (row.orderingKey === null) record(of.wakeLatency, Math.max(0, row.claimedAt - row.dueAt))
    },
    waits: (now) => {
      idle = now
    },
    started: (row, at) => record(of.waitTime, Math.max(0, row.claimedAt + at - row.claimedMonotonic - row.dueAt)),
    ran: (millis) => record(of.runTime, millis),
    count: (event) => {
      switch (event._tag) {
        case "Acked":
          return record(of.acked, 1)
        case "Retried":
          return record(of.retried, 1)
        case "Released":
          return record(of.released, 1)
        case "Died":
          return record(of.dead(event.reason), 1)
        case "LeaseLost":
          return record(of.leasesLost, 1)
      }
    }
  }
}

const failed = (type: string, message: string): Seen => ({
  exit: Exit.fail(new Error(message)),
  attributes: { "error.type": type }
})

/** How the span of a run ends: what the runtime interrupted has not failed, unless it took too long. */
const seen = (run: Run, exit: Exit.Exit<unknown, unknown>): Seen => {
  if (run.members.length === 0) return failed("undecodable", "no job of this run could be decoded, or had a handler")
  if (run.stuck) return failed("stuck", "the handler did not end when it was interrupted")
  if (Exit.isSuccess(exit)) {
    const ends = [...(endsOf(exit)?.values() ?? [])].filter(Exit.isFailure).length
    return ends === 0 ? { exit } : { exit, attributes: { "alkstore.batch.failed_count": ends } }
  }
  const stops = run.members.map((held) => (held.phase === "lost" ? "lease_lost" : held.stop))
  if (run.members.some(({ stop }) => stop === "timeout"))
    return failed("timeout", "the handler did not end within its timeout")
  // The handler of a batch is interrupted when all of its jobs are to be stopped; otherwise it has ended by itself
  const [stop] = stops
  if (stop !== undefined && !stops.includes(undefined)) return { exit, attributes: { "alkstore.interrupted": stop } }
  if (word(exit.cause, Snooze) !== undefined) return { exit: Exit.void, attributes: { "alkstore.snoozed": true } }
  const fatal = word(exit.cause, Fatal)
  const inner = fatal === undefined ? "_OTHER" : errorType(fatal.error)
  return inner === "_OTHER" ? { exit } : { exit, attributes: { "error.type": inner } }
}

/** Decided once per worker, so that without a tracer a job costs nothing more. */
export const makeTelemetryHooks = (queue: string, worker: string): Effect.Effect<TelemetryHooks> =>
  Effect.withFiberRuntime((fiber) => {
    const traced = isTraced(fiber.getFiberRef(FiberRef.currentTracerEnabled), fiber.currentTracer)
    return Effect.succeed({
      ...measures(queue),
      span: (run, work, after) => {
        if (!traced)
          return Effect.matchCauseEffect(work, {
            onFailure: (cause) => after(Exit.failCause(cause)),
            onSuccess: (answer) => after(Exit.succeed(answer))
          })
        const rows = run.members.map((held) => held.row)
        return Effect.flatMap(
          processing(queue, worker, rows, Effect.exit(work), (exit) => seen(run, exit)),
          after
        )
      }
    } satisfies TelemetryHooks)
  })
