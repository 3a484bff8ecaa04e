/** Programs that a test runs to their end, without holding up the event loop: the test runner waits on it for its answers. */
import { execFile } from "node:child_process"
import { createRequire } from "node:module"
import { join } from "node:path"

export interface Ran {
  readonly code: number
  readonly out: string
  readonly err: string
}

/** Runs this Node with these arguments. One that does not end within `timeout` milliseconds is ended, with code -1. */
export const runNode = (
  args: ReadonlyArray<string>,
  options: {
    readonly cwd?: string | undefined
    readonly env?: NodeJS.ProcessEnv | undefined
    readonly input?: string | undefined
    readonly timeout?: number | undefined
  } = {}
): Promise<Ran> =>
  new Promise((resolve) => {
    const { cwd, env = process.env, input, timeout = 0 } = options
    const child = execFile(process.execPath, args, { cwd, env, timeout, maxBuffer: 2 ** 26 }, (_error, out, err) =>
      resolve({ code: child.exitCode ?? -1, out, err })
    )
    // One that ends without reading it closes the pipe
    child.stdin?.on("error", () => {})
    child.stdin?.end(input)
  })

const compiler = join(createRequire(import.meta.url).resolve("typescript/package.json"), "../bin/tsc")

/** Runs the type checker; answers what it prints, and nothing where all is well. */
export const compile = (...args: ReadonlyArray<string>): Promise<string> =>
  runNode([compiler, ...args]).then(({ code, err, out }) => out + err || (code === 0 ? "" : `it ended with ${code}`))
