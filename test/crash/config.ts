/** What a process of the crash suite is told to do, and what it writes down while it does it. */
import { Queue } from "alkstore"
import { Schema } from "effect"

/** Where a process ends itself by SIGKILL, or stops. */
export type Point =
  /** A handler has begun, or the work under a lock is done. */
  | { readonly in: "work" }
  /** These statements have come by, in this order: before the last is sent, or when the database has executed it. */
  | { readonly when: "before" | "after"; readonly statements: ReadonlyArray<string> }
  /** A handler's own work is done: there it stops itself, and completes its job whatever happened, when it goes on. */
  | { readonly in: "worked" }

/**
 * How a handler completes its job:
 * - `worker`: it writes its effect by itself and returns, and its worker acks: the effect is written at least once
 * - `settling`: it writes its effect and acks in a transaction of its own
 * - `transactional`: the worker wraps handler, effect and ack in one transaction
 */
export type Style = "worker" | "settling" | "transactional"

export interface Config {
  readonly engine: "postgres" | "sqlite"
  /** A url, or a file. */
  readonly database: string
  readonly ledger: string
  /**
   * - `work`: a worker until SIGTERM
   * - `produce`: an order every `everyMillis`, written down and enqueued in one transaction, until SIGTERM
   * - `guard`: increments a counter under a lock, again and again, until SIGTERM
   * - `serve`: nothing but what every process does: migrate, sweep, fire schedules; until SIGTERM
   * - `stranger`: writes orders in an open SQLite transaction and never ends it, as no user of ours would
   */
  readonly role: "work" | "produce" | "guard" | "serve" | "stranger"
  readonly style?: Style
  readonly visibilityMillis?: number
  readonly concurrency?: number
  readonly graceMillis?: number
  readonly everyMillis?: number
  /** Every so many orders one takes `longMillis`. */
  readonly longEvery?: number
  readonly longMillis?: number
  readonly sweepMillis?: number
  readonly scheduler?: boolean
  readonly lockMillis?: number
  readonly point?: Point
}

export interface Entry {
  /**
   * `ready`; of a handler: `start`, `worked` (its own work is done, what is left is to complete the job), `interrupted`;
   * `stopped`; `receipt` and `refused` of an order; `locked` and `unlocked`; `stalled`: nothing ran in this process from `from` on;
   * or the tag of a worker's event.
   */
  readonly event: string
  readonly pid: number
  /** Milliseconds since the Unix epoch. */
  readonly at: number
  readonly job?: number
  readonly attempt?: number
  readonly token?: number
  readonly order?: string
  readonly from?: number
}

/** One order takes so long, and leaves one effect. */
export class Order extends Schema.Class<Order>("Order")({ name: Schema.String, millis: Schema.Number }) {}

/** Whatever becomes of the processes, no job may die of it. */
export const Orders = Queue.make("orders", { payload: Order, maxAttempts: 10_000, maxCrashes: 10_000 })

/** A gap in the event loop of a process is written down from this on: it is looked at every 50 ms. */
export const stallMillis = 120

/** From this on it is a fault like others, which may cost a process its leases. */
export const longStallMillis = 300
