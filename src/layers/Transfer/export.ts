/**
 * export: a namespace as records, page by page, in an order in which they can be taken over.
 */
import { Chunk, Effect, Either, Option, Stream } from "effect"
import { InvalidArgument, QueuesInUse, type StoreError, type TransactionOpen } from "../../services/Errors.js"
import { checkOptions, checkQueueName } from "../../services/input.js"
import type { ExportOptions } from "../../services/Transfer.js"
import { soundRecord, type TransferRecord } from "../../services/TransferRecord.js"
import type { Database } from "../Database/Database.js"
import type { Page, Reads } from "./read.js"

/** Records of a page, and about as many characters of payload as it has at most, its first record apart. */
const pageRecords = 500
const pageSize = 8 * 1024 * 1024

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

/** Where all that there is has been met, the end is nowhere. */
const idOf = (record: TransferRecord | undefined): number =>
  record !== undefined && "id" in record ? record.id : Number.POSITIVE_INFINITY

export const makeExport = (
  db: Database,
  reads: Reads,
  known: Effect.Effect<ReadonlyArray<string>, TransactionOpen | StoreError>,
  sweep: Effect.Effect<unknown, TransactionOpen | StoreError>
) => {
  const page = (read: Reads["jobs"], queues: Page["queues"], after: number) =>
    db.apart("read", "export", (session) => read(session, { queues, after, limit: pageRecords, size: pageSize }))

  /** Where the next page begins, if this one had anything: how many it has depends on their size. */
  const endOf = (records: ReadonlyArray<TransferRecord>): ReadonlyArray<number> =>
    records.length === 0 ? [] : [idOf(records.at(-1))]

  const pages = (read: Reads["jobs"], queues: Page["queues"]) =>
    Stream.paginateChunkEffect(0, (after) =>
      Effect.map(page(read, queues, after), (records) => [
        Chunk.unsafeFromArray(records),
        Option.fromNullable(endOf(records)[0])
      ])
    )
  /**
   * Letters and jobs as one, in the order of their ids: whether a letter holds a job's key is a question of who came first. Jobs are
   * read before the letters of the same ids: what dies in between is met as a letter, too, and comes before itself.
   */
  const lives = (queues: Page["queues"]) =>
    Stream.paginateChunkEffect(0, (after) =>
      Effect.map(Effect.zip(page(reads.jobs, queues, after), page(reads.dead, queues, after)), ([jobs, letters]) => {
        const ends = [...endOf(jobs), ...endOf(letters)]
        const end = Math.min(...ends)
        const all = [...letters, ...jobs].filter((record) => idOf(record) <= end).sort((a, b) => idOf(a) - idOf(b))
        return [Chunk.unsafeFromArray(all), ends.length === 0 ? Option.none() : Option.some(end)]
      })
    )
  const once = (read: Reads["jobs"], queues: Page["queues"]) =>
    Stream.unwrap(
      Effect.map(
        db.apart("read", "export", (session) => read(session, { queues, after: 0, limit: 0, size: 0 })),
        Stream.fromIterable
      )
    )

  return (options: ExportOptions = {}) =>
    Stream.unwrap(
      Effect.gen(function* () {
        yield* checkOptions(options, ["queues", "completed", "schedules", "force"])
        const { completed = false, force = false, queues: wanted, schedules = true } = options
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
          Stream.concat(lives(queues)),
          Stream.concat(completed ? pages(reads.completed, queues) : Stream.empty),
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
