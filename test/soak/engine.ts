/** The engine as the processes of a soak use it. */
import type { SqlClient } from "@effect/sql"
import { PgClient } from "@effect/sql-pg"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Layer, Redacted, Schedule } from "effect"
import type { EngineName } from "./config.js"

/** Sweeps come often, so that what they delete is gone in a calm window. */
const sweeper = { schedule: Schedule.spaced("500 millis") }

/** Idle connections of the application's own pool are closed soon: those that are left in a calm window are the library's. */
const client = (url: string) =>
  PgClient.layer({
    url: Redacted.make(url),
    applicationName: "soak",
    maxConnections: 6,
    idleTimeout: "300 millis",
    connectTimeout: "5 seconds"
  })

export type Services = Pg.Services | SqlClient.SqlClient

/** `operating`: with sweeper and scheduler, as workers have it. */
export const engineLayer = (
  engine: EngineName,
  database: string,
  operating: boolean
): Layer.Layer<Services, unknown> => {
  const options = operating ? { sweeper } : { sweeper: false, scheduler: false }
  return engine === "sqlite"
    ? Sqlite.layerFile(database, options)
    : Layer.provideMerge(Pg.layer(options), client(database))
}
