/**
 * Child processes and what they tell.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { Data, type Duration, Effect, Schedule } from "effect"

export class Broken extends Data.TaggedError("Broken")<{ readonly promise: string }> {}

interface Told {
  readonly event: string
  readonly to?: string
  readonly order?: number
  readonly attempt?: number
  /** Seconds since the demo began. */
  readonly at: number
}

const began = performance.now()

export const seconds = (): number => (performance.now() - began) / 1_000

export const say = (text: string) => Effect.sync(() => console.log(`${seconds().toFixed(1).padStart(5)} s  ${text}`))

export const check = (promise: string, kept: boolean) =>
  kept ? say(`  ok: ${promise}`) : Effect.fail(new Broken({ promise }))

export interface WorkerProcess {
  readonly told: ReadonlyArray<Told>
  /** Waits until the worker has told of it, for 15 s. */
  readonly tells: (event: string, to: string, attempt?: number) => Effect.Effect<Told, Broken>
  readonly signal: (signal: NodeJS.Signals) => Effect.Effect<void>
  /** Waits for its end; answers its exit code, or the signal that ended it. */
  readonly ended: Effect.Effect<number | string, Broken>
}

const until = <A>(
  promise: string,
  look: () => A | undefined,
  limit: Duration.DurationInput = "15 seconds"
): Effect.Effect<A, Broken> =>
  Effect.suspend(() => {
    const found = look()
    return found === undefined ? Effect.fail(new Broken({ promise })) : Effect.succeed(found)
  }).pipe(Effect.retry(Schedule.spaced("20 millis").pipe(Schedule.upTo(limit))))

/** Starts a worker process and waits until it is ready, for 30 s; the end of the scope kills it, if it is still there. */
export const startWorker = Effect.gen(function* () {
  const told: Array<Told> = []
  let exit: number | string | undefined
  const child: ChildProcess = yield* Effect.acquireRelease(
    Effect.sync(() =>
      spawn(process.execPath, ["--import", "tsx", fileURLToPath(new URL("worker.ts", import.meta.url))], {
        stdio: ["ignore", "pipe", "inherit"]
      })
    ),
    (child) => Effect.sync(() => child.kill("SIGKILL"))
  )
  child.on("exit", (code, signal) => {
    exit = code ?? signal ?? "unknown"
  })
  if (child.stdout !== null) {
    createInterface({ input: child.stdout }).on("line", (line) => {
      if (line.startsWith("{")) told.push({ ...JSON.parse(line), at: seconds() })
      else console.error(line)
    })
  }
  const tells = (event: string, to: string, attempt?: number) =>
    until(`the worker ${event} ${to}${attempt === undefined ? "" : `, attempt ${attempt}`}`, () =>
      told.find((t) => t.event === event && t.to === to && (attempt === undefined || t.attempt === attempt))
    )
  yield* until("the worker is ready", () => told.find(({ event }) => event === "ready"), "30 seconds")
  return {
    told,
    tells,
    signal: (signal) => Effect.sync(() => void child.kill(signal)),
    ended: until("the worker process ends", () => exit)
  } satisfies WorkerProcess
})
