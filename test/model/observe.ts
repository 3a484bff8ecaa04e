/** What is in the tables, in the model's words; and the model's state in the same form. */
import { SqlClient } from "@effect/sql"
import { Effect } from "effect"
import { bury, lapse } from "./ends.js"
import type { QueueName } from "./queues.js"
import { agree, demand, identify, noteErrors, ownHeaders, plainPayload, type Scene } from "./scene.js"
import { isExpired, isLapsed, type Job, type Life } from "./state.js"

type Raw = Readonly<Record<string, unknown>>
type Row = Readonly<Record<string, unknown>>

export interface Seen {
  readonly live: ReadonlyArray<Row>
  readonly dead: ReadonlyArray<Row>
  readonly completed: ReadonlyArray<Row>
  readonly keys: ReadonlyArray<Row>
  readonly holding: ReadonlyArray<number>
  readonly paused: ReadonlyArray<string>
  readonly marks: ReadonlySet<string>
  readonly schedules: ReadonlyArray<Row>
  readonly locks: ReadonlyArray<Row>
}

const int = (value: unknown): number | null => (value === null || value === undefined ? null : Number(value))
const json = (value: unknown): unknown => (typeof value === "string" ? JSON.parse(value) : null)
const list = <A>(value: unknown): ReadonlyArray<A> => (json(value) ?? []) as ReadonlyArray<A>

type RawErrors = Parameters<typeof noteErrors>[0]

const lifeOf = (life: Life & { readonly errors: RawErrors }): Life => ({
  id: life.id,
  queue: life.queue,
  reason: life.reason,
  diedAt: life.diedAt,
  attempts: life.attempts,
  crashes: life.crashes,
  failures: life.failures,
  errors: noteErrors(life.errors)
})

/** What a job keeps in whatever table it is. */
const kept = (row: Raw): Row => ({
  id: int(row.id),
  queue: row.queue,
  payload: plainPayload(json(row.payload)),
  headers: ownHeaders(json(row.headers)),
  priority: int(row.priority),
  attempt: int(row.attempt),
  maxAttempts: int(row.max_attempts),
  crashes: int(row.crashes),
  failures: int(row.failures),
  enqueuedAt: int(row.enqueued_at),
  dueAt: int(row.due_at),
  expiresAt: int(row.expires_at),
  expiresMillis: int(row.expires_ms),
  dedupeKey: row.dedupe_key,
  dedupeScope: row.dedupe_scope,
  dedupeWindow: int(row.dedupe_window_ms),
  orderingKey: row.ordering_key,
  progress: json(row.progress),
  errors: noteErrors(list<RawErrors[number]>(row.errors)),
  failureTimes: list<number>(row.failure_times),
  history: list<Life & { readonly errors: RawErrors }>(row.history).map(lifeOf)
})

const metAt = (row: Raw): number | null => {
  const due = int(row.due_at)
  const expires = int(row.expires_at)
  return due === null || expires === null ? due : Math.min(due, expires)
}

const live = (row: Raw): Row => {
  const leased = row.token !== null
  return {
    ...kept(row),
    place: leased ? "leased" : row.visible_at === null ? "blocked" : "open",
    // A lease's end; an open job is met when it is due, or by its expiry
    at: leased || row.visible_at === null ? int(row.visible_at) : int(row.visible_at) === metAt(row),
    token: int(row.token),
    claimedAt: int(row.claimed_at),
    visibility: int(row.visibility_ms),
    cancelRequested: row.cancel_requested_at !== null,
    undecodableSince: int(row.undecodable_since)
  }
}

const schedule = (row: Raw): Row => ({
  name: row.name,
  queue: row.queue,
  payload: json(row.payload),
  catchUp: row.catch_up,
  overlap: row.overlap,
  pausedAt: int(row.paused_at),
  nextAt: row.paused_at === null ? int(row.next_at) : null,
  fireAt: int(row.fire_at),
  lastAt: int(row.last_at),
  fired: int(row.fired),
  skipped: int(row.skipped),
  createdAt: int(row.created_at),
  lastError: row.last_error
})

const laneOf = (queue: unknown, key: unknown): string => `${queue} ${key}`

const tables = "jobs dead_letters completed_jobs dedupe_keys lane_marks lane_blocks queues schedules locks".split(" ")

/** The rows of every table. PostgreSQL: in one round trip, which takes longer than all else. */
const allRows = ({ engine }: Scene) =>
  Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    const found = new Map<string, ReadonlyArray<Raw>>()
    if (engine.engine === "sqlite")
      for (const table of tables) found.set(table, yield* sql.unsafe<Raw>(`SELECT * FROM ${engine.table(table)}`))
    else {
      const of = (table: string) =>
        `SELECT '${table}' AS place, to_json(r)::text AS content FROM ${engine.table(table)} r`
      const rows = yield* sql.unsafe<Raw>(tables.map(of).join(" UNION ALL "))
      for (const { content, place } of rows)
        found.set(String(place), [...(found.get(String(place)) ?? []), JSON.parse(String(content)) as Raw])
    }
    return (table: string) => found.get(table) ?? []
  })

export const look = (scene: Scene): Effect.Effect<Seen, unknown, SqlClient.SqlClient> =>
  Effect.gen(function* () {
    const { now } = scene.state
    const all = yield* allRows(scene)
    const byId = (rows: ReadonlyArray<Row>) => [...rows].sort((a, b) => Number(a.id) - Number(b.id))
    const byName = (rows: ReadonlyArray<Row>) => [...rows].sort((a, b) => (String(a.name) < String(b.name) ? -1 : 1))
    const letters = all("dead_letters").map((row) => ({
      ...kept(row),
      reason: row.reason,
      diedAt: int(row.died_at)
    }))
    const completed = all("completed_jobs").map((row) => ({
      ...kept(row),
      completedAt: int(row.completed_at)
    }))
    return {
      live: byId(all("jobs").map(live)),
      dead: byId(letters),
      completed: byId(completed),
      // One whose window has passed holds nobody off
      keys: all("dedupe_keys")
        .map((row) => ({ name: laneOf(row.queue, row.dedupe_key), id: int(row.job_id), freeAt: int(row.free_at) }))
        .filter(({ freeAt }) => freeAt === null || freeAt > now)
        .sort((a, b) => (a.name < b.name ? -1 : 1)),
      holding: all("lane_blocks")
        .map((row) => Number(row.letter_id))
        .sort((a, b) => a - b),
      paused: all("queues")
        .filter((row) => row.paused_at !== null)
        .map((row) => String(row.name))
        .sort(),
      marks: new Set(all("lane_marks").map((row) => laneOf(row.queue, row.ordering_key))),
      schedules: byName(all("schedules").map(schedule)),
      locks: byName(
        all("locks")
          .map((row) => ({ name: row.name, token: int(row.token), expiresAt: Number(row.expires_at) }))
          .filter(({ expiresAt }) => expiresAt > now)
      )
    }
  })

/** What a claim may have moved on its way, by the contract: it did, if the tables say so. */
export const resolve = (scene: Scene, seen: Seen, queue: QueueName): void => {
  const { state } = scene
  const tokens = new Map(seen.live.map((row) => [row.id, row.token]))
  const mine = () => state.live.filter((other) => other.queue === queue)
  for (const job of mine().filter((other) => isLapsed(other, state.now)))
    if (tokens.get(job.id) !== job.lease?.token) scene.count(`claim: lapsed, ${lapse(state, job)}`)
  // Among them what has come back from a lease after its expiry
  for (const job of mine().filter((other) => isExpired(other, state.now) && !tokens.has(other.id))) {
    scene.count("claim: expires")
    bury(state, job, "expired")
  }
}

const same = ({ id: _, ...row }: Row): string => JSON.stringify(row)

const keptOf = (job: Job): Row => {
  const { dedupeKey, dedupeScope, dedupeWindow, dueAt, enqueuedAt, expiresAt, expiresMillis, failureTimes } = job
  const { attempt, crashes, errors, failures, headers, history, maxAttempts, orderingKey, priority, progress, queue } =
    job
  return {
    id: job.id ?? null,
    queue,
    payload: job.payload,
    headers: headers ?? {},
    priority,
    attempt,
    maxAttempts,
    crashes,
    failures,
    enqueuedAt,
    dueAt,
    expiresAt,
    expiresMillis,
    dedupeKey,
    dedupeScope,
    dedupeWindow,
    orderingKey,
    progress,
    errors,
    failureTimes,
    history
  }
}

const liveOf = (job: Job): Row => ({
  ...keptOf(job),
  place: job.lease !== null ? "leased" : job.open ? "open" : "blocked",
  at: job.lease !== null ? job.lease.deadline : job.open ? true : null,
  token: job.lease?.token ?? null,
  claimedAt: job.lease?.claimedAt ?? null,
  visibility: job.lease?.visibility ?? null,
  cancelRequested: job.cancelRequested,
  undecodableSince: job.undecodableSince
})

/** Ids of jobs that nobody was told about: envelopes, those of schedules, those that joined the end of their key. */
const learnIds = (scene: Scene, seen: Seen): void => {
  const known = new Set(scene.state.live.map((job) => job.id))
  const strange = seen.live.filter((row) => !known.has(row.id as number))
  for (const job of scene.state.live.filter((other) => other.id === undefined)) {
    // On PostgreSQL it may still be to be unblocked
    const like = (row: Row) =>
      same({ ...row, place: job.open && row.place === "blocked" ? "open" : row.place, at: liveOf(job).at }) ===
      same(liveOf(job))
    const index = strange.findIndex(like)
    const [row] = index < 0 ? [] : strange.splice(index, 1)
    if (row === undefined) continue
    demand(Number(row.id) > 0, () => "a job has no id")
    identify(scene, job, Number(row.id))
  }
  scene.lastId = Math.max(scene.lastId, ...seen.live.map((row) => Number(row.id)))
}

/** Blocked in the table, while the model has it open: PostgreSQL only, and only with a mark by which it is found. */
export const openSoon = (scene: Scene, seen: Seen): ReadonlySet<number> => {
  const rows = new Map(seen.live.map((row) => [row.id, row]))
  const soon = scene.state.live.filter(
    (job) =>
      job.open &&
      job.lease === null &&
      rows.get(job.id)?.place === "blocked" &&
      seen.marks.has(laneOf(job.queue, job.orderingKey))
  )
  return new Set(soon.map(({ uid }) => uid))
}

const expected = (scene: Scene, pending: ReadonlySet<number>) => {
  const { state } = scene
  const byId = (a: Row, b: Row) => Number(a.id) - Number(b.id)
  return {
    live: state.live
      .map((job) => (pending.has(job.uid) ? { ...liveOf(job), place: "blocked", at: null } : liveOf(job)))
      .sort(byId),
    dead: state.dead.map((letter) => ({ ...keptOf(letter), reason: letter.reason, diedAt: letter.diedAt })).sort(byId),
    completed: state.completed.map((job) => ({ ...keptOf(job), completedAt: job.completedAt })).sort(byId),
    keys: state.keys
      .filter(({ freeAt }) => freeAt === null || freeAt > state.now)
      .map(({ freeAt, id, key, queue }) => ({ name: laneOf(queue, key), id: id ?? null, freeAt }))
      .sort((a, b) => (a.name < b.name ? -1 : 1)),
    holding: state.dead
      .filter(({ holds }) => holds)
      .map(({ id }) => Number(id))
      .sort((a, b) => a - b),
    paused: [...state.paused].sort(),
    schedules: [...state.schedules]
      .sort((a, b) => (a.name < b.name ? -1 : 1))
      .map(({ createdAt, fired, lastAt, name, nextAt, pausedAt, skipped, spec }) => ({
        name,
        queue: spec.queue,
        payload: spec.payload,
        catchUp: spec.catchUp,
        overlap: spec.overlap,
        pausedAt,
        nextAt: pausedAt === null ? nextAt : null,
        fireAt: pausedAt === null ? nextAt : null,
        lastAt,
        fired,
        skipped,
        createdAt,
        lastError: null
      })),
    locks: state.locks
      .filter(({ expiresAt }) => expiresAt > state.now)
      .map(({ expiresAt, name, token }) => ({ name, token, expiresAt }))
      .sort((a, b) => (a.name < b.name ? -1 : 1))
  }
}

/** All there is, on both sides. */
export const compare = (scene: Scene, seen: Seen): void => {
  learnIds(scene, seen)
  const pending = openSoon(scene, seen)
  if (pending.size > 0) scene.count("state: to be unblocked by the next look")
  const { marks: _, ...tables } = seen
  const model = expected(scene, pending)
  for (const name of Object.keys(model) as ReadonlyArray<keyof typeof model>) agree(name, tables[name], model[name])
  scene.pending = pending
  scene.marked = seen.marks.size > 0
}
