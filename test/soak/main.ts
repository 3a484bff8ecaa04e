/**
 * `npm run soak -- --minutes 30`: load, faults and restarts, for as long as one likes. At the end every job is accounted
 * for, and nothing has grown: memory, tables, fibers, connections, timers, locks, leases. Exit code 0 or 1.
 */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { createInterface } from "node:readline"
import { Command, InvalidArgumentError, Option } from "commander"
import type { EngineName } from "./config.js"
import { soak } from "./soak.js"

const positive = (text: string): number => {
  const value = Number(text)
  if (!(value > 0)) throw new InvalidArgumentError("It is a number above 0.")
  return value
}

interface Flags {
  readonly minutes: number
  readonly engine?: EngineName
  readonly seed: number
  readonly rate: number
}

/** Each engine in a process of its own, so that neither is in the other's measurements. */
const both = async ({ minutes, rate, seed }: Flags): Promise<boolean> => {
  const codes = await Promise.all(
    ["sqlite", "postgres"].map(async (engine) => {
      const flags = Object.entries({ minutes, rate, seed, engine }).flatMap(([name, value]) => [
        `--${name}`,
        `${value}`
      ])
      const child = spawn(process.execPath, [...process.execArgv, process.argv[1] ?? "", ...flags], {
        stdio: ["ignore", "pipe", "inherit"]
      })
      createInterface({ input: child.stdout }).on("line", (line) => console.log(`${engine.padEnd(8)} ${line}`))
      const [code] = await once(child, "close")
      return code
    })
  )
  return codes.every((code) => code === 0)
}

const { engine, ...flags } = new Command("soak")
  .description("Load, faults and restarts for a long time; at the end everything is accounted for.")
  .option("--minutes <number>", "how long", positive, 30)
  .addOption(new Option("--engine <engine>", "default: both, side by side").choices(["sqlite", "postgres"]))
  .option("--seed <number>", "of what is enqueued and of what goes wrong; default: drawn by chance", positive)
  .option("--rate <number>", "jobs a second", positive, 200)
  .parse()
  .opts<Partial<Flags>>()

const { minutes = 30, rate = 200, seed = Math.floor(Math.random() * 2 ** 31) } = flags
const good =
  engine === undefined
    ? await both({ minutes, rate, seed })
    : await soak({ engine, rate, seed, seconds: minutes * 60, say: (line) => console.log(line) })
// What has leaked might keep this process for ever
if (!good) process.exit(1)
