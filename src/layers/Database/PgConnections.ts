/**
 * The Layer's own PostgreSQL connections, for claim, renew, settle, sweep, locks and enqueues outside a transaction: a
 * pool that the application has used up cannot starve leases, and settings that must hold are ours to set. A
 * connection that fails or answers late is destroyed and made anew at the next use.
 */
import { Effect } from "effect"
import pg from "pg"
import type { StoreError } from "../../services/Errors.js"
import type { Row, Session, Statement } from "../engine.js"
import { connecting, storeError } from "../storeError.js"
import { atEnd } from "./atEnd.js"
import { type Access, ended, opened, positional } from "./Database.js"
import { type Lane, makeTurns } from "./turns.js"

export interface PgSettings {
  /** Connections for everything but LISTEN: at least 2. */
  readonly connections: number
  readonly connectTimeoutMillis: number
  /** A statement is cancelled by the server after this; the connection is given up 2 s later. */
  readonly statementTimeoutMillis: number
  /** Named prepared statements; switch off behind a pooler in transaction mode. */
  readonly prepare: boolean
  /** Session settings on our own connections; switch off behind a pooler in transaction mode. */
  readonly sessionSettings: boolean
}

export interface PgConnections {
  readonly use: <A>(
    access: Access,
    operation: string,
    use: (session: Session) => Effect.Effect<A, StoreError>
  ) => Effect.Effect<A, StoreError>
  readonly close: Effect.Effect<void>
}

/**
 * - READ COMMITTED whatever the database's default is: a claim that skips locked rows needs no more
 * - no JIT and no sequential scan: statements are short and each has its index
 * - one plan for each statement: planning a claim anew takes longer than most claims, and its plan is the same
 * - no transaction of ours is left open to hold back vacuum
 */
const sessionSettings = (settings: PgSettings): string =>
  [
    `SET statement_timeout = ${settings.statementTimeoutMillis}`,
    "SET lock_timeout = 0",
    `SET idle_in_transaction_session_timeout = ${settings.statementTimeoutMillis}`,
    "SET default_transaction_isolation = 'read committed'",
    "SET jit = off",
    "SET enable_seqscan = off",
    "SET plan_cache_mode = force_generic_plan"
  ].join("; ")

/** int8 as a number (ids, counts and milliseconds are below 2^53); everything else as the driver does. */
const types = {
  getTypeParser: (oid: number, format?: "text" | "binary") =>
    oid === 20 && format !== "binary" ? (text: string) => Number(text) : pg.types.getTypeParser(oid, format as "text")
} as pg.CustomTypesConfig

/** Errors that say a prepared statement and its name do not fit any more: run it unnamed. */
const unnamed = /^(26000|42P05|0A000)$/

/** How a session may be left after an error: these say nothing about the connection. */
const harmless: ReadonlySet<string> = new Set(["conflict", "busy", "constraint", "denied", "schema", "full"])

/** A list of numbers as the server reads it: the driver would look through each for characters to be quoted. */
const listed = (value: unknown): unknown =>
  Array.isArray(value) && value.every(Number.isSafeInteger) ? `{${value.join(",")}}` : value

/** Leases come first: neither enqueues nor calls that wait for somebody's transaction ever have all connections. */
const laneOf: Readonly<Record<Access, Lane>> = { read: "first", write: "first", enqueue: "many", waits: "patient" }

class Slot {
  client: pg.Client | undefined
  broken = false
}

const destroy = (client: pg.Client): void => {
  const socket = (client as unknown as { connection?: { stream?: { destroy?: () => void } } }).connection?.stream
  if (typeof socket?.destroy === "function") socket.destroy()
}

export const makePgConnections = (config: pg.ClientConfig, settings: PgSettings): Effect.Effect<PgConnections> =>
  Effect.gen(function* () {
    const slots = Array.from({ length: settings.connections }, () => new Slot())
    const turns = makeTurns(settings.connections)
    const idle: Array<Slot> = [...slots]
    let prepare = settings.prepare
    let closed = false

    const drop = (slot: Slot) => {
      const client = slot.client
      slot.client = undefined
      slot.broken = false
      if (client !== undefined) destroy(client)
    }

    /** A url that cannot be read makes the driver throw. */
    const makeClient = Effect.try({
      try: () =>
        new pg.Client({
          ...config,
          types,
          keepAlive: true,
          connectionTimeoutMillis: settings.connectTimeoutMillis,
          query_timeout: settings.statementTimeoutMillis + 2_000
        }),
      catch: (cause) => storeError(connecting, cause)
    })

    const connect = (slot: Slot): Effect.Effect<pg.Client, StoreError> =>
      Effect.flatMap(makeClient, (client) => establish(slot, client))

    const establish = (slot: Slot, client: pg.Client): Effect.Effect<pg.Client, StoreError> =>
      Effect.async((resume) => {
        slot.broken = false
        client.on("error", () => {
          slot.broken = true
        })
        client.on("end", () => {
          slot.broken = true
        })
        const failed = (cause: unknown) => {
          destroy(client)
          resume(Effect.fail(storeError(connecting, cause)))
        }
        client.connect((cause: unknown) => {
          if (cause) return failed(cause)
          if (!settings.sessionSettings) {
            slot.client = client
            return resume(Effect.succeed(client))
          }
          client.query(sessionSettings(settings), (error) => {
            if (error) return failed(error)
            slot.client = client
            resume(Effect.succeed(client))
          })
        })
      })

    const query = (
      client: pg.Client,
      statement: Statement,
      values: ReadonlyArray<unknown>,
      named: boolean,
      refused: (error: Error) => Effect.Effect<ReadonlyArray<Row>, StoreError>
    ): Effect.Effect<ReadonlyArray<Row>, StoreError> =>
      Effect.async((resume) => {
        const request = {
          text: statement.text,
          values: values as Array<unknown>,
          ...(named ? { name: nameOf(statement) } : {})
        }
        client.query(request, (error: Error | null, result: pg.QueryResult<Row>) => {
          resume(error ? refused(error) : Effect.succeed(result.rows ?? []))
        })
      })

    const session = (slot: Slot, client: pg.Client): Session => {
      const failed = (statement: Statement, cause: unknown) => {
        const error = storeError(statement.name, cause)
        // A statement cut short by its deadline leaves a connection of unknown state; a read-only server is a lost one
        if (!harmless.has(error.reason)) slot.broken = true
        return Effect.fail(error)
      }
      return {
        writes: true,
        joined: false,
        pid: (client as unknown as { readonly processID?: number | null }).processID ?? undefined,
        execute: (statement, parameters) => {
          const values = positional(statement, parameters as Record<string, unknown>).map(listed)
          return query(client, statement, values, prepare, (error) => {
            if (!prepare || !unnamed.test(String((error as { code?: unknown }).code))) return failed(statement, error)
            prepare = false
            return query(client, statement, values, false, (again) => failed(statement, again))
          })
        }
      }
    }

    const withSlot = <A>(
      operation: string,
      use: (session: Session) => Effect.Effect<A, StoreError>
    ): Effect.Effect<A, StoreError> => {
      if (closed)
        return Effect.fail(
          storeError(connecting, new Error(`the layer is closed; nothing was sent (${operation})`), "connection")
        )
      const slot = idle.pop() as Slot
      opened()
      const done = () => {
        ended()
        if (slot.broken || closed) drop(slot)
        idle.push(slot)
      }
      if (slot.broken) drop(slot)
      const { client } = slot
      const used =
        client === undefined
          ? Effect.flatMap(connect(slot), (made) => use(session(slot, made)))
          : Effect.suspend(() => use(session(slot, client)))
      return atEnd(used, done)
    }

    return {
      use: (access, operation, use) => turns.take(() => withSlot(operation, use), laneOf[access]),
      close: Effect.async<void>((resume) => {
        closed = true
        const open = slots.flatMap((slot) => (slot.client === undefined ? [] : [slot.client]))
        let left = open.length
        if (left === 0) return resume(Effect.void)
        for (const client of open) {
          client.end(() => {
            if (--left === 0) resume(Effect.void)
          })
        }
        return Effect.sync(() => open.forEach(destroy))
      })
    }
  })

const names = new Map<string, string>()

/** A statement's name on the server: its verb and a number for its text, at most 63 bytes. */
const nameOf = (statement: Statement): string => {
  let name = names.get(statement.text)
  if (name === undefined) {
    name = `alkstore_${statement.name}_${names.size + 1}`.slice(-63)
    names.set(statement.text, name)
  }
  return name
}
