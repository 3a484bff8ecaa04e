/** What a child process is told to do, and what it writes down while it does it. */
import { Outbox, Queue } from "alkstore"
import { Schema } from "effect"

export interface Config {
  readonly engine: "postgres" | "sqlite"
  /** A url, or a file. */
  readonly database: string
  readonly ledger: string
  /**
   * - `work`: a worker until SIGTERM
   * - `finish`: a worker until `count` jobs are done; then the scope closes, and nothing else ends the process
   * - `once`: one job enqueued, and done by whomever; then as `finish`
   * - `produce`: `count` jobs, in transactions of `batch`; each id is written down after its receipt
   * - `schedule`: nothing but what every process does: sweep, and fire schedules; until SIGTERM
   * - `relay`: delivers the messages of the outbox `Events` to `url` until SIGTERM
   * - `hold`: SQLite's write lock, for `holdMillis`, by a plain connection
   */
  readonly role: "work" | "finish" | "once" | "produce" | "schedule" | "relay" | "hold"
  readonly url?: string
  readonly count?: number
  readonly batch?: number
  readonly concurrency?: number
  readonly prefetch?: number
  readonly visibilityMillis?: number
  readonly stuckAfterMillis?: number
  readonly graceMillis?: number
  readonly pollMillis?: number
  readonly holdMillis?: number
  /** `schedule` ends itself by SIGKILL before it executes the last of these statements, when it has come by the others. */
  readonly killAt?: ReadonlyArray<string>
  /** Handlers write a job of the queue `effects`, and their ack commits with it. */
  readonly transactional?: boolean
  /** The process ends itself by SIGKILL as soon as its worker has acked a job. */
  readonly killAfterAck?: boolean
}

export interface Entry {
  /** `begin`, `ready`, `start`, `end`, `interrupted`, `ack accepted`, `ack refused: …`, `receipt`, or the tag of a worker's event. */
  readonly event: string
  readonly pid: number
  readonly id?: number
  readonly attempt?: number
  /** Milliseconds since the Unix epoch. */
  readonly at: number
}

/**
 * What a job makes its handler do:
 * - `nothing`; `sleep` for so long
 * - `kill`: end its own process by SIGKILL
 * - `ack`: sleep for so long without being interruptible, then ack by hand and write down the answer
 * - `never`: never end, and ignore interruption
 * - `spin`: hold the event loop for so long
 */
export class Task extends Schema.Class<Task>("Task")({
  act: Schema.Literal("nothing", "sleep", "kill", "ack", "never", "spin"),
  millis: Schema.Number,
  /** Only the first attempt does so; later ones end at once. */
  first: Schema.Boolean
}) {}

export const task = (act: Task["act"], millis = 0): Task => new Task({ act, millis, first: false })
export const firstTime = (act: Task["act"], millis = 0): Task => new Task({ act, millis, first: true })

export const Tasks = Queue.make("tasks", { payload: Task })

export class Event extends Schema.Class<Event>("Event")({ key: Schema.NullOr(Schema.String), n: Schema.Number }) {}

export const Events = Outbox.make("events", { message: Event, key: ({ key }) => key ?? undefined })

/** What transactional handlers write: the id of their job. */
export const Effects = Queue.make("effects", { payload: Schema.Number })
