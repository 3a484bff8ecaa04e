/**
 * enqueue: adds jobs, all or none, and says for each whether a live job held its dedupe key already.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { NewJob, Receipt } from "../../../services/QueueStore.js"
import { type Names, nextval, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { areAlike, enqueuePlain, plainParameters } from "./enqueuePlain.js"
import { added, dueAt, heldBy, isFree, isSpent, replaceText } from "./holder.js"
import { advanceKey, isNextHead } from "./lanes.js"
import { metAt } from "./lists.js"
import { bool, int } from "./rows.js"
import { sweep } from "./sweep.js"

type Enqueue = (
  n: Names,
  notify: boolean
) => (session: Session, queue: string, jobs: ReadonlyArray<NewJob>) => Effect.Effect<ReadonlyArray<Receipt>, StoreError>

/** What one statement takes: bounds what is in memory on both sides. */
const chunkJobs = 5_000
const chunkCharacters = 16 * 1024 * 1024

/** How many of the jobs, at least one, go into the next statement. */
const chunkOf = (jobs: ReadonlyArray<NewJob>): number => {
  let characters = 0
  const end = jobs.findIndex((job, index) => {
    characters += job.payload.length
    return index > 0 && (index >= chunkJobs || characters > chunkCharacters)
  })
  return end === -1 ? jobs.length : end
}

/** Whether the jobs may take more than one statement on PostgreSQL, and so a transaction to be whole. */
export const needsTransaction = (jobs: ReadonlyArray<NewJob>): boolean =>
  jobs.length > 1 && (jobs.some((job) => job.dedupeKey !== null) || chunkOf(jobs) < jobs.length)

const columns =
  "queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, visible_at, expires_at, expires_ms, dedupe_key, headers"
const richColumns = `${columns}, dedupe_scope, dedupe_window_ms, ordering_key`

/** Whether a job has more than most: kept out of the statement that most jobs go through. */
const isRich = (job: NewJob): boolean =>
  job.orderingKey !== null || job.dedupeScope !== null || job.dedupeWindowMillis !== null

/**
 * One statement: ids first, then the keys (in sorted order, so that two batches cannot wait for each other; the first
 * of a batch's duplicates gets it), then the jobs that got their key or need none. A key held by a job that is not
 * committed yet is waited for. The notification is sent by the commit, once per queue and transaction.
 */
const postgres: Enqueue = (n, notify) => {
  const insert = (rich: boolean) =>
    statement(
      n,
      rich ? "enqueue_keyed" : "enqueue",
      `WITH input AS MATERIALIZED (
      SELECT i.*, ${nextval(n.jobIds)} AS id, ${n.now} AS now, ${dueAt(n.now, "greatest", "i.run_at", "i.delay")} AS due
      FROM unnest(:payload::text[], :priority::smallint[], :maxAttempts::integer[], :delay::bigint[], :runAt::bigint[], :expiresMillis::bigint[], :expiresAt::bigint[], :key::text[], :headers::text[]${rich ? ", :scope::text[], :window::bigint[], :place::text[]" : ""})
        WITH ORDINALITY AS i (payload, priority, max_attempts, delay, run_at, expires_ms, expires_at, dedupe_key, headers${rich ? ", dedupe_scope, dedupe_window_ms, ordering_key" : ""}, n)
    ), keys AS (
      INSERT INTO ${n.dedupeKeys} (queue, dedupe_key, job_id)
      SELECT :queue, dedupe_key, id FROM input WHERE dedupe_key IS NOT NULL ORDER BY dedupe_key COLLATE "C", n
      ON CONFLICT DO NOTHING
      RETURNING job_id
    ), added AS (
      INSERT INTO ${n.jobs} (id, ${rich ? richColumns : columns})
      SELECT id, :queue, payload, priority, 0, max_attempts, now, due, ${rich ? "CASE WHEN ordering_key IS NULL THEN due END" : "due"}, coalesce(expires_at, due + expires_ms), expires_ms, dedupe_key, headers${rich ? ", dedupe_scope, dedupe_window_ms, ordering_key" : ""}
      FROM input WHERE dedupe_key IS NULL OR id IN (SELECT job_id FROM keys)
      RETURNING id
    )${
      rich
        ? `, marks AS (
      INSERT INTO ${n.laneMarks} (queue, ordering_key) SELECT DISTINCT :queue, i.ordering_key FROM input i JOIN added a USING (id) WHERE i.ordering_key IS NOT NULL
    )`
        : ""
    }${notify ? `, note AS MATERIALIZED (SELECT pg_notify(:channel, :queue) FROM (SELECT 1 FROM added LIMIT 1) AS one)` : ""}
    SELECT i.n, i.id, i.due, i.now${
      rich
        ? `, i.ordering_key IS NOT NULL AND (row_number() OVER (PARTITION BY i.ordering_key ORDER BY i.n) > 1
        OR (SELECT 1 FROM ${n.jobs} j WHERE j.queue = :queue AND j.ordering_key = i.ordering_key LIMIT 1) IS NOT NULL
        OR (SELECT 1 FROM ${n.laneBlocks} b WHERE b.queue = :queue AND b.ordering_key = i.ordering_key LIMIT 1) IS NOT NULL) AS blocked`
        : ""
    }${notify ? ", (SELECT count(*) FROM note) AS noted" : ""} FROM input i JOIN added a USING (id)`
    )
  const plain = insert(false)
  const keyed = insert(true)
  const holders = statement(
    n,
    "enqueue_holders",
    `SELECT k.dedupe_key, k.job_id, k.free_at, j.id AS live_id, j.token, j.visible_at, ${metAt.postgres("j.due_at", "j.expires_at")} AS met_at, ${isNextHead(n, "j")} AS head, coalesce(j.token IS NULL AND j.expires_at <= ${n.now}, false) AS spent, ${n.now} AS now
    FROM ${n.dedupeKeys} k LEFT JOIN ${n.jobs} j ON j.id = k.job_id AND k.free_at IS NULL
    WHERE k.queue = :queue AND k.dedupe_key = ANY (:keys::text[])`
  )
  // Only as it was seen: whoever took the key in the meantime has a job that this statement would not see
  const orphan = statement(
    n,
    "enqueue_orphan",
    `DELETE FROM ${n.dedupeKeys} k WHERE k.queue = :queue AND k.dedupe_key = :key AND k.job_id = :holder AND k.free_at IS NOT DISTINCT FROM :freeAt::bigint
      AND (k.free_at IS NOT NULL OR NOT EXISTS (SELECT 1 FROM ${n.jobs} j WHERE j.id = k.job_id))`
  )
  const plainly = enqueuePlain.postgres(n, notify)
  const expire = sweep.postgres(n, notify)
  const replace = statement(
    n,
    "enqueue_replace",
    notify
      ? `WITH replaced AS (${replaceText(n, "greatest")}), note AS MATERIALIZED (SELECT pg_notify(:channel, :queue) FROM (SELECT 1 FROM replaced LIMIT 1) AS one)
      SELECT r.*, (SELECT count(*) FROM note) AS noted FROM replaced r`
      : replaceText(n, "greatest")
  )
  const parameters = (queue: string, jobs: ReadonlyArray<NewJob>) => ({
    queue,
    channel: n.channel,
    payload: jobs.map((job) => job.payload),
    priority: jobs.map((job) => job.priority),
    maxAttempts: jobs.map((job) => job.maxAttempts),
    delay: jobs.map((job) => job.delayMillis),
    runAt: jobs.map((job) => job.runAt),
    expiresMillis: jobs.map((job) => job.expiresMillis),
    expiresAt: jobs.map((job) => job.expiresAt),
    key: jobs.map((job) => job.dedupeKey),
    headers: jobs.map((job) => job.headers),
    scope: jobs.map((job) => job.dedupeScope),
    window: jobs.map((job) => job.dedupeWindowMillis),
    place: jobs.map((job) => job.orderingKey)
  })
  /** Whether a key, as it was seen, held nobody off, or by one that is spent: then it does no more. */
  const cleared = (session: Session, queue: string, row: Row) => {
    if (isFree(row)) {
      const seen = { key: row.dedupe_key, holder: row.job_id, freeAt: row.free_at }
      return Effect.as(session.execute(orphan, { queue, ...seen }), true)
    }
    return isSpent(row) ? Effect.as(expire.expireJob(session, int(row.job_id)), true) : Effect.succeed(false)
  }
  /**
   * A job that has to wait for its dedupe key to be cleared would come behind those of its ordering key that were given
   * after it: its key is cleared first.
   */
  const keepOrder = (session: Session, queue: string, jobs: ReadonlyArray<NewJob>) =>
    jobs.length > 1 && jobs.some(({ dedupeKey, orderingKey }) => dedupeKey !== null && orderingKey !== null)
      ? Effect.gen(function* () {
          const keys = new Set(jobs.flatMap(({ dedupeKey }) => (dedupeKey === null ? [] : [dedupeKey])))
          const rows = yield* session.execute(holders, { queue, keys: [...keys].sort() })
          for (const row of rows) yield* cleared(session, queue, row)
        })
      : Effect.void
  const mixed = (session: Session, queue: string, jobs: ReadonlyArray<NewJob>) =>
    Effect.gen(function* () {
      yield* keepOrder(session, queue, jobs)
      const receipts = new Array<Receipt | undefined>(jobs.length)
      let missing = jobs.map((_, index) => index)
      while (missing.length > 0) {
        const size = chunkOf(missing.map((index) => jobs[index] as NewJob))
        const round = missing.slice(0, size)
        const rest = missing.slice(size)
        const some = round.map((index) => jobs[index] as NewJob)
        if (areAlike(some)) {
          const got = yield* plainly(session, queue, some)
          for (const [at, index] of round.entries()) receipts[index] = got[at]
          missing = rest
          continue
        }
        const rows = yield* session.execute(some.some(isRich) ? keyed : plain, parameters(queue, some))
        for (const row of rows)
          receipts[round[int(row.n) - 1] as number] = added(
            int(row.id),
            bool(row.blocked) ? null : int(row.due),
            int(row.now)
          )
        const refused = round.filter((index) => receipts[index] === undefined)
        if (refused.length > 0) {
          // A later statement sees what the first one waited for; a key that was freed in between is tried again
          const keys = refused.map((index) => jobs[index]?.dedupeKey)
          const found = yield* session.execute(holders, { queue, keys })
          const byKey = new Map(found.map((row) => [String(row.dedupe_key), row]))
          const holderOf = (index: number) => int(byKey.get(jobs[index]?.dedupeKey as string)?.job_id ?? 0)
          // In the order of the jobs, so that two batches that replace do not wait for each other
          for (const index of [...refused].sort((a, b) => holderOf(a) - holderOf(b) || a - b)) {
            const row = byKey.get(jobs[index]?.dedupeKey as string)
            if (row === undefined) continue
            if (!(yield* cleared(session, queue, row))) {
              const notice = { queue, channel: n.channel }
              const receipt = yield* heldBy(session, replace, row, jobs[index] as NewJob, notice)
              receipts[index] = receipt
              // Those of this batch that come after it see what it has become
              if (receipt?.replaced === true && refused.length > 1) {
                const [now] = yield* session.execute(holders, { queue, keys: [row.dedupe_key] })
                if (now !== undefined) byKey.set(String(row.dedupe_key), now)
              }
            }
          }
        }
        missing = [...refused.filter((index) => receipts[index] === undefined), ...rest]
      }
      return receipts as ReadonlyArray<Receipt>
    })
  return (session, queue, jobs) =>
    areAlike(jobs) && chunkOf(jobs) === jobs.length ? plainly(session, queue, jobs) : mixed(session, queue, jobs)
}

/** Inside the write lock a look and an insert cannot be overtaken. */
const sqlite: Enqueue = (n) => {
  const holder = statement(
    n,
    "enqueue_holders",
    `SELECT k.job_id, k.free_at, j.id AS live_id, j.token, j.visible_at, coalesce(j.token IS NULL AND j.expires_at <= ${n.now}, 0) AS spent, ${n.now} AS now
    FROM ${n.dedupeKeys} k LEFT JOIN ${n.jobs} j ON j.id = k.job_id AND k.free_at IS NULL
    WHERE k.queue = :queue AND k.dedupe_key = :key`
  )
  const orphan = statement(
    n,
    "enqueue_orphan",
    `DELETE FROM ${n.dedupeKeys} WHERE queue = :queue AND dedupe_key = :key`
  )
  const due = dueAt(n.now, "max", ":runAt", ":delay")
  const insert = statement(
    n,
    "enqueue",
    `INSERT INTO ${n.jobs} (${richColumns})
    VALUES (:queue, :payload, :priority, 0, :maxAttempts, ${n.now}, ${due}, CASE WHEN :place IS NULL THEN ${due} END, coalesce(:expiresAt, ${due} + :expiresMillis), :expiresMillis, :key, :headers, :scope, :window, :place)
    RETURNING id, due_at, enqueued_at`
  )
  const expire = sweep.sqlite(n, false)
  const replace = statement(n, "enqueue_replace", replaceText(n, "max"))
  const advance = advanceKey(n)
  const hold = statement(
    n,
    "enqueue_key",
    `INSERT INTO ${n.dedupeKeys} (queue, dedupe_key, job_id) VALUES (:queue, :key, :id)`
  )
  const plainly = enqueuePlain.sqlite(n, false)
  const chunks = (session: Session, queue: string, jobs: ReadonlyArray<NewJob>) =>
    Effect.gen(function* () {
      const receipts: Array<Receipt> = []
      for (let left = jobs; left.length > 0; ) {
        const size = chunkOf(left)
        for (const receipt of yield* plainly(session, queue, left.slice(0, size))) receipts.push(receipt)
        left = left.slice(size)
      }
      return receipts
    })
  return (session, queue, jobs) => {
    if (areAlike(jobs))
      return chunkOf(jobs) === jobs.length ? plainly(session, queue, jobs) : chunks(session, queue, jobs)
    return Effect.forEach(jobs, (job) =>
      Effect.gen(function* () {
        const key = job.dedupeKey
        if (key !== null) {
          let [held] = yield* session.execute(holder, { queue, key })
          if (held !== undefined && isSpent(held)) {
            yield* expire.expireJob(session, int(held.job_id))
            held = (yield* session.execute(holder, { queue, key }))[0]
          }
          const receipt =
            held === undefined || isFree(held)
              ? undefined
              : yield* heldBy(session, replace, held, job, { queue, channel: n.channel })
          if (receipt !== undefined) return receipt
          // A key whose job was deleted by hand holds nobody off
          if (held !== undefined) yield* session.execute(orphan, { queue, key })
        }
        const rest = { key, scope: job.dedupeScope, window: job.dedupeWindowMillis, place: job.orderingKey }
        const given = Object.assign(plainParameters(n, queue, job, job.payload), rest)
        const [row] = yield* session.execute(insert, given)
        const id = int(row?.id)
        if (key !== null) yield* session.execute(hold, { queue, key, id })
        const blocked = job.orderingKey !== null && (yield* advance(session, queue, job.orderingKey)) !== id
        return added(id, blocked ? null : int(row?.due_at), int(row?.enqueued_at))
      })
    )
  }
}

export const enqueue: PerEngine<Enqueue> = { postgres, sqlite }
