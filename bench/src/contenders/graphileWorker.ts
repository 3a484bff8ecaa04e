/**
 * graphile-worker: with the fastest settings of its documentation and its own performance test, and with its defaults.
 */
import pg from "pg"
import { type Clutter, type Contender, chunks, inFlight, load, type Payload, type Session } from "../contender.js"
import { numbers, runPostgres, text } from "./clutter.js"

interface Preset {
  readonly worker: Readonly<Record<string, unknown>>
}

interface Options {
  readonly connectionString: string
  readonly preset: Preset
  readonly logger: unknown
}

interface Utils {
  readonly addJob: (task: string, payload: Payload) => Promise<unknown>
  readonly addJobs: (
    jobs: ReadonlyArray<{ readonly identifier: string; readonly payload: Payload }>
  ) => Promise<unknown>
  readonly release: () => Promise<void>
}

interface GraphileWorker {
  readonly Logger: new (factory: () => () => void) => unknown
  readonly makeWorkerUtils: (options: Options) => Promise<Utils>
  readonly run: (
    options: Options & {
      readonly noHandleSignals: true
      readonly crontab: string
      readonly taskList: Readonly<Record<string, (payload: Payload) => Promise<void>>>
    }
  ) => Promise<{ readonly stop: () => Promise<void> }>
}

const open = (settings: Preset["worker"]) => async (url: string) => {
  const { Logger, makeWorkerUtils, run } = await load<GraphileWorker>("graphile-worker")
  const connection = { connectionString: url }
  const options: Options = { ...connection, preset: { worker: settings }, logger: new Logger(() => () => undefined) }
  const utils = await makeWorkerUtils(options)
  const counter = new pg.Client(connection)
  await counter.connect()
  const session: Session = {
    enqueue: (jobs, most) => inFlight(jobs, most, (job) => utils.addJob("bench", job)),
    enqueueMany: async (jobs, size) => {
      for (const chunk of chunks(jobs, size))
        await utils.addJobs(chunk.map((payload) => ({ identifier: "bench", payload })))
    },
    work: async (handler) => {
      const taskList = { bench: async (payload: Payload) => handler(payload) }
      const runner = await run({ ...options, taskList, noHandleSignals: true, crontab: "" })
      return () => runner.stop()
    },
    left: async () => {
      const count = `SELECT count(*) AS n FROM graphile_worker._private_jobs WHERE attempts < max_attempts`
      return Number((await counter.query(count)).rows[0].n)
    },
    close: async () => {
      await counter.end()
      await utils.release()
    }
  }
  return session
}

/** Done jobs are deleted, so the finished ones are those that have used up their attempts. */
const clutter = async (url: string, { delayed, finished, ready, where }: Clutter) => {
  const task = where === "same queue" ? "bench" : "beside"
  const rows = (count: number, runAt: string, attempts: number) =>
    `INSERT INTO graphile_worker._private_jobs (task_id, payload, run_at, attempts, max_attempts)
    SELECT t.id, ${text}, ${runAt}, ${attempts}, 25
    FROM graphile_worker._private_tasks t, ${numbers("postgres", count)} WHERE t.identifier = '${task}'`
  await runPostgres(url, [
    `INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('${task}') ON CONFLICT DO NOTHING`,
    rows(delayed, "now() + interval '1 day'", 0),
    rows(ready, "now()", 0),
    rows(Math.floor(finished / 2), "now()", 25)
  ])
}

const concurrentJobs = 24

export const graphileWorker: Contender = {
  name: "graphile-worker",
  engine: "postgres",
  settings: `0.17.3, concurrentJobs ${concurrentJobs}, maxPoolSize ${concurrentJobs + 1}, localQueue 500, completeJobBatchDelay 0, failJobBatchDelay 0, addJobs for batches`,
  scale: { "W1-10": 0.3, W5: 0.5 },
  open: open({
    concurrentJobs,
    maxPoolSize: concurrentJobs + 1,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0
  }),
  clutter
}

export const graphileWorkerDefaults: Contender = {
  name: "graphile-worker (defaults)",
  engine: "postgres",
  settings: "0.17.3, defaults",
  only: ["W3"],
  scale: { W3: 0.1 },
  open: open({})
}
