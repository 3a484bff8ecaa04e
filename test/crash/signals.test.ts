/** SIGTERM under load, and SIGSTOP for longer than a lease, with SIGCONT behind it. */
import Database from "better-sqlite3"
import { describe, expect, it } from "vitest"
import { runs, seed, timeout } from "../support/form.js"
import type { Child } from "../support/processes/launch.js"
import { until } from "../support/until.js"
import { type Arena, engines, expectSafe, openArena, visibilityMillis } from "./arena.js"
import { atWork, pause, progress, startLoad } from "./load.js"

const graceMillis = 400

/** Whether SQLite's write lock is free: a process that is stopped with it would stop everybody else too. */
const writable = ({ database, engine }: Arena): boolean => {
  if (engine === "postgres") return true
  const file = new Database(database, { timeout: 200 })
  try {
    file.exec("BEGIN IMMEDIATE; ROLLBACK")
    return true
  } catch {
    return false
  } finally {
    file.close()
  }
}

/** Stops it while it has a job that it cannot end before its lease does, outside of a write. */
const freeze = async (arena: Arena, child: Child) => {
  await until("it has a long job", () => atWork(arena, child), 30_000)
  const from = await until("it is stopped", () => {
    const at = Date.now()
    child.signal("SIGSTOP")
    if (writable(arena)) return at
    child.signal("SIGCONT")
    return undefined
  })
  await pause(visibilityMillis + 1_500)
  child.signal("SIGCONT")
  arena.fault({ kind: "freeze", pid: child.pid, from, to: Date.now() })
}

describe.each(engines)("%s", (engine) => {
  it(
    "SIGTERM under load: what is given back starts elsewhere, and no lease is left to end (G81, G82)",
    async () => {
      await using arena = await openArena(engine)
      const load = await startLoad(arena, "settling", { graceMillis })
      for (let round = 0; round < runs(2, 30); round++) {
        const victim = load.workers.shift()
        if (victim !== undefined) await arena.terminate(victim)
        await progress(arena)
        load.workers.push(await load.worker())
      }
      await load.finish()
      const verdict = await arena.verdict("SIGTERM under load")
      expectSafe(verdict)
      expect(verdict.lapsed).toBe(0)
      expect(verdict.recovered).toBeGreaterThan(0)
      // The grace, and as the rest of the bound says
      expect(verdict.timeToRecoverMillis).toBeLessThanOrEqual(graceMillis + 2_000)
    },
    timeout(90_000, 300_000)
  )

  it(
    "a worker that was stopped for longer than its leases completes none of them (G13, G19, G28, G32)",
    async () => {
      await using arena = await openArena(engine)
      const load = await startLoad(arena)
      for (let round = 0; round < runs(2, 20); round++) {
        const victim = load.workers[(seed + round) % 2]
        if (victim === undefined) throw new Error("there are two")
        await freeze(arena, victim)
        await arena.noted("LeaseLost", { pid: victim.pid })
        await progress(arena)
      }
      await load.finish()
      const verdict = await arena.verdict("SIGSTOP and SIGCONT")
      expectSafe(verdict)
      expect(verdict.recovered).toBeGreaterThan(0)
    },
    timeout(90_000, 300_000)
  )
})
