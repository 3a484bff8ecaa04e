/**
 * Jobs that are enqueued while a worker of this process has nothing to do are handed to it: stored as claimed by it, in the same
 * statement, so that they are neither claimed in a second one nor told to anybody.
 */
import { Effect } from "effect"
import type { Service as ClockService } from "../../services/Clock.js"
import type { StoreError } from "../../services/Errors.js"
import type { NewJob, Receipt, Receiver, Service } from "../../services/QueueStore.js"
import type { ClaimedRow } from "../../services/Settlement.js"
import type { Session } from "../engine.js"
import { areAlike } from "./statements/enqueuePlain.js"
import type { Verbs } from "./verbs.js"

export interface Placed {
  readonly receipts: ReadonlyArray<Receipt>
  /** They are with a worker of this process: nobody is to be woken. */
  readonly handed: boolean
}

/** More are for the whole fleet. */
const most = 100

/** Whether a claim could take them at once, as they are; not on their only attempt, since the answer to the enqueue may be lost. */
const suit = (jobs: ReadonlyArray<NewJob>): boolean => {
  const [first] = jobs
  return (
    first !== undefined &&
    jobs.length <= most &&
    first.maxAttempts > 1 &&
    first.delayMillis === 0 &&
    first.runAt === null &&
    first.expiresAt === null &&
    first.expiresMillis === null &&
    areAlike(jobs)
  )
}

export const makeReceivers = (verbs: Verbs, clock: ClockService) => {
  const receivers = new Set<Receiver>()

  const receive: Service["receive"] = (receiver) =>
    Effect.acquireRelease(
      Effect.sync(() => void receivers.add(receiver)),
      () => Effect.sync(() => void receivers.delete(receiver))
    )

  /** Whoever has room for them, which is kept from then on. */
  const find = (queue: string, jobs: ReadonlyArray<NewJob>): Receiver | undefined => {
    for (const receiver of receivers)
      if (receiver.queue === queue && suit(jobs) && receiver.reserve(jobs.length)) return receiver
    return undefined
  }

  /**
   * `ends` is given what to tell whether all this has been committed; where nobody can, nothing is handed over. Not interruptible
   * from here to there.
   */
  const enqueue = (
    session: Session,
    queue: string,
    jobs: ReadonlyArray<NewJob>,
    ends: ((ended: (committed: boolean) => void) => void) | undefined
  ): Effect.Effect<Placed, StoreError> => {
    const plainly = () =>
      Effect.map(verbs.enqueue(session, queue, jobs), (receipts): Placed => ({ receipts, handed: false }))
    return Effect.suspend(() => {
      if (ends === undefined) return plainly()
      const receiver = find(queue, jobs)
      if (receiver === undefined) return plainly()
      let given: ReadonlyArray<ClaimedRow> = []
      ends((committed) => receiver.take(jobs.length, committed ? given : []))
      const put = Effect.flatMap(clock.monotonic, (now) => verbs.handOver(session, queue, jobs, receiver, now))
      return Effect.flatMap(put, (over) => {
        if (over === undefined) return plainly()
        given = over.taken
        return Effect.succeed({ receipts: over.receipts, handed: given.length > 0 })
      })
    })
  }

  return { receive, enqueue }
}

export type Receivers = ReturnType<typeof makeReceivers>
