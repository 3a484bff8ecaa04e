/** The code in the documentation type-checks, and what can run runs. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { createRequire } from "node:module"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { pathToFileURL } from "node:url"
import { expect, test } from "vitest"
import { compile, runNode } from "../support/programs.js"
import { blocksOf, documents, read, root } from "./markdown.js"

/** Inside the repository, so that imports resolve; git, the type checker and the test runner leave it alone. */
const directory = join(root, "test/.tmp/docs")

/** What the fragments of the documentation lean on. A block that imports the library itself stands alone. */
const prelude = `import { SqlClient } from "@effect/sql"
import { Backoff, Job, Queue, transaction, Worker } from "alkstore"
import { Data, type Duration, Effect, Schedule, Schema } from "effect"
class NoSuchAddress extends Data.TaggedError("NoSuchAddress") {}
class TooManyRequests extends Data.TaggedError("TooManyRequests")<{ readonly wait: Duration.DurationInput }> {}
class Maintenance extends Data.TaggedError("Maintenance") {}
declare const sendMail: (to: string) => Effect.Effect<void, NoSuchAddress | TooManyRequests | Maintenance>
const Emails = Queue.make("emails", { payload: Schema.Struct({ to: Schema.String, order: Schema.Number }) })
`

const standsAlone = (code: string) => /from "alkstore"/.test(code)

const blocks = documents.flatMap(blocksOf)
const quickstart = read("examples/quickstart.ts")

rmSync(directory, { recursive: true, force: true })
mkdirSync(directory, { recursive: true })
for (const { code, name } of blocks)
  writeFileSync(join(directory, `${name}.ts`), standsAlone(code) ? code : `${prelude}${code}`)

test("the README shows examples/quickstart.ts, in 30 lines", () => {
  expect(blocksOf("README.md").map(({ code }) => code)).toContain(quickstart)
  expect(quickstart.trimEnd().split("\n").length).toBeLessThanOrEqual(30)
})

test("every TypeScript block of the documentation type-checks", async () => {
  writeFileSync(
    join(directory, "tsconfig.json"),
    JSON.stringify({
      extends: "../../../tsconfig.json",
      compilerOptions: { noUnusedLocals: false },
      include: ["./*.ts"]
    })
  )
  expect(blocks.length).toBeGreaterThan(3)
  expect(await compile("--noEmit", "-p", directory)).toBe("")
})

/** Every example that ends by itself, and what it says. */
const programs: Record<string, ReadonlyArray<string>> = {
  "dead-letters": [
    "tell somebody: stolen, failed after 1: this card is stolen",
    "tell somebody: ann's, exhausted after 3: the bank is down",
    "requeued: 1",
    "charged 200 to ann's",
    "purged: 1"
  ],
  quickstart: ["to ann@example.com: thank you for order 1", "to bob@example.com: thank you for order 2"],
  manual: ["100 / 4 = 25", "100 / 5 = 20", "dead: 0, because of division by zero"],
  "tagged-messages": ["5 into a1", "a1 is closed"],
  schedules: ["daily: now, by hand", "pulse: 0 ms past the second", "pulse: paused", "nightly-report: next at "],
  telemetry: [
    "send emails",
    "process emails",
    "child of ",
    "linked to ",
    "failed: Error",
    "acked 1, retried 1",
    "handlers ran 2 times"
  ],
  "ordering-keys": ["ann: 0 + 100 = 100", "ann: 100 - 70 = 30", "at the end: ann 0, bob 10"],
  outbox: ["arrived: order 1 of ann", "arrived: order 2 of bob", "arrived: order 3 of ann"],
  transactional: ["ann has 40", "bob has 20", "3 receipts, 3 retries"],
  batch: [
    "uploading 20 readings at once",
    "18 uploaded",
    "failed: there is no sensor -1",
    "exhausted: too hot to be true"
  ],
  supervisor: ["Restarting: reports", "GaveUp: reports", "emails: running, reports: gaveUp"],
  locks: ["somebody else could begin too: false", "token "]
}

const loader = pathToFileURL(createRequire(import.meta.url).resolve("tsx")).href

test.each(Object.entries(programs))("examples/%s.ts runs to its end", async (name, says) => {
  const elsewhere = mkdtempSync(join(tmpdir(), "alkstore-example-"))
  try {
    const { code, err, out } = await runNode(["--import", loader, join(root, `examples/${name}.ts`)], {
      cwd: elsewhere,
      timeout: 50_000,
      env: { ...process.env, TSX_TSCONFIG_PATH: join(root, "tsconfig.json") }
    })
    expect(err).toBe("")
    for (const line of says) expect(out).toContain(line)
    expect(code).toBe(0)
  } finally {
    rmSync(elsewhere, { recursive: true, force: true })
  }
})

// The tests among the blocks are collected into this file
for (const { kind, name } of blocks) {
  if (kind === "test") await import(pathToFileURL(join(directory, `${name}.ts`)).href)
}
