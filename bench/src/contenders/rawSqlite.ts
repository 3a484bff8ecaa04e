/**
 * The limit on SQLite: one table, one index, prepared statements, claims and acks of 500 in one transaction each. No
 * settings, no retries, no keys, no heartbeats: what a queue could do that did nothing else.
 */
import { watch } from "node:fs"
import { dirname } from "node:path"
import Database from "better-sqlite3"
import { type Clutter, type Contender, chunks, type Payload, type Session } from "../contender.js"
import { makeSleeper } from "../sleeper.js"
import { numbers, runSqlite, text } from "./clutter.js"

const size = 500

const schema = `CREATE TABLE IF NOT EXISTS raw_jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, payload TEXT NOT NULL, due_at INTEGER NOT NULL,
    token INTEGER);
  CREATE INDEX IF NOT EXISTS raw_waiting ON raw_jobs (queue, due_at, id) WHERE token IS NULL`

interface Row {
  readonly id: number
  readonly payload: string
  token: number
}

const prepare = (db: Database.Database) => {
  const insert = db.prepare("INSERT INTO raw_jobs (queue, payload, due_at) VALUES ('bench', ?, ?)")
  const select = db.prepare<[number, number], Row>(
    `SELECT id, payload, 0 AS token FROM raw_jobs WHERE queue = 'bench' AND token IS NULL AND due_at <= ?
    ORDER BY due_at, id LIMIT ?`
  )
  const take = db.prepare("UPDATE raw_jobs SET token = ? WHERE id = ?")
  const remove = db.prepare("DELETE FROM raw_jobs WHERE id = ? AND token = ?")
  let token = 0
  const insertOne = (job: Payload) => insert.run(JSON.stringify(job), Date.now())
  const insertAll = db.transaction((jobs: ReadonlyArray<Payload>) => {
    for (const job of jobs) insertOne(job)
  })
  const claim = db.transaction(() => {
    const rows = select.all(Date.now(), size)
    for (const row of rows) {
      row.token = ++token
      take.run(row.token, row.id)
    }
    return rows
  })
  const ack = db.transaction((rows: ReadonlyArray<Row>) => {
    for (const row of rows) remove.run(row.id, row.token)
  })
  return { insertOne, insertAll, claim, ack }
}

/**
 * Tells of other processes' commits: an event of the directory comes before its commit can be read, so the version is
 * looked at after 0, 1 and 4 ms.
 */
const watchOthers = (db: Database.Database, file: string, wake: () => void) => {
  const version = () => db.pragma("data_version", { simple: true })
  let last = version()
  let looking = false
  const look = () => {
    const now = version()
    if (now === last) return
    last = now
    wake()
  }
  const watcher = watch(dirname(file), { persistent: false }, () => {
    if (looking) return
    looking = true
    look()
    setTimeout(look, 1)
    setTimeout(() => {
      looking = false
      look()
    }, 4)
  })
  return () => watcher.close()
}

const open = async (file: string): Promise<Session> => {
  const db = new Database(file)
  db.pragma("journal_mode = WAL")
  db.pragma("synchronous = NORMAL")
  db.exec(schema)
  const { ack, claim, insertAll, insertOne } = prepare(db)
  const sleeper = makeSleeper()
  let working = false

  const add = async (jobs: ReadonlyArray<Payload>, many: number) => {
    for (const [index, chunk] of chunks(jobs, many).entries()) {
      // The worker of this process gets its turn; a call for one job returns as soon as it is committed
      if (working && index > 0) await new Promise(setImmediate)
      const [first] = chunk
      if (chunk.length === 1 && first !== undefined) insertOne(first)
      else insertAll.immediate(chunk)
      sleeper.wake()
    }
  }
  const work = async (handler: (job: Payload) => void) => {
    working = true
    const unwatch = watchOthers(db, file, sleeper.wake)
    const loop = async () => {
      while (working) {
        sleeper.begin()
        const rows = claim.immediate()
        for (const row of rows) handler(JSON.parse(row.payload) as Payload)
        if (rows.length > 0) ack.immediate(rows)
        await (rows.length > 0 ? new Promise(setImmediate) : sleeper.sleep(1_000))
      }
    }
    const done = loop()
    return async () => {
      working = false
      sleeper.wake()
      await done
      unwatch()
    }
  }
  return {
    // What is in flight at once shares a transaction
    enqueue: add,
    enqueueMany: add,
    work,
    left: async () => db.prepare<[], { n: number }>("SELECT count(*) AS n FROM raw_jobs").get()?.n ?? 0,
    close: async () => void db.close()
  }
}

const clutter = async (file: string, { delayed, ready, where }: Clutter) => {
  const queue = where === "same queue" ? "'bench'" : "'beside'"
  const rows = (count: number, due: number) =>
    `INSERT INTO raw_jobs (queue, payload, due_at) SELECT ${queue}, ${text}, ${due} FROM ${numbers("sqlite", count)}`
  const now = Date.now()
  await runSqlite(file, [
    ...(delayed > 0 ? [rows(delayed, now + 86_400_000)] : []),
    ...(ready > 0 ? [rows(ready, now)] : [])
  ])
}

export const rawSqlite: Contender = {
  name: "raw SQL",
  engine: "sqlite",
  settings:
    "better-sqlite3, WAL, synchronous NORMAL, claims and acks of 500, in-flight calls in one transaction, fs.watch, direct wake",
  raw: true,
  without: { "W6-finished": "keeps no finished jobs" },
  open,
  clutter
}
