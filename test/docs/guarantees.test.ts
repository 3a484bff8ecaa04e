/** Promises and tests know each other. */
import { expect, test } from "vitest"
import { filesUnder, read } from "./markdown.js"

const rows = [...read("docs/guarantees.md").matchAll(/^\| (G\d+) +\| (.*?) *\| (.*?) *\|$/gm)].map(
  ([, no = "", promise = "", provedBy = ""]) => ({ no, promise, provedBy })
)

const cited = new Map<string, Set<string>>()
for (const file of filesUnder("test", ".ts")) {
  if (file.startsWith("test/docs/")) continue
  for (const [no] of read(file).matchAll(/\bG\d+\b/g)) cited.set(no, (cited.get(no) ?? new Set()).add(file))
}

test("no number is given to two guarantees", () => {
  expect(rows.length).toBeGreaterThan(50)
  expect(new Set(rows.map(({ no }) => no)).size).toBe(rows.length)
})

test("every guarantee that a test cites exists", () => {
  const known = new Set(rows.map(({ no }) => no))
  expect([...cited].filter(([no]) => !known.has(no)).map(([no, files]) => `${no}: ${[...files].join(", ")}`)).toEqual(
    []
  )
})

test("every guarantee is cited by a test, and says by which", () => {
  expect(rows.filter(({ no }) => !cited.has(no)).map(({ no, promise }) => `${no}: ${promise}`)).toEqual([])
  const wrong = rows.flatMap(({ no, provedBy }) => {
    const named = [...provedBy.matchAll(/`([^`]+)`/g)].map(([, file = ""]) => `test/${file}`)
    return named.length > 0 && named.every((file) => cited.get(no)?.has(file)) ? [] : [`${no}: ${provedBy}`]
  })
  expect(wrong).toEqual([])
})
