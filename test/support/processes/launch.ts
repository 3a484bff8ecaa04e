/** Programs of the tests, each in a process of its own. */
import { type ChildProcess, spawn } from "node:child_process"
import { mkdirSync, rmSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { build } from "esbuild"
import { until } from "../until.js"

export interface Child {
  readonly pid: number
  /** What it has written to stdout and stderr. */
  readonly output: () => string
  readonly signal: (signal: NodeJS.Signals) => void
  /** Its exit code, or the signal that ended it; fails when it has not ended after so long. */
  readonly ended: (millis?: number) => Promise<number | string>
}

const bundled = new Map<string, Promise<string>>()

/**
 * The program in one file: loading it from its sources, with all the modules of its packages, would take each process
 * several seconds of processor time. It lies where the native driver is found from.
 */
const bundleOne = async (entry: string, number: number): Promise<string> => {
  const directory = fileURLToPath(new URL("../../../node_modules/.cache/alkstore/", import.meta.url))
  mkdirSync(directory, { recursive: true })
  const outfile = join(directory, `child-${process.pid}-${number}.mjs`)
  process.once("exit", () => rmSync(outfile, { force: true }))
  await build({
    entryPoints: [entry],
    outfile,
    bundle: true,
    platform: "node",
    format: "esm",
    external: ["better-sqlite3", "pg-native"],
    banner: {
      js: 'import { createRequire as requireFrom } from "node:module"; const require = requireFrom(import.meta.url);'
    },
    logLevel: "error"
  })
  return outfile
}

/** The same, once for each program. */
export const bundle = (entry: string): Promise<string> => {
  const found = bundled.get(entry) ?? bundleOne(entry, bundled.size)
  bundled.set(entry, found)
  return found
}

/** Starts a program with its configuration. */
export const launch = (script: string, config: object): Child => {
  const child: ChildProcess = spawn(process.execPath, [script, JSON.stringify(config)], {
    stdio: ["ignore", "pipe", "pipe"]
  })
  let output = ""
  let exit: number | string | undefined
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding("utf8").on("data", (text: string) => {
      output += text
    })
  }
  child.on("exit", (code, signal) => {
    exit = code ?? signal ?? "unknown"
  })
  return {
    pid: child.pid ?? 0,
    output: () => output,
    signal: (signal) => void child.kill(signal),
    ended: (millis = 15_000) => until(`process ${child.pid} has ended; it wrote: ${output}`, () => exit, millis)
  }
}
