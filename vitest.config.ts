import { fileURLToPath } from "node:url"
import { defineConfig } from "vitest/config"
import { BaseSequencer, type TestSpecification } from "vitest/node"

const source = (file: string) => fileURLToPath(new URL(`./src/${file}`, import.meta.url))

/** What takes longest comes first, so that none of it is left at the end with nothing beside it. */
const long = /test\/(simulation|soak|formal|fault|layers\/(wakeInterleavings|\w+Workers))/

class LongFirst extends BaseSequencer {
  override async sort(files: Array<TestSpecification>): Promise<Array<TestSpecification>> {
    const sorted = await super.sort(files)
    const isLong = ({ moduleId }: TestSpecification) => long.test(moduleId)
    return [...sorted.filter(isLong), ...sorted.filter((file) => !isLong(file))]
  }
}

export default defineConfig({
  resolve: {
    alias: [
      { find: /^alkstore$/, replacement: source("index.ts") },
      { find: /^alkstore\/(Pg|Sqlite|Testing)$/, replacement: source("$1.ts") }
    ]
  },
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/support/globalSetup.ts"],
    sequence: { sequencer: LongFirst },
    pool: "forks",
    // Most of what is allocated is gone at once: with room for it, a sixth of the processor's time is saved (simulation).
    // Each file is a process that begins cold: compiled at once, if not well, its code takes a seventh less
    poolOptions: { forks: { maxForks: 3, execArgv: ["--max-semi-space-size=64", "--always-sparkplug"] } },
    // Real processes, servers and sockets on a machine that may be busy: CI gives a test a second and a third try and
    // reports it as flaky; by hand there is none
    retry: process.env.CI === undefined ? 0 : 2,
    testTimeout: 60_000,
    hookTimeout: 60_000
  }
})
