/**
 * What an idle worker costs, and whether a lock held elsewhere stops the event loop. Of this library alone.
 */
import { monitorEventLoopDelay } from "node:perf_hooks"
import { type Payload, payload, payloads, type Session, sleep } from "./contender.js"
import type { Figure, Run, Workload } from "./figure.js"
import { startHelper } from "./helpers.js"
import { makeInbox } from "./inbox.js"

const workers = 10
const perSecond = 200

const shareOfCore = async (seconds: number): Promise<number> => {
  const start = process.hrtime.bigint()
  const cpu = process.cpuUsage()
  await sleep(seconds * 1_000)
  const { system, user } = process.cpuUsage(cpu)
  return ((user + system) * 100_000) / Number(process.hrtime.bigint() - start)
}

/** The share while another process commits in this role; nobody does without a role. */
const idleBeside = async ({ contender, sizes, where }: Run, role?: string) => {
  const helper = role === undefined ? undefined : await startHelper(role, { ...contender, where, count: perSecond })
  await sleep(500)
  const value = await shareOfCore(sizes.idleSeconds)
  const commits = await helper?.finish()
  return { value, commits: commits ?? 0 }
}

/** Workers that do nothing because they are broken cost nothing: jobs at the end show that they were idle. */
export const idle: Workload = {
  name: "idle",
  ours: true,
  once: true,
  run: async (run, session) => {
    const inbox = makeInbox(50)
    const stops: Array<() => Promise<void>> = []
    for (let n = 0; n < workers; n++) stops.push(await session.work(inbox.take))
    await sleep(1_000)
    const shares = [
      { workload: "idle", ...(await idleBeside(run)) },
      { workload: "idle beside commits", ...(await idleBeside(run, "commits")) },
      { workload: "idle beside another queue", ...(await idleBeside(run, "enqueues")) }
    ]
    await session.enqueue(payloads(50), 10)
    await inbox.all
    for (const stop of stops) await stop()
    const counted = { lost: inbox.lost() + (await session.left()), duplicated: inbox.duplicated() }
    return shares.map((share): Figure => ({ ...share, unit: "% of a core", workers, ...counted }))
  }
}

/** Enqueues every 10 ms, without waiting for the last one; answers how each ended. */
const keepEnqueueing = (enqueue: (job: Payload) => Promise<string>) => {
  const ends: Array<Promise<string>> = []
  const timer = setInterval(() => ends.push(enqueue(payload(ends.length))), 10)
  return () => {
    clearInterval(timer)
    return Promise.all(ends)
  }
}

const tally = (words: ReadonlyArray<string>) => {
  const counts: Record<string, number> = {}
  for (const word of words) counts[word] = (counts[word] ?? 0) + 1
  return counts
}

/** What was enqueued has come once, and what was refused has not come at all. */
const check = (ends: ReadonlyArray<string>, arrived: ReadonlyMap<number, number>) => {
  const wrong = (n: number, end: string) => {
    const times = arrived.get(n) ?? 0
    return { lost: end === "enqueued" && times === 0 ? 1 : 0, duplicated: times > 1 ? 1 : 0 }
  }
  return ends
    .map((end, n) => wrong(n, end))
    .reduce((sum, one) => ({ lost: sum.lost + one.lost, duplicated: sum.duplicated + one.duplicated }), {
      lost: 0,
      duplicated: 0
    })
}

const collect = async (session: Session) => {
  const arrived = new Map<number, number>()
  const stop = await session.work(({ n }) => void arrived.set(n, (arrived.get(n) ?? 0) + 1))
  return { arrived, stop }
}

export const loop: Workload = {
  name: "loop",
  engine: "sqlite",
  ours: true,
  once: true,
  run: async ({ contender, sizes, where }, session) => {
    const { tryEnqueue } = session
    if (tryEnqueue === undefined) return []
    const { arrived, stop } = await collect(session)
    await sleep(500)
    const holder = await startHelper("hold", { ...contender, where, count: sizes.lockSeconds * 1_000 })
    const delay = monitorEventLoopDelay({ resolution: 1 })
    delay.enable()
    const end = keepEnqueueing(tryEnqueue)
    await holder.next()
    const held = delay.max / 1e6
    const ends = await end()
    delay.disable()
    for (let waited = 0; waited < 10_000 && (await session.left()) > 0; waited += 50) await sleep(50)
    await stop()
    const more = { enqueues: tally(ends), afterwards: Math.round(delay.max / 1e4) / 100 }
    return [{ workload: "loop", value: held, unit: "ms", ...check(ends, arrived), ...more }]
  }
}
