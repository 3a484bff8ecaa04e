/**
 * Rows beside, by SQL.
 */
import Database from "better-sqlite3"
import pg from "pg"
import { type Engine, idlePayload } from "../contender.js"

/** The payload of clutter, as an SQL literal. */
export const text = `'${idlePayload}'`

/** Numbers from 1 to so many, as `g.n`. */
export const numbers = (engine: Engine, count: number) =>
  engine === "postgres"
    ? `generate_series(1, ${count}) AS g (n)`
    : `(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < ${count}) SELECT n FROM s) AS g`

/** Leaves the tables as autovacuum would, and nothing to be written out later. */
export const runPostgres = async (url: string, statements: ReadonlyArray<string>) => {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  for (const statement of statements) await client.query(statement)
  await client.query("VACUUM ANALYZE")
  await client.query("CHECKPOINT")
  await client.end()
}

export const runSqlite = async (file: string, statements: ReadonlyArray<string>) => {
  const db = new Database(file)
  for (const statement of statements) db.exec(statement)
  db.exec("ANALYZE")
  db.pragma("wal_checkpoint(TRUNCATE)")
  db.close()
}
