/** The commands of the model test, as data: what they refer to is looked up when they are run, so any part of a list runs. */
import type { QueueName } from "./queues.js"
import type { Reason, ScheduleSpec } from "./state.js"

const minute = 60_000
const hour = 60 * minute

export interface EnqueueSpec {
  readonly payload: number | string
  readonly delay?: number
  /** From now, in milliseconds; perhaps past. */
  readonly runAt?: number
  readonly priority?: number
  readonly maxAttempts?: number
  readonly expires?: number
  /** As an instant, from now. */
  readonly expiresAt?: number
  readonly dedupeKey?: string
  readonly onDuplicate?: "keep" | "replace"
  readonly dedupeScope?: "live" | "waiting"
  readonly dedupeWindow?: number
  readonly orderingKey?: string
  readonly headers?: Readonly<Record<string, string>>
}

/** `any`: one of those that are known, by its position. */
export type LiveFilterSpec =
  | { readonly by: "all" }
  | { readonly by: "any"; readonly at: number }
  | { readonly by: "orderingKey" | "dedupeKey"; readonly key: string }
  | { readonly by: "state"; readonly state: LiveState }
  | { readonly by: "several"; readonly ats: ReadonlyArray<number> }
  | { readonly by: "keyAndState"; readonly key: string; readonly state: LiveState }
  /** Enqueued between so many milliseconds ago and so many. */
  | { readonly by: "age"; readonly most: number; readonly least: number }

type LiveState = "ready" | "delayed" | "blocked" | "leased"

export type DeadFilterSpec =
  | { readonly by: "all" }
  | { readonly by: "any"; readonly at: number }
  | { readonly by: "orderingKey"; readonly key: string }
  | { readonly by: "reason"; readonly reasons: ReadonlyArray<Reason> }
  | { readonly by: "error"; readonly text: string }
  | { readonly by: "older" | "younger"; readonly than: number }
  | { readonly by: "several"; readonly ats: ReadonlyArray<number> }
  | { readonly by: "keyAndReason"; readonly key: string; readonly reasons: ReadonlyArray<Reason> }

export type Settling = "ack" | "retry" | "fail" | "release" | "snooze"

export type Simple =
  | { readonly _tag: "enqueue"; readonly queue: QueueName; readonly jobs: ReadonlyArray<EnqueueSpec> }
  | {
      readonly _tag: "claim"
      readonly queue: QueueName
      readonly limit: number
      readonly visibility: number
      readonly worker: number
    }
  | { readonly _tag: "claimNarrow"; readonly visibility: number }
  /** As a worker claims: for free handlers, and ahead of them. */
  | {
      readonly _tag: "fetch"
      readonly queue: QueueName
      readonly limit: number
      readonly prefetch: number
      readonly visibility: number
      readonly worker: number
    }
  | {
      readonly _tag: "settle"
      readonly at: number
      readonly how: Settling
      readonly delay?: number
      readonly error: string
    }
  | { readonly _tag: "ackMany"; readonly queue: QueueName }
  | { readonly _tag: "cancel"; readonly at: number }
  | { readonly _tag: "cancelMany"; readonly queue: QueueName; readonly filter: LiveFilterSpec }
  | {
      readonly _tag: "change"
      readonly queue: QueueName
      readonly filter: LiveFilterSpec
      readonly delay?: number
      readonly runAt?: number
      readonly priority?: number
    }
  | { readonly _tag: "clear" | "pause" | "resume"; readonly queue: QueueName }
  | {
      readonly _tag: "requeue"
      readonly queue: QueueName
      readonly filter: DeadFilterSpec
      readonly delay: number
      readonly to?: QueueName
    }
  | { readonly _tag: "purge"; readonly queue: QueueName; readonly filter: DeadFilterSpec }
  | { readonly _tag: "schedule"; readonly name: ScheduleName; readonly spec: ScheduleSpec }
  | { readonly _tag: "schedulePause" | "scheduleResume" | "scheduleRemove" | "trigger"; readonly name: ScheduleName }

/** What is never part of a transaction. */
export type Apart =
  | { readonly _tag: "heartbeat"; readonly at: number; readonly progress?: number }
  /** As a worker renews: all that is in anybody's hands, good and stale, at once. */
  | { readonly _tag: "beat"; readonly queue: QueueName }
  | { readonly _tag: "sweep"; readonly queue?: QueueName }
  | { readonly _tag: "fire" }
  | { readonly _tag: "advance"; readonly millis: number }
  | { readonly _tag: "crash"; readonly worker: number }
  | { readonly _tag: "lock"; readonly name: string; readonly ttl: number }
  | { readonly _tag: "unlock" | "relock"; readonly at: number }
  | { readonly _tag: "forceUnlock"; readonly name: string }

export interface Transaction {
  readonly _tag: "transaction"
  /** `strict`: it fails with the first command that does. */
  readonly end: "commit" | "rollback" | "strict"
  readonly commands: ReadonlyArray<Simple | Transaction>
}

/** One after the other: what seldom comes about by chance. */
export interface Story {
  readonly _tag: "story"
  readonly commands: ReadonlyArray<Simple | Apart>
}

export type Command = Simple | Apart | Transaction | Story

/** Boundaries lie at whole periods from an offset; the second is said as a cron expression. */
export const schedules = {
  often: { period: minute, offset: 0, rule: { every: "1 minute" } },
  cron: { period: 6 * hour, offset: 0, rule: { cron: "0 */6 * * *" } },
  daily: { period: 24 * hour, offset: 3.5 * hour, rule: { cron: "30 3 * * *" } }
} as const
export type ScheduleName = keyof typeof schedules
