/**
 * Spin, the model checker: makes a C program of a model, whose search is exhaustive, and reads what that answers.
 */
import { execFile, spawnSync } from "node:child_process"
import { mkdtemp, readFile, rm } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"

const run = promisify(execFile)

/** Each step on the way to a state is on the stack of the search. */
const deepest = 1_000_000

/** What is missing on this machine. */
export const missingTools: ReadonlyArray<string> = ["spin", "gcc"].filter(
  (tool) => spawnSync(tool, [tool === "spin" ? "-V" : "--version"]).error !== undefined
)

export interface Verdict {
  readonly property: string
  readonly holds: boolean
  readonly states: number
  readonly transitions: number
  /** What Spin printed. */
  readonly report: string
}

export interface Checker {
  /** The properties of the model, by their names. */
  readonly properties: ReadonlyArray<string>
  readonly check: (property: string) => Promise<Verdict>
  readonly close: () => Promise<void>
}

const count = (report: string, what: RegExp): number => {
  const found = what.exec(report)?.[1]
  if (found === undefined) throw new Error(`Spin has not said what was expected:\n${report}`)
  return Number(found)
}

/** A search that was cut short proves nothing; one that has found an error ends with it. */
const readReport = (property: string, report: string): Verdict => {
  if (!report.includes(`never claim         \t+ (${property})`))
    throw new Error(`Spin has not checked ${property}:\n${report}`)
  const errors = count(report, /errors: (\d+)/)
  if (errors === 0 && /Search not completed|max search depth too small|out of memory/i.test(report))
    throw new Error(`the search for ${property} was cut short:\n${report}`)
  return {
    property,
    holds: errors === 0,
    states: count(report, /([\d.e+]+) states, stored/),
    transitions: count(report, /([\d.e+]+) transitions/),
    report
  }
}

/** `optimise`: 0 for what is refuted soon, up to 2 for a search that takes minutes, and keeps states compressed, without loss. */
export const makeChecker = async (
  file: string,
  defines: ReadonlyArray<string>,
  optimise: 0 | 1 | 2
): Promise<Checker> => {
  const directory = await mkdtemp(join(tmpdir(), "alkstore-formal-"))
  const model = fileURLToPath(new URL(file, import.meta.url))
  const compile = async () => {
    await run("spin", ["-a", ...defines.map((define) => `-D${define}`), model], { cwd: directory })
    const options = [
      "-w",
      `-O${optimise}`,
      "-DNFAIR=3",
      ...(optimise === 2 ? ["-DCOLLAPSE"] : []),
      "-o",
      "pan",
      "pan.c"
    ]
    await run("gcc", options, { cwd: directory })
    return readFile(join(directory, "_spin_nvr.tmp"), "utf8")
  }
  const close = () => rm(directory, { recursive: true, force: true })
  const claims = await compile().catch(async (error: unknown) => {
    await close()
    throw error
  })
  const formulas = new Map(
    [...claims.matchAll(/^never (\w+)\s+\{(.*)/gm)].map(([, name = "", rest = ""]) => [name, rest])
  )
  return {
    properties: [...formulas.keys()],
    check: async (property) => {
      // What is to come at last comes only if every process goes on (weak fairness)
      const eventually = formulas.get(property)?.includes("<>") ?? false
      const options = ["-a", ...(eventually ? ["-f"] : []), `-m${deepest}`, "-w22", "-n", "-N", property]
      const { stdout } = await run("./pan", options, { cwd: directory, maxBuffer: 2 ** 24 })
      return readReport(property, stdout)
    },
    close
  }
}
