/**
 * The Queue service over a Database: implemented once for both engines, out of the verbs in `statements/`.
 */
import { Effect, Layer } from "effect"
import { Clock } from "../../services/Clock.js"
import { EnqueueUncertain, InvalidArgument, type StoreError } from "../../services/Errors.js"
import {
  type ClaimRequest,
  type ClaimResult,
  type NewJob,
  Queue,
  type QueueSettings,
  type Receipt,
  type Service,
  type SweepResult
} from "../../services/QueueStore.js"
import { queueTopic, Wake } from "../../services/Wake.js"
import { type Database, detached, type Verb } from "../Database/Database.js"
import { connecting } from "../storeError.js"
import { moveLapsed, page } from "./moveLapsed.js"
import type { Claimed } from "./statements/claim.js"
import { needsTransaction } from "./statements/enqueue.js"
import { claimedRow, int } from "./statements/rows.js"
import { type Cursor, fromStart } from "./statements/sweep.js"
import { makeVerbs, type SqlQueueOptions, type Verbs } from "./verbs.js"

/** Rounds of moving spent rows out of the way within one claim. */
const maxRounds = 10

/** The answer to an enqueue was lost after it was sent: it may stand. */
const isUncertain = (error: StoreError): boolean => {
  if (error.operation === connecting || error.operation === "begin") return false
  const code = (error.cause as { code?: unknown } | undefined)?.code
  return error.reason === "connection" || (error.reason === "timeout" && typeof code !== "string")
}

/** An `expires` instant at or before the job's due time is refused: only the database knows its own now. */
const checkExpiry =
  (verbs: Verbs, jobs: ReadonlyArray<NewJob>): Verb<InvalidArgument | undefined> =>
  (session) =>
    jobs.every((job) => job.expiresAt === null)
      ? Effect.succeed(undefined)
      : Effect.map(session.execute(verbs.present, {}), ([row]) => {
          const now = int(row?.now)
          const late = jobs.some(
            (job) => job.expiresAt !== null && job.expiresAt <= Math.max(job.runAt ?? now + job.delayMillis, now)
          )
          return late
            ? new InvalidArgument({
                argument: "expires",
                message: "expires: lies at or before the instant at which the job is due; it could never run"
              })
            : undefined
        })

const make = (db: Database, options: SqlQueueOptions) =>
  Effect.gen(function* () {
    const wake = yield* Wake
    const clock = yield* Clock
    const scope = yield* Effect.scope
    const verbs = makeVerbs(db, options)
    const defined = new Map<string, string>()

    /** Wakes after the commit: at once outside a transaction, when it has ended inside one. */
    const announce = (queues: ReadonlyArray<string>) => {
      const topics = queues.map(queueTopic)
      return Effect.flatMap(db.joins, (joins) => {
        if (!joins) return wake.wake(topics)
        if (db.names.engine === "postgres") return Effect.void
        return Effect.asVoid(
          Effect.forkIn(Effect.interruptible(detached(Effect.zipRight(db.afterTransaction, wake.wake(topics)))), scope)
        )
      })
    }

    const defineQueue = (settings: QueueSettings, by: "producer" | "worker") =>
      Effect.suspend(() => {
        const known = `${settings.maxCrashes}`
        if (defined.get(`${by}:${settings.name}`) === known) return Effect.void
        const upsert: Verb<void> = (session) => verbs.define(session, settings, by)
        const remember = Effect.sync(() => void defined.set(`${by}:${settings.name}`, known))
        return Effect.flatMap(db.joins, (joins) =>
          joins && db.names.engine === "sqlite"
            ? Effect.catchTags(db.joined("write", "define", upsert), {
                ForeignTransaction: () => Effect.void,
                TransactionOpen: () => Effect.void
              })
            : db.apart("write", "define", upsert).pipe(
                Effect.zipRight(remember),
                Effect.catchTag("TransactionOpen", () => Effect.void)
              )
        )
      })

    const enqueueJobs: Service["enqueue"] = (queue, jobs) => {
      if (jobs.length === 0) return Effect.succeed([])
      const whole = needsTransaction(jobs)
      const verb: Verb<InvalidArgument | ReadonlyArray<Receipt>> = (session) =>
        Effect.flatMap(
          checkExpiry(verbs, jobs)(session),
          (late): Effect.Effect<InvalidArgument | ReadonlyArray<Receipt>, StoreError> =>
            late === undefined ? verbs.enqueue(session, queue, jobs) : Effect.succeed(late)
        )
      return Effect.gen(function* () {
        const joins = yield* db.joins
        const result = yield* Effect.mapError(db.joined("enqueue", "enqueue", verb, whole), (error) =>
          error._tag === "StoreError" && !joins && isUncertain(error)
            ? new EnqueueUncertain({
                queue,
                message: `queue ${queue}: the connection was lost before the answer to an enqueue came; the jobs may or may not exist. Enqueue again with a dedupeKey`,
                cause: error
              })
            : error
        )
        if (result instanceof InvalidArgument) return yield* Effect.fail(result)
        yield* announce([queue])
        return result
      })
    }

    /** Moves one page of what a claim met and could not take; answers whether that may have changed anything. */
    const clear = (queue: string, met: Claimed) =>
      Effect.gen(function* () {
        if (met.expired > 0) yield* db.joined("write", "sweep", (session) => verbs.sweep.expire(session, queue, page))
        if (!met.lapsed) return true
        const { crashed, recovered } = yield* db.joined("write", "sweep", moveLapsed(verbs, queue, fromStart))
        if (recovered > 0) yield* announce([queue])
        // What somebody has locked stays where it is
        return met.expired > 0 || recovered + crashed > 0
      })

    const claimOnce = (request: ClaimRequest) => {
      const verb: Verb<Claimed> = (session) => verbs.claim(session, request)
      if (db.names.engine === "postgres") return db.joined("write", "claim", verb)
      return Effect.flatMap(db.joins, (joins) =>
        joins
          ? db.joined("write", "claim", verb)
          : Effect.flatMap(db.joined("read", "claim", verb), (met) =>
              met.seen > met.expired ? db.joined("write", "claim", verb) : Effect.succeed(met)
            )
      )
    }

    const claimJobs: Service["claim"] = (request) =>
      Effect.gen(function* () {
        const start = yield* clock.monotonic
        const rows: Array<ReturnType<typeof claimedRow>> = []
        let met = yield* claimOnce(request)
        for (let round = 0; ; round++) {
          rows.push(...met.rows.map((row) => claimedRow(row, start)))
          if ((met.expired === 0 && !met.lapsed) || round === maxRounds) break
          const cleared = yield* clear(request.queue, met)
          if ((!cleared && round > 0) || rows.length >= request.limit) break
          met = yield* claimOnce({ ...request, limit: request.limit - rows.length })
        }
        // Seen and left behind: for free handlers only
        const left = met.seen > met.rows.length
        const full = left || met.seen >= request.limit + request.prefetch || met.expired > 0 || met.lapsed
        return {
          jobs: rows.sort((a, b) => b.priority - a.priority || a.dueAt - b.dueAt || a.id - b.id),
          more: full,
          nextInMillis: met.nextAt === null ? undefined : Math.max(0, met.nextAt - met.now)
        } satisfies ClaimResult
      })

    const settleJobs: Service["settle"] = (queue, settlements, { skipLocked } = { skipLocked: false }) =>
      settlements.length === 0
        ? Effect.succeed([])
        : db
            .joined("write", "settle", (session) =>
              verbs.settle(session, queue, settlements, { skipLocked, lapsedOnly: false })
            )
            .pipe(
              Effect.tap((outcomes) =>
                settlements.some((s, index) => s._tag === "Return" && outcomes[index] === "done")
                  ? announce([queue])
                  : Effect.void
              )
            )

    const sweepExpired: Service["sweepExpired"] = (queue) =>
      Effect.gen(function* () {
        const result = { expired: 0, recovered: 0, crashed: 0 }
        for (;;) {
          // On SQLite a look comes first: nothing to do costs no write lock
          const look =
            db.names.engine === "sqlite"
              ? yield* db.apart("read", "sweep", (session) => verbs.sweep.expire(session, queue, 1))
              : 1
          if (look === 0) break
          const moved = yield* db.apart("write", "sweep", (session) => verbs.sweep.expire(session, queue, page))
          result.expired += moved
          if (moved < page) break
        }
        let name = queue ?? (yield* db.apart("read", "sweep", (session) => verbs.sweep.nextLeased(session, "")))
        while (name !== undefined) {
          const of = name
          const recovered = yield* sweepLeases(of, result)
          if (recovered > 0) yield* announce([of])
          name =
            queue === undefined
              ? yield* db.apart("read", "sweep", (session) => verbs.sweep.nextLeased(session, of))
              : undefined
        }
        return result satisfies SweepResult
      })

    const sweepLeases = (queue: string, result: { recovered: number; crashed: number }) =>
      Effect.gen(function* () {
        let recovered = 0
        let cursor: Cursor | undefined = fromStart
        while (cursor !== undefined) {
          const after: Cursor = cursor
          const found = yield* db.apart("read", "sweep", (session) => verbs.sweep.lapsed(session, queue, after, 1))
          if (found.length === 0) break
          const moved = yield* db.apart("write", "sweep", moveLapsed(verbs, queue, after))
          recovered += moved.recovered
          result.recovered += moved.recovered
          result.crashed += moved.crashed
          cursor = moved.cursor
        }
        return recovered
      })

    return {
      define: defineQueue,
      enqueue: enqueueJobs,
      claim: claimJobs,
      settle: settleJobs,
      renew: (renewals) =>
        renewals.length === 0
          ? Effect.succeed([])
          : db.apart("write", "renew", (session) => verbs.renew(session, renewals)),
      sweepExpired,
      list: (queue, { after, limit }) =>
        db.joined("read", "list", (session) => verbs.list.live(session, queue, after, limit)),
      listDead: (queue, { limit }) =>
        db.joined("read", "dead_letters", (session) => verbs.list.dead(session, queue, limit)),
      transaction: db.transaction,
      detached,
      holdsWriteLock: db.holdsWriteLock,
      singleWriter: db.names.engine === "sqlite",
      monotonic: clock.monotonic
    } satisfies Service
  })

/** The Queue service of a database whose tables are there. */
export const layer = (db: Database, options: SqlQueueOptions) => Layer.scoped(Queue, make(db, options))
