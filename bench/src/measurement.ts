/**
 * Starting a measurement in a process of its own, and hearing its figures.
 */
import { spawn } from "node:child_process"
import { fileURLToPath } from "node:url"
import type { Contender } from "./contender.js"
import type { Figure, Workload } from "./figure.js"
import type { Plan } from "./plan.js"

export interface Outcome {
  readonly figures: ReadonlyArray<Figure>
  /** What went wrong, if anything did. */
  readonly error: string | undefined
}

const profiling = (prof: string | undefined) =>
  prof === undefined ? [] : ["--cpu-prof", "--cpu-prof-interval=200", `--cpu-prof-dir=${prof}`]

/** What a contender prints goes to stderr: stdout is for figures. */
export const measure = (plan: Plan, { engine, name }: Contender, workload: Workload, where: string): Promise<Outcome> =>
  new Promise((resolve) => {
    const program = fileURLToPath(new URL("./measure.js", import.meta.url))
    const args = [program, engine, name, workload.name, where, JSON.stringify(plan.sizes[engine])]
    const child = spawn(process.execPath, [...profiling(plan.prof), ...args], {
      stdio: ["ignore", process.stderr, process.stderr, "ipc"],
      serialization: "advanced"
    })
    let figures: ReadonlyArray<Figure> = []
    const timer = setTimeout(() => child.kill("SIGKILL"), plan.timeoutMillis)
    child.on("message", (message) => {
      figures = message as ReadonlyArray<Figure>
    })
    child.once("close", (code, signal) => {
      clearTimeout(timer)
      const late =
        signal === "SIGKILL" ? `not done after ${plan.timeoutMillis / 1_000} s` : `ended with ${code ?? signal}`
      resolve({ figures, error: figures.length > 0 && code === 0 ? undefined : late })
    })
  })
