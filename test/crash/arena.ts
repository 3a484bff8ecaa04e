/** A database under load by processes that something happens to, and the verdict over what they did. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { SqlClient } from "@effect/sql"
import { Queue, transaction } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, ManagedRuntime, Redacted } from "effect"
import { expect, inject } from "vitest"
import { createDatabase } from "../support/postgres.js"
import { bundle } from "../support/processes/bundle.js"
import { type Child, launch } from "../support/processes/launch.js"
import { until } from "../support/until.js"
import { hostNow, tables } from "./audit.js"
import { type Config, type Entry, longStallMillis, Order, Orders } from "./config.js"
import { type Row, runsOf, spansOf } from "./history.js"
import { type Fault, judge, type Verdict } from "./verdict.js"

export const engines = ["sqlite", "postgres"] as const
export type Engine = (typeof engines)[number]

/** The default of the suite. */
export const visibilityMillis = 2_000

/** What the issue of this suite promises: a job is taken over within its visibility timeout and two seconds. */
export const recoveryMillis = visibilityMillis + 2_000

type Services = Sqlite.Services | SqlClient.SqlClient

export interface Arena extends AsyncDisposable {
  readonly engine: Engine
  /** A url, or a file. */
  readonly database: string
  readonly run: <A, E>(effect: Effect.Effect<A, E, Services>) => Promise<A>
  readonly rows: (text: string) => Promise<ReadonlyArray<Row>>
  readonly start: (config: Partial<Config> & Pick<Config, "role">) => Child
  /** Starts a process and waits until it is ready. */
  readonly ready: (config: Partial<Config> & Pick<Config, "role">) => Promise<Child>
  readonly ledger: () => ReadonlyArray<Entry>
  /** Waits for an entry of the ledger. */
  readonly noted: (event: string, of?: Partial<Entry>, millis?: number) => Promise<Entry>
  /** SIGKILL, written down. */
  readonly kill: (child: Child) => Promise<void>
  /** A process that has killed itself, or is about to. */
  readonly died: (child: Child, millis?: number) => Promise<void>
  /** SIGTERM, written down; waits for the end. */
  readonly terminate: (child: Child) => Promise<void>
  /** Begins the audit of leases, when that was not done at the start. */
  readonly audit: () => Promise<void>
  /** Commits an order with its job, by this process. */
  readonly order: (name: string, millis: number) => Promise<void>
  readonly fault: (fault: Omit<Fault, "from" | "to"> & Partial<Pick<Fault, "from" | "to">>) => void
  /** Waits until all work is done, if it ever is. */
  readonly settled: () => Promise<void>
  /** The same, and judges. */
  readonly verdict: (title: string) => Promise<Verdict>
}

const matches = (entry: Entry, event: string, of: Partial<Entry>) =>
  entry.event === event && Object.entries(of).every(([key, value]) => entry[key as keyof Entry] === value)

export interface ArenaOptions {
  /** Another database than one of the run's server. */
  readonly url?: string
  /** Without the library's tables and the audit of leases: for processes that are to make them. */
  readonly empty?: boolean
}

const layerOf = (engine: Engine, database: string) =>
  engine === "sqlite"
    ? Sqlite.layerFile(database, { sweeper: false, scheduler: false, busyLimit: "20 seconds" })
    : Pg.layerUrl(Redacted.make(database), { sweeper: false, scheduler: false })

export const openArena = async (engine: Engine, { empty = false, url }: ArenaOptions = {}): Promise<Arena> => {
  const directory = mkdtempSync(join(tmpdir(), "alkstore-crash-"))
  const ledgerFile = join(directory, "ledger")
  writeFileSync(ledgerFile, "")
  const database = engine === "sqlite" ? join(directory, "test.db") : (url ?? (await createDatabase(inject("pgUrl"))))
  const script = await bundle(new URL("child.ts", import.meta.url))
  const children: Array<Child> = []
  const workers = new Set<number>()
  const faults: Array<Fault> = []
  const deaths = new Map<number, number>()
  const runtime = ManagedRuntime.make(layerOf(engine, database))
  const run: Arena["run"] = (effect) => runtime.runPromise(effect)
  const rows: Arena["rows"] = (text) => run(Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe<Row>(text)))
  const ledger = () =>
    readFileSync(ledgerFile, "utf8")
      .split("\n")
      .slice(0, -1)
      .map((line): Entry => JSON.parse(line))
  const noted: Arena["noted"] = (event, of = {}, millis = 30_000) =>
    until(
      `${event} ${JSON.stringify(of)}; output: ${children.map(({ output }) => output()).join("")}`,
      () => ledger().find((entry) => matches(entry, event, of)),
      millis
    )
  const fault: Arena["fault"] = ({ from = Date.now(), to = from, ...rest }) => void faults.push({ ...rest, from, to })
  const start: Arena["start"] = (config) => {
    const child = launch(script, { engine, database, ledger: ledgerFile, visibilityMillis, ...config })
    children.push(child)
    if (config.role === "work") workers.add(child.pid)
    return child
  }
  const died: Arena["died"] = async (child, millis = 30_000) => {
    expect(await child.ended(millis), child.output()).toBe("SIGKILL")
    if (deaths.has(child.pid)) return
    // It ended itself: soon after what it wrote last
    const at = Math.max(...ledger().flatMap((entry) => (entry.pid === child.pid ? [entry.at] : [])))
    deaths.set(child.pid, at)
    fault({ kind: "kill", pid: child.pid, from: at, to: Number.POSITIVE_INFINITY })
  }
  const audit = async () => {
    for (const text of tables[engine]) await rows(text)
  }
  if (!empty) await audit()

  /** How far the database's clock is ahead of this one. */
  const skew = async () => {
    const sent = Date.now()
    const [row] = await rows(hostNow[engine])
    return Number(row?.now) - (sent + Date.now()) / 2
  }
  const names = async (table: string) => (await rows(`SELECT name FROM ${table}`)).map(({ name }) => String(name))
  const left = () =>
    run(
      Effect.gen(function* () {
        const queue = yield* Queue.Queue
        const live = yield* queue.list(Orders.name, { limit: 10_000, after: 0 })
        return live.length + (yield* Orders.deadLetters.list()).length
      })
    )

  const settled = () =>
    until("all is done", async () => (await left().catch(() => 1)) === 0, 30_000).then(
      () => {},
      () => {}
    )

  return {
    engine,
    database,
    run,
    rows,
    start,
    ready: async (config) => {
      const child = start(config)
      await noted("ready", { pid: child.pid })
      return child
    },
    ledger,
    noted,
    kill: async (child) => {
      const at = Date.now()
      deaths.set(child.pid, at)
      fault({ kind: "kill", pid: child.pid, from: at, to: Number.POSITIVE_INFINITY })
      child.signal("SIGKILL")
      await child.ended()
    },
    died,
    terminate: async (child) => {
      fault({ kind: "term", pid: child.pid, to: Number.POSITIVE_INFINITY })
      child.signal("SIGTERM")
      expect(await child.ended(30_000), child.output()).toBe(0)
    },
    audit,
    fault,
    settled,
    order: async (name, millis) => {
      const insert = Effect.flatMap(SqlClient.SqlClient, (sql) => sql`INSERT INTO orders (name) VALUES (${name})`)
      await run(transaction(Effect.zipRight(insert, Orders.enqueue(new Order({ name, millis })))))
    },
    verdict: async (title) => {
      await settled()
      const ahead = await skew()
      const entries = ledger()
      const stalls = entries.flatMap(({ at, event, from, pid }) =>
        event === "stalled" && from !== undefined ? [{ pid, from: from + ahead, to: at + ahead }] : []
      )
      const long = stalls.filter(({ from, to }) => to - from > longStallMillis)
      const ended = (pid: number) =>
        Math.min(
          ...faults.flatMap((one) =>
            one.pid === pid && /kill|term/.test(one.kind) ? [one.from] : [Number.POSITIVE_INFINITY]
          )
        )
      const verdict = judge({
        workers: entries
          .filter(({ event, pid }) => event === "ready" && workers.has(pid))
          .map(({ at, pid }) => ({ pid, from: at + ahead, to: ended(pid) + ahead })),
        spans: spansOf(await rows("SELECT * FROM lease_history ORDER BY n")),
        runs: runsOf(entries, (pid) => deaths.get(pid) ?? Number.POSITIVE_INFINITY, ahead),
        stalls,
        faults: [
          ...faults.map((one) => ({ ...one, from: one.from + ahead, to: one.to + ahead })),
          ...long.map((stall) => ({ kind: "stalled", ...stall }))
        ],
        orders: await names("orders"),
        receipts: entries.flatMap(({ event, order }) => (event === "receipt" && order !== undefined ? [order] : [])),
        effects: await names("effects"),
        left: await left()
      })
      const line = Object.entries(verdict).map(([name, value]) => `${name} ${value}`)
      console.log(`crash: ${engine}, ${title}: ${line.join(", ")}`)
      return verdict
    },
    [Symbol.asyncDispose]: async () => {
      for (const child of children) child.signal("SIGKILL")
      await Promise.all(children.map((child) => child.ended()))
      await runtime.dispose()
      rmSync(directory, { recursive: true, force: true })
    }
  }
}

/** What every scenario has to show. */
export const expectSafe = (verdict: Verdict): void => {
  expect(verdict).toMatchObject({ lost: 0, repeated: 0, duplicated: 0, concurrent: 0, overrun: 0 })
  expect(verdict.timeToRecoverMillis).toBeLessThanOrEqual(recoveryMillis)
}
