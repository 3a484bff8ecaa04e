/** What a process holds, when nothing is to be done. */
import { setImmediate, setTimeout } from "node:timers/promises"
import { Fiber } from "effect"

export interface Sample {
  /** Bytes, after garbage collection. */
  readonly heap: number
  readonly rss: number
  /** Live Effect fibers: roots and all their descendants. */
  readonly fibers: number
  readonly timers: number
  readonly sockets: number
}

type Counts = Pick<Sample, "fibers" | "timers" | "sockets">

const countFibers = (fibers: Iterable<Fiber.RuntimeFiber<unknown, unknown>>): number => {
  let count = 0
  for (const fiber of fibers) count += 1 + countFibers(childrenOf(fiber))
  return count
}

/** Read without asking the fiber, which would answer only when it runs next: most of these wait. */
const childrenOf = (fiber: Fiber.RuntimeFiber<unknown, unknown>): Iterable<Fiber.RuntimeFiber<unknown, unknown>> =>
  (fiber as { readonly _children?: Set<Fiber.RuntimeFiber<unknown, unknown>> | null })._children ?? []

const counts = (): Counts => {
  const resources = process.getActiveResourcesInfo()
  const of = (name: RegExp) => resources.filter((resource) => name.test(resource)).length
  return {
    fibers: countFibers(Fiber.unsafeRoots()),
    timers: of(/^Timeout$/),
    sockets: of(/^(TCPSocket|TLS)/)
  }
}

const collect = async (): Promise<void> => {
  if (globalThis.gc === undefined) throw new Error("a soak needs node --expose-gc")
  for (let round = 0; round < 3; round++) {
    globalThis.gc()
    await setImmediate()
  }
}

const least = (samples: ReadonlyArray<Counts>, of: keyof Counts): number =>
  Math.min(...samples.map((sample) => sample[of]))

/** The least of what was seen for a second: heartbeats, polls and sweeps come and go, leaks stay. */
export const measure = async (): Promise<Sample> => {
  const samples: Array<Counts> = []
  for (let look = 0; look < 20; look++) {
    samples.push(counts())
    await setTimeout(50)
  }
  await collect()
  const { heapUsed, rss } = process.memoryUsage()
  return {
    heap: heapUsed,
    rss,
    fibers: least(samples, "fibers"),
    timers: least(samples, "timers"),
    sockets: least(samples, "sockets")
  }
}
