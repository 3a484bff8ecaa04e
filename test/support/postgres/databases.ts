/** Databases of a test run: uniquely named, so that a run leaves alone whatever else the server holds. */
import { randomBytes } from "node:crypto"
import pg from "pg"

/** Runs `use` with one connection, and closes it. */
export const withClient = async <A>(url: string, use: (client: pg.Client) => Promise<A>): Promise<A> => {
  const client = new pg.Client({ connectionString: url })
  // without a listener, a connection that dies while idle ends the process
  client.on("error", () => {})
  await client.connect()
  try {
    return await use(client)
  } finally {
    await client.end()
  }
}

const nameOf = (url: string): string => decodeURIComponent(new URL(url).pathname.slice(1))

const withDatabase = (url: string, database: string): string => {
  const changed = new URL(url)
  changed.pathname = `/${encodeURIComponent(database)}`
  return changed.href
}

const here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"

/** Locks on tables and advisory ones of this database, as a query: of others on the server there are all the other suites'. */
export const locksHere = `SELECT pid, locktype, mode FROM pg_locks WHERE ${here}`

/** Who waits for whatever lock: a row's belongs to no database, but who wants it has others. */
export const lockWaits = `SELECT pid, locktype, relation FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_locks WHERE ${here})`

/** Eight characters that no other run has. */
export const uniqueSuffix = (): string => randomBytes(4).toString("hex")

/** Creates the database of a run and returns its url; every other database of the run has its name as a prefix. */
export const createRunDatabase = async (serverUrl: string): Promise<string> => {
  const database = `alkstore_test_${uniqueSuffix()}`
  await withClient(serverUrl, (client) => client.query(`CREATE DATABASE ${database}`))
  return withDatabase(serverUrl, database)
}

/** What a new database is called, after the run's prefix, and what it starts as. */
export interface DatabaseOptions {
  /** Lower-case letters, digits and underscores, at most 30; default: unique. */
  readonly name?: string | undefined
  /** The url of a database to copy, to which nobody may be connected; default: empty. */
  readonly template?: string | undefined
}

/**
 * Creates a database beside the one at `runUrl` and returns its url. Test files call it with `inject("pgUrl")`.
 * It is dropped with the run, or with `dropDatabase`.
 */
export const createDatabase = async (runUrl: string, options: DatabaseOptions = {}): Promise<string> => {
  const name = options.name ?? uniqueSuffix()
  if (!/^[a-z0-9_]{1,30}$/.test(name)) throw new Error(`Not a name for a test database: ${name}`)
  const database = `${nameOf(runUrl)}_${name}`
  const template = options.template === undefined ? "" : ` TEMPLATE "${nameOf(options.template)}"`
  await withClient(runUrl, (client) => client.query(`CREATE DATABASE "${database}"${template}`))
  return withDatabase(runUrl, database)
}

/** Drops one that `createDatabase` has made, whoever is connected to it: so that a run with hundreds of them stays small. */
export const dropDatabase = (runUrl: string, url: string): Promise<void> =>
  withClient(runUrl, async (client) => {
    await client.query(`DROP DATABASE IF EXISTS "${nameOf(url)}" WITH (FORCE)`)
  })

/** Drops every database of the run, whoever is connected to them. */
export const dropRunDatabases = (serverUrl: string, runUrl: string): Promise<void> =>
  withClient(serverUrl, async (client) => {
    const { rows } = await client.query<{ datname: string }>(
      "SELECT datname FROM pg_database WHERE datname = $1 OR starts_with(datname, $1 || '_')",
      [nameOf(runUrl)]
    )
    for (const { datname } of rows) await client.query(`DROP DATABASE IF EXISTS "${datname}" WITH (FORCE)`)
  })
