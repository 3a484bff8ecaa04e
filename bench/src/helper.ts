/**
 * A process beside the measuring one: `helper <role> <orders>`. It says when it is ready, and ends with its parent.
 */
import Database from "better-sqlite3"
import pg from "pg"
import { payload, sleep } from "./contender.js"
import { contenders } from "./contenders.js"
import type { Orders } from "./helpers.js"
import { makeInbox, warm } from "./inbox.js"
import { makeWatch, type Worked } from "./latency.js"

const say = (word: unknown) => new Promise<void>((resolve) => process.send?.(word, () => resolve()))

const told = new Promise<void>((resolve) => process.once("message", () => resolve()))

const openQueue = async ({ engine, name, where }: Orders, queue?: string) => {
  const contender = contenders.find((one) => one.engine === engine && one.name === name)
  if (contender === undefined) throw new Error(`no ${engine} contender ${name}`)
  return contender.open(where, queue)
}

/** Handles so many jobs, tells when each began. */
const work = async (orders: Orders) => {
  const session = await openQueue(orders)
  await warm(session)
  const inbox = makeInbox(orders.count)
  const { starts, take } = makeWatch(inbox)
  const stop = await session.work(take)
  await say("ready")
  await told
  await inbox.all
  await stop()
  const worked: Worked = { starts, lost: inbox.lost(), duplicated: inbox.duplicated() }
  await say(worked)
  await session.close()
}

/** Does something so many times a second, until told to stop. */
const steadily = async (perSecond: number, act: (n: number) => Promise<unknown>) => {
  let going = true
  void told.then(() => {
    going = false
  })
  const start = Date.now()
  await say("ready")
  let done = 0
  while (going) {
    const due = ((Date.now() - start) * perSecond) / 1_000
    if (done < due) await act(done++)
    else await sleep(2)
  }
  await say(done)
}

/** A commit into a table that is not the queue's. */
const openTable = async ({ engine, where }: Orders): Promise<(n: number) => Promise<unknown>> => {
  const table = "CREATE TABLE IF NOT EXISTS bench_unrelated (n bigint)"
  if (engine === "sqlite") {
    const db = new Database(where)
    db.pragma("synchronous = NORMAL")
    db.exec(table)
    const insert = db.prepare("INSERT INTO bench_unrelated VALUES (?)")
    return async (n) => insert.run(n)
  }
  const client = new pg.Client({ connectionString: where })
  await client.connect()
  await client.query(table)
  return (n) => client.query("INSERT INTO bench_unrelated VALUES ($1)", [n])
}

/** Holds SQLite's write lock for so long. */
const hold = async ({ count, where }: Orders) => {
  const db = new Database(where)
  db.exec("BEGIN IMMEDIATE")
  await say("ready")
  await sleep(count)
  db.exec("COMMIT")
  await say("released")
}

const roles: Readonly<Record<string, (orders: Orders) => Promise<void>>> = {
  work,
  commits: async (orders) => steadily(orders.count, await openTable(orders)),
  enqueues: async (orders) => {
    const session = await openQueue(orders, "beside")
    await steadily(orders.count, () => session.enqueue([payload(-1)], 1))
    await session.close()
  },
  hold
}

process.once("disconnect", () => process.exit(1))
const [role = "", orders = "{}"] = process.argv.slice(2)
await roles[role]?.(JSON.parse(orders) as Orders)
process.exit(0)
