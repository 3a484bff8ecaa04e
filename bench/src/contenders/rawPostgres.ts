/**
 * The limit on PostgreSQL: one table, one index, named statements, claims and acks of 500, enqueues in flight at once
 * in one statement with one NOTIFY. No settings, no retries, no keys, no heartbeats.
 */
import pg from "pg"
import { type Clutter, type Contender, chunks, type Payload, type Session } from "../contender.js"
import { makeSleeper } from "../sleeper.js"
import { numbers, runPostgres, text } from "./clutter.js"

const size = 500

const schema = `CREATE TABLE IF NOT EXISTS raw_jobs (
    id bigserial PRIMARY KEY, queue text NOT NULL, payload text NOT NULL,
    due_at timestamptz NOT NULL DEFAULT now(), token bigint);
  CREATE SEQUENCE IF NOT EXISTS raw_tokens;
  CREATE INDEX IF NOT EXISTS raw_waiting ON raw_jobs (queue, due_at, id) WHERE token IS NULL`

interface Row {
  readonly id: string
  readonly token: string
  readonly payload: string
}

const connect = async (url: string) => {
  const client = new pg.Client({ connectionString: url })
  client.on("error", () => undefined)
  await client.connect()
  return client
}

const insert = (client: pg.Client, jobs: ReadonlyArray<Payload>) =>
  client.query({
    name: "insert",
    text: `WITH added AS (INSERT INTO raw_jobs (queue, payload) SELECT 'bench', p FROM unnest($1::text[]) AS p RETURNING id)
      SELECT id, (SELECT pg_notify('raw', 'bench')) FROM added`,
    values: [jobs.map((job) => JSON.stringify(job))]
  })

const claim = (client: pg.Client) =>
  client.query<Row>({
    name: "claim",
    text: `WITH seen AS MATERIALIZED (
      SELECT id FROM raw_jobs WHERE queue = 'bench' AND token IS NULL AND due_at <= now()
      ORDER BY due_at, id LIMIT $1 FOR UPDATE SKIP LOCKED
    ) UPDATE raw_jobs SET token = nextval('raw_tokens') WHERE id = ANY (ARRAY(SELECT id FROM seen))
    RETURNING id, token, payload`,
    values: [size]
  })

const ack = (client: pg.Client, rows: ReadonlyArray<Row>) =>
  client.query({
    name: "ack",
    text: `DELETE FROM raw_jobs j USING unnest($1::bigint[], $2::bigint[]) AS i (id, token)
      WHERE j.id = i.id AND j.token = i.token`,
    values: [rows.map((row) => row.id), rows.map((row) => row.token)]
  })

const open = async (url: string): Promise<Session> => {
  const [producer, worker, listener] = await Promise.all([connect(url), connect(url), connect(url)])
  await producer.query(schema)
  for (const client of [producer, worker]) await client.query("SET jit = off; SET enable_seqscan = off")
  const sleeper = makeSleeper()
  listener.on("notification", sleeper.wake)

  const add = async (jobs: ReadonlyArray<Payload>, many: number) => {
    for (const chunk of chunks(jobs, many)) {
      await insert(producer, chunk)
      // The short cut: this process need not wait for its own notification
      sleeper.wake()
    }
  }
  const work = async (handler: (job: Payload) => void) => {
    let working = true
    await listener.query("LISTEN raw")
    const loop = async () => {
      while (working) {
        sleeper.begin()
        const { rows } = await claim(worker)
        for (const row of rows) handler(JSON.parse(row.payload) as Payload)
        await (rows.length > 0 ? ack(worker, rows) : sleeper.sleep(1_000))
      }
    }
    const done = loop()
    return async () => {
      working = false
      sleeper.wake()
      await done
      await listener.query("UNLISTEN raw")
    }
  }
  return {
    // What is in flight at once shares a statement
    enqueue: add,
    enqueueMany: add,
    work,
    left: async () => Number((await producer.query("SELECT count(*) AS n FROM raw_jobs")).rows[0].n),
    close: async () => void (await Promise.all([producer.end(), worker.end(), listener.end()]))
  }
}

const clutter = async (url: string, { delayed, ready, where }: Clutter) => {
  const queue = where === "same queue" ? "'bench'" : "'beside'"
  const rows = (count: number, due: string) =>
    `INSERT INTO raw_jobs (queue, payload, due_at) SELECT ${queue}, ${text}, ${due} FROM ${numbers("postgres", count)}`
  await runPostgres(url, [rows(delayed, "now() + interval '1 day'"), rows(ready, "now()")])
}

export const rawPostgres: Contender = {
  name: "raw SQL",
  engine: "postgres",
  settings:
    "pg, named statements, claims and acks of 500, in-flight calls in one statement, one NOTIFY each, LISTEN, local short cut",
  raw: true,
  without: { "W6-finished": "keeps no finished jobs" },
  open,
  clutter
}
