/**
 * W1, W2, W3 and W5; and the list of all.
 */
import { beside, pinned } from "./beside.js"
import { payloads, type Session } from "./contender.js"
import { rate, type Sizes, type Workload } from "./figure.js"
import { analyse, delivered, drainAll, makeInbox, timed } from "./inbox.js"
import { latency } from "./latency.js"
import { memory } from "./memory.js"
import { idle, loop } from "./quiet.js"

type Add = (session: Session, jobs: ReturnType<typeof payloads>) => Promise<void>

const enqueueing = (name: string, count: (sizes: Sizes) => number, add: Add): Workload => ({
  name,
  run: async (run, session) => {
    const jobs = payloads(count(run.sizes))
    const millis = await timed(() => add(session, jobs))
    return [rate(name, jobs.length, millis, await delivered(run, session, jobs.length))]
  }
})

const drain: Workload = {
  name: "W3",
  run: async (run, session) => {
    const { sizes } = run
    await session.enqueueMany(payloads(sizes.drain), 1_000)
    await analyse(run)
    const cpu = process.cpuUsage()
    const { duplicated, lost, millis } = await drainAll(session, sizes.drain)
    const { system, user } = process.cpuUsage(cpu)
    const figure = rate("W3", sizes.drain, millis, { lost: lost + (await session.left()), duplicated })
    return [{ ...figure, cpuMicrosPerJob: Math.round((user + system) / sizes.drain) }]
  }
}

const both: Workload = {
  name: "W5",
  run: async ({ sizes }, session) => {
    const inbox = makeInbox(sizes.both)
    const stop = await session.work(inbox.take)
    const jobs = payloads(sizes.both)
    const millis = await timed(async () => {
      await session.enqueue(jobs, 10)
      await inbox.all
    })
    await stop()
    const lost = inbox.lost() + (await session.left())
    return [rate("W5", sizes.both, millis, { lost, duplicated: inbox.duplicated() })]
  }
}

/** In the order in which a round runs them: what is compared with the clean drain comes soon after it. */
export const workloads: ReadonlyArray<Workload> = [
  enqueueing(
    "W1-serial",
    ({ serial }) => serial,
    (session, jobs) => session.enqueue(jobs, 1)
  ),
  enqueueing(
    "W1-10",
    (sizes) => sizes.inFlight,
    (session, jobs) => session.enqueue(jobs, 10)
  ),
  enqueueing(
    "W2",
    ({ batches }) => batches,
    (session, jobs) => session.enqueueMany(jobs, 1_000)
  ),
  drain,
  ...beside,
  ...pinned,
  latency,
  both,
  idle,
  loop,
  memory
]
