/**
 * import: the statements that take a page of records over. What has been taken before is known by `imports`, which is
 * written in the same transaction. One import at a time writes a page: on PostgreSQL by a lock that ends with the
 * transaction, so that ids are given in the order of the records.
 */
import { Effect } from "effect"
import type { StoreError } from "../../services/Errors.js"
import { makeTurn, type Names, nextval, type PerEngine, type Session, type Statement, statement } from "../engine.js"
import { type Define, define } from "../Queue/statements/define.js"
import { metAt } from "../Queue/statements/lists.js"
import { int, intOrNull } from "../Queue/statements/rows.js"
import { type Columns, columns, namesOf, rowsFrom, text } from "./columns.js"
import { makeSettings } from "./writeSettings.js"

/** A record's properties, and the id it is given here. */
export type Given = Readonly<Record<string, unknown>> & { readonly id?: number }

export interface Note {
  readonly source: string
  readonly targetId: number | null
}

export interface Writes {
  readonly lock: (session: Session) => Effect.Effect<void, StoreError>
  /** Which have been taken over, and under which id. */
  readonly known: (
    session: Session,
    origin: string,
    kind: string,
    sources: ReadonlyArray<string>
  ) => Effect.Effect<ReadonlyMap<string, number | null>, StoreError>
  readonly note: (
    session: Session,
    origin: string,
    kind: string,
    notes: ReadonlyArray<Note>
  ) => Effect.Effect<void, StoreError>
  /** Gives notes that are there another `targetId`. */
  readonly noteAgain: Writes["note"]
  /** New ids, ascending. */
  readonly allocate: (session: Session, count: number) => Effect.Effect<ReadonlyArray<number>, StoreError>
  /** Takes dedupe keys for jobs; answers the ids of those that got theirs. */
  readonly takeKeys: (session: Session, jobs: ReadonlyArray<Given>) => Effect.Effect<ReadonlySet<number>, StoreError>
  /** Lets dedupe keys go again that these jobs have just got. */
  readonly dropKeys: (session: Session, jobs: ReadonlyArray<Given>) => Effect.Effect<void, StoreError>
  /** Who holds the dedupe keys, by queue and key. */
  readonly holders: (
    session: Session,
    jobs: ReadonlyArray<Given>
  ) => Effect.Effect<(queue: string, key: string) => number | undefined, StoreError>
  readonly add: (
    session: Session,
    kind: "job" | "dead" | "completed" | "key",
    rows: ReadonlyArray<Given>
  ) => Effect.Effect<void, StoreError>
  readonly define: Pick<Define, "leadsTo" | "turn">
  readonly addQueues: (session: Session, rows: ReadonlyArray<Given>) => Effect.Effect<void, StoreError>
  /** Answers the names of those that were taken over. */
  readonly addSchedules: (
    session: Session,
    rows: ReadonlyArray<Given>
  ) => Effect.Effect<ReadonlySet<string>, StoreError>
  /**
   * Brings schedules that were taken over before, and whose last boundary is still the one that `noted` says, to where they have come
   * since. Answers their names.
   */
  readonly moveSchedules: Writes["addSchedules"]
  /** The jobs that the schedules of these names know as their own, as stored. */
  readonly ownJobs: (
    session: Session,
    names: ReadonlyArray<string>
  ) => Effect.Effect<ReadonlyMap<string, string | null>, StoreError>
  readonly keepJobs: (session: Session, rows: ReadonlyArray<Given>) => Effect.Effect<void, StoreError>
  /** PostgreSQL: marks the ordering keys of new jobs. */
  readonly mark: (session: Session, jobs: ReadonlyArray<Given>) => Effect.Effect<void, StoreError>
  readonly tell: (session: Session, topics: ReadonlyArray<string>) => Effect.Effect<void, StoreError>
}

const id: Columns = [["id", "id", "big"]]
const place: Columns = [
  ["queue", "queue", "text"],
  ["orderingKey", "ordering_key", "text"]
]
const key: Columns = [
  ["queue", "queue", "text"],
  ["dedupeKey", "dedupe_key", "text"]
]
const free: Columns = [["freeAt", "free_at", "big"]]
const noted: Columns = [
  ["source", "source", "text"],
  ["targetId", "target_id", "big"]
]

/** Two batches take keys in the same order, and so never wait for each other in a circle. */
const sorted: PerEngine<string> = { postgres: 'ORDER BY dedupe_key COLLATE "C"', sqlite: "ORDER BY dedupe_key" }

/**
 * PostgreSQL: one look into the index for each, said so that no planner, whatever it knows of a table that has just been
 * filled, reads all that has been imported for each page.
 */
const known: PerEngine<(n: Names) => string> = {
  postgres: (n) =>
    `SELECT i.source, i.target_id FROM json_array_elements_text(:rows::json) AS g (source) CROSS JOIN LATERAL (
      SELECT source, target_id FROM ${n.imports} WHERE origin = :origin AND kind = :kind AND source = g.source COLLATE "C" LIMIT 1
    ) AS i`,
  sqlite: (n) =>
    `SELECT source, target_id FROM ${n.imports} WHERE origin = :origin AND kind = :kind AND source IN (SELECT value FROM json_each(:rows))`
}

/** SQLite: ids that are given without a row. The counter has no row before the table has had one. */
const sqliteIds = (n: Names): Writes["allocate"] => {
  const table = n.jobs.replaceAll('"', "")
  const next = statement(
    n,
    "import_ids",
    "UPDATE sqlite_sequence SET seq = seq + :count WHERE name = :table RETURNING seq"
  )
  const first = statement(n, "import_ids_first", "INSERT INTO sqlite_sequence (name, seq) VALUES (:table, 0)")
  return (session, count) =>
    Effect.gen(function* () {
      let [row] = yield* session.execute(next, { table, count })
      if (row === undefined) {
        yield* session.execute(first, { table })
        row = (yield* session.execute(next, { table, count }))[0]
      }
      const last = int(row?.seq)
      return Array.from({ length: count }, (_, index) => last - count + 1 + index)
    })
}

const postgresIds = (n: Names): Writes["allocate"] => {
  const next = statement(n, "import_ids", `SELECT ${nextval(n.jobIds)} AS id FROM generate_series(1, :count::integer)`)
  return (session, count) =>
    Effect.map(session.execute(next, { count }), (rows) => rows.map((row) => int(row.id)).sort((a, b) => a - b))
}

const adds = (n: Names) => {
  const rows = rowsFrom[n.engine]
  const insert = (name: string, table: string, list: Columns, more = "", values = "") =>
    statement(
      n,
      name,
      `INSERT INTO ${table} (${namesOf(list)}${more}) SELECT ${namesOf(list)}${values} FROM ${rows("rows", list)} AS r`
    )
  const blocks = statement(
    n,
    "import_blocks",
    `INSERT INTO ${n.laneBlocks} (letter_id, queue, ordering_key) SELECT id, queue, ordering_key FROM ${rows("rows", [...id, ...place])} AS r`
  )
  const keys: Columns = [...key, ["id", "job_id", "big"], ...free]
  const by = {
    // In the order of their keys they are let go afterwards, as after an enqueue
    job: insert(
      "import_jobs",
      n.jobs,
      [...id, ...columns.job],
      ", visible_at",
      `, CASE WHEN ordering_key IS NULL THEN ${metAt[n.engine]("due_at", "expires_at")} END`
    ),
    dead: insert("import_dead", n.deadLetters, [...id, ...columns.dead]),
    completed: insert("import_completed", n.completedJobs, [...id, ...columns.completed]),
    // Somebody who has it holds it anyway
    key: statement(
      n,
      "import_keys",
      `INSERT INTO ${n.dedupeKeys} (${namesOf(keys)}) SELECT ${namesOf(keys)} FROM ${rows("rows", keys)} AS r
      WHERE free_at > ${n.now} ${sorted[n.engine]} ON CONFLICT DO NOTHING`
    )
  }
  const add: Writes["add"] = (session, kind, given) =>
    Effect.gen(function* () {
      if (given.length === 0) return
      yield* session.execute(by[kind], text(given))
      const holding = given.filter((row) => row.blocksKey === true && row.orderingKey !== null)
      if (holding.length > 0) yield* session.execute(blocks, text(holding))
    })
  return add
}

const keysOf = (n: Names): Pick<Writes, "takeKeys" | "dropKeys" | "holders"> => {
  const rows = rowsFrom[n.engine]
  const wanted = `(queue, dedupe_key) IN (SELECT queue, dedupe_key FROM ${rows("rows", key)} AS r)`
  const clear = statement(
    n,
    "import_keys_free",
    `DELETE FROM ${n.dedupeKeys} WHERE ${wanted} AND (free_at <= ${n.now}
      OR (free_at IS NULL AND NOT EXISTS (SELECT 1 FROM ${n.jobs} j WHERE j.id = job_id)))`
  )
  const take = statement(
    n,
    "import_keys_take",
    `INSERT INTO ${n.dedupeKeys} (queue, dedupe_key, job_id) SELECT queue, dedupe_key, id FROM ${rows("rows", [...key, ...id])} AS r
    WHERE true ${sorted[n.engine]} ON CONFLICT DO NOTHING RETURNING job_id`
  )
  const drop = statement(
    n,
    "import_keys_drop",
    `DELETE FROM ${n.dedupeKeys} WHERE ${wanted} AND job_id IN (SELECT id FROM ${rows("rows", id)} AS r)`
  )
  const holders = statement(
    n,
    "import_keys_held",
    `SELECT queue, dedupe_key, job_id FROM ${n.dedupeKeys} WHERE ${wanted}`
  )
  const name = (queue: string, dedupeKey: string) => JSON.stringify([queue, dedupeKey])
  return {
    takeKeys: (session, jobs) =>
      jobs.length === 0
        ? Effect.succeed(new Set<number>())
        : Effect.zipRight(
            session.execute(clear, text(jobs)),
            Effect.map(session.execute(take, text(jobs)), (taken) => new Set(taken.map((row) => int(row.job_id))))
          ),
    dropKeys: (session, jobs) => (jobs.length === 0 ? Effect.void : Effect.asVoid(session.execute(drop, text(jobs)))),
    holders: (session, jobs) =>
      Effect.map(session.execute(holders, text(jobs)), (held) => {
        const by = new Map(held.map((row) => [name(String(row.queue), String(row.dedupe_key)), int(row.job_id)]))
        return (queue, dedupeKey) => by.get(name(queue, dedupeKey))
      })
  }
}

export const makeWrites = (n: Names, notify: boolean): Writes => {
  const rows = rowsFrom[n.engine]
  const lock = makeTurn(n, "import_lock")
  const find = statement(n, "import_known", known[n.engine](n))
  const note = statement(
    n,
    "import_note",
    `INSERT INTO ${n.imports} (origin, kind, source, target_id, imported_at)
    SELECT :origin, :kind, source, target_id, ${n.now} FROM ${rows("rows", noted)} AS r`
  )
  const again = statement(
    n,
    "import_note_again",
    `UPDATE ${n.imports} AS i SET target_id = r.target_id FROM ${rows("rows", noted)} AS r
    WHERE i.origin = :origin AND i.kind = :kind AND i.source = r.source`
  )
  const mark = statement(
    n,
    "import_marks",
    `INSERT INTO ${n.laneMarks} (queue, ordering_key) SELECT DISTINCT queue, ordering_key FROM ${rows("rows", place)} AS r`
  )
  const tell = statement(
    n,
    "import_notify",
    "SELECT pg_notify(:channel, topic) FROM json_array_elements_text(:rows::json) AS t (topic)"
  )
  const isPostgres = n.engine === "postgres"
  const noting =
    (statement: Statement): Writes["note"] =>
    (session, origin, kind, notes) =>
      notes.length === 0 ? Effect.void : Effect.asVoid(session.execute(statement, { origin, kind, ...text(notes) }))
  return {
    lock: (session) => lock(session, `alkstore:import:${n.namespace}`),
    known: (session, origin, kind, sources) =>
      Effect.map(
        session.execute(find, { origin, kind, ...text(sources) }),
        (found) => new Map(found.map((row) => [String(row.source), intOrNull(row.target_id)]))
      ),
    note: noting(note),
    noteAgain: noting(again),
    allocate: isPostgres ? postgresIds(n) : sqliteIds(n),
    ...keysOf(n),
    ...makeSettings(n),
    define: define[n.engine](n),
    add: adds(n),
    mark: (session, jobs) =>
      isPostgres && jobs.length > 0 ? Effect.asVoid(session.execute(mark, text(jobs))) : Effect.void,
    tell: (session, topics) =>
      isPostgres && notify && topics.length > 0
        ? Effect.asVoid(session.execute(tell, { channel: n.channel, ...text(topics) }))
        : Effect.void
  }
}
