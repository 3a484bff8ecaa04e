/** What a case is made of: a few jobs under names of its own, and time that an operator lets pass. */
import { Queue } from "alkstore"
import { Effect, Schema } from "effect"
import type { NewJob } from "../../src/services/QueueStore.js"
import type { ClaimedRow } from "../../src/services/Settlement.js"
import { newJob } from "../support/rows.js"
import type { Database, FaultServices } from "./engines.js"

export interface World {
  readonly database: Database
  /** Of this case and this try only. */
  readonly prefix: string
  readonly name: (suffix: string) => string
  readonly operator: (text: string) => Effect.Effect<void>
}

/** The call under test. What it answers is looked at only where a case says so. */
export type Operation = Effect.Effect<unknown, unknown, FaultServices>

export interface Case {
  readonly name: string
  /** Brings about what is there before, and answers the call. */
  readonly prepare: (world: World) => Effect.Effect<Operation, unknown, FaultServices>
  /** It has no statements: nothing can happen to it. */
  readonly silent?: boolean
  /** The tags of its errors besides `StoreError`. */
  readonly errors?: ReadonlyArray<string>
  /** Tags of what it answers when it is done already. */
  readonly done?: ReadonlyArray<string>
  /** A second call does more: it is not repeated when the first has come to its end. */
  readonly adds?: boolean
  /** What the contract leaves to a later pass, when the call itself has succeeded. */
  readonly later?: (world: World) => Operation
  /** Whether an error says that nothing was done. */
  readonly clean?: (error: { readonly _tag: string; readonly reason?: string }) => boolean
  /** It cannot be part of a transaction, or makes no difference there. */
  readonly alone?: boolean
}

export const job = (payload: unknown, fields: Partial<NewJob> = {}): NewJob => ({
  ...newJob,
  payload: JSON.stringify(payload),
  ...fields
})

/** Acks of claimed rows. */
export const acksOf = (rows: ReadonlyArray<{ readonly id: number; readonly token: number }>) =>
  rows.map(({ id, token }) => ({ _tag: "Ack" as const, id, token }))

export const enqueue = (queue: string, ...jobs: ReadonlyArray<NewJob>) =>
  Effect.flatMap(Queue.Queue, (store) => store.enqueue(queue, jobs))

export const request = (queue: string, limit = 10) => ({
  queue,
  limit,
  prefetch: 0,
  visibilityMillis: 60_000,
  worker: "tester",
  probe: true
})

export const claim = (queue: string, limit = 10) =>
  Effect.flatMap(Queue.Queue, (store) => Effect.map(store.claim(request(queue, limit)), ({ jobs }) => jobs))

/** Jobs that are claimed already. */
export const claimed = (
  queue: string,
  ...jobs: ReadonlyArray<NewJob>
): Effect.Effect<ReadonlyArray<ClaimedRow>, unknown, FaultServices> =>
  Effect.zipRight(enqueue(queue, ...jobs), claim(queue))

export const bury = ({ id, token }: ClaimedRow) => ({
  _tag: "Bury" as const,
  id,
  token,
  reason: "failed" as const,
  history: { crashes: 0, failures: 1, errors: null, failureTimes: null }
})

/** Jobs that are dead already. */
export const died = (queue: string, ...jobs: ReadonlyArray<NewJob>) =>
  Effect.flatMap(claimed(queue, ...jobs), (rows) =>
    Effect.flatMap(Queue.Queue, (store) => store.settle(queue, rows.map(bury)))
  )

export const ids = (queue: string) =>
  Effect.flatMap(Queue.Queue, (store) =>
    Effect.map(store.list(queue, { limit: 100, after: 0 }), (rows) => rows.map(({ id }) => id))
  )

/** Leases of a queue end. */
export const lapse = ({ database, operator }: World, queue: string) =>
  operator(
    `UPDATE ${database.table("jobs")} SET visible_at = visible_at - 3600000 WHERE queue = '${queue}' AND token IS NOT NULL`
  )

/** What would expire has expired. */
export const expire = ({ database, operator }: World, queue: string) =>
  operator(`UPDATE ${database.table("jobs")} SET expires_at = 1 WHERE queue = '${queue}' AND expires_at IS NOT NULL`)

export const settings = (name: string, fields: Partial<Queue.QueueSettings> = {}): Queue.QueueSettings => ({
  name,
  maxCrashes: 5,
  retainCompletedMillis: null,
  retainDeadMillis: null,
  deadLetterQueue: null,
  onDead: "continue",
  defaults: null,
  ...fields
})

export const queue = (world: World, options: Partial<Queue.Options<unknown, unknown>> = {}, suffix = "queue") =>
  Queue.make(world.name(suffix), { payload: Schema.Unknown, ...options })

/** Passes over ordering keys: what an answered call leaves to whoever comes next. */
export const sweepLater: NonNullable<Case["later"]> = () => Effect.flatMap(Queue.Queue, (store) => store.sweepExpired())
