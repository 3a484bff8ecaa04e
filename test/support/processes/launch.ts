/** Programs of the tests, each in a process of its own. */
import { type ChildProcess, spawn } from "node:child_process"
import { until } from "../until.js"

export interface Child {
  readonly pid: number
  /** What it has written to stdout and stderr. */
  readonly output: () => string
  readonly signal: (signal: NodeJS.Signals) => void
  /** Its exit code, or the signal that ended it; fails when it has not ended after so long. */
  readonly ended: (millis?: number) => Promise<number | string>
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
