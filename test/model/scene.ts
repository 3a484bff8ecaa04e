/** What a sequence has in its hands: the model's state beside what the engine has given out. */
import { isDeepStrictEqual } from "node:util"
import type { Lock, Queue, Job as RealJob } from "alkstore"
import { expect } from "vitest"
import type { EngineUnderTest } from "../support/engines.js"
import type { QueueName } from "./queues.js"
import type { ErrorNote, Job, State } from "./state.js"

/** A claim in somebody's hands, good or stale. */
export interface Hand {
  readonly uid: number
  readonly token: number
  readonly queue: QueueName
  readonly worker: number
  readonly job: RealJob.Job<unknown>
}

export interface Scene {
  readonly engine: EngineUnderTest
  readonly state: State
  hands: Array<Hand>
  locks: Array<Lock.LockLease>
  /** Ids of jobs that there are or were. */
  readonly ids: Array<{ readonly queue: QueueName; readonly id: number }>
  readonly tokens: Set<number>
  lastToken: number
  lastId: number
  /** Depth of open transactions. */
  depth: number
  /** PostgreSQL: open, but not unblocked yet; by uid. */
  pending: ReadonlySet<number>
  /** PostgreSQL: ordering keys that the next look deals with. */
  marked: boolean
  /** Commands that were answered by an error, and commands. */
  failures: number
  executed: number
  count: (what: string) => void
}

/** What a command answered: a value, or the tag of its error. */
export type Answer<A> = { readonly ok: A } | { readonly error: string }

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null

/** Where two values differ, by path. */
const differences = (engine: unknown, model: unknown, path: string): ReadonlyArray<string> =>
  isDeepStrictEqual(engine, model)
    ? []
    : isObject(engine) && isObject(model)
      ? [...new Set([...Object.keys(engine), ...Object.keys(model)])].flatMap((key) =>
          differences(engine[key], model[key], `${path}.${key}`)
        )
      : [`${path}: the engine has ${JSON.stringify(engine)}, the model ${JSON.stringify(model)}`]

export const agree = (what: string, engine: unknown, model: unknown): void => {
  if (!isDeepStrictEqual(engine, model)) expect.fail(differences(engine, model, what).join("\n"))
}

export const demand = (condition: boolean, message: () => string): void => {
  if (!condition) expect.fail(message())
}

/** The engine's id of a job has become known. */
export const identify = (scene: Scene, job: Job, id: number): void => {
  job.id = id
  for (const key of scene.state.keys) if (key.uid === job.uid) key.id = id
  if (!scene.ids.some((known) => known.id === id && known.queue === job.queue)) scene.ids.push({ queue: job.queue, id })
}

export const describe = (job: Job): string => `job ${job.id} (${job.queue}, priority ${job.priority}, due ${job.dueAt})`

export type Receipt = Queue.Receipt

interface RawError {
  readonly kind: ErrorNote["kind"]
  readonly attempt: number
  readonly at: number
  readonly message: string
}

/** Messages are compared where they are the test's own. */
export const noteErrors = (errors: ReadonlyArray<RawError>): ReadonlyArray<ErrorNote> =>
  errors.map(({ at, attempt, kind, message }) => ({
    kind,
    attempt,
    at,
    message: kind === "failure" ? message : undefined
  }))

/** An envelope's errors as notes; any other payload as it is. */
export const plainPayload = (payload: unknown): unknown =>
  typeof payload === "object" && payload !== null && "errors" in payload
    ? { ...payload, errors: noteErrors(payload.errors as ReadonlyArray<RawError>) }
    : payload

/** Without the trace context: the span of a transaction, if there is one, is carried by what is enqueued in it. */
export const ownHeaders = (headers: unknown): Readonly<Record<string, unknown>> => {
  const { traceparent: _, ...own } = (headers ?? {}) as Record<string, unknown>
  return own
}
