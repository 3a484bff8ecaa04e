/**
 * Where it ran.
 */
import { cpus, release, totalmem } from "node:os"
import Database from "better-sqlite3"
import pg from "pg"

const ofPostgres = async (url: string) => {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  const show = async (name: string) => String((await client.query(`SHOW ${name}`)).rows[0]?.[name])
  const answer = {
    postgres: await show("server_version"),
    fsync: await show("fsync"),
    synchronous_commit: await show("synchronous_commit"),
    full_page_writes: await show("full_page_writes")
  }
  await client.end()
  return answer
}

const ofSqlite = (file: string) => {
  const db = new Database(file)
  db.pragma("journal_mode = WAL")
  const answer = {
    sqlite: db.prepare<[], { version: string }>("SELECT sqlite_version() AS version").get()?.version,
    // Of a connection that asks for nothing; 1 is NORMAL, 2 is FULL
    sqliteSynchronousByDefault: db.pragma("synchronous", { simple: true })
  }
  db.close()
  return answer
}

export const readEnvironment = async (url: string | undefined, file: string) => ({
  node: process.version,
  system: `${process.platform} ${release()} ${process.arch}`,
  cores: cpus().length,
  cpu: cpus()[0]?.model,
  memoryGB: Math.round(totalmem() / 2 ** 30),
  ...(url === undefined ? {} : await ofPostgres(url)),
  ...ofSqlite(file)
})
