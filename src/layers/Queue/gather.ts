/**
 * PostgreSQL: enqueues outside of every transaction that wait at the same moment share one statement, its commit and its
 * notification. On SQLite writes of all kinds share their transaction: see `Database/writes`.
 */
import { Cause, Effect, Exit, Option } from "effect"
import type { StoreError, TransactionOpen } from "../../services/Errors.js"
import type { NewJob, Receipt } from "../../services/QueueStore.js"
import { queueTopic } from "../../services/Wake.js"
import type { Database } from "../Database/Database.js"
import { type Call, makeGroup } from "../Database/group.js"
import type { Session } from "../engine.js"
import { connecting, isUncertain, storeError } from "../storeError.js"
import type { Echoes } from "../Wake/echoes.js"
import type { Receivers } from "./receivers.js"
import { isPlain } from "./statements/enqueuePlain.js"
import type { Verbs } from "./verbs.js"

interface Enqueue {
  readonly queue: string
  readonly jobs: ReadonlyArray<NewJob>
}

type Failure = TransactionOpen | StoreError
type Calls = ReadonlyArray<Call<Enqueue, ReadonlyArray<Receipt>, Failure>>

/** What one shared statement takes, and who is big enough to go alone. */
const mostJobs = 1_000
const mostCharacters = 4 * 1024 * 1024

/** So many statement timeouts in a row are not the calls' own. */
const mostTimeouts = 3

const characters = (jobs: ReadonlyArray<NewJob>): number => jobs.reduce((sum, job) => sum + job.payload.length, 0)

/** Jobs that wait for nobody's key and are not refused by what they are. */
export const gathers = (db: Database, jobs: ReadonlyArray<NewJob>): boolean =>
  db.names.engine === "postgres" &&
  jobs.length < mostJobs &&
  jobs.every((job) => isPlain(job) && job.expiresAt === null) &&
  characters(jobs) < mostCharacters

/** Whether the next call still fits into the statement. */
const makeFits = () => {
  let count = 0
  let size = 0
  return ({ jobs }: Enqueue): boolean => {
    count += jobs.length
    size += characters(jobs)
    return count <= mostJobs && size <= mostCharacters
  }
}

/** What those are told who were still to be sent when the connection was lost. */
const unsent = (lost: StoreError): StoreError => storeError(connecting, lost.cause, "connection")

const byQueue = (calls: Calls): ReadonlyArray<Calls> => {
  const queues = new Map<string, Array<Calls[number]>>()
  for (const call of calls) {
    const others = queues.get(call.input.queue)
    if (others === undefined) queues.set(call.input.queue, [call])
    else others.push(call)
  }
  return [...queues.values()]
}

/** `ring` wakes this process's own workers, whatever becomes of the callers meanwhile. */
export const makeGather = (
  db: Database,
  receivers: Receivers,
  verbs: Verbs,
  ring: (queue: string) => Effect.Effect<void>,
  echoes: Echoes | undefined
) => {
  /**
   * One by one, until the connection is lost: the rest was never sent then. Nor is it when some, one after the other, have run
   * into the statement timeout: it is not they who hold up the others.
   */
  const oneByOne = (session: Session, calls: Calls): Effect.Effect<StoreError | undefined> =>
    Effect.gen(function* () {
      let lost: StoreError | undefined
      /** What those are told who are not sent any more. */
      let rest: StoreError | undefined
      let timeouts = 0
      for (const { end, input } of calls) {
        if (rest !== undefined) {
          end(Exit.fail(rest))
          continue
        }
        const exit = yield* Effect.exit(verbs.enqueue(session, input.queue, input.jobs))
        const failure = Exit.isFailure(exit) ? Option.getOrUndefined(Cause.failureOption(exit.cause)) : undefined
        timeouts = failure?.reason === "timeout" ? timeouts + 1 : 0
        if (failure !== undefined && isUncertain(failure)) {
          lost = failure
          rest = unsent(failure)
        } else if (timeouts === mostTimeouts) rest = failure
        end(exit)
      }
      return lost
    })

  /** Ends all of them; answers how the connection was lost, if it was. */
  const send = (session: Session, calls: Calls): Effect.Effect<StoreError | undefined> => {
    const [first] = calls
    if (first === undefined) return Effect.succeed(undefined)
    const jobs = calls.length === 1 ? first.input.jobs : calls.flatMap(({ input }) => input.jobs)
    const { queue } = first.input
    const sent = session.pid === undefined ? undefined : echoes?.begin(session.pid, queueTopic(queue))
    /** Told when the statement has ended, which is a transaction. */
    let over: (committed: boolean) => void = () => {}
    const put = receivers.enqueue(session, queue, jobs, (end) => {
      over = end
    })
    return Effect.matchCauseEffect(put, {
      onSuccess: ({ handed, receipts }) => {
        // What is handed over is notified to nobody
        const heard = (sent?.(!handed) ?? false) || handed
        let from = 0
        for (const { end, input } of calls) {
          end(Exit.succeed(receipts.slice(from, from + input.jobs.length)))
          from += input.jobs.length
        }
        over(true)
        return heard ? Effect.succeed(undefined) : Effect.as(ring(queue), undefined)
      },
      onFailure: (cause) => {
        sent?.(false)
        over(false)
        const error = Option.getOrUndefined(Cause.failureOption(cause))
        const lost = error !== undefined && isUncertain(error)
        // Refused, perhaps for the sake of one of them: nobody fails for another
        if (error !== undefined && !lost && calls.length > 1)
          return Effect.zipLeft(oneByOne(session, calls), ring(queue))
        for (const { end } of calls) end(Exit.failCause(cause))
        // They may stand
        return Effect.as(lost ? ring(queue) : Effect.void, lost ? error : undefined)
      }
    })
  }

  const sendAll = (session: Session, calls: Calls): Effect.Effect<unknown> => {
    const queues = byQueue(calls)
    if (queues.length === 1) return send(session, calls)
    return Effect.gen(function* () {
      let lost: StoreError | undefined
      for (const some of queues) {
        if (lost === undefined) lost = yield* send(session, some)
        // These were never sent
        else for (const { end } of some) end(Exit.fail(unsent(lost)))
      }
    })
  }

  const group = makeGroup<Enqueue, ReadonlyArray<Receipt>, Failure>((waiting) =>
    db
      .apart("enqueue", "enqueue", (session) => sendAll(session, waiting.take(makeFits())))
      .pipe(
        Effect.catchAll((error) =>
          // No connection for anybody who waits
          Effect.sync(() => {
            for (const { end } of waiting.take()) end(Exit.fail(error))
          })
        )
      )
  )

  return (queue: string, jobs: ReadonlyArray<NewJob>) => group({ queue, jobs })
}
