/**
 * The protocols of leases (G19, G28, G30, G31, G32, G33, G52, G120), ordering keys (G160, G164, G165), wakes (G59, G63,
 * G193), locks (G67, G69, G70), schedules (G101, G109) and shared commits (G190, G191), as small models that Spin searches
 * through: every order of the steps of every process, nothing left out. See the README beside this file.
 */
import { readdirSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { afterAll, describe, expect, test } from "vitest"
import { isLong, timeout } from "../support/form.js"
import { type Model, models } from "./models.js"
import { type Checker, makeChecker, missingTools } from "./spin.js"

const limit = timeout(60_000, 3_600_000)

const totals = { models: 0, properties: 0, states: 0, mutants: 0 }

const required = [process.env.CI, process.env.ALKSTORE_SPIN].some((set) => set !== undefined) || isLong

const chosen = models.filter(({ onlyLong }) => isLong || !onlyLong)

const absent = `${missingTools.join(" and ")} is not installed: NO MODEL WAS CHECKED. Debian, Ubuntu: apt-get install spin gcc libc6-dev; macOS: brew install spin, and the command line tools`

const numbersOf = (names: ReadonlyArray<string>): string =>
  [...new Set(names.map((name) => Number(/^G(\d+)_/.exec(name)?.[1])))]
    .sort((a, b) => a - b)
    .map((number) => `G${number}`)
    .join(", ")

const nameOf = ({ defines = [], file }: Model): string => [file, ...defines].join(" ")

test("the model checker is there", () => {
  if (missingTools.length > 0 && !required) console.warn(absent)
  expect(required ? missingTools : [], absent).toEqual([])
})

test("every model is checked", () => {
  const here = readdirSync(fileURLToPath(new URL(".", import.meta.url)))
  const files = new Set(models.map(({ file }) => file))
  expect(here.filter((file) => file.endsWith(".pml")).sort()).toEqual([...files].sort())
})

describe.runIf(missingTools.length === 0).each(chosen.map((model) => ({ name: nameOf(model), model })))(
  "$name",
  ({ model: { defines = [], file, long = [], mutants, proves }, name }) => {
    const checking = async <A>(
      more: ReadonlyArray<string>,
      optimise: 0 | 1 | 2,
      use: (checker: Checker) => Promise<A>
    ): Promise<A> => {
      const checker = await makeChecker(file, [...defines, ...more], optimise)
      try {
        return await use(checker)
      } finally {
        await checker.close()
      }
    }

    test(
      `holds: ${proves}`,
      () =>
        checking(isLong ? long : [], isLong ? 2 : 1, async ({ check, properties }) => {
          expect(numbersOf(properties)).toBe(proves)
          // Without a mutant that breaks it a property is not known to say anything
          expect(new Set(mutants.map(({ breaks }) => breaks))).toEqual(new Set(properties))
          for (const property of properties) {
            const { holds, report, states, transitions } = await check(property)
            expect(holds, report).toBe(true)
            console.log(`formal: ${name}: ${property}: ${states} states, ${transitions} transitions`)
            totals.states += states
          }
          totals.models++
          totals.properties += properties.length
        }),
      limit
    )

    test.each(mutants)(
      "$mutant is refuted by $breaks",
      ({ breaks, mutant }) =>
        checking([mutant], 0, async ({ check }) => {
          const { holds, report } = await check(breaks)
          expect(holds, report).toBe(false)
          totals.mutants++
        }),
      limit
    )
  }
)

afterAll(() => {
  const { models: count, mutants, properties, states } = totals
  console.log(`formal: ${count} models, ${properties} properties, ${states} states, ${mutants} mutants refuted`)
})
