#!/usr/bin/env node
/**
 * `node scripts/prove.mjs <suite> [-- vitest's arguments]`: the long form of a suite of test/ that tries to break the
 * product. `npm test` runs the short form of each.
 */
import { spawnSync } from "node:child_process"
import { existsSync, readdirSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { Command, InvalidArgumentError } from "commander"

const root = fileURLToPath(new URL("..", import.meta.url))

const count = (text) => {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 1) throw new InvalidArgumentError("It is a whole number, 1 or more.")
  return value
}

const prove = ({ args, suite }, { runs, seed, short }) => {
  if (!existsSync(`${root}test/${suite}`)) {
    console.error(`There is no test/${suite}. There are: ${readdirSync(`${root}test`).join(", ")}`)
    process.exit(2)
  }
  const { status } = spawnSync(process.execPath, ["node_modules/vitest/vitest.mjs", "run", `test/${suite}/`, ...args], {
    cwd: root,
    stdio: "inherit",
    env: {
      ...process.env,
      ...(short === true ? {} : { ALKSTORE_PROOF: "long" }),
      ALKSTORE_SEED: String(seed ?? Math.floor(Math.random() * 2 ** 31)),
      ...(runs === undefined ? {} : { ALKSTORE_RUNS: String(runs) })
    }
  })
  process.exit(status ?? 1)
}

await new Command("prove")
  .description(
    "Runs the long form of a suite that tries to break the product: model, fault, crash, simulation, formal or security."
  )
  .argument("<suite>", "its folder under test")
  .argument("[vitest...]", "passed on to vitest, behind a --")
  .option("--runs <count>", "how many runs, sequences or seeds; each suite has a default of its own", count)
  .option("--seed <number>", "the first seed, to replay what was printed; default: drawn by chance", count)
  .option("--short", "the form that `npm test` runs")
  .action((suite, args, options) => prove({ suite, args }, options))
  .parseAsync()
