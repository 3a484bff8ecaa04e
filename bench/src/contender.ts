/**
 * What the benchmarks ask of a job queue, whoever made it.
 */

/** About 100 bytes as JSON. */
export interface Payload {
  readonly n: number
  readonly text: string
}

export const payload = (n: number): Payload => ({ n, text: "x".repeat(84) })

export const payloads = (count: number, from = 0): Array<Payload> =>
  Array.from({ length: count }, (_, index) => payload(from + index))

/** The JSON of a payload that no inbox counts, for clutter. */
export const idlePayload = JSON.stringify(payload(-1))

export type Engine = "postgres" | "sqlite"

/** Rows that stand beside the jobs to be drained. */
export interface Clutter {
  /** Due in a day. */
  readonly delayed: number
  /** Finished, failed or dead, half and half, where the queue keeps them. */
  readonly finished: number
  /** Ready, after the jobs to be drained. */
  readonly ready: number
  readonly where: "same queue" | "another queue"
}

/** A queue that is open, in a process of its own and a database of its own. */
export interface Session {
  /** Adds jobs by single calls, so many of them at a time. */
  readonly enqueue: (jobs: ReadonlyArray<Payload>, inFlight: number) => Promise<void>
  /** Adds jobs by calls for so many each. */
  readonly enqueueMany: (jobs: ReadonlyArray<Payload>, size: number) => Promise<void>
  /** Starts one worker; the answer stops it, when all that was handled has been settled. */
  readonly work: (handler: (job: Payload) => void) => Promise<() => Promise<void>>
  /** How many jobs are neither done nor dead. */
  readonly left: () => Promise<number>
  readonly close: () => Promise<void>
  /** Ours: adds one job, answers `"enqueued"` or the tag of the typed error; anything else rejects. */
  readonly tryEnqueue?: (job: Payload) => Promise<string>
  /** Ours: adds so many jobs from a Stream. */
  readonly enqueueStream?: (count: number) => Promise<void>
}

export interface Contender {
  readonly name: string
  readonly engine: Engine
  /** What it was set to, as printed. */
  readonly settings: string
  /** Whose figure is the limit, not a peer's. */
  readonly raw?: boolean
  /** This library. */
  readonly ours?: boolean
  /** Workloads (or how their names start) it cannot do, or not in any sensible time, and why. */
  readonly without?: Readonly<Record<string, string>>
  /** The only workloads (or how their names start) it takes part in. */
  readonly only?: ReadonlyArray<string>
  /** A share of the counts by workload (or how its name starts), for who would take minutes. */
  readonly scale?: Readonly<Record<string, number>>
  /** `where` is a URL or a file; `queue`, if it is not the usual one, is ours alone. */
  readonly open: (where: string, queue?: string) => Promise<Session>
  /** Puts rows beside, straight into its tables, which are there. */
  readonly clutter?: (where: string, clutter: Clutter) => Promise<void>
}

/** Calls `each` for all, so many at a time. */
export const inFlight = async <A>(all: ReadonlyArray<A>, most: number, each: (one: A) => Promise<unknown>) => {
  let next = 0
  const lane = async () => {
    while (next < all.length) await each(all[next++] as A)
  }
  await Promise.all(Array.from({ length: most }, lane))
}

export const chunks = <A>(all: ReadonlyArray<A>, size: number): Array<ReadonlyArray<A>> =>
  Array.from({ length: Math.ceil(all.length / size) }, (_, n) => all.slice(n * size, (n + 1) * size))

export const sleep = (millis: number) => new Promise<void>((resolve) => setTimeout(resolve, millis))

/** A peer, installed for the benchmarks alone: typed by whoever uses it, so that checking needs none of them. */
export const load = async <A>(name: string): Promise<A> => {
  const module = (await import(name)) as { readonly default?: unknown }
  return (module.default ?? module) as A
}
