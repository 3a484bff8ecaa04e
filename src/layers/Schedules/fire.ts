/**
 * fire: in the transaction that holds the schedule's row, enqueues for the boundaries that have come and advances. A
 * crash between any two statements leaves both undone.
 */
import { Effect, Either } from "effect"
import type { StoreError } from "../../services/Errors.js"
import type { Receipt } from "../../services/QueueStore.js"
import type { Names, Row, Session } from "../engine.js"
import { enqueue } from "../Queue/statements/enqueue.js"
import { int, textOrNull } from "../Queue/statements/rows.js"
import { decide, jobOf, overlapOf } from "./decide.js"
import { ownJobs, withOwnJobs } from "./ownJobs.js"
import type { ScheduleStatements } from "./statements.js"

export interface Fired {
  readonly queue: string
  readonly jobs: number
  readonly deduplicated: number
  readonly lastAt: number | null
}

export interface Fire {
  /** The row must be locked by this session. `Left`: why this version cannot fire it; nothing was written. */
  readonly fire: (session: Session, row: Row) => Effect.Effect<Either.Either<Fired, string>, StoreError>
  /** One job, now, whatever the boundaries. */
  readonly trigger: (session: Session, row: Row) => Effect.Effect<Either.Either<Receipt, string>, StoreError>
}

export const makeFire = (n: Names, statements: ScheduleStatements, notify: boolean): Fire => {
  const add = enqueue[n.engine](n, notify)

  /** Which of its jobs are live still. One that crashed, died or was cancelled is not in the way. */
  const live = (session: Session, row: Row) => {
    const ids = ownJobs(textOrNull(row.live_jobs))
    return ids.length === 0
      ? Effect.succeed<ReadonlyArray<number>>([])
      : Effect.map(session.execute(statements.liveJobs, { ids: JSON.stringify(ids) }), (rows) =>
          rows.map(({ id }) => int(id))
        )
  }

  /** What a key was held by is somebody else's, unless it has become the schedule's. */
  const remember = (row: Row, receipts: ReadonlyArray<Receipt>) =>
    withOwnJobs(
      ownJobs(textOrNull(row.live_jobs)),
      receipts.filter(({ deduplicated, replaced }) => replaced || !deduplicated).map(({ id }) => id)
    )

  const fire: Fire["fire"] = (session, row) => {
    const plan = Either.all([decide(row), overlapOf(row), jobOf(row)])
    if (Either.isLeft(plan)) return Effect.succeed(Either.left(plan.left))
    const [{ boundaries, lastAt, nextAt }, overlap, job] = plan.right
    const queue = String(row.queue)
    return Effect.gen(function* () {
      const overlaps = overlap === "skip" && (yield* live(session, row)).length > 0
      const wanted = overlap === "allow" ? boundaries : overlaps ? [] : boundaries.slice(0, 1)
      const receipts = wanted.length === 0 ? [] : yield* add(session, queue, wanted.map(job))
      const jobs = receipts.filter(({ deduplicated }) => !deduplicated).length
      yield* session.execute(statements.advance, {
        name: row.name,
        nextAt,
        lastAt,
        fired: jobs,
        skipped: boundaries.length - wanted.length,
        liveJobs: remember(row, receipts)
      })
      return Either.right({ queue, jobs, deduplicated: receipts.length - jobs, lastAt })
    })
  }

  const trigger: Fire["trigger"] = (session, row) => {
    const job = jobOf(row)
    if (Either.isLeft(job)) return Effect.succeed(Either.left(job.left))
    return Effect.gen(function* () {
      const receipts = yield* add(session, String(row.queue), [job.right(undefined)])
      yield* session.execute(statements.keepJobs, { name: row.name, liveJobs: remember(row, receipts) })
      return Either.right(receipts[0] as Receipt)
    })
  }

  return { fire, trigger }
}
