/**
 * Outlives a killed test run: `node watchdog.mjs <folder>...`.
 *
 * The test run holds the other end of stdin and writes the pid of its PostgreSQL, or 0 while none runs, one a line.
 * When stdin closes, for whatever reason, that server is ended and the folders are removed.
 */
import { rmSync } from "node:fs"
import { createInterface } from "node:readline"
import { setTimeout } from "node:timers/promises"

const folders = process.argv.slice(2)
let pid = 0

const signal = (name) => {
  try {
    return process.kill(pid, name)
  } catch {
    return false
  }
}

for await (const line of createInterface({ input: process.stdin })) pid = Number(line)

if (pid > 0) {
  signal("SIGQUIT")
  for (let waited = 0; waited < 5000 && signal(0); waited += 50) await setTimeout(50)
  signal("SIGKILL")
}
for (const folder of folders) rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
