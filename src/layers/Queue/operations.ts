/**
 * What operators and programs ask of queues: dead letters, cancellation, changes, pauses, counts.
 */
import { Effect } from "effect"
import type { DeadRow } from "../../services/JobRows.js"
import type { DeadFilter, Requeued, Service } from "../../services/Operations.js"
import { controlTopic, queueTopic } from "../../services/Wake.js"
import { makeRenamed } from "../Schedules/ownJobs.js"
import { page } from "./moveLapsed.js"
import { fromEnd } from "./statements/letterReads.js"
import { type Cursor, fromStart } from "./statements/sweep.js"
import type { Store } from "./store.js"

const every: DeadFilter = { ids: null, reasons: null, from: null, until: null, error: null, orderingKey: null }

/** Ids that a requeue left behind and names. */
const namedIds = 100

export const makeOperations = ({ advanceNow, announce, db, upToDate, verbs, wakeTopics }: Store): Service => {
  const after = (last: DeadRow | undefined, cursor: Cursor): Cursor =>
    last === undefined ? cursor : { at: last.diedAt, id: last.id }

  const renamed = makeRenamed(db.names)

  const requeuePage = (queue: string, filter: DeadFilter, cursor: Cursor, request: Parameters<Service["requeue"]>[2]) =>
    db.joined(
      "waits",
      "requeue",
      (session) =>
        Effect.gen(function* () {
          const letters = yield* verbs.letters.lock(session, queue, filter, cursor, page)
          const accepted = yield* Effect.filter(letters, (letter) => request.accepts(letter.payload))
          const moved =
            accepted.length === 0
              ? new Map<number, number>()
              : yield* verbs.letters.requeue(session, accepted, request.to, request.delayMillis)
          yield* renamed(session, accepted, moved)
          return { letters, accepted, moved }
        }),
      "transaction"
    )

  /** What dies while the letters are gone through is not among them: a job that dies at once would be met for ever. */
  const upToNow = (queue: string, filter: DeadFilter) =>
    Effect.map(
      db.joined("read", "letters", (session) => verbs.letters.latest(session, queue)),
      (latest): DeadFilter =>
        latest === null ? filter : { ...filter, until: Math.min(filter.until ?? latest + 1, latest + 1) }
    )

  const requeue: Service["requeue"] = (queue, wanted, request) =>
    Effect.gen(function* () {
      const filter = yield* upToNow(queue, wanted)
      let cursor = fromStart
      let requeued = 0
      let keyHeld = 0
      let notAccepted = 0
      const left: Array<number> = []
      for (;;) {
        const { accepted, letters, moved } = yield* requeuePage(queue, filter, cursor, request)
        requeued += moved.size
        keyHeld += accepted.length - moved.size
        notAccepted += letters.length - accepted.length
        for (const { id } of letters) if (!moved.has(id) && left.length < namedIds) left.push(id)
        cursor = after(letters.at(-1), cursor)
        if (moved.size > 0) {
          yield* advanceNow(request.to)
          if (request.to !== queue) yield* advanceNow(queue)
          yield* announce([queue, request.to])
        }
        if (letters.length < page) return { requeued, keyHeld, notAccepted, left } satisfies Requeued
      }
    })

  const purgeDead: Service["purgeDead"] = (queue, wanted) =>
    Effect.gen(function* () {
      const filter = yield* upToNow(queue, wanted)
      let purged = 0
      for (;;) {
        const result = yield* db.joined(
          "waits",
          "purge",
          (session) =>
            Effect.gen(function* () {
              const letters = yield* verbs.letters.lock(session, queue, filter, fromStart, page)
              const ids = letters.map((letter) => letter.id)
              const done = ids.length === 0 ? { purged: 0, freed: false } : yield* verbs.letters.purge(session, ids)
              return { ...done, full: letters.length === page }
            }),
          "transaction"
        )
        purged += result.purged
        if (result.freed) yield* Effect.zipRight(advanceNow(queue), announce([queue]))
        if (!result.full) return purged
      }
    })

  return {
    listDead: (queue, { after: from, filter = every, limit }) =>
      db.joined("read", "dead_letters", (session) =>
        verbs.letters.list(
          session,
          queue,
          filter,
          from === undefined ? fromEnd : { at: from.diedAt, id: from.id },
          limit
        )
      ),
    requeue,
    purgeDead,
    listCompleted: (queue, { after: from, limit }) =>
      db.joined("read", "completed_jobs", (session) =>
        verbs.letters.completed(
          session,
          queue,
          from === undefined ? fromEnd : { at: from.completedAt, id: from.id },
          limit
        )
      ),
    cancel: (queue, ids) =>
      ids.length === 0
        ? Effect.succeed([])
        : db
            .joined("waits", "cancel", (session) => verbs.operate.cancel(session, queue, ids))
            .pipe(
              Effect.tap(({ keyed }) => (keyed ? advanceNow(queue) : Effect.void)),
              Effect.tap(({ outcomes }) =>
                wakeTopics([
                  ...(outcomes.includes("cancelled") ? [queueTopic(queue)] : []),
                  ...(outcomes.includes("requested") ? [controlTopic(queue)] : [])
                ])
              ),
              Effect.map(({ outcomes }) => outcomes)
            ),
    change: (queue, ids, how) =>
      ids.length === 0
        ? Effect.succeed([])
        : Effect.tap(
            db.joined("waits", "change", (session) => verbs.operate.change(session, queue, ids, how)),
            (outcomes) => (outcomes.includes("changed") ? announce([queue]) : Effect.void)
          ),
    select: (queue, filter, { after: from, limit }) =>
      Effect.zipRight(
        // As for counts: who is blocked has to be known before, once for all pages
        filter.states === null || from > 0 ? Effect.void : advanceNow(queue),
        db.joined("read", "select", (session) => verbs.select.ids(session, queue, filter, from, limit))
      ),
    clear: (queue) =>
      Effect.gen(function* () {
        let cleared = 0
        for (;;) {
          const count = yield* db.joined("waits", "clear", (session) => verbs.operate.clear(session, queue, page))
          cleared += count
          if (count < page) break
        }
        if (cleared > 0) yield* advanceNow(queue)
        return cleared
      }),
    setPaused: (queue, paused) =>
      Effect.tap(
        db.joined("waits", "pause", (session) => verbs.operate.setPaused(session, queue, paused)),
        (changed) => (changed ? wakeTopics([queueTopic(queue), controlTopic(queue)]) : Effect.void)
      ),
    signals: (queue, ids) => db.apart("read", "signals", (session) => verbs.operate.signals(session, queue, ids)),
    counts: (queue) =>
      // Marks of ordering keys are dealt with before the look, so that both engines tell the same
      Effect.zipRight(
        advanceNow(queue),
        db.joined("read", "counts", (session) => verbs.counts(session, queue))
      ),
    queues: db.joined("read", "queues", (session) => verbs.inspect.queues(session)),
    running: (queue, { after: from, limit }) =>
      db.joined("read", "running", (session) =>
        verbs.inspect.running(
          session,
          queue,
          from === undefined ? fromStart : { at: from.deadline, id: from.id },
          limit
        )
      ),
    find: (id) =>
      upToDate(
        db.joined("read", "find", (session) => verbs.inspect.find(session, id)),
        (found) => (found?._tag === "Live" && found.job.state === "blocked" ? found.job.queue : undefined)
      )
  }
}
