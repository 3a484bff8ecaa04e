/** Namespaces on real databases, to move between. */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { SqlClient } from "@effect/sql"
import { Transfer } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Chunk, Effect, ManagedRuntime, Redacted, Stream } from "effect"
import { afterAll, inject } from "vitest"
import { createDatabase } from "./postgres.js"

export type Engine = "sqlite" | "postgres"
type Services = Sqlite.Services | SqlClient.SqlClient
export type Row = Readonly<Record<string, unknown>>

export interface House extends AsyncDisposable {
  readonly engine: Engine
  readonly run: <A, E>(effect: Effect.Effect<A, E, Services>) => Promise<A>
  readonly rows: (text: string) => Promise<ReadonlyArray<Row>>
  readonly table: (name: string) => string
  /** Another client of the same database. */
  readonly beside: () => Promise<House>
}

export interface HouseOptions {
  readonly sqlite?: Sqlite.Options
  readonly postgres?: Pg.Options
}

/** Opens houses, whose files are gone when the test file ends. */
export const housing = (name: string, options: HouseOptions = {}) => {
  const directory = mkdtempSync(join(tmpdir(), `alkstore-${name}-`))
  afterAll(() => rmSync(directory, { recursive: true, force: true }))
  let files = 0

  const open = async (engine: Engine, at?: string): Promise<House> => {
    const quiet = { sweeper: false, scheduler: false }
    const database =
      at ?? (engine === "sqlite" ? join(directory, `${++files}.db`) : await createDatabase(inject("pgUrl")))
    const runtime = ManagedRuntime.make(
      engine === "sqlite"
        ? Sqlite.layerFile(database, { ...quiet, ...options.sqlite })
        : Pg.layerUrl(Redacted.make(database), { ...quiet, ...options.postgres })
    )
    const run: House["run"] = (effect) => runtime.runPromise(effect)
    return {
      engine,
      run,
      rows: (text) => run(Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe<Row>(text))),
      table: (name) => (engine === "sqlite" ? `"_alkstore_${name}"` : `"alkstore"."${name}"`),
      beside: () => open(engine, database),
      [Symbol.asyncDispose]: () => runtime.dispose()
    }
  }
  return open
}

export const exported = (options?: Transfer.ExportOptions) =>
  Effect.map(Stream.runCollect(Transfer.export(options)), Chunk.toReadonlyArray)

export const imported = (records: Iterable<Transfer.TransferRecord>) => Transfer.import(Stream.fromIterable(records))

export const ways: ReadonlyArray<readonly [Engine, Engine]> = [
  ["sqlite", "postgres"],
  ["postgres", "sqlite"],
  ["sqlite", "sqlite"]
]
