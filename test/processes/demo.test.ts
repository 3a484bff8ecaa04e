/** The demo keeps its promises on both engines. */
import { execFile } from "node:child_process"
import { createRequire } from "node:module"
import { join } from "node:path"
import { fileURLToPath, pathToFileURL } from "node:url"
import { expect, inject, test } from "vitest"
import { createDatabase } from "../support/postgres.js"

const root = fileURLToPath(new URL("../..", import.meta.url))
const tsx = pathToFileURL(createRequire(import.meta.url).resolve("tsx")).href

/** The account that it prints. Rejects, with all that was printed, when the demo exits with anything but 0. */
const demo = (settings: Record<string, string>) => {
  const { DATABASE_URL: _, ...env } = process.env
  return new Promise<string>((resolve, reject) => {
    execFile(
      process.execPath,
      ["--import", tsx, join(root, "examples/demo/main.ts")],
      { cwd: root, env: { ...env, ...settings } },
      (error, stdout, stderr) => (error === null ? resolve(stdout) : reject(new Error(`${stdout}\n${stderr}`)))
    )
  })
}

test("the demo on SQLite", { timeout: 120_000 }, async () => {
  expect(await demo({})).toContain("All as promised.")
})

test("the demo on PostgreSQL", { timeout: 120_000 }, async () => {
  const account = await demo({ DATABASE_URL: await createDatabase(inject("pgUrl")) })
  expect(account).toContain("alkstore on PostgreSQL")
  expect(account).toContain("All as promised.")
})
