/**
 * One page of an import: records of one kind, in one transaction.
 */
import { Effect } from "effect"
import type { StoreError } from "../../services/Errors.js"
import { parseJson } from "../../services/json.js"
import type { Refusal } from "../../services/Transfer.js"
import type { TransferRecord } from "../../services/TransferRecord.js"
import { controlTopic, queueTopic, scheduleTopic } from "../../services/Wake.js"
import type { Names, Session } from "../engine.js"
import { advanceKey } from "../Queue/statements/lanes.js"
import type { Given, Writes } from "./write.js"

type Of<Type extends TransferRecord["type"]> = Extract<TransferRecord, { readonly type: Type }>
type Job = Of<"job" | "dead" | "completed">

/** What became of a page. */
export interface Taken {
  readonly imported: number
  readonly skipped: number
  readonly refusals: ReadonlyArray<Refusal>
  /** Queues with ordering keys that may have a first job now. */
  readonly keyed: ReadonlySet<string>
  readonly topics: ReadonlyArray<string>
}

type Take<R> = (session: Session, origin: string, records: ReadonlyArray<R>) => Effect.Effect<Taken, StoreError>

const nothing = { refusals: [], keyed: new Set<string>(), topics: [] }

/** Those of the page that nobody has taken over yet; a page may name one twice. */
const fresh = <R>(
  writes: Writes,
  session: Session,
  origin: string,
  kind: string,
  records: ReadonlyArray<R>,
  sourceOf: (record: R) => string
) =>
  Effect.gen(function* () {
    yield* writes.lock(session)
    const met = new Set((yield* writes.known(session, origin, kind, records.map(sourceOf))).keys())
    return records.filter((record) => {
      const source = sourceOf(record)
      return !met.has(source) && met.add(source) !== undefined
    })
  })

const takeJobs =
  (names: Names, writes: Writes): Take<Job> =>
  (session, origin, records) =>
    Effect.gen(function* () {
      const left = yield* fresh(writes, session, origin, "job", records, ({ id }) => String(id))
      if (left.length === 0) return { ...nothing, imported: 0, skipped: records.length }
      const ids = yield* writes.allocate(session, left.length)
      const rows = left.map((record, index) => ({ ...record, source: String(record.id), id: ids[index] as number }))
      const wanting = rows.filter((row) => row.type === "job" && row.holdsKey)
      const got = yield* writes.takeKeys(session, wanting)
      const without = new Set(wanting.filter(({ id }) => !got.has(id)))
      const taken = rows.filter((row) => !without.has(row))
      const type = records[0]?.type ?? "job"
      yield* writes.add(session, type, taken as ReadonlyArray<Given>)
      yield* writes.note(
        session,
        origin,
        "job",
        taken.map(({ id, source }) => ({ source, targetId: id }))
      )
      const ordered = type === "job" ? taken.filter(({ orderingKey }) => orderingKey !== null) : []
      yield* writes.mark(session, ordered)
      if (names.engine === "sqlite") {
        const advance = advanceKey(names)
        const places = new Map(ordered.map((row) => [JSON.stringify([row.queue, row.orderingKey]), row]))
        for (const { orderingKey, queue } of places.values()) yield* advance(session, queue, orderingKey as string)
      }
      const topics = type === "job" ? [...new Set(taken.map(({ queue }) => queueTopic(queue)))] : []
      yield* writes.tell(session, topics)
      const holder = without.size === 0 ? () => undefined : yield* writes.holders(session, [...without])
      const refusals = [...without].map(
        ({ dedupeKey, queue, source }): Refusal => ({
          type: "job",
          source,
          queue,
          reason: "dedupeKey",
          message: `job ${source} of queue ${queue}: its dedupe key ${JSON.stringify(dedupeKey)} is held here by job ${holder(queue, dedupeKey ?? "") ?? "that has just ended"}; it stays where it is`
        })
      )
      return {
        imported: taken.length,
        skipped: records.length - left.length,
        refusals,
        keyed: new Set(ordered.map(({ queue }) => queue)),
        topics
      }
    })

const takeKeys =
  (writes: Writes): Take<Of<"key">> =>
  (session, origin, records) =>
    Effect.gen(function* () {
      const sourceOf = ({ dedupeKey, freeAt, queue }: Of<"key">) => JSON.stringify([queue, dedupeKey, freeAt])
      const left = yield* fresh(writes, session, origin, "key", records, sourceOf)
      if (left.length === 0) return { ...nothing, imported: 0, skipped: records.length }
      // The job is here, dead or completed, or it is gone: then it gets an id that no other job has
      const here = yield* writes.known(
        session,
        origin,
        "job",
        left.map(({ jobId }) => String(jobId))
      )
      const ids = yield* writes.allocate(session, left.length)
      const rows = left.map((record, index) => ({
        ...record,
        id: here.get(String(record.jobId)) ?? (ids[index] as number)
      }))
      yield* writes.add(session, "key", rows)
      yield* writes.note(
        session,
        origin,
        "key",
        left.map((record) => ({ source: sourceOf(record), targetId: null }))
      )
      return { ...nothing, imported: left.length, skipped: records.length - left.length }
    })

const takeQueues =
  (writes: Writes): Take<Of<"queue">> =>
  (session, origin, records) =>
    Effect.gen(function* () {
      const left = yield* fresh(writes, session, origin, "queue", records, ({ name }) => name)
      if (left.length > 0) yield* writes.addQueues(session, left as ReadonlyArray<Given>)
      yield* writes.note(
        session,
        origin,
        "queue",
        left.map(({ name }) => ({ source: name, targetId: null }))
      )
      const topics = left.filter(({ pausedAt }) => pausedAt !== null).map(({ name }) => controlTopic(name))
      yield* writes.tell(session, topics)
      return { ...nothing, imported: left.length, skipped: records.length - left.length, topics }
    })

const takeSchedules =
  (writes: Writes): Take<Of<"schedule">> =>
  (session, origin, records) =>
    Effect.gen(function* () {
      const left = yield* fresh(writes, session, origin, "schedule", records, ({ name }) => name)
      if (left.length === 0) return { ...nothing, imported: 0, skipped: records.length }
      const jobsOf = (live: string | null): ReadonlyArray<unknown> => {
        const parsed = parseJson(live)
        return Array.isArray(parsed) ? parsed : []
      }
      const live = left.flatMap(({ liveJobs }) => jobsOf(liveJobs).map(String))
      const here = yield* writes.known(session, origin, "job", live)
      const rows = left.map((record) => {
        const jobs = jobsOf(record.liveJobs).flatMap((id) => here.get(String(id)) ?? [])
        return { ...record, liveJobs: record.liveJobs === null ? null : JSON.stringify(jobs) }
      })
      const added = yield* writes.addSchedules(session, rows as ReadonlyArray<Given>)
      const taken = left.filter(({ name }) => added.has(name))
      yield* writes.note(
        session,
        origin,
        "schedule",
        taken.map(({ name }) => ({ source: name, targetId: null }))
      )
      const topics = taken.length > 0 ? [scheduleTopic] : []
      yield* writes.tell(session, topics)
      const refusals = left
        .filter(({ name }) => !added.has(name))
        .map(
          ({ name, queue }): Refusal => ({
            type: "schedule",
            source: name,
            queue,
            reason: "schedule",
            message: `schedule ${JSON.stringify(name)}: there is one of this name here that has fired; remove one of the two`
          })
        )
      return { ...nothing, imported: taken.length, skipped: records.length - left.length, refusals, topics }
    })

/** Takes a page of records of one kind over. */
export const makeTakeOver = (names: Names, writes: Writes): Take<TransferRecord> => {
  const jobs = takeJobs(names, writes)
  const keys = takeKeys(writes)
  const queues = takeQueues(writes)
  const schedules = takeSchedules(writes)
  return (session, origin, records) => {
    switch (records[0]?.type) {
      case "job":
      case "dead":
      case "completed":
        return jobs(session, origin, records as ReadonlyArray<Job>)
      case "key":
        return keys(session, origin, records as ReadonlyArray<Of<"key">>)
      case "queue":
        return queues(session, origin, records as ReadonlyArray<Of<"queue">>)
      case "schedule":
        return schedules(session, origin, records as ReadonlyArray<Of<"schedule">>)
      default:
        return Effect.succeed({ ...nothing, imported: 0, skipped: 0 })
    }
  }
}
