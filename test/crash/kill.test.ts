/** SIGKILL at random moments under load, again and again. */
import * as fc from "fast-check"
import { describe, expect, it } from "vitest"
import { isLong, runs, seed, timeout } from "../support/form.js"
import { until } from "../support/until.js"
import { type Arena, engines, expectSafe, openArena } from "./arena.js"
import type { Style } from "./config.js"
import { atWork, pause, startLoad } from "./load.js"

interface Blow {
  /** Milliseconds after the blow before. */
  readonly after: number
  readonly victim: number
  readonly producer: boolean
}

const blow: fc.Arbitrary<Blow> = fc.record({
  after: fc.integer({ min: 50, max: 1_500 }),
  victim: fc.nat({ max: 1 }),
  producer: fc.boolean()
})

const strike = async (arena: Arena, style: Style, blows: ReadonlyArray<Blow>) => {
  const load = await startLoad(arena, style)
  for (const [n, { after, producer, victim }] of blows.entries()) {
    await pause(after)
    const one = load.workers[victim]
    if (one === undefined) throw new Error("there are two")
    // One at least in the middle of something, the others wherever they are
    if (n === 0) await until("it is at work", () => atWork(arena, one, 0), 30_000)
    await arena.kill(one)
    if (producer) await arena.kill(load.producer)
    load.workers[victim] = await load.worker()
    if (producer) load.producer = await load.produce()
  }
  await load.finish()
}

describe.each(engines)("%s", (engine) => {
  it.each(["settling", "transactional"] as const)(
    "workers and producers that are killed at random, %s handlers (G1, G12, G19, G31)",
    async (style) => {
      const count = isLong ? 12 : 3
      const rounds = fc.sample(fc.array(blow, { minLength: count, maxLength: count }), { seed, numRuns: runs(1, 6) })
      for (const [round, blows] of rounds.entries()) {
        await using arena = await openArena(engine)
        await strike(arena, style, blows)
        const verdict = await arena.verdict(`SIGKILL at random, ${style}, seed ${seed}, round ${round}`)
        expectSafe(verdict)
        expect(verdict.recovered).toBeGreaterThan(0)
      }
    },
    timeout(90_000, 600_000)
  )

  it(
    "the only job of an idle fleet, whose handler kills its process (G31, G58)",
    async () => {
      await using arena = await openArena(engine)
      let taken = 0
      for (let n = 0; taken < runs(2, 20); n++) {
        const victim = await arena.ready({ role: "work", point: { in: "work" } })
        const heir = await arena.ready({ role: "work" })
        await arena.order(`order ${n}`, 10)
        await until("it is done", async () => (await arena.rows("SELECT name FROM effects")).length > n, 15_000)
        const started = arena.ledger().some(({ event, pid }) => event === "start" && pid === victim.pid)
        if (started) taken++
        await (started ? arena.died(victim) : arena.terminate(victim))
        await arena.terminate(heir)
      }
      const verdict = await arena.verdict("the only job of an idle fleet")
      expectSafe(verdict)
      expect(verdict.recovered).toBe(taken)
    },
    timeout(90_000, 600_000)
  )
})
