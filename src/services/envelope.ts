/**
 * What a dead-letter queue's jobs carry.
 */
import { Schema } from "effect"

const JobError = Schema.Struct({
  at: Schema.Number,
  attempt: Schema.Number,
  kind: Schema.Literal("failure", "defect", "timeout", "stuck", "crash", "undecodable"),
  message: Schema.String,
  tag: Schema.optional(Schema.String),
  detail: Schema.optional(Schema.String)
})

const Origin = Schema.Struct({
  id: Schema.Number,
  queue: Schema.String,
  attempts: Schema.Number,
  priority: Schema.Number,
  /** Milliseconds since the Unix epoch, as `diedAt`. */
  enqueuedAt: Schema.Number,
  diedAt: Schema.Number,
  dedupeKey: Schema.NullOr(Schema.String),
  orderingKey: Schema.NullOr(Schema.String)
})

/**
 * The payload Schema of a dead-letter queue: the payload of the job that died (with `Schema.Unknown` any, also one that
 * no worker could decode), why it died, its errors, and where it came from. Its headers are the envelope's own.
 *
 * @since 0.1.0
 * @category schemas
 */
export const deadEnvelope = <A, I>(payload: Schema.Schema<A, I>) =>
  Schema.Struct({
    payload,
    reason: Schema.Literal("exhausted", "crashed", "failed", "expired", "cancelled", "undecodable"),
    errors: Schema.Array(JobError),
    origin: Origin
  })
