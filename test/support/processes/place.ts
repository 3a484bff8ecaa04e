/** One database with many processes, their common ledger, and this process's own look at both. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { SqlClient } from "@effect/sql"
import { Queue } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Effect, ManagedRuntime, Redacted } from "effect"
import { inject } from "vitest"
import { createDatabase } from "../postgres.js"
import { until } from "../until.js"
import { bundle } from "./bundle.js"
import type { Config, Entry, Task } from "./config.js"
import { Tasks } from "./config.js"
import { type Child, launch } from "./launch.js"

export type { Child } from "./launch.js"

export const engines = ["sqlite", "postgres"] as const

type Services = Sqlite.Services | SqlClient.SqlClient

export interface Place extends AsyncDisposable {
  readonly database: string
  readonly run: <A, E>(effect: Effect.Effect<A, E, Services>) => Promise<A>
  readonly rows: (text: string) => Promise<ReadonlyArray<Record<string, unknown>>>
  /** A table of the library, quoted. */
  readonly table: (name: string) => string
  readonly enqueue: (...tasks: ReadonlyArray<Task>) => Promise<ReadonlyArray<number>>
  /** The live jobs, by id. */
  readonly live: () => Promise<ReadonlyArray<Queue.LiveRow>>
  readonly dead: () => Promise<ReadonlyArray<Queue.DeadRow>>
  readonly start: (config: Partial<Config> & Pick<Config, "role">) => Child
  /** Starts a worker and waits until it is ready. */
  readonly worker: (config?: Partial<Config>) => Promise<Child>
  readonly ledger: () => ReadonlyArray<Entry>
  /** Waits for an entry of the ledger. */
  readonly noted: (event: string, of?: Partial<Entry>, millis?: number) => Promise<Entry>
}

const matches = (entry: Entry, event: string, of: Partial<Entry>) =>
  entry.event === event && Object.entries(of).every(([key, value]) => entry[key as keyof Entry] === value)

/** A fresh database with its tables; `empty`: without, so that the first process has to create them. */
export const openPlace = async (
  engine: Config["engine"],
  { empty = false, sqlite = {} }: { readonly empty?: boolean; readonly sqlite?: Sqlite.Options } = {}
): Promise<Place> => {
  const directory = mkdtempSync(join(tmpdir(), "alkstore-processes-"))
  const ledger = join(directory, "ledger")
  writeFileSync(ledger, "")
  const database = engine === "sqlite" ? join(directory, "test.db") : await createDatabase(inject("pgUrl"))
  const script = await bundle(new URL("child.ts", import.meta.url))
  const children: Array<Child> = []
  const runtime = ManagedRuntime.make(
    engine === "sqlite"
      ? Sqlite.layerFile(database, { sweeper: false, scheduler: false, ...sqlite })
      : Pg.layerUrl(Redacted.make(database), { sweeper: false, scheduler: false })
  )
  const run: Place["run"] = (effect) => runtime.runPromise(effect)
  const table = (name: string) => (engine === "sqlite" ? `"_alkstore_${name}"` : `"alkstore"."${name}"`)
  const rows: Place["rows"] = (text) =>
    run(Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe<Record<string, unknown>>(text)))
  const start: Place["start"] = (config) => {
    const child = launch(script, { engine, database, ledger, ...config })
    children.push(child)
    return child
  }
  const entries = () =>
    readFileSync(ledger, "utf8")
      .split("\n")
      .slice(0, -1)
      .map((line): Entry => JSON.parse(line))
  const noted: Place["noted"] = (event, of = {}, millis = 15_000) =>
    until(
      `${event} ${JSON.stringify(of)}; output: ${children.map(({ output }) => output()).join("")}`,
      () => entries().find((entry) => matches(entry, event, of)),
      millis
    )
  if (!empty) await rows("SELECT 1")
  return {
    database,
    run,
    rows,
    table,
    enqueue: (...tasks) => run(Effect.map(Tasks.enqueueMany(tasks), (receipts) => receipts.map(({ id }) => id))),
    live: () => run(Effect.flatMap(Queue.Queue, (queue) => queue.list(Tasks.name, { limit: 10_000, after: 0 }))),
    dead: () => run(Tasks.deadLetters.list()),
    start,
    worker: async (config = {}) => {
      const child = start({ role: "work", ...config })
      await noted("ready", { pid: child.pid }, 30_000)
      return child
    },
    ledger: entries,
    noted,
    [Symbol.asyncDispose]: async () => {
      for (const child of children) child.signal("SIGKILL")
      await Promise.all(children.map((child) => child.ended()))
      await runtime.dispose()
      rmSync(directory, { recursive: true, force: true })
    }
  }
}

/** The entries of one kind. */
export const only = (entries: ReadonlyArray<Entry>, event: string, of: Partial<Entry> = {}): ReadonlyArray<Entry> =>
  entries.filter((entry) => matches(entry, event, of))
