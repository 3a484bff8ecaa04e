/** The worker processes of a soak. */
import { type ChildProcess, fork } from "node:child_process"
import { until } from "../support/until.js"
import type { Asked, ChildConfig, Told } from "./config.js"
import type { Sample } from "./measure.js"

export interface Worker {
  readonly pid: number
  readonly signal: (signal: NodeJS.Signals) => void
  readonly running: () => boolean
  /** What it holds now. */
  readonly measure: () => Promise<Sample>
  /** Asks it to end, and waits until it has by itself. Answers what it held when its scope had closed. */
  readonly finish: () => Promise<{ readonly exit: number | string; readonly sample: Sample | undefined }>
  readonly kill: () => Promise<void>
}

type Event = Extract<Told, { readonly _tag: "Event" }>

export interface Fleet {
  /** Starts a worker and waits until it is ready. */
  readonly start: () => Promise<Worker>
  readonly killAll: () => void
}

const noise = 4_000

export const makeFleet = (script: string, config: ChildConfig, onEvent: (pid: number, event: Event) => void): Fleet => {
  const children = new Set<ChildProcess>()

  const launch = () => {
    const child = fork(script, [JSON.stringify(config)], {
      execArgv: ["--expose-gc"],
      stdio: ["ignore", "pipe", "pipe", "ipc"]
    })
    children.add(child)
    const pid = child.pid ?? 0
    const state: {
      output: string
      exit: number | string | undefined
      ready: boolean
      measured: Array<Sample>
      closed: Sample | undefined
    } = {
      output: "",
      exit: undefined,
      ready: false,
      measured: [],
      closed: undefined
    }
    for (const stream of [child.stdout, child.stderr])
      stream?.setEncoding("utf8").on("data", (text: string) => {
        state.output = (state.output + text).slice(-noise)
      })
    child.on("exit", (code, signal) => {
      state.exit = code ?? signal ?? "unknown"
      children.delete(child)
    })
    child.on("message", (told: Told) => {
      if (told._tag === "Ready") state.ready = true
      else if (told._tag === "Measured") state.measured.push(told.sample)
      else if (told._tag === "Closed") state.closed = told.sample
      else onEvent(pid, told)
    })
    // A message to a process that was killed
    child.on("error", () => {})
    return { child, pid, state }
  }

  const start = async (): Promise<Worker> => {
    const { child, pid, state } = launch()
    const ended = (millis: number) =>
      until(`process ${pid} has ended; it wrote: ${state.output}`, () => state.exit, millis)
    await until(`process ${pid} is ready`, () => state.ready || state.exit, 30_000)
    if (!state.ready) throw new Error(`process ${pid} ended with ${state.exit} at its start: ${state.output}`)
    return {
      pid,
      signal: (signal) => void child.kill(signal),
      running: () => state.exit === undefined,
      measure: () => {
        const asked = state.measured.length
        child.send({ _tag: "Measure" } satisfies Asked)
        return until(`process ${pid} has measured itself`, () => state.measured[asked], 20_000)
      },
      finish: async () => {
        child.kill("SIGTERM")
        const exit = await ended(config.graceMillis + 10_000)
        return { exit, sample: state.closed }
      },
      kill: async () => {
        child.kill("SIGKILL")
        await ended(10_000)
      }
    }
  }

  return {
    start,
    killAll: () => {
      for (const child of children) child.kill("SIGKILL")
    }
  }
}
