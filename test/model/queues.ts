/** The queues of the model test: every setting of a queue is one's at least. */
import { Queue } from "alkstore"
import { Schema } from "effect"

const graveyard = Queue.make("graveyard", { payload: Schema.Unknown, maxAttempts: 2, priority: -1 })
const jobs = { maxAttempts: 3, deadLetterQueue: graveyard } as const

export const queues = {
  jobs: Queue.make("jobs", { ...jobs, payload: Schema.Unknown }),
  mail: Queue.make("mail", {
    payload: Schema.Unknown,
    priority: 1,
    maxCrashes: 1,
    expires: "2 minutes",
    retainCompleted: "10 minutes",
    retainDead: "1 hour"
  }),
  ledger: Queue.make("ledger", {
    payload: Schema.Unknown,
    maxAttempts: 2,
    maxCrashes: 0,
    onDead: "block",
    retainDead: "5 minutes"
  }),
  numbers: Queue.make("numbers", { payload: Schema.Number, deadLetterQueue: jobs.deadLetterQueue }),
  graveyard
} as const

/** The same queue in a process that reads nothing but numbers. */
export const narrowJobs = Queue.make("jobs", { ...jobs, payload: Schema.Number })

export type QueueName = keyof typeof queues
export const queueNames = Object.keys(queues) as ReadonlyArray<QueueName>

export interface Settings {
  readonly maxAttempts: number
  readonly priority: number
  readonly maxCrashes: number
  readonly expiresMillis: number | null
  readonly retainCompleted: number | null
  readonly retainDead: number | null
  readonly deadLetterQueue: QueueName | null
  readonly block: boolean
}

const plain: Settings = {
  maxAttempts: 20,
  priority: 0,
  maxCrashes: 5,
  expiresMillis: null,
  retainCompleted: null,
  retainDead: null,
  deadLetterQueue: null,
  block: false
}

/** What the contract says they mean, in the model's words. */
export const settings: Readonly<Record<QueueName, Settings>> = {
  jobs: { ...plain, maxAttempts: 3, deadLetterQueue: "graveyard" },
  mail: {
    ...plain,
    priority: 1,
    maxCrashes: 1,
    expiresMillis: 120_000,
    retainCompleted: 600_000,
    retainDead: 3_600_000
  },
  ledger: { ...plain, maxAttempts: 2, maxCrashes: 0, retainDead: 300_000, block: true },
  numbers: { ...plain, deadLetterQueue: "graveyard" },
  graveyard: { ...plain, maxAttempts: 2, priority: -1 }
}
