/** The load of the scenarios: two workers and a producer, and what is done to them. */
import { setTimeout } from "node:timers/promises"
import type { Child } from "../support/processes/launch.js"
import { until } from "../support/until.js"
import type { Arena } from "./arena.js"
import type { Config, Style } from "./config.js"

export interface Load {
  readonly workers: Array<Child>
  producer: Child
  /** Another worker, or producer, of the same kind. */
  readonly worker: (more?: Partial<Config>) => Promise<Child>
  readonly produce: () => Promise<Child>
  /** Waits until it goes on, then ends the producer. */
  readonly finish: () => Promise<void>
}

/**
 * One worker can do all of it by itself, long jobs that begin anew again and again among it: a wait for a free handler would look
 * like a late recovery. Each transactional handler has a connection of its own.
 */
const concurrency: Readonly<Record<Style, number>> = { worker: 64, settling: 64, transactional: 16 }

/** More than the visibility timeout: only renewals keep these. */
const longMillis = 2_600

export const startLoad = async (arena: Arena, style: Style = "settling", more: Partial<Config> = {}): Promise<Load> => {
  // A transactional handler has SQLite's write lock to itself: long ones are refused there
  const alone = style === "transactional" && arena.engine === "sqlite"
  const orders = {
    everyMillis: style === "transactional" ? 120 : 50,
    ...(alone ? {} : { longEvery: 12, longMillis: more.longMillis ?? longMillis })
  }
  const produce = () => arena.ready({ role: "produce", ...orders })
  const worker: Load["worker"] = (config = {}) =>
    arena.ready({ role: "work", style, concurrency: concurrency[style], ...more, ...config })
  const workers = await Promise.all([worker(), worker()])
  const load: Load = {
    workers,
    producer: await produce(),
    worker,
    produce,
    finish: async () => {
      await progress(arena)
      await arena.terminate(load.producer)
    }
  }
  await progress(arena)
  return load
}

/** Waits until more handlers have done their work. */
export const progress = async (arena: Arena, millis = 20_000): Promise<void> => {
  const worked = () => arena.ledger().filter(({ event }) => event === "worked").length
  const before = worked()
  await until("the work goes on", () => worked() > before + 3, millis)
}

/** Between two blows: as the seed says. */
export const pause = (millis: number): Promise<void> => setTimeout(millis)

/** Whether it has been at a job for so long: for 300 ms only at the long ones. */
export const atWork = (arena: Arena, { pid }: Child, millis = 300): boolean => {
  const over = new Set(arena.ledger().flatMap(({ event, token }) => (event === "worked" ? [token] : [])))
  const before = Date.now() - millis
  return arena
    .ledger()
    .some((entry) => entry.event === "start" && entry.pid === pid && entry.at < before && !over.has(entry.token))
}
