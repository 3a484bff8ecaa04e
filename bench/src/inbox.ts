/**
 * Counting what arrives: nothing may be lost, nothing may come twice.
 */
import pg from "pg"
import { type Payload, payloads, type Session } from "./contender.js"
import type { Run } from "./figure.js"

export const timed = async (work: () => Promise<unknown>): Promise<number> => {
  const start = process.hrtime.bigint()
  await work()
  return Number(process.hrtime.bigint() - start) / 1e6
}

export interface Inbox {
  /** Resolves when each of the expected jobs has come, at least once, or none has come for so long that they are lost. */
  readonly all: Promise<void>
  readonly take: (job: Payload) => void
  readonly lost: () => number
  readonly duplicated: () => number
}

/** Longer than a lease: what was claimed and forgotten is late, not lost. */
const patienceMillis = 45_000

/** Expects the jobs `from` to `from + expected - 1`; counts them outside of the heap. */
export const makeInbox = (expected: number, from = 0): Inbox => {
  const times = new Uint8Array(expected)
  let distinct = 0
  let last = Date.now()
  let done: () => void = () => undefined
  const all = new Promise<void>((resolve) => {
    const timer = setInterval(() => {
      if (Date.now() - last > patienceMillis) done()
    }, 1_000)
    done = () => {
      clearInterval(timer)
      resolve()
    }
    if (expected === 0) done()
  })
  return {
    all,
    take: ({ n }) => {
      const before = times[n - from]
      if (before === undefined) return
      times[n - from] = Math.min(before + 1, 255)
      last = Date.now()
      if (before === 0 && ++distinct === expected) done()
    },
    lost: () => expected - distinct,
    duplicated: () => times.reduce((sum, one) => sum + (one > 1 ? 1 : 0), 0)
  }
}

/** Brings the statements' plans and the compiled code to where they are in a queue in production. */
export const warm = async (session: Session) => {
  const from = 1_000_000_000
  const jobs = payloads(300, from)
  const inbox = makeInbox(jobs.length, from)
  await session.enqueueMany(jobs.slice(0, 200), 100)
  await session.enqueue(jobs.slice(200, 250), 10)
  await session.enqueue(jobs.slice(250), 1)
  const stop = await session.work(inbox.take)
  await inbox.all
  await stop()
}

/** Starts a worker and waits for the jobs from 0; the time includes the worker's start. */
export const drainAll = async (session: Session, expected: number, inbox = makeInbox(expected)) => {
  let stop: () => Promise<void> = async () => undefined
  const millis = await timed(async () => {
    stop = await session.work(inbox.take)
    await inbox.all
  })
  await stop()
  return { millis, lost: inbox.lost(), duplicated: inbox.duplicated() }
}

/** What autovacuum does within a minute in a database that is not new: without it, some peers scan their tables. */
export const analyse = async ({ contender, where }: Run) => {
  if (contender.engine !== "postgres") return
  const client = new pg.Client({ connectionString: where })
  await client.connect()
  await client.query("ANALYZE")
  await client.end()
}

/** Whether what was enqueued is there, each job once, and nothing is left: it is drained for it. */
export const delivered = async (run: Run, session: Session, expected: number) => {
  await analyse(run)
  const { duplicated, lost } = await drainAll(session, expected)
  return { lost: lost + (await session.left()), duplicated }
}
