/** The soak, as short as it can be, in processes of its own: `npm run soak -- --minutes 30` is the long one. */
import { execFile } from "node:child_process"
import { createRequire } from "node:module"
import { join } from "node:path"
import { fileURLToPath, pathToFileURL } from "node:url"
import { expect, test } from "vitest"
import { isLong, seed, timeout } from "../support/form.js"

const root = fileURLToPath(new URL("../..", import.meta.url))
const tsx = pathToFileURL(createRequire(import.meta.url).resolve("tsx")).href
const minutes = isLong ? 5 : 0.25

/** What it prints, and its exit code. */
const soak = (...flags: ReadonlyArray<string>) =>
  new Promise<{ readonly code: unknown; readonly output: string }>((resolve) => {
    execFile(
      process.execPath,
      ["--expose-gc", "--import", tsx, join(root, "test/soak/main.ts"), ...flags],
      { cwd: root, maxBuffer: 64 * 1024 * 1024 },
      (error, stdout, stderr) => resolve({ code: error?.code ?? 0, output: `${stdout}${stderr}` })
    )
  })

test(
  "after load, faults and restarts every job is accounted for, and nothing is left behind or has grown (G1, G13)",
  async () => {
    const { code, output } = await soak("--minutes", String(minutes), "--seed", String(seed))
    expect(code, output).toBe(0)
    for (const engine of ["sqlite", "postgres"])
      expect(output).toMatch(new RegExp(`^${engine} +All is accounted for, and nothing has grown\\.$`, "m"))
    expect(output.match(/ 0 of \d{3,}$/gm), "hundreds of jobs on each engine, none lost").toHaveLength(2)
  },
  timeout(180_000, 15 * 60_000)
)
