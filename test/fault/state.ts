/** What is committed, in words that are the same each time: without ids, tokens, instants and the names' own prefix. */

export type Raw = Readonly<Record<string, ReadonlyArray<Readonly<Record<string, unknown>>>>>
type Row = Raw[string][number]

export const tables = [
  "jobs",
  "dead_letters",
  "completed_jobs",
  "dedupe_keys",
  "lane_marks",
  "lane_blocks",
  "queues",
  "locks",
  "schedules",
  "imports",
  "marks"
] as const

const parsed = (text: unknown): ReadonlyArray<Record<string, unknown>> =>
  typeof text === "string" ? (JSON.parse(text) as ReadonlyArray<Record<string, unknown>>) : []

const errors = (row: Row) => parsed(row.errors).map(({ attempt, kind, message }) => [attempt, kind, message])

/** What a job keeps wherever it is. */
const kept = (row: Row) => [
  row.queue,
  row.payload,
  `priority ${row.priority} attempt ${row.attempt}/${row.max_attempts} crashes ${row.crashes} failures ${row.failures}`,
  [row.dedupe_key, row.dedupe_scope, row.dedupe_window_ms, row.ordering_key, row.progress],
  errors(row),
  `lives ${parsed(row.history).length}`,
  row.expires_at === null ? "" : "expires"
]

const stateOf = (row: Row, now: number): string => {
  const at = row.visible_at as number | null
  if (row.token !== null) return Number(at) <= now ? "lapsed" : "leased"
  return at === null ? "blocked" : at > now ? "delayed" : "ready"
}

const when = (instant: unknown, now: number) => (instant === null ? "never" : Number(instant) > now ? "later" : "due")

/** The payload by which a row is called in others. */
const called = (raw: Raw, id: unknown): unknown =>
  [...(raw.jobs ?? []), ...(raw.dead_letters ?? [])].find((row) => row.id === id)?.payload ?? "nobody"

const words: Record<(typeof tables)[number], (row: Row, raw: Raw, now: number) => ReadonlyArray<unknown>> = {
  jobs: (row, _, now) => [
    ...kept(row),
    stateOf(row, now),
    row.cancel_requested_at === null ? "" : "to be cancelled",
    row.undecodable_since === null ? "" : "undecodable"
  ],
  dead_letters: (row) => [...kept(row), row.reason],
  completed_jobs: kept,
  dedupe_keys: (row, raw) => [row.queue, row.dedupe_key, row.free_at === null ? called(raw, row.job_id) : "window"],
  lane_marks: (row) => [row.queue, row.ordering_key],
  lane_blocks: (row, raw) => [row.queue, row.ordering_key, called(raw, row.letter_id)],
  queues: (row) => [
    row.name,
    row.max_crashes,
    row.retain_completed_ms,
    row.retain_dead_ms,
    row.dead_letter_queue,
    row.on_dead,
    row.defined_by,
    row.paused_at === null ? "" : "paused"
  ],
  locks: (row) => [row.name, row.ttl_ms],
  schedules: (row, _, now) => [
    row.name,
    row.queue,
    row.payload,
    row.cron,
    `fired ${row.fired} skipped ${row.skipped} failures ${row.failures}`,
    Boolean(row.declared),
    row.paused_at === null ? "" : "paused",
    when(row.next_at, now),
    when(row.fire_at, now),
    when(row.last_at, now)
  ],
  imports: (row) => [row.origin, row.kind],
  marks: (row) => [row.text]
}

/** In the envelope of a dead letter. */
const changing = /(\\"(?:id|enqueuedAt|diedAt)\\":)\d+/g

/** One line per row. */
export const describeState = (raw: Raw, prefix: string, now = Date.now()): ReadonlyArray<string> =>
  tables
    .flatMap((table) => {
      const lines = (raw[table] ?? []).map((row) => `${table} ${JSON.stringify(words[table](row, raw, now))}`)
      // A key is marked as often as something of it has ended
      return table === "lane_marks" ? [...new Set(lines)] : lines
    })
    .map((line) => line.replaceAll(prefix, "").replace(changing, "$1"))
    .sort()

/** What no statement may leave behind, whatever became of it. */
export const dangling = (raw: Raw): ReadonlyArray<string> => {
  const jobs = new Map((raw.jobs ?? []).map((row) => [row.id, row]))
  const letters = new Set((raw.dead_letters ?? []).map(({ id }) => id))
  const both = [...jobs.keys()].filter((id) => letters.has(id)).map((id) => `job ${id} is live and dead`)
  const completed = (raw.completed_jobs ?? [])
    .filter(({ id }) => jobs.has(id))
    .map(({ id }) => `job ${id} is live and completed`)
  const keys = (raw.dedupe_keys ?? [])
    .filter((row) => row.free_at === null && jobs.get(row.job_id)?.dedupe_key !== row.dedupe_key)
    .map((row) => `dedupe key ${row.dedupe_key} is held by no job`)
  const blocks = (raw.lane_blocks ?? [])
    .filter((row) => !letters.has(row.letter_id))
    .map((row) => `ordering key ${row.ordering_key} is held by no letter`)
  const held = new Map<string, number>()
  for (const row of jobs.values()) {
    if (row.ordering_key === null || row.visible_at === null) continue
    const key = `${row.queue} ${row.ordering_key}`
    held.set(key, (held.get(key) ?? 0) + 1)
  }
  const heads = [...held].filter(([, count]) => count > 1).map(([key]) => `ordering key ${key} has two heads`)
  return [...both, ...completed, ...keys, ...blocks, ...heads]
}
