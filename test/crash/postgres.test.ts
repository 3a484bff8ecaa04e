/** A PostgreSQL whose backends are terminated, that stops and starts, and a network that goes silent. */
import * as fc from "fast-check"
import { afterAll, beforeAll, expect, it } from "vitest"
import { runs, seed, timeout } from "../support/form.js"
import { type Postgres, startPostgres, withClient } from "../support/postgres.js"
import { startProxy } from "../support/proxy.js"
import { until } from "../support/until.js"
import { type Arena, expectSafe, openArena, visibilityMillis } from "./arena.js"
import { atWork, pause, progress, startLoad } from "./load.js"

let server: Postgres

beforeAll(async () => {
  // A server that is ended at once must not lose what it has answered
  server = await startPostgres({ own: true, settings: { synchronous_commit: "on" } })
})
afterAll(() => server.stop())

/** Drawn from the seed, the same for each run of it. */
const draw = (min: number, max: number, count: number): ReadonlyArray<number> =>
  fc.sample(fc.integer({ min, max }), { seed, numRuns: count })

const terminateAll = (url: string) =>
  withClient(url, (client) =>
    client.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
  )

/** Whether wakes are heard again, which no poll can be: it comes every five seconds. */
const expectPrompt = async (arena: Arena) => {
  for (let n = 0; n < 3; n++) {
    await arena.order(`prompt ${n}`, 10)
    const enqueued = Date.now()
    await until("its effect", async () =>
      (await arena.rows("SELECT name FROM effects")).some(({ name }) => name === `prompt ${n}`)
    )
    expect(Date.now() - enqueued).toBeLessThan(2_500)
  }
}

it(
  "all backends terminated, about every second, under load (G1, G12, G19, G61, G75)",
  async () => {
    await using arena = await openArena("postgres", { url: await server.createDatabase() })
    const load = await startLoad(arena)
    for (const millis of draw(500, 1_300, runs(5, 60))) {
      await pause(millis)
      const from = Date.now()
      await terminateAll(arena.database)
      arena.fault({ kind: "terminate", from, to: from })
    }
    await load.finish()
    await arena.settled()
    await expectPrompt(arena)
    expectSafe(await arena.verdict(`all backends terminated, seed ${seed}`))
  },
  timeout(90_000, 300_000)
)

it.each(["fast", "immediate"] as const)(
  "the server stopped, %s, and started every few seconds under load (G1, G12, G19, G43, G61, G75)",
  async (mode) => {
    await using arena = await openArena("postgres", { url: await server.createDatabase() })
    const load = await startLoad(arena)
    for (const millis of draw(1_000, 3_000, runs(2, 20))) {
      await pause(millis)
      const from = Date.now()
      await server.halt(mode)
      await pause(millis / 3)
      await server.start()
      arena.fault({ kind: "outage", from, to: Date.now() })
      await progress(arena)
    }
    await load.finish()
    await arena.settled()
    await expectPrompt(arena)
    expectSafe(await arena.verdict(`the server stopped (${mode}) and started, seed ${seed}`))
  },
  timeout(90_000, 300_000)
)

/** What the application's own connections need, so that a transaction of a client that is gone does not keep its rows. */
const forgetful = (url: string) => {
  const to = new URL(url)
  to.searchParams.set("options", "-c idle_in_transaction_session_timeout=1000")
  return to.href
}

it(
  "one worker cut off without a word while another lives, and back again (G19, G33, G61, G75)",
  async () => {
    const url = await server.createDatabase()
    await using arena = await openArena("postgres", { url })
    const proxy = await startProxy(url)
    // All hear of a job as late: otherwise the others always take it first
    const open = await startProxy(url)
    try {
      // Some are so long that who did not stop would be found at them long after their leases
      const load = await startLoad(arena, "settling", { longMillis: 5_000, database: open.url })
      const far = await load.worker({ database: forgetful(proxy.url) })
      const begun = () => arena.ledger().filter(({ event, pid }) => event === "start" && pid === far.pid).length
      for (const millis of draw(200, 1_000, runs(1, 15))) {
        await until("it has a long job", () => atWork(arena, far), 30_000)
        await pause(millis)
        const from = Date.now()
        proxy.hold()
        await pause(visibilityMillis + 1_500)
        proxy.pass()
        arena.fault({ kind: "cut", pid: far.pid, from, to: Date.now() })
        const meanwhile = begun()
        await until("it works again", () => begun() > meanwhile + 3, 30_000)
      }
      await load.finish()
      const verdict = await arena.verdict(`one worker cut off by its network, seed ${seed}`)
      expectSafe(verdict)
      expect(verdict.recovered).toBeGreaterThan(0)
    } finally {
      await proxy.close()
      await open.close()
    }
  },
  timeout(90_000, 300_000)
)
