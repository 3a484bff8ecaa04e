import { fileURLToPath } from "node:url"
import { defineConfig } from "vitest/config"

const source = (file: string) => fileURLToPath(new URL(`./src/${file}`, import.meta.url))

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
    pool: "forks",
    poolOptions: { forks: { maxForks: 2 } },
    // Real processes, servers and sockets on a machine that may be busy: CI gives a test a second and a third try and
    // reports it as flaky; by hand there is none
    retry: process.env.CI === undefined ? 0 : 2,
    testTimeout: 60_000,
    hookTimeout: 60_000
  }
})
