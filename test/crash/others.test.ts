/** SIGKILL of who migrates, of who fires schedules, and of who holds a lock. */

import { Schedules } from "alkstore"
import Database from "better-sqlite3"
import { describe, expect, it } from "vitest"
import { isLong } from "../support/form.js"
import { withClient } from "../support/postgres.js"
import { until } from "../support/until.js"
import { type Arena, engines, expectSafe, openArena } from "./arena.js"
import { Order, Orders, type Point } from "./config.js"

/** Read by a plain connection: the library's would migrate. */
const tablesOf = async ({ database, engine }: Arena): Promise<ReadonlyArray<string>> => {
  if (engine === "postgres") {
    const text = "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'alkstore'"
    return withClient(database, async (client) => (await client.query(text)).rows.map(({ name }) => String(name)))
  }
  const file = new Database(database)
  const rows = file.prepare("SELECT name FROM sqlite_master WHERE name LIKE '\\_alkstore%' ESCAPE '\\'").all()
  file.close()
  return rows.map((row) => String((row as { readonly name: string }).name))
}

/** The n-th statement of a migration. */
const nth = (n: number): Point => ({ when: "before", statements: Array.from({ length: n }, () => "alkstore:migrate") })

const migrationPoints: ReadonlyArray<Point> = [
  ...(isLong ? Array.from({ length: 40 }, (_, n) => n + 2) : [5, 13, 25]).map(nth),
  { when: "before", statements: ["alkstore:migrate", "COMMIT"] },
  { when: "after", statements: ["alkstore:migrate", "COMMIT"] }
]

const everySecond = Schedules.make("every second", {
  every: "1 second",
  queue: Orders,
  payload: new Order({ name: "scheduled", millis: 10 }),
  catchUp: "all"
})

const firePoints: ReadonlyArray<Point> = [
  { when: "after", statements: ["schedule_due", "alkstore:enqueue"] },
  { when: "before", statements: ["schedule_advance", "COMMIT"] },
  { when: "after", statements: ["schedule_advance", "COMMIT"] }
]

describe.concurrent.each(engines)("%s", (engine) => {
  it(
    "a process that dies while it migrates leaves all of it or nothing, and the next one works (G84)",
    async () => {
      await using arena = await openArena(engine, { empty: true })
      for (const point of migrationPoints) {
        await arena.died(arena.start({ role: "serve", point }))
        const tables = await tablesOf(arena)
        if (point !== migrationPoints.at(-1)) expect(tables).toEqual([])
        else expect(tables.length).toBeGreaterThan(10)
      }
      await arena.audit()
      await arena.order("order", 10)
      await arena.ready({ role: "work" })
      const verdict = await arena.verdict(`killed at ${migrationPoints.length} points of a migration`)
      expectSafe(verdict)
      expect(verdict).toMatchObject({ orders: 1, attempts: 1 })
    },
    isLong ? 300_000 : 60_000
  )

  it("a process that dies while it fires a schedule leaves each boundary one effect (G101)", async () => {
    await using arena = await openArena(engine)
    await arena.run(Schedules.put(everySecond))
    await arena.ready({ role: "work" })
    for (const point of firePoints) await arena.died(arena.start({ role: "serve", scheduler: true, point }))
    await arena.ready({ role: "serve", scheduler: true })
    const effects = async () =>
      (await arena.rows("SELECT name FROM effects ORDER BY name")).map(({ name }) => String(name))
    await until("each has had its turn", async () => (await effects()).length >= 8, 40_000)
    const names = await effects()
    const first = Date.parse(names[0] ?? "")
    expect(names).toEqual(names.map((_, n) => new Date(first + n * 1_000).toISOString()))
    console.log(
      `crash: ${engine}, killed at ${firePoints.length} points of a firing: ${names.length} boundaries, each once`
    )
  }, 60_000)

  it(
    "who dies with a lock has it until its time is over, and no longer (G67, G69)",
    async () => {
      const lockMillis = 2_000
      await using arena = await openArena(engine)
      const times: Array<number> = []
      const heir = await arena.ready({ role: "guard", lockMillis })
      for (let round = 0; round < (isLong ? 10 : 2); round++) {
        const victim = arena.start({ role: "guard", lockMillis, point: { in: "work" } })
        await arena.died(victim)
        const fell = arena.ledger().findIndex(({ event, pid }) => event === "unlocked" && pid === victim.pid)
        const next = await until("the heir has the lock", () =>
          arena
            .ledger()
            .slice(fell)
            .find(({ event, pid }) => event === "locked" && pid === heir.pid)
        )
        times.push(next.at - (arena.ledger()[fell]?.at ?? 0))
      }
      await arena.kill(heir)
      // Steps never meet: each begins when the one before is over, and none is lost
      const steps = arena
        .ledger()
        .filter(({ event }) => /locked$/.test(event))
        .map(({ event }) => event)
      const done = steps.filter((event) => event === "unlocked").length
      expect(steps.slice(0, 2 * done)).toEqual(
        Array.from({ length: 2 * done }, (_, n) => (n % 2 === 0 ? "locked" : "unlocked"))
      )
      const [row] = await arena.rows("SELECT steps FROM guarded")
      expect(Number(row?.steps) - done).toBeGreaterThanOrEqual(0)
      expect(Number(row?.steps) - done).toBeLessThanOrEqual(1)
      console.log(
        `crash: ${engine}, killed with a lock: ${done} steps, concurrent 0, timeToRecoverMillis ${Math.max(...times)}`
      )
      expect(Math.max(...times)).toBeLessThanOrEqual(lockMillis + 2_000)
      // Not before its lease was over: the victim died within a step of its acquisition
      expect(Math.min(...times)).toBeGreaterThan(lockMillis / 2)
    },
    isLong ? 180_000 : 60_000
  )
})
