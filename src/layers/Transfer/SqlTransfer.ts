/**
 * The Transfer service over a Database.
 */
import { Chunk, Effect, Either, Layer, Option, Sink, Stream } from "effect"
import { conflictRetry } from "../../schedule/Polling.js"
import { InvalidArgument, QueuesInUse, type StoreError, type TransactionOpen } from "../../services/Errors.js"
import { checkQueueName } from "../../services/input.js"
import {
  type ExportOptions,
  type Refusal,
  type Service,
  type Summary,
  type Tally,
  Transfer
} from "../../services/Transfer.js"
import { checkRecord, soundRecord, type TransferRecord } from "../../services/TransferRecord.js"
import type { Database } from "../Database/Database.js"
import { makeSweep } from "../Queue/maintain.js"
import { makeStore } from "../Queue/store.js"
import { makeReads, type Page, type Reads } from "./read.js"
import { makeTakeOver, type Taken } from "./takeOver.js"
import { makeWrites } from "./write.js"

export interface SqlTransferOptions {
  readonly notify: boolean
}

/** Records of one page, whichever comes first: so many, or so many characters. */
const pageRecords = 500
const pageCharacters = 8 * 1024 * 1024

const maxRefusals = 1_000

const header = (error: string) => new InvalidArgument({ argument: "records", message: `records: ${error}` })

const noQueue = (names: ReadonlyArray<string>) =>
  new InvalidArgument({
    argument: "queues",
    message: `queues: there is no queue ${names.join(", ")} in this namespace`
  })

const inUse = ({
  leased,
  unpaused
}: {
  readonly unpaused: ReadonlyArray<string>
  readonly leased: ReadonlyArray<string>
}) =>
  new QueuesInUse({
    unpaused,
    leased,
    message: `${[
      ...(unpaused.length > 0 ? [`not paused: ${unpaused.join(", ")}`] : []),
      ...(leased.length > 0 ? [`with leased jobs: ${leased.join(", ")}`] : [])
    ].join(
      "; "
    )}. Pause the queues, stop their workers, wait until no job is leased; or force it, and jobs may run in both places`
  })

const counters: Partial<Record<TransferRecord["type"], keyof Summary>> = {
  job: "jobs",
  dead: "deadLetters",
  completed: "completed",
  queue: "queues",
  key: "keys",
  schedule: "schedules"
}

const makeExport = (
  db: Database,
  reads: Reads,
  known: Effect.Effect<ReadonlyArray<string>, TransactionOpen | StoreError>,
  sweep: Effect.Effect<unknown, TransactionOpen | StoreError>
) => {
  const pages = (read: Reads["jobs"], page: Omit<Page, "after" | "limit">) =>
    Stream.paginateChunkEffect(0, (after) =>
      Effect.map(
        db.apart("read", "export", (session) => read(session, { ...page, after, limit: pageRecords })),
        (records) => {
          const last = records.at(-1)
          const next = records.length < pageRecords || last === undefined || !("id" in last) ? undefined : last.id
          return [Chunk.unsafeFromArray(records), Option.fromNullable(next)] as const
        }
      )
    )
  const once = (read: Reads["jobs"], queues: ReadonlyArray<string> | null) =>
    Stream.unwrap(
      Effect.map(
        db.apart("read", "export", (session) => read(session, { queues, after: 0, from: 0, limit: 0 })),
        Stream.fromIterable
      )
    )

  return ({ completed = false, force = false, queues: wanted, schedules = true }: ExportOptions = {}) =>
    Stream.unwrap(
      Effect.gen(function* () {
        const queues = wanted === undefined ? null : yield* Either.all(wanted.map(checkQueueName))
        // A name that is mistyped would be an export of nothing
        const all = queues === null ? [] : yield* known
        const unknown = queues?.filter((name) => !all.includes(name)) ?? []
        if (unknown.length > 0) return yield* noQueue(unknown)
        // Leases that have ended end as they would without an export
        yield* sweep
        const busy = yield* db.apart("read", "export", (session) => reads.busy(session, queues))
        if (!force && busy.unpaused.length + busy.leased.length > 0) return yield* inUse(busy)
        const [origin, holds, now] = yield* db.apart("read", "export", (session) =>
          Effect.all([reads.origin(session), reads.holds(session), reads.now(session)])
        )
        const first = soundRecord({
          type: "alkstore",
          version: 1,
          origin,
          namespace: db.names.namespace,
          engine: db.names.engine,
          exportedAt: now,
          holds
        })
        let records = 0
        const body: Stream.Stream<TransferRecord, TransactionOpen | StoreError> = Stream.make(first).pipe(
          Stream.concat(once(reads.queues, queues)),
          // Letters come first: one that holds its key must be there before its followers, and its id before theirs
          Stream.concat(pages(reads.dead, { queues, from: 0 })),
          Stream.concat(pages(reads.jobs, { queues, from: 0 })),
          // What died in between was no letter then, and no job now
          Stream.concat(pages(reads.dead, { queues, from: now })),
          Stream.concat(completed ? pages(reads.completed, { queues, from: 0 }) : Stream.empty),
          Stream.concat(once(reads.keys, queues)),
          Stream.concat(schedules ? once(reads.schedules, queues) : Stream.empty),
          Stream.mapChunks((chunk) => {
            records += chunk.length
            return chunk
          })
        )
        return Stream.concat(
          body,
          Stream.sync((): TransferRecord => soundRecord({ type: "end", records: records + 1 }))
        )
      })
    )
}

/** Adjacent records of one kind. */
const runs = (records: Iterable<TransferRecord>): ReadonlyArray<ReadonlyArray<TransferRecord>> => {
  const found: Array<Array<TransferRecord>> = []
  for (const record of records) {
    const last = found.at(-1)
    if (last?.[0]?.type === record.type) last.push(record)
    else found.push([record])
  }
  return found
}

const sizeOf = (record: TransferRecord): number => ("payload" in record ? record.payload.length : 0)

const page = Sink.foldWeighted<Array<TransferRecord>, TransferRecord>({
  initial: [],
  maxCost: pageRecords,
  cost: (_, record) => 1 + Math.ceil((sizeOf(record) * pageRecords) / pageCharacters),
  body: (records, record) => [...records, record]
})

/** Whose records follow, and how far they have come. */
interface Section {
  readonly origin: string
  /** Ordering keys of which a job was refused: none behind it is taken over before it. */
  readonly waiting: Set<string>
  records: number
  ended: boolean
}

const makeImport =
  (
    own: Effect.Effect<string, TransactionOpen | StoreError>,
    take: (
      origin: string,
      records: ReadonlyArray<TransferRecord>,
      waiting: ReadonlySet<string>
    ) => Effect.Effect<Taken, TransactionOpen | StoreError>
  ): Service["import"] =>
  (records) =>
    Effect.gen(function* () {
      const here = yield* own
      let section: Section | undefined
      let complete = true
      const refusals: Array<Refusal> = []
      const tallies = new Map<string, Tally>()
      const count = (type: TransferRecord["type"], taken: Taken) => {
        const before = tallies.get(type) ?? { imported: 0, skipped: 0, refused: 0 }
        tallies.set(type, {
          imported: before.imported + taken.imported,
          skipped: before.skipped + taken.skipped,
          refused: before.refused + taken.refusals.length
        })
        refusals.push(...taken.refusals.slice(0, maxRefusals - refusals.length))
      }
      const begin = (first: Extract<TransferRecord, { readonly type: "alkstore" }>, before: Section | undefined) =>
        Effect.gen(function* () {
          const { holds = [], origin } = first
          if (before !== undefined && before.origin !== origin)
            return yield* header("two exports at once; import one after the other")
          if (origin === here)
            return yield* header(
              "they come from this very namespace, or from a copy of it: all of it would be here twice"
            )
          if (holds.includes(here))
            return yield* header(
              "they come from a namespace that has taken over from this one: what is here still would be here twice. Import them into a new one"
            )
          yield* take(origin, [first], new Set())
          if (before?.ended === false) complete = false
          return { origin, waiting: before?.waiting ?? new Set<string>(), records: 1, ended: false }
        })
      const run = (some: ReadonlyArray<TransferRecord>) =>
        Effect.gen(function* () {
          const [first] = some
          if (first === undefined) return
          if (first.type === "alkstore") {
            for (const one of some) if (one.type === "alkstore") section = yield* begin(one, section)
            return
          }
          if (section === undefined || section.ended) return yield* header("the first is not the header of an export")
          section.records += some.length
          if (first.type === "end") {
            section.ended = true
            if (first.records !== section.records) complete = false
            return
          }
          const taken = yield* take(section.origin, some, section.waiting)
          for (const place of taken.waiting) section.waiting.add(place)
          count(first.type, taken)
        })
      yield* records.pipe(
        Stream.zipWithIndex,
        Stream.mapEffect(([record, index]) => checkRecord(record, index)),
        Stream.transduce(page),
        Stream.runForEach((some) => Effect.forEach(runs(some), run, { discard: true }))
      )
      if (section === undefined) return yield* header("there are none")
      const { ended, origin } = section as Section
      const none: Tally = { imported: 0, skipped: 0, refused: 0 }
      const named = Object.entries(counters).map(([type, name]) => [name, tallies.get(type) ?? none])
      return { origin, complete: complete && ended, refusals, ...Object.fromEntries(named) } as Summary
    })

const make = (db: Database, { notify }: SqlTransferOptions) =>
  Effect.gen(function* () {
    const store = yield* makeStore(db, { notify })
    const { advanceNow, wakeTopics } = store
    const reads = makeReads(db.names)
    const takeOver = makeTakeOver(db.names, makeWrites(db.names, notify))
    const take = (origin: string, records: ReadonlyArray<TransferRecord>, waiting: ReadonlySet<string>) =>
      db
        .apart("write", "import", (session) => takeOver(session, origin, records, waiting), "transaction")
        .pipe(
          Effect.retry({
            schedule: conflictRetry,
            while: (error) => error._tag === "StoreError" && error.reason === "conflict"
          }),
          Effect.tap(({ keyed, topics }) =>
            Effect.zipRight(Effect.forEach(keyed, advanceNow, { discard: true }), wakeTopics(topics))
          )
        )
    const origin = db.apart("read", "export", reads.origin)
    return {
      origin,
      export: makeExport(db, reads, db.apart("read", "export", store.verbs.inspect.queues), makeSweep(store)()),
      import: makeImport(origin, take)
    } satisfies Service
  })

/** The Transfer service of a database whose tables are there. */
export const layer = (db: Database, options: SqlTransferOptions) => Layer.scoped(Transfer, make(db, options))
