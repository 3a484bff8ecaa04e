/** The database of a soak: started for it, broken now and then, and looked at from outside. */
import { mkdtempSync, rmSync, statSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import BetterSqlite from "better-sqlite3"
import pg from "pg"
import { startPostgres } from "../support/postgres.js"
import { type Proxy, startProxy } from "../support/proxy.js"
import type { EngineName } from "./config.js"

/** One fault of the database: what it is called, and how it is done. Resolves when it is over. */
export interface Breakage {
  readonly name: string
  readonly happen: () => Promise<void>
}

export interface Place {
  readonly engine: EngineName
  /** What processes connect to: a url through a proxy, or a file. */
  readonly database: string
  readonly breakages: ReadonlyArray<Breakage>
  /** Rows of every table of the namespace; of the locks, those that have ended as well. */
  readonly rowCounts: () => Promise<Readonly<Record<string, number>>>
  /** Bytes of the namespace's tables and their indexes; of the log beside them. */
  readonly sizes: () => Promise<{ readonly tables: number; readonly log: number }>
  /** Connections by application; none on SQLite. */
  readonly connections: () => Promise<Readonly<Record<string, number>>>
  readonly close: () => Promise<void>
}

const wait = (millis: number) => new Promise<void>((resolve) => setTimeout(resolve, millis))

type Ask = (text: string, values?: ReadonlyArray<unknown>) => Promise<ReadonlyArray<Record<string, unknown>>>

const pgBreakages = (proxy: Proxy, restart: (mode: "fast" | "kill") => Promise<void>, ask: Ask) => [
  { name: "backends terminated", happen: async () => void (await ask(terminate("random() < 0.5"))) },
  {
    name: "listeners terminated",
    happen: async () => void (await ask(terminate("application_name = 'alkstore-wake'")))
  },
  { name: "connections cut", happen: async () => proxy.cut() },
  {
    name: "half-open network",
    happen: async () => {
      proxy.hold()
      await wait(2_000)
      proxy.pass()
    }
  },
  {
    name: "connections refused",
    happen: async () => {
      proxy.cut()
      proxy.refuse()
      await wait(1_000)
      proxy.pass()
    }
  },
  { name: "server restarted", happen: () => restart("fast") },
  { name: "server killed", happen: () => restart("kill") }
]

const terminate = (which: string) =>
  `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND ${which}`

/** Rows of every table of a schema, whatever tables a version has. */
const pgRowCounts = async (ask: Ask) => {
  const tables = await ask("SELECT tablename AS name FROM pg_tables WHERE schemaname = 'alkstore' ORDER BY 1")
  return counted(
    ask,
    tables.map(({ name }) => String(name)),
    (name) => `"alkstore"."${name}"`
  )
}

const counted = async (ask: Ask, names: ReadonlyArray<string>, quoted: (name: string) => string) => {
  const counts: Record<string, number> = {}
  for (const name of names) {
    const [row] = await ask(`SELECT count(*) AS count FROM ${quoted(name)}`)
    counts[name] = Number(row?.count)
  }
  const locks = names.find((name) => /(^|_)locks$/.test(name)) ?? "locks"
  const [ended] = await ask(`SELECT count(*) AS count FROM ${quoted(locks)} WHERE expires_at < ${Date.now()}`)
  return { ...counts, ended_locks: Number(ended?.count) }
}

const openPostgres = async (): Promise<Place> => {
  const server = await startPostgres({
    own: true,
    // A server that is killed keeps what it has answered; a vacuum is due as soon as elsewhere in an hour's load
    settings: { synchronous_commit: "on", autovacuum_naptime: "5s" }
  })
  const proxy = await startProxy(server.url)
  /** Past the proxy. */
  const ask: Ask = async (text, values = []) => {
    const client = new pg.Client({ connectionString: server.url, application_name: "onlooker" })
    client.on("error", () => {})
    await client.connect()
    try {
      return (await client.query(text, [...values])).rows
    } finally {
      await client.end()
    }
  }
  return {
    engine: "postgres",
    database: proxy.url,
    breakages: pgBreakages(proxy, server.restart, ask),
    rowCounts: () => pgRowCounts(ask),
    sizes: async () => {
      const [row] = await ask(
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) AS tables FROM pg_class c WHERE relnamespace = 'alkstore'::regnamespace AND relkind = 'r'"
      )
      return { tables: Number(row?.tables), log: 0 }
    },
    connections: async () => {
      const rows = await ask(
        "SELECT application_name AS name, count(*) AS count FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() GROUP BY 1"
      )
      return Object.fromEntries(rows.map(({ count, name }) => [String(name), Number(count)]))
    },
    close: async () => {
      await proxy.close()
      await server.stop()
    }
  }
}

const openSqlite = async (): Promise<Place> => {
  const directory = mkdtempSync(join(tmpdir(), "alkstore-soak-"))
  const file = join(directory, "soak.db")
  const outside = new BetterSqlite(file)
  outside.pragma("busy_timeout = 5")
  const ask: Ask = async (text) => outside.prepare(text).all() as ReadonlyArray<Record<string, unknown>>
  /** By a program that is no user of ours, whose waiting must not block this process. */
  const hold = async (millis: number) => {
    for (;;) {
      try {
        outside.exec("BEGIN IMMEDIATE")
        break
      } catch {
        await wait(5)
      }
    }
    await wait(millis)
    outside.exec("ROLLBACK")
  }
  return {
    engine: "sqlite",
    database: file,
    breakages: [
      { name: "write lock held", happen: () => hold(1_500) },
      { name: "write lock held for long", happen: () => hold(6_500) },
      { name: "checkpoint", happen: async () => void outside.pragma("wal_checkpoint(PASSIVE)") }
    ],
    rowCounts: async () => {
      const tables = await ask(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '\\_alkstore\\_%' ESCAPE '\\' ORDER BY 1"
      )
      return counted(
        ask,
        tables.map(({ name }) => String(name)),
        (name) => `"${name}"`
      )
    },
    sizes: async () => {
      const [row] = await ask(
        "SELECT coalesce(sum(pgsize), 0) AS tables FROM dbstat WHERE name LIKE '\\_alkstore\\_%' ESCAPE '\\'"
      )
      return { tables: Number(row?.tables), log: statSync(`${file}-wal`, { throwIfNoEntry: false })?.size ?? 0 }
    },
    connections: async () => ({}),
    close: async () => {
      outside.close()
      rmSync(directory, { recursive: true, force: true })
    }
  }
}

export const openPlace = (engine: EngineName): Promise<Place> => (engine === "sqlite" ? openSqlite() : openPostgres())
