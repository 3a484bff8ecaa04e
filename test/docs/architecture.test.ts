/** The code map is complete. */
import { expect, test } from "vitest"
import { filesUnder, read } from "./markdown.js"

test("ARCHITECTURE.md has a line for each file of src, and for no other", () => {
  const mapped = [...read("ARCHITECTURE.md").matchAll(/^\| `(src\/[^`]+)` +\|/gm)].map(([, file]) => file)
  expect([...mapped].sort()).toEqual(filesUnder("src", ".ts"))
})
