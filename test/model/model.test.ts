/**
 * A reference model of the contract's state machine: random lists of commands run against the model and an engine, and
 * after each the two agree. What is printed at the end tells how often each thing has happened.
 */
import { layer } from "@effect/vitest"
import { Effect } from "effect"
import { expect } from "vitest"
import { type EngineServices, type EngineUnderTest, postgres, sqliteFile, sqliteMemory } from "../support/engines.js"
import { isLong, runs, seed, timeout } from "../support/form.js"
import { missing, summary } from "./coverage.js"
import { queues } from "./queues.js"
import { failure, type Tally } from "./sequence.js"

const short = 56
const sequences = runs(short, 20 * short)

const agrees = (engine: EngineUnderTest) =>
  Effect.gen(function* () {
    const runtime = yield* Effect.runtime<EngineServices>()
    // Their settings are known to the process from here on
    for (const queue of Object.values(queues)) yield* queue.claim()
    const tally: Tally = { counts: new Map(), commands: 0, draining: 0 }
    for (let n = 0; n < sequences; n++) {
      const why = yield* Effect.promise(() => failure(runtime, engine, tally, seed + n))
      if (why !== undefined) expect.fail(why)
    }
    console.log(summary(engine.name, { sequences, seed, ...tally }, tally.counts))
    // Few sequences from another seed may lack what is rare
    if (sequences >= short && (isLong || seed === 1)) expect(missing(tally.counts), "what never happened").toEqual([])
  })

for (const engine of isLong ? [sqliteMemory, sqliteFile, postgres] : [sqliteMemory, postgres])
  layer(engine.layer({ virtual: true }))(engine.name, (it) => {
    it.effect(
      "agrees with the model after each command (G9, G12, G19, G20, G28, G40, G51, G160, G164)",
      () => agrees(engine),
      timeout(240_000, 3_600_000)
    )
  })
