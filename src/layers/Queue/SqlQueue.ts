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
  type Service
} from "../../services/QueueStore.js"
import { type Database, detached, type Verb } from "../Database/Database.js"
import { connecting } from "../storeError.js"
import { makeExpire } from "./expire.js"
import { makeLapse } from "./lapse.js"
import { makeSweep } from "./maintain.js"
import { makeOperations } from "./operations.js"
import type { Claimed } from "./statements/claim.js"
import { needsTransaction } from "./statements/enqueue.js"
import { claimedRow, int } from "./statements/rows.js"
import { makeStore, none } from "./store.js"
import type { SqlQueueOptions, Verbs } from "./verbs.js"

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

const leadsBack = (name: string, to: string) =>
  new InvalidArgument({
    argument: "deadLetterQueue",
    message: `deadLetterQueue: the dead letters of queue ${name} would go to ${to} and from there back to ${name}; name a queue that does not lead back`
  })

const make = (db: Database, options: SqlQueueOptions) =>
  Effect.gen(function* () {
    const clock = yield* Clock
    const store = yield* makeStore(db, options)
    const { advance, advanceNow, advanceSoon, announce, verbs } = store
    const expiry = makeExpire(store)
    const lapse = makeLapse(store)
    const defined = new Map<string, QueueSettings>()

    const defineQueue: Service["define"] = (settings, by) =>
      Effect.suspend(() => {
        const { deadLetterQueue: to, name } = settings
        const key = `${by}:${name}`
        const last = defined.get(key)
        // Mostly the very same definition: nothing is compared on the way of every enqueue
        if (last === settings || (last !== undefined && JSON.stringify(last) === JSON.stringify(settings)))
          return Effect.void
        /** A queue whose dead letters would come back to it, directly or not, is refused. */
        const upsert: Verb<InvalidArgument | undefined> = (session) =>
          Effect.flatMap(
            to === null ? Effect.succeed(false) : verbs.define.leadsTo(session, to, name),
            (cycle): Effect.Effect<InvalidArgument | undefined, StoreError> =>
              cycle
                ? Effect.succeed(leadsBack(name, String(to)))
                : Effect.as(verbs.define.upsert(session, settings, by), undefined)
          )
        return Effect.gen(function* () {
          const inside = (yield* db.joins) && db.names.engine === "sqlite"
          const refused = yield* Effect.catchTags(
            inside ? db.joined("write", "define", upsert) : db.apart("write", "define", upsert),
            {
              // Said again by the next call outside of that transaction
              ForeignTransaction: () => Effect.succeed("later" as const),
              TransactionOpen: () => Effect.succeed("later" as const)
            }
          )
          if (refused instanceof InvalidArgument) return yield* Effect.fail(refused)
          if (!inside && refused === undefined) defined.set(key, settings)
        })
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
        if (jobs.some((job) => job.orderingKey !== null)) yield* advanceNow(queue)
        yield* announce([queue])
        return result
      })
    }

    /** Moves one page of what a claim met and could not take; answers whether that may have changed anything. */
    const clear = (queue: string, met: Claimed) =>
      Effect.gen(function* () {
        const advanced = met.marked ? yield* advance(queue) : none
        const expired = met.expired > 0 ? yield* expiry.joined(queue) : 0
        const changed = expired > 0 || advanced.unblocked > 0 || advanced.more
        if (!met.lapsed) return changed
        // What somebody has locked stays where it is
        return (yield* lapse.joined(queue)) > 0 || changed
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

    /**
     * Clears the way and claims again, if that can bring more. What was claimed before is committed: a failure of this
     * must not take it out of its claimant's hands.
     */
    const again = (request: ClaimRequest, met: Claimed, claimed: number, round: number) =>
      Effect.gen(function* () {
        const cleared = yield* clear(request.queue, met)
        if ((!cleared && round > 0) || claimed >= request.limit) return undefined
        return yield* claimOnce({ ...request, limit: request.limit - claimed })
      }).pipe(
        Effect.catchAll((error) =>
          Effect.flatMap(db.joins, (joins) =>
            joins || claimed === 0
              ? Effect.fail(error)
              : Effect.as(
                  Effect.logWarning(
                    `queue ${request.queue}: what stands before its ready jobs could not be moved`,
                    error
                  ),
                  undefined
                )
          )
        )
      )

    const claimJobs: Service["claim"] = (request) =>
      Effect.gen(function* () {
        const start = yield* clock.monotonic
        const rows: Array<ReturnType<typeof claimedRow>> = []
        let met = yield* claimOnce(request)
        let round = 0
        for (; ; round++) {
          rows.push(...met.rows.map((row) => claimedRow(row, start)))
          const spent = met.expired > 0 || met.lapsed
          if ((!spent && !met.marked) || round === maxRounds) break
          // Who has what it asked for does not wait for others' keys
          if (!spent && rows.length >= request.limit) {
            yield* advanceSoon(request.queue)
            break
          }
          const next = yield* again(request, met, rows.length, round)
          if (next === undefined) break
          met = next
        }
        // Seen and left behind: for free handlers only
        const left = met.seen > met.rows.length
        const behind = round === maxRounds && met.marked
        const full = left || behind || met.seen >= request.limit + request.prefetch || met.expired > 0 || met.lapsed
        return {
          jobs: rows.sort((a, b) => b.priority - a.priority || a.dueAt - b.dueAt || a.id - b.id),
          more: full,
          paused: met.paused,
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
              Effect.tap(({ keyed, woken }) =>
                // A worker does not wait for whom an ordering key lets go on: it has others to settle
                Effect.zipRight(
                  keyed ? (skipLocked ? advanceSoon(queue) : advanceNow(queue)) : Effect.void,
                  announce(woken)
                )
              ),
              Effect.map(({ outcomes }) => outcomes)
            )

    return {
      define: defineQueue,
      enqueue: enqueueJobs,
      claim: claimJobs,
      settle: settleJobs,
      renew: (renewals) =>
        renewals.length === 0
          ? Effect.succeed([])
          : db.apart("write", "renew", (session) => verbs.renew(session, renewals)),
      sweepExpired: makeSweep(store),
      ...makeOperations(store),
      list: (queue, { after, limit }) =>
        db.joined("read", "list", (session) => verbs.select.list(session, queue, after, limit)),
      transaction: db.transaction,
      detached,
      holdsWriteLock: db.holdsWriteLock,
      singleWriter: db.names.engine === "sqlite",
      monotonic: clock.monotonic
    } satisfies Service
  })

/** The Queue service of a database whose tables are there. */
export const layer = (db: Database, options: SqlQueueOptions) => Layer.scoped(Queue, make(db, options))
