/**
 * The Transfer service over a Database.
 */
import { Effect, Layer, Sink, Stream } from "effect"
import { conflictRetry } from "../../schedule/Polling.js"
import { InvalidArgument, type StoreError, type TransactionOpen } from "../../services/Errors.js"
import { type Refusal, type Service, type Summary, type Tally, Transfer } from "../../services/Transfer.js"
import { checkRecord, type TransferRecord } from "../../services/TransferRecord.js"
import type { Database } from "../Database/Database.js"
import { makeSweep } from "../Queue/maintain.js"
import { makeStore } from "../Queue/store.js"
import { makeExport } from "./export.js"
import type { Taken } from "./page.js"
import { makeReads } from "./read.js"
import { makeTakeOver } from "./takeOver.js"
import { makeWrites } from "./write.js"

export interface SqlTransferOptions {
  readonly notify: boolean
}

/** Records of one page, whichever comes first: so many, or so many characters. */
const pageRecords = 500
const pageCharacters = 8 * 1024 * 1024

const maxRefusals = 1_000

const header = (error: string) => new InvalidArgument({ argument: "records", message: `records: ${error}` })

const counters: Partial<Record<TransferRecord["type"], keyof Summary>> = {
  job: "jobs",
  dead: "deadLetters",
  completed: "completed",
  queue: "queues",
  key: "keys",
  schedule: "schedules"
}

/** What can be taken over together: jobs and letters are. */
const kindOf = ({ type }: TransferRecord): string => (type === "dead" ? "job" : type)

/** Adjacent records of one kind. */
const runs = (records: Iterable<TransferRecord>): ReadonlyArray<ReadonlyArray<TransferRecord>> => {
  const found: Array<Array<TransferRecord>> = []
  for (const record of records) {
    const last = found.at(-1)
    const first = last?.[0]
    if (first !== undefined && kindOf(first) === kindOf(record)) last?.push(record)
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

const none: Tally = { imported: 0, skipped: 0, refused: 0 }

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
    /** Whether what is of that namespace has come by way of another. */
    byAnother: (origin: string) => Effect.Effect<boolean, TransactionOpen | StoreError>,
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
      const count = (taken: Taken) => {
        for (const [type, { imported, refused, skipped }] of taken.tallies) {
          const before = tallies.get(type) ?? none
          tallies.set(type, {
            imported: before.imported + imported,
            skipped: before.skipped + skipped,
            refused: before.refused + refused
          })
        }
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
          if (yield* byAnother(origin))
            return yield* header(
              "they come from a namespace that another one has taken over from, from which this one has: what has come by way of it would be here twice. Import them into a new one"
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
          count(taken)
        })
      // What comes before a record that cannot be had is imported first
      let broken: Effect.Effect<void, Stream.Stream.Error<typeof records> | InvalidArgument> = Effect.void
      yield* records.pipe(
        Stream.zipWithIndex,
        Stream.mapEffect(([record, index]) => checkRecord(record, index)),
        Stream.catchAll((error) => {
          broken = Effect.fail(error)
          return Stream.empty
        }),
        Stream.transduce(page),
        Stream.runForEach((some) => Effect.forEach(runs(some), run, { discard: true }))
      )
      yield* broken
      if (section === undefined) return yield* header("there are none")
      const { ended, origin } = section as Section
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
        .apart("waits", "import", (session) => takeOver(session, origin, records, waiting), "transaction")
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
    const byAnother = (of: string) => db.apart("read", "import", (session) => reads.byAnother(session, of))
    return {
      origin,
      export: makeExport(db, reads, db.apart("read", "export", store.verbs.inspect.queues), makeSweep(store)()),
      import: makeImport(origin, byAnother, take)
    } satisfies Service
  })

/** The Transfer service of a database whose tables are there. */
export const layer = (db: Database, options: SqlTransferOptions) => Layer.scoped(Transfer, make(db, options))
