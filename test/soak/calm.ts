/** A calm window: nothing is enqueued, nothing goes wrong, and everything that was begun comes to its end. */
import { SqlClient } from "@effect/sql"
import { Schedules } from "alkstore"
import { Effect, type ManagedRuntime } from "effect"
import { until } from "../support/until.js"
import { type Account, type Books, settleAccounts } from "./account.js"
import { Exact, Fragile, Mail, Morgue, Unattended, Work } from "./config.js"
import type { Services } from "./engine.js"
import type { Worker } from "./fleet.js"
import { tick } from "./load.js"
import { measure } from "./measure.js"
import type { Place } from "./place.js"
import type { Window } from "./verdict.js"

export type Runtime = ManagedRuntime.ManagedRuntime<Services, unknown>

interface Options {
  readonly place: Place
  readonly runtime: Runtime
  readonly account: Account
  readonly resident: Worker
  readonly processes: number
}

/** After the last fault, connections may be on their way back. */
const patience = 60_000

/** Until it succeeds: the database may have to be found again. */
export const insist = <A, E>(runtime: Runtime, what: string, effect: Effect.Effect<A, E, Services>) =>
  until(what, () => runtime.runPromise(Effect.option(effect)).then(({ _tag }) => _tag === "Some"), patience)

const answered = (books: Books) => until("every enqueue is answered", () => books.unanswered() === 0, patience)

/** Live jobs that are left, and letters that are to be requeued. */
const left = async (place: Place) => {
  const rows = await place.rowCounts()
  return rows.jobs ?? rows._alkstore_jobs ?? Number.NaN
}

const queues = [Work, Exact, Fragile, Morgue, Mail, Unattended]

const drained = async ({ place, runtime }: Options) => {
  let was = Number.NaN
  try {
    await until(
      "every job is done",
      async () => {
        const requeued = await runtime.runPromise(Effect.option(Work.deadLetters.requeue({ reason: "failed" })))
        was = await left(place)
        return requeued._tag === "Some" && requeued.value.requeued === 0 && was === 0
      },
      patience
    )
  } catch (error) {
    const counts = await runtime.runPromise(Effect.either(Effect.forEach(queues, ({ counts }) => counts)))
    throw new Error(`${was} jobs are stuck in the live table: ${String(error)}; ${JSON.stringify(counts)}`)
  }
}

/** All letters that are left, by serial number. */
const letters = (engine: Place["engine"]) =>
  Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    const table = sql.literal(engine === "sqlite" ? `"_alkstore_dead_letters"` : `"alkstore"."dead_letters"`)
    const rows = yield* sql<{ payload: string; reason: string; queue: string }>`
      SELECT payload, reason, queue FROM ${table} WHERE queue IN (${Work.name}, ${Unattended.name})`
    return new Map(rows.map(({ payload, reason }) => [Number(JSON.parse(payload).serial), { reason }] as const))
  })

const emptyTables = /(jobs|dead_letters|dedupe_keys|lane_marks|lane_blocks|ended_locks)$/

/** What passes by itself, by sweeps and the ends of leases: how long that takes is no promise of the soak's. */
const swept = async ({ place }: Options) => {
  try {
    await until(
      "what is left over has been swept",
      async () =>
        Object.entries(await place.rowCounts()).every(([name, count]) => !emptyTables.test(name) || count === 0),
      15_000
    )
  } catch {
    // The verdicts say what is left
  }
}

/** Waits for the end of all that is under way, accounts for it, and measures what is left. */
export const calm = async (options: Options): Promise<Window> => {
  const { account, place, processes, resident, runtime } = options
  await insist(runtime, "the schedule is paused", Schedules.pause(tick.name))
  await answered(account.books)
  await drained(options)
  const dead = await runtime.runPromise(letters(place.engine))
  await runtime.runPromise(settleAccounts(account, dead))
  for (const { deadLetters, name } of [Work, Unattended])
    await insist(runtime, `letters of ${name} are purged`, deadLetters.purge({ all: true }))
  await swept(options)
  const [sample, producer] = await Promise.all([resident.measure(), measure()])
  return {
    jobs: account.settled(),
    resident: sample,
    producer,
    rows: await place.rowCounts(),
    ...((sizes) => ({ tables: sizes.tables, log: sizes.log }))(await place.sizes()),
    connections: await place.connections(),
    processes
  }
}
