/** The suite of one engine: its services' calls, one after another, each with faults at all of its statements. */
import { type Context, Effect, Exit, Layer, Scope } from "effect"
import { afterAll, beforeAll, describe, expect, it } from "vitest"
import { timeout } from "../support/form.js"
import { type Cases, callsOf } from "./cases/enumerate.js"
import { serviceCases } from "./cases/index.js"
import type { Database, FaultServices } from "./engines.js"
import { silence, type Totals, tryCase } from "./methods.js"

const minutes = timeout(120_000, 1_800_000)

/** Of which promises these are proofs, too. */
const proofs: Readonly<Record<string, string>> = { "alkstore/Queue": "G11, G12, G13, G16, G88, G190: " }

export const methodSuite = (make: Effect.Effect<Database, unknown, Scope.Scope>): void => {
  const totals: Totals = { methods: 0, statements: 0, faults: 0, recovered: 0, uncertain: 0, refused: 0 }
  let turns = 0
  const scope = Effect.runSync(Scope.make())
  let database: Database
  let services: Context.Context<FaultServices>

  beforeAll(async () => {
    database = await Effect.runPromise(Scope.extend(make, scope))
    services = await Effect.runPromise(Scope.extend(Effect.provide(Layer.build(database.layer()), silence), scope))
  })
  afterAll(async () => {
    await Effect.runPromise(Scope.close(scope, Exit.void))
    const { faults, methods, recovered, statements, uncertain } = totals
    console.log(
      `fault (${database.name}): ${methods} methods, ${statements} statements, ${faults} faults, ${recovered} recovered, ${uncertain} uncertain`
    )
  })

  it("each call of each service has a case", () => {
    const built = [...services.unsafeMap].filter(([key]) => key.startsWith("alkstore/"))
    const calls = built.map(([key, service]) => [key, callsOf(service)])
    const cases = Object.entries(serviceCases).map(([key, some]) => [key, Object.keys(some).sort()])
    expect(Object.fromEntries(cases)).toEqual(Object.fromEntries(calls))
  })

  for (const [key, cases] of Object.entries<Cases>(serviceCases)) {
    describe(`${key.replace("alkstore/", "")}: ${proofs[key] ?? ""}a statement that fails, each in turn`, () => {
      it.each(Object.entries(cases))(
        "%s",
        async (_, some) => {
          const problems: Array<string> = []
          for (const one of some) {
            const trying = tryCase(database, one, totals, () => turns++)
            problems.push(...(await Effect.runPromise(trying.pipe(Effect.provide(services), Effect.provide(silence)))))
          }
          totals.methods++
          expect(problems.join("\n")).toBe("")
        },
        minutes
      )
    })
  }
}
