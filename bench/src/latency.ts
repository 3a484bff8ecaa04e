/**
 * W4: from the enqueue to the handler's start, of an idle worker in this process and of one in another.
 */
import { type Payload, payload, type Session, sleep } from "./contender.js"
import type { Figure, Run, Workload } from "./figure.js"
import { startHelper } from "./helpers.js"
import { type Inbox, makeInbox } from "./inbox.js"

interface Sent {
  /** When the enqueue was called. */
  readonly called: bigint
  /** When it had returned: the job is committed. */
  readonly returned: bigint
}

/** Enough time between two for the worker to be idle again, and no rhythm for a poll to fall in with. */
const produce = async (session: Session, count: number): Promise<ReadonlyArray<Sent>> => {
  const all: Array<Sent> = []
  for (let n = 0; n < count; n++) {
    await sleep(20 + Math.random() * 40)
    const called = process.hrtime.bigint()
    await session.enqueue([payload(n)], 1)
    all.push({ called, returned: process.hrtime.bigint() })
  }
  return all
}

/** Keeps when each job was handled first; this clock is the same in all processes of a machine. */
export const makeWatch = (inbox: Inbox) => {
  const starts = new Map<number, bigint>()
  const take = (job: Payload) => {
    if (!starts.has(job.n)) starts.set(job.n, process.hrtime.bigint())
    inbox.take(job)
  }
  return { starts, take }
}

const percentile = (values: ReadonlyArray<number>, share: number) => {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}

type Counted = { readonly lost: number; readonly duplicated: number }

const figures = (name: string, sent: ReadonlyArray<Sent>, starts: ReadonlyMap<number, bigint>, counted: Counted) => {
  const since = (at: keyof Sent) =>
    sent.flatMap((one, n) => {
      const start = starts.get(n)
      return start === undefined ? [] : [Number(start - one[at]) / 1e6]
    })
  const figure = (label: string, at: keyof Sent, share: number): Figure => ({
    workload: `${name} ${label}`,
    value: percentile(since(at), share),
    unit: "ms",
    count: sent.length,
    ...counted
  })
  return [
    figure("p50", "returned", 0.5),
    figure("p99", "returned", 0.99),
    figure("from call p50", "called", 0.5),
    figure("from call p99", "called", 0.99)
  ]
}

const sameProcess = async ({ sizes }: Run, session: Session) => {
  const inbox = makeInbox(sizes.latency)
  const { starts, take } = makeWatch(inbox)
  const stop = await session.work(take)
  const sent = await produce(session, sizes.latency)
  await inbox.all
  await stop()
  const lost = inbox.lost() + (await session.left())
  return figures("W4-same", sent, starts, { lost, duplicated: inbox.duplicated() })
}

/** What the working process answers when it has seen all. */
export interface Worked extends Counted {
  readonly starts: ReadonlyMap<number, bigint>
}

const crossProcess = async ({ contender, sizes, where }: Run, session: Session) => {
  const worker = await startHelper("work", { ...contender, where, count: sizes.latency })
  const sent = await produce(session, sizes.latency)
  const { starts, ...counted } = (await worker.finish()) as Worked
  return figures("W4-cross", sent, starts, { ...counted, lost: counted.lost + (await session.left()) })
}

export const latency: Workload = {
  name: "W4",
  run: async (run, session) => [...(await sameProcess(run, session)), ...(await crossProcess(run, session))]
}
