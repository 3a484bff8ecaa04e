/**
 * One page of an import: records of one kind, in one transaction.
 */
import { Effect } from "effect"
import { partition } from "effect/Array"
import type { Refusal } from "../../services/Transfer.js"
import type { TransferRecord } from "../../services/TransferRecord.js"
import { queueTopic, scheduleTopic } from "../../services/Wake.js"
import type { Names } from "../engine.js"
import { advanceKey } from "../Queue/statements/lanes.js"
import { ownJobs, withOwnJobs } from "../Schedules/ownJobs.js"
import { fresh, nothing, type Of, type Take, talliesOf } from "./page.js"
import { takeQueues } from "./takeQueues.js"
import type { Given, Writes } from "./write.js"

type Job = Of<"job" | "dead" | "completed">

const placeOf = ({ orderingKey, queue }: Job): string => JSON.stringify([queue, orderingKey])

const takeJobs =
  (names: Names, writes: Writes): Take<Job> =>
  (session, origin, records, waiting) =>
    Effect.gen(function* () {
      const left = yield* fresh(writes, session, origin, "job", records, ({ id }) => String(id))
      if (left.length === 0) return { ...nothing, tallies: talliesOf(records, []) }
      const ids = yield* writes.allocate(session, left.length)
      const rows = left.map((record, index) => ({ ...record, source: String(record.id), id: ids[index] as number }))
      const wanting = rows.filter((row) => row.type === "job" && row.holdsKey)
      const got = yield* writes.takeKeys(session, wanting)
      const without = new Set(wanting.filter(({ id }) => !got.has(id)))
      // What is behind a job that stays stays, too: it would come before it
      const places = new Set(waiting)
      const behind = rows.filter((row) => {
        if (row.type !== "job" || row.orderingKey === null) return false
        if (without.has(row)) places.add(placeOf(row))
        return places.has(placeOf(row)) && !without.has(row)
      })
      yield* writes.dropKeys(
        session,
        behind.filter(({ id }) => got.has(id))
      )
      const stays = new Set([...without, ...behind])
      const taken = rows.filter((row) => !stays.has(row))
      // Letters first: a job is let go on only if none holds its key
      for (const type of ["dead", "completed", "job"] as const)
        yield* writes.add(session, type, taken.filter((row) => row.type === type) as ReadonlyArray<Given>)
      yield* writes.note(
        session,
        origin,
        "job",
        taken.map(({ id, source }) => ({ source, targetId: id }))
      )
      const jobs = taken.filter(({ type }) => type === "job")
      const ordered = jobs.filter(({ orderingKey }) => orderingKey !== null)
      yield* writes.mark(session, ordered)
      if (names.engine === "sqlite") {
        const advance = advanceKey(names)
        const advanced = new Map(ordered.map((row) => [placeOf(row), row]))
        for (const { orderingKey, queue } of advanced.values()) yield* advance(session, queue, orderingKey as string)
      }
      const topics = [...new Set(jobs.map(({ queue }) => queueTopic(queue)))]
      yield* writes.tell(session, topics)
      const holder = without.size === 0 ? () => undefined : yield* writes.holders(session, [...without])
      const why = ({ dedupeKey, orderingKey, queue }: Job, held: boolean): string =>
        held
          ? `its dedupe key ${JSON.stringify(dedupeKey)} is held here by job ${holder(queue, dedupeKey ?? "") ?? "that has just ended"}`
          : `a job before it of its ordering key ${JSON.stringify(orderingKey)} was refused`
      const refusals = rows
        .filter((row) => stays.has(row))
        .map(
          (row): Refusal => ({
            type: "job",
            source: row.source,
            queue: row.queue,
            reason: without.has(row) ? "dedupeKey" : "orderingKey",
            message: `job ${row.source} of queue ${row.queue}: ${why(row, without.has(row))}; it stays where it is`
          })
        )
      return {
        tallies: talliesOf(records, taken, [...stays]),
        refusals,
        waiting: [...places].filter((place) => !waiting.has(place)),
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
      if (left.length === 0) return { ...nothing, tallies: talliesOf(records, []) }
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
      return { ...nothing, tallies: talliesOf(records, left) }
    })

/** The last boundary that has come, whatever became of it. */
const come = ({ lastAt }: Of<"schedule">): number => lastAt ?? 0

const refusedSchedule =
  (why: string) =>
  ({ name, queue }: Of<"schedule">): Refusal => ({
    type: "schedule",
    source: name,
    queue,
    reason: "schedule",
    message: `schedule ${JSON.stringify(name)}: ${why}`
  })

/**
 * A schedule is noted with the last of its boundaries that had come. More have come at an older home since: then the one here goes on
 * from there, unless it has fired, too, or has other times by now. What has been triggered there since is its own here, too.
 */
const takeSchedules =
  (writes: Writes): Take<Of<"schedule">> =>
  (session, origin, records) =>
    Effect.gen(function* () {
      yield* writes.lock(session)
      const noted = yield* writes.known(
        session,
        origin,
        "schedule",
        records.map(({ name }) => name)
      )
      const left = [...new Map(records.map((record) => [record.name, record])).values()]
      const here = yield* writes.known(
        session,
        origin,
        "job",
        left.flatMap(({ liveJobs }) => ownJobs(liveJobs).map(String))
      )
      const mine = yield* writes.ownJobs(session, [...noted.keys()])
      const rowOf = (record: Of<"schedule">) => {
        const jobs = ownJobs(record.liveJobs).flatMap((id) => here.get(String(id)) ?? [])
        const before = ownJobs(mine.get(record.name) ?? null)
        return {
          ...record,
          liveJobs: record.liveJobs === null && before.length === 0 ? null : withOwnJobs(before, jobs),
          noted: noted.get(record.name)
        }
      }
      const first = left.filter(({ name }) => !noted.has(name))
      const again = left.filter((record) => (noted.get(record.name) ?? Number.POSITIVE_INFINITY) < come(record))
      const added = first.length === 0 ? new Set() : yield* writes.addSchedules(session, first.map(rowOf))
      const moved = again.length === 0 ? new Set() : yield* writes.moveSchedules(session, again.map(rowOf))
      const grown = left.filter(({ name }) => noted.has(name)).map(rowOf)
      yield* writes.keepJobs(
        session,
        grown.filter(({ liveJobs, name }) => liveJobs !== (mine.get(name) ?? null))
      )
      const [met, taken] = partition(first, ({ name }) => added.has(name))
      const [fired, went] = partition(again, ({ name }) => moved.has(name))
      const notes = (some: ReadonlyArray<Of<"schedule">>) =>
        some.map((record) => ({ source: record.name, targetId: come(record) }))
      yield* writes.note(session, origin, "schedule", notes(taken))
      yield* writes.noteAgain(session, origin, "schedule", notes(went))
      const topics = taken.length + went.length > 0 ? [scheduleTopic] : []
      yield* writes.tell(session, topics)
      const refusals = [
        ...met.map(refusedSchedule("there is one of this name here that has fired; remove one of the two")),
        ...fired.map(
          refusedSchedule(
            "it has fired where it comes from since it was taken over, and has fired here or was changed or removed here: look which jobs are there twice, and stop the one there"
          )
        )
      ]
      return { ...nothing, tallies: talliesOf(records, [...taken, ...went], [...met, ...fired]), refusals, topics }
    })

/** Whose records these are, who may hold what others know of, too. */
const takeHeader =
  (writes: Writes): Take<Of<"alkstore">> =>
  (session, origin, [first]) =>
    Effect.gen(function* () {
      const held = (first?.holds ?? []).map((source) => ({ source }))
      const left = yield* fresh(writes, session, origin, "holds", held, ({ source }) => source)
      yield* writes.note(
        session,
        origin,
        "holds",
        left.map(({ source }) => ({ source, targetId: null }))
      )
      return { ...nothing, tallies: [] }
    })

/** Takes a page of records of one kind over. */
export const makeTakeOver = (names: Names, writes: Writes): Take<TransferRecord> => {
  const jobs = takeJobs(names, writes)
  const keys = takeKeys(writes)
  const queues = takeQueues(writes)
  const schedules = takeSchedules(writes)
  const header = takeHeader(writes)
  return (session, origin, records, waiting) => {
    switch (records[0]?.type) {
      case "alkstore":
        return header(session, origin, records as ReadonlyArray<Of<"alkstore">>, waiting)
      case "job":
      case "dead":
      case "completed":
        return jobs(session, origin, records as ReadonlyArray<Job>, waiting)
      case "key":
        return keys(session, origin, records as ReadonlyArray<Of<"key">>, waiting)
      case "queue":
        return queues(session, origin, records as ReadonlyArray<Of<"queue">>, waiting)
      case "schedule":
        return schedules(session, origin, records as ReadonlyArray<Of<"schedule">>, waiting)
      default:
        return Effect.succeed({ ...nothing, tallies: [] })
    }
  }
}
