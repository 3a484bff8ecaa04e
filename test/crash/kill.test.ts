/** SIGKILL at random moments under load, again and again. */
import * as fc from "fast-check"
import { describe, expect, it } from "vitest"
import { isLong, runs, seed, timeout } from "../support/form.js"
import { type Arena, engines, expectSafe, openArena } from "./arena.js"
import type { Style } from "./config.js"
import { pause, startLoad } from "./load.js"

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
  for (const { after, producer, victim } of blows) {
    await pause(after)
    const one = load.workers[victim]
    if (one !== undefined) await arena.kill(one)
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
      const count = isLong ? 12 : 4
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
})
