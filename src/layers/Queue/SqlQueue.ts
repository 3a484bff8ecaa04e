/**
 * The Queue service over a Database: implemented once for both engines, out of the verbs in `statements/`.
 */
import { Effect, Layer, Scope } from "effect"
import { Clock } from "../../services/Clock.js"
import { EnqueueUncertain, InvalidArgument, StoreError } from "../../services/Errors.js"
import {
  type ClaimRequest,
  type ClaimResult,
  type NewJob,
  Queue,
  type Receipt,
  type Service
} from "../../services/QueueStore.js"
import type { ClaimedRow } from "../../services/Settlement.js"
import { type Database, detached, type Verb } from "../Database/Database.js"
import type { Session } from "../engine.js"
import { isUncertain } from "../storeError.js"
import { makeDefineQueue } from "./defineQueue.js"
import { makeExpire } from "./expire.js"
import { gathers, makeGather } from "./gather.js"
import { makeLapse } from "./lapse.js"
import { makeSweep } from "./maintain.js"
import { makeOperations } from "./operations.js"
import { makeReceivers, type Placed } from "./receivers.js"
import type { Claimed } from "./statements/claim.js"
import { needsTransaction } from "./statements/enqueue.js"
import { isPlain } from "./statements/enqueuePlain.js"
import { int } from "./statements/rows.js"
import { makeStore, none } from "./store.js"
import type { SqlQueueOptions, Verbs } from "./verbs.js"

/** Rounds of moving spent rows out of the way within one claim. */
const maxRounds = 10

/** Enqueues of fewer jobs than this may share a statement. */
const mostCombined = 100

/** Enqueues into one queue, of plain jobs, at once. */
const combined = (put: Put, queue: string) => (session: Session, inputs: ReadonlyArray<unknown>) => {
  const lists = inputs as ReadonlyArray<ReadonlyArray<NewJob>>
  return Effect.map(put(session, queue, lists.flat()), ({ handed, receipts }) => {
    let from = 0
    return lists.map((list): Placed => {
      from += list.length
      return { receipts: receipts.slice(from - list.length, from), handed }
    })
  })
}

type Put = (session: Session, queue: string, jobs: ReadonlyArray<NewJob>) => Effect.Effect<Placed, StoreError>

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
    const clock = yield* Clock
    const store = yield* makeStore(db, options)
    const { advance, advanceNow, advanceSoon, announce, announceNew, upToDate, verbs, wakeNew } = store
    const expiry = makeExpire(store)
    const lapse = makeLapse(store)
    const defineQueue = makeDefineQueue(db, verbs)
    const receivers = makeReceivers(verbs, clock)
    const gathered = makeGather(db, receivers, verbs, wakeNew, options.notify ? options.echoes : undefined)

    const put: Put = (session, queue, jobs) => {
      const { ends } = session
      return receivers.enqueue(session, queue, jobs, ends === undefined ? undefined : (end) => void ends.push(end))
    }

    const place = (queue: string, jobs: ReadonlyArray<NewJob>) => {
      const extent = needsTransaction(jobs) ? "transaction" : undefined
      if (jobs.every((job) => job.expiresAt === null))
        return db.joined(
          jobs.every(isPlain) ? "enqueue" : "waits",
          "enqueue",
          (session) => put(session, queue, jobs),
          extent,
          jobs.length < mostCombined && jobs.every(isPlain)
            ? { key: `enqueue ${queue}`, input: jobs, run: combined(put, queue) }
            : undefined
        )
      const checked: Verb<InvalidArgument | ReadonlyArray<Receipt>> = (session) =>
        Effect.flatMap(
          checkExpiry(verbs, jobs)(session),
          (late): Effect.Effect<InvalidArgument | ReadonlyArray<Receipt>, StoreError> =>
            late === undefined ? verbs.enqueue(session, queue, jobs) : Effect.succeed(late)
        )
      return Effect.flatMap(
        db.joined(jobs.every(isPlain) ? "enqueue" : "waits", "enqueue", checked, extent),
        (result): Effect.Effect<Placed, InvalidArgument> =>
          result instanceof InvalidArgument ? Effect.fail(result) : Effect.succeed({ receipts: result, handed: false })
      )
    }

    const uncertain =
      (queue: string, joins: boolean) =>
      <E>(error: E | StoreError): E | StoreError | EnqueueUncertain =>
        error instanceof StoreError && !joins && isUncertain(error)
          ? new EnqueueUncertain({
              queue,
              message: `queue ${queue}: the connection was lost before the answer to an enqueue came; the jobs may or may not exist. Enqueue again with a dedupeKey`,
              cause: error
            })
          : error

    /** May only seem to be blocked: see `upToDate`. */
    const isDoubtful = ({ deduplicated, state }: Receipt): boolean => deduplicated && state === "blocked"

    /** Such jobs with the state that they have now. The enqueue stands, whatever becomes of this look. */
    const asTheyAre = (receipts: ReadonlyArray<Receipt>): Effect.Effect<ReadonlyArray<Receipt>> => {
      const ids = receipts.filter(isDoubtful).map(({ id }) => id)
      return db
        .joined("read", "enqueue", (session) => verbs.lanes.states(session, ids))
        .pipe(
          Effect.map((states) =>
            receipts.map((receipt) =>
              isDoubtful(receipt) ? { ...receipt, state: states.get(receipt.id) ?? receipt.state } : receipt
            )
          ),
          Effect.orElseSucceed(() => receipts)
        )
    }

    const enqueueJobs: Service["enqueue"] = (queue, jobs) => {
      if (jobs.length === 0) return Effect.succeed([])
      return db.standing((stands) => {
        const joins = stands === "inside"
        // Those of a shared statement are announced by whoever sends it
        if (stands === "outside" && gathers(db, jobs))
          return Effect.mapError(gathered(queue, jobs), uncertain(queue, joins))
        return Effect.flatMap(Effect.mapError(place(queue, jobs), uncertain(queue, joins)), ({ handed, receipts }) => {
          if (handed) return Effect.succeed(receipts)
          const told = receipts.some(({ replaced }) => replaced)
            ? announce([queue])
            : stands === "outside"
              ? wakeNew(queue)
              : announceNew(queue)
          const keyed = jobs.some((job) => job.orderingKey !== null)
          const doubtful = !joins && db.names.engine === "postgres" && receipts.some(isDoubtful)
          const after = keyed || doubtful ? Effect.zipRight(advanceNow(queue), told) : told
          return Effect.zipRight(after, doubtful ? asTheyAre(receipts) : Effect.succeed(receipts))
        })
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
      // Read when the claim has waited for what it needs: what it waited is no part of its leases
      const verb: Verb<Claimed> = (session) =>
        Effect.flatMap(clock.monotonic, (start) => verbs.claim(session, request, start))
      if (db.names.engine === "postgres") return db.joined("write", "claim", verb)
      const write = db.joined("write", "claim", verb)
      // Without the write lock, and without reading more than it takes to know
      const look = (some: ClaimRequest) => db.joined("read", "claim", (session) => verbs.claim(session, some))
      const looked = Effect.flatMap(look({ ...request, limit: 1, prefetch: 0 }), (first) => {
        if (first.seen === 0) return Effect.succeed(first)
        if (first.expired === 0) return write
        return Effect.flatMap(look(request), (met) => (met.seen > met.expired ? write : Effect.succeed(met)))
      })
      return Effect.flatMap(db.joins, (joins) => (joins ? write : looked))
    }

    /**
     * Clears the way and claims again, if that can bring more. What was claimed before is committed: a failure of this
     * must not take it out of its claimant's hands.
     */
    const again = (request: ClaimRequest, met: Claimed, claimed: number, round: number) =>
      Effect.gen(function* () {
        const cleared = yield* clear(request.queue, met)
        if ((!cleared && round > 0) || claimed >= request.limit) return undefined
        const { handlers = request.limit, limit } = request
        return yield* claimOnce({ ...request, limit: limit - claimed, handlers: Math.max(0, handlers - claimed) })
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
        const rows: Array<ClaimedRow> = []
        let met = yield* claimOnce(request)
        let round = 0
        for (; ; round++) {
          for (const row of met.rows) rows.push(row)
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
        const left = met.seen > met.rows.length + met.expired
        const behind = round === maxRounds && met.marked
        const full = left || behind || met.seen >= request.limit + request.prefetch || met.expired > 0 || met.lapsed
        return {
          jobs: rows.sort((a, b) => b.priority - a.priority || a.dueAt - b.dueAt || a.id - b.id),
          more: full,
          left,
          paused: met.paused,
          nextInMillis: met.nextAt === null ? undefined : Math.max(0, met.nextAt - met.now),
          // What was left behind is still to be taken, or moved
          last: full && !left && met.expired === 0 && !met.lapsed ? met.last : undefined
        } satisfies ClaimResult
      })

    const settleJobs: Service["settle"] = (queue, settlements, { skipLocked } = { skipLocked: false }) =>
      settlements.length === 0
        ? Effect.succeed([])
        : db
            .joined(skipLocked ? "write" : "waits", "settle", (session) =>
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
      receive: receivers.receive,
      settle: settleJobs,
      renew: (renewals) =>
        renewals.length === 0
          ? Effect.succeed([])
          : db.apart("write", "renew", (session) => verbs.renew(session, renewals)),
      renewWithin: (renewals) => db.joined("write", "renew", (session) => verbs.renew(session, renewals)),
      sweepExpired: makeSweep(store),
      ...makeOperations(store),
      list: (queue, { after, limit }) =>
        upToDate(
          db.joined("read", "list", (session) => verbs.select.list(session, queue, after, limit)),
          (jobs) => (jobs.some(({ state }) => state === "blocked") ? queue : undefined)
        ),
      transaction: db.transaction,
      detached,
      holdsWriteLock: db.holdsWriteLock,
      singleWriter: db.names.engine === "sqlite",
      innerScope: options.innerScope ?? Scope.make(),
      monotonic: clock.monotonic
    } satisfies Service
  })

/** The Queue service of a database whose tables are there. */
export const layer = (db: Database, options: SqlQueueOptions) => Layer.scoped(Queue, make(db, options))
