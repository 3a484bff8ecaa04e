/** SQLite: writers that are killed in the middle of a transaction, the library's and strangers'. */
import * as fc from "fast-check"
import { expect, it } from "vitest"
import { runs, seed, timeout } from "../support/form.js"
import { expectSafe, openArena } from "./arena.js"
import type { Config } from "./config.js"
import { pause, progress, startLoad } from "./load.js"

const stops: ReadonlyArray<readonly [string, ReadonlyArray<string>]> = [
  ["alkstore:claim */", ["alkstore:claim */"]],
  ["alkstore:renew", ["alkstore:renew"]],
  ["an effect", ["INSERT INTO effects"]],
  ["alkstore:ack", ["alkstore:ack"]]
]

it(
  "workers that die inside of their write transactions under load (G1, G12, G19, G31)",
  async () => {
    await using arena = await openArena("sqlite")
    const load = await startLoad(arena)
    const order = fc.sample(fc.shuffledSubarray([...stops], { minLength: stops.length }), {
      seed,
      numRuns: runs(1, 12)
    })
    for (const [name, statements] of order.flat()) {
      const point: Config["point"] = { when: "after", statements: ["BEGIN IMMEDIATE", ...statements] }
      const victim = arena.start({ role: "work", style: "settling", point })
      await arena.died(victim).catch((error: unknown) => {
        throw new Error(`it never came to ${name}`, { cause: error })
      })
      await progress(arena)
    }
    await load.finish()
    const verdict = await arena.verdict(`writers killed in their transactions, seed ${seed}`)
    expectSafe(verdict)
    expect(verdict.recovered).toBeGreaterThan(0)
  },
  timeout(90_000, 300_000)
)

it(
  "strangers that hold the write lock, for longer than a lease too, and are killed with it (G1, G19, G31, G43)",
  async () => {
    await using arena = await openArena("sqlite")
    const load = await startLoad(arena)
    const holds = [...fc.sample(fc.integer({ min: 200, max: 1_200 }), { seed, numRuns: runs(2, 20) }), 3_500]
    for (const millis of holds) {
      const stranger = arena.start({ role: "stranger" })
      const { at: from } = await arena.noted("ready", { pid: stranger.pid })
      await pause(millis)
      stranger.signal("SIGKILL")
      await stranger.ended()
      arena.fault({ kind: "locked", from, to: Date.now() })
      await progress(arena)
    }
    await load.finish()
    const verdict = await arena.verdict(`strangers killed with the write lock, seed ${seed}`)
    expectSafe(verdict)
    expect((await arena.rows("SELECT name FROM orders WHERE name LIKE 'stranger%'")).length).toBe(0)
  },
  timeout(90_000, 300_000)
)
