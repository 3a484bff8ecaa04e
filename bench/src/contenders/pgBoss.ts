/**
 * pg-boss 10, the newest that runs on Node 20. It polls, at best twice a second, and has no notifications of its own;
 * `notifyWorker` ends a worker's wait inside the process, so it is used after each enqueue and each full batch.
 */
import pg from "pg"
import {
  type Clutter,
  type Contender,
  chunks,
  inFlight,
  load,
  type Payload,
  type Session,
  sleep
} from "../contender.js"
import { numbers, runPostgres, text } from "./clutter.js"

interface Boss {
  readonly on: (event: "error", listener: (error: Error) => void) => unknown
  readonly start: () => Promise<unknown>
  readonly stop: (options: { readonly graceful: boolean; readonly wait: boolean }) => Promise<void>
  readonly createQueue: (name: string) => Promise<void>
  readonly send: (name: string, data: Payload) => Promise<string | null>
  readonly insert: (jobs: ReadonlyArray<{ readonly name: string; readonly data: Payload }>) => Promise<unknown>
  readonly work: (
    name: string,
    options: { readonly batchSize: number; readonly pollingIntervalSeconds: number },
    handler: (jobs: ReadonlyArray<{ readonly data: Payload }>) => Promise<void>
  ) => Promise<string>
  readonly offWork: (worker: { readonly id: string }) => Promise<void>
  readonly notifyWorker: (id: string) => void
}

type PgBoss = new (options: Readonly<Record<string, unknown>>) => Boss

const workers = 2
// Each fetch sorts all that is ready: the fewer, the better
const batchSize = 2_000

/** It does not wait for the settling of what was handled: we do. */
const settled = async (counter: pg.Client) => {
  const active = "SELECT count(*) AS n FROM pgboss.job WHERE name = 'bench' AND state = 'active'"
  for (let waited = 0; waited < 5_000; waited += 5) {
    if (Number((await counter.query(active)).rows[0].n) === 0) return
    await sleep(5)
  }
}

const open = async (url: string): Promise<Session> => {
  const boss = new (await load<PgBoss>("pg-boss"))({ connectionString: url, max: 10, schedule: false })
  boss.on("error", (error) => process.stderr.write(`pg-boss: ${error.message}\n`))
  await boss.start()
  await boss.createQueue("bench")
  const counter = new pg.Client({ connectionString: url })
  await counter.connect()
  let ids: ReadonlyArray<string> = []
  const wake = () => {
    for (const id of ids) boss.notifyWorker(id)
  }
  const start = (handler: (job: Payload) => void) => {
    const worker = boss.work("bench", { batchSize, pollingIntervalSeconds: 0.5 }, async (jobs) => {
      for (const { data } of jobs) handler(data)
      if (jobs.length === batchSize) boss.notifyWorker(await worker)
    })
    return worker
  }
  return {
    enqueue: (jobs, most) => inFlight(jobs, most, (data) => boss.send("bench", data).then(wake)),
    enqueueMany: async (jobs, size) => {
      for (const chunk of chunks(jobs, size)) await boss.insert(chunk.map((data) => ({ name: "bench", data })))
      wake()
    },
    work: async (handler) => {
      ids = await Promise.all(Array.from({ length: workers }, () => start(handler)))
      return async () => {
        for (const id of ids) await boss.offWork({ id })
        ids = []
        await settled(counter)
      }
    },
    left: async () => {
      const count = "SELECT count(*) AS n FROM pgboss.job WHERE name = 'bench' AND state < 'completed'"
      return Number((await counter.query(count)).rows[0].n)
    },
    close: async () => {
      await counter.end()
      await boss.stop({ graceful: false, wait: false })
    }
  }
}

const clutter = async (url: string, { delayed, finished, ready, where }: Clutter) => {
  const queue = where === "same queue" ? "bench" : "beside"
  const rows = (count: number, state: string, startAfter: string, completedOn: string) =>
    `INSERT INTO pgboss.job (name, data, state, start_after, completed_on, policy)
    SELECT '${queue}', ${text}, '${state}', ${startAfter}, ${completedOn}, 'standard' FROM ${numbers("postgres", count)}`
  const half = Math.floor(finished / 2)
  await runPostgres(url, [
    ...(queue === "beside" ? [`SELECT pgboss.create_queue('beside', '{"policy":"standard"}')`] : []),
    rows(delayed, "created", "now() + interval '1 day'", "NULL"),
    rows(ready, "created", "now()", "NULL"),
    rows(half, "completed", "now()", "now()"),
    rows(half, "failed", "now()", "now()")
  ])
}

export const pgBoss: Contender = {
  name: "pg-boss",
  engine: "postgres",
  settings: `10.4.2, ${workers} workers, batchSize ${batchSize}, polling 0.5 s and notifyWorker after each enqueue and full batch, insert for batches`,
  scale: { "W1-10": 0.3, W5: 0.5 },
  open,
  clutter
}
