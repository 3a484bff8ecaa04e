/**
 * How much heap it takes to enqueue and to drain very many jobs. Of this library alone.
 */
import { setFlagsFromString } from "node:v8"
import { runInNewContext } from "node:vm"
import type { Figure, Workload } from "./figure.js"
import { drainAll } from "./inbox.js"

const megabyte = 1024 * 1024

/** The collector, without a flag on the command line. */
const collector = (): (() => void) => {
  setFlagsFromString("--expose-gc")
  return runInNewContext("gc") as () => void
}

/** The peaks of what is alive, and of what is allocated, looked at every 200 ms while the work runs. */
const sampled = async (collect: () => void, work: () => Promise<unknown>) => {
  let alive = 0
  let allocated = 0
  const look = () => {
    allocated = Math.max(allocated, process.memoryUsage().heapUsed)
    collect()
    alive = Math.max(alive, process.memoryUsage().heapUsed)
  }
  const timer = setInterval(look, 200)
  await work()
  look()
  clearInterval(timer)
  return { value: alive / megabyte, allocated: Math.round(allocated / megabyte) }
}

export const memory: Workload = {
  name: "memory",
  ours: true,
  once: true,
  run: async ({ sizes }, session) => {
    const { enqueueStream } = session
    if (enqueueStream === undefined) return []
    const collect = collector()
    collect()
    const before = Math.round(process.memoryUsage().heapUsed / megabyte)
    const enqueued = await sampled(collect, () => enqueueStream(sizes.memory))
    let counted = { lost: sizes.memory, duplicated: 0 }
    const drained = await sampled(collect, async () => {
      counted = await drainAll(session, sizes.memory)
    })
    const { duplicated, lost } = counted
    const figure = { unit: "MB" as const, count: sizes.memory, before, lost: lost + (await session.left()), duplicated }
    const figures: ReadonlyArray<Figure> = [
      { workload: "memory enqueueStream", ...enqueued, ...figure },
      { workload: "memory drain", ...drained, ...figure }
    ]
    return figures
  }
}
