/** One soak of one engine: load and faults by turns with calm windows, and the books and measurements of each. */
import { setTimeout } from "node:timers/promises"
import { SqlClient } from "@effect/sql"
import { Schedules } from "alkstore"
import { Effect, Fiber, ManagedRuntime, Random } from "effect"
import { bundle } from "../support/processes/bundle.js"
import { type Account, makeAccount } from "./account.js"
import { calm, insist, type Runtime } from "./calm.js"
import { createTables, type EngineName, lanes } from "./config.js"
import { engineLayer } from "./engine.js"
import { makeFaults } from "./faults.js"
import { type Fleet, makeFleet, type Worker } from "./fleet.js"
import { load, tick } from "./load.js"
import { measure, type Sample } from "./measure.js"
import { openPlace, type Place } from "./place.js"
import { countsOf, reportOf } from "./report.js"
import { closedVerdicts, judge, type Verdict, type Window } from "./verdict.js"

export interface SoakOptions {
  readonly engine: EngineName
  readonly seconds: number
  readonly seed: number
  /** Jobs a second. */
  readonly rate: number
  readonly say: (line: string) => void
}

const graceMillis = 5_000

/** How long the stretches of a soak of so many seconds are. */
const pace = (seconds: number) => ({
  loadMillis: Math.min(60_000, Math.max(3_000, seconds * 80)),
  faultMillis: Math.min(8_000, Math.max(600, seconds * 25)),
  visibilityMillis: seconds < 60 ? 3_000 : 5_000
})

/** Events of workers that nothing in a soak explains. */
const alarming = new Set(["Restarted", "Restarting", "Failed", "GaveUp", "Stuck", "Undecodable", "HeartbeatReplaced"])

const watch =
  (account: Account, say: (line: string) => void): Parameters<typeof makeFleet>[2] =>
  (pid, { detail = "", event, job }) => {
    if (event === "LeaseLost" && job !== undefined) account.books.lost(job)
    if (event === "EventLoopBlocked") {
      const to = Date.now()
      account.faults.push({ name: event, who: pid, from: to - 10_000, to, excuse: true })
    }
    if (!alarming.has(event)) return
    say(`process ${pid}: ${event} ${detail}`)
    account.wrong(`process ${pid} told of ${event}: ${detail}`)
  }

const prepare = Effect.gen(function* () {
  yield* createTables
  const sql = yield* SqlClient.SqlClient
  yield* Effect.forEach(lanes, (lane) => sql`INSERT INTO soak_lanes ${sql.insert({ lane, last: 0 })}`)
})

/** What lives as long as the soak does. */
interface Stage {
  readonly options: SoakOptions
  readonly place: Place
  readonly runtime: Runtime
  readonly account: Account
  readonly fleet: Fleet
  readonly resident: Worker
  readonly guests: Array<Worker>
}

/** Load, and one fault after another, for so long. */
const stretch = async ({ account, options, runtime }: Stage, next: () => Promise<void>, millis: number) => {
  const { faultMillis } = pace(options.seconds)
  const end = Date.now() + millis
  // Put with the first load, and not before: a boundary that is owed comes before a pause
  const ticking = Effect.zipRight(Schedules.put(tick), Schedules.resume(tick.name))
  await insist(runtime, "the schedule is resumed", ticking)
  const seeded = Effect.withRandom(
    load(account.books, options.rate),
    Random.make(options.seed + account.totals.enqueued)
  )
  const fiber = runtime.runFork(seeded)
  try {
    while (Date.now() + faultMillis < end) {
      await setTimeout(faultMillis)
      await next()
    }
    await setTimeout(Math.max(0, end - Date.now()))
  } finally {
    await runtime.runPromise(Fiber.interrupt(fiber))
  }
}

const soaking = async (stage: Stage) => {
  const { account, fleet, guests, options, place, resident } = stage
  const random = Random.make(options.seed)
  const { loadMillis, visibilityMillis } = pace(options.seconds)
  const faults = makeFaults({
    place,
    fleet,
    guests,
    visibilityMillis,
    random: () => Effect.runSync(random.next),
    record: (fault) => void account.faults.push(fault),
    wrong: account.wrong
  })
  const windows: Array<Window> = []
  const began = Date.now()
  const progress = () =>
    options.say(
      `${((Date.now() - began) / 1_000).toFixed(0).padStart(5)} s  ${account.settled()} jobs accounted for, ${account.entries.size} open, ${windows.length} windows, ${account.violations.length} violations; ${countsOf(faults.counts)}`
    )
  const timer = setInterval(progress, 10_000)
  try {
    while (windows.length < 3 || Date.now() - began + loadMillis < options.seconds * 1_000) {
      await stretch(stage, faults.next, loadMillis)
      const processes = 2 + guests.length
      windows.push(await calm({ ...stage, processes }))
    }
  } finally {
    clearInterval(timer)
  }
  progress()
  return { windows, faults: faults.counts, resident: await closing(stage, [resident, ...guests]) }
}

/** All processes end by themselves. Answers what the resident held last. */
const closing = async ({ account }: Stage, workers: ReadonlyArray<Worker>): Promise<Sample | undefined> => {
  const ends = await Promise.all(workers.map((worker) => worker.finish()))
  ends.forEach(({ exit }, n) => {
    if (exit !== 0) account.wrong(`process ${workers[n]?.pid} was asked to end, and ended with ${exit}`)
  })
  return ends[0]?.sample
}

/** Runs a soak, prints its verdicts, and answers whether all is as it should be. */
export const soak = async (options: SoakOptions): Promise<boolean> => {
  const { engine, rate, say, seconds, seed } = options
  say(`soak of ${engine}: ${seconds} s, ${rate} jobs a second, seed ${seed}`)
  const account = makeAccount()
  const place = await openPlace(engine)
  const runtime: Runtime = ManagedRuntime.make(engineLayer(engine, place.database, false))
  const { visibilityMillis } = pace(seconds)
  const script = await bundle(new URL("child.ts", import.meta.url))
  const config = { engine, database: place.database, visibilityMillis, graceMillis }
  const fleet = makeFleet(script, config, watch(account, say))
  try {
    await runtime.runPromise(prepare)
    const [resident, ...guests] = await Promise.all([fleet.start(), fleet.start(), fleet.start()])
    const stage: Stage = { options, place, runtime, account, fleet, resident, guests }
    const { faults, resident: last, windows } = await soaking(stage)
    const rows = await place.rowCounts()
    await runtime.dispose()
    const producer = await measure()
    const connections = await place.connections()
    const verdicts: ReadonlyArray<Verdict> = [
      ...account.verdicts(),
      ...judge(engine, windows),
      ...closedVerdicts({ resident: last, producer, rows, connections })
    ]
    for (const line of reportOf({ verdicts, violations: account.violations, totals: account.totals, faults, windows }))
      say(line)
    return verdicts.every(({ pass }) => pass)
  } catch (error) {
    for (const violation of account.violations) say(`VIOLATION: ${violation}`)
    say(`ENDED EARLY: ${error instanceof Error ? error.stack : String(error)}`)
    return false
  } finally {
    fleet.killAll()
    await runtime.dispose()
    await place.close()
  }
}
