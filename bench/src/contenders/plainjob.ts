/**
 * plainjob: one worker is all it has use for, a process's worker runs its jobs one by one.
 */
import Database from "better-sqlite3"
import { type Clutter, type Contender, chunks, inFlight, load, type Payload, type Session } from "../contender.js"
import { numbers, runSqlite, text } from "./clutter.js"

type Log = (message: string) => void

interface Logger {
  readonly error: Log
  readonly warn: Log
  readonly info: Log
  readonly debug: Log
}

interface Queue {
  readonly add: (type: string, data: Payload) => unknown
  readonly addMany: (type: string, data: ReadonlyArray<Payload>) => unknown
  readonly countJobs: (filter: { readonly status: number }) => number
  readonly close: () => void
}

interface Plainjob {
  readonly better: (database: Database.Database) => unknown
  readonly defineQueue: (options: { readonly connection: unknown; readonly logger: Logger }) => Queue
  readonly defineWorker: (
    type: string,
    processor: (job: { readonly data: string }) => void,
    options: { readonly queue: Queue; readonly pollIntervall: number; readonly logger: Logger }
  ) => { readonly start: () => Promise<void>; readonly stop: () => Promise<void> }
}

const pending = 0
const processing = 1
const done = 2
const failed = 3
const pollIntervall = 10

const nothing = () => undefined
const logger: Logger = {
  error: (line) => process.stderr.write(`${line}\n`),
  warn: nothing,
  info: nothing,
  debug: nothing
}

const open = async (file: string): Promise<Session> => {
  const { better, defineQueue, defineWorker } = await load<Plainjob>("plainjob")
  const queue = defineQueue({ connection: better(new Database(file)), logger })
  return {
    enqueue: (jobs, most) => inFlight(jobs, most, async (job) => queue.add("bench", job)),
    enqueueMany: async (jobs, size) => {
      for (const chunk of chunks(jobs, size)) queue.addMany("bench", chunk)
    },
    work: async (handler) => {
      const take = (job: { readonly data: string }) => handler(JSON.parse(job.data) as Payload)
      const worker = defineWorker("bench", take, { queue, pollIntervall, logger })
      const stopped = worker.start()
      return async () => {
        await worker.stop()
        await stopped
      }
    },
    left: async () => queue.countJobs({ status: pending }) + queue.countJobs({ status: processing }),
    close: async () => queue.close()
  }
}

const clutter = async (file: string, { delayed, finished, ready, where }: Clutter) => {
  const type = where === "same queue" ? "'bench'" : "'beside'"
  const now = Date.now()
  const rows = (count: number, status: number, next: number) =>
    `INSERT INTO plainjob_jobs (type, data, status, failed_at, next_run_at, created_at)
    SELECT ${type}, ${text}, ${status}, ${status === failed ? now : "NULL"}, ${next}, ${now} FROM ${numbers("sqlite", count)}`
  const half = Math.floor(finished / 2)
  await runSqlite(file, [
    ...(delayed > 0 ? [rows(delayed, pending, now + 86_400_000)] : []),
    ...(ready > 0 ? [rows(ready, pending, now)] : []),
    ...(half > 0 ? [rows(half, done, now), rows(half, failed, now)] : [])
  ])
}

export const plainjob: Contender = {
  name: "plainjob",
  engine: "sqlite",
  settings: `0.0.14, better-sqlite3, WAL, synchronous NORMAL, pollIntervall ${pollIntervall} ms, addMany for batches`,
  open,
  clutter
}
