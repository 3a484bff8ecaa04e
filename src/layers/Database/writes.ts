/**
 * SQLite: writes of this process that wait at the same moment share one transaction and its commit. The write lock is
 * taken first (BEGIN IMMEDIATE) and waited for asynchronously. When one of them fails, all are rolled back and each runs
 * in a transaction of its own: nobody fails for another.
 */
import { Cause, Effect, Exit, Option } from "effect"
import { busyDelays } from "../../schedule/Polling.js"
import type { Service as ClockService } from "../../services/Clock.js"
import type { StoreError } from "../../services/Errors.js"
import type { Session } from "../engine.js"
import { isUncertain, storeError } from "../storeError.js"
import type { Combined, Connection, Verb } from "./Database.js"
import { type Call, makeGroup, type Waiting } from "./group.js"

interface Write {
  readonly operation: string
  readonly verb: Verb<unknown>
  readonly combined: Combined<unknown> | undefined
  /** When it first met another writer, by the monotonic clock. */
  since: number | undefined
}

type Writes = Waiting<Write, unknown, StoreError>

/** Those from there on that can be done at once: of one kind, and one after the other, so that their order stays. */
const nextOfOneKind = (calls: ReadonlyArray<Call<Write, unknown, StoreError>>, from: number) => {
  const key = calls[from]?.input.combined?.key
  let end = from + 1
  while (key !== undefined && end < calls.length && calls[end]?.input.combined?.key === key) end++
  return calls.slice(from, end)
}

export interface Writing {
  readonly clock: ClockService
  /** How long a call waits for the write lock in all before it fails (`busy`). */
  readonly limitMillis: number
  /** Waiting for the connection can be interrupted; having it cannot. */
  readonly use: <A>(use: (connection: Connection) => Effect.Effect<A, StoreError>) => Effect.Effect<A, StoreError>
  readonly session: (connection: Connection) => Effect.Effect<Session>
  readonly run: (connection: Connection, text: string, operation: string) => Effect.Effect<unknown, StoreError>
}

export const makeWrites = ({ clock, limitMillis, run, session, use }: Writing) => {
  /** A rollback that fails found nothing to roll back. */
  const rollback = (connection: Connection) => Effect.either(run(connection, "ROLLBACK", "rollback"))

  const commit = (connection: Connection, operation: string) =>
    Effect.tapError(run(connection, "COMMIT", operation), () => rollback(connection))

  /** What fails here for another reason than the lock was never done: a transaction that somebody left open, say. */
  const begin = (connection: Connection, operation: string) =>
    Effect.mapError(run(connection, "BEGIN IMMEDIATE", operation), (error) =>
      error.reason === "busy" ? error : storeError("begin", error.cause, error.reason)
    )

  /** Tells what has waited for the end of a transaction. */
  const over = (own: Session, committed: boolean): void => {
    for (const end of own.ends?.splice(0) ?? []) end(committed)
  }

  const isBusy = (exit: Exit.Exit<unknown, StoreError>): boolean =>
    Exit.isFailure(exit) && Option.exists(Cause.failureOption(exit.cause), ({ reason }) => reason === "busy")

  const isLost = (exit: Exit.Exit<unknown, StoreError>): exit is Exit.Failure<never, StoreError> =>
    Exit.isFailure(exit) && Option.exists(Cause.failureOption(exit.cause), isUncertain)

  /** Ends in a transaction that is open. Fails when it has met another writer, and is still to be done. */
  const single = (connection: Connection, own: Session, { end, input }: Call<Write, unknown, StoreError>) =>
    Effect.exit(
      Effect.matchCauseEffect(
        Effect.suspend(() => input.verb(own)),
        {
          onFailure: (cause) => Effect.zipRight(rollback(connection), Effect.failCause(cause)),
          onSuccess: (value) => Effect.as(commit(connection, input.operation), value)
        }
      )
    ).pipe(
      Effect.flatMap((exit): Effect.Effect<void, StoreError> => {
        if (isBusy(exit)) {
          over(own, false)
          return Effect.asVoid(exit)
        }
        end(exit)
        over(own, Exit.isSuccess(exit))
        return Effect.void
      })
    )

  /** Each with a session of its own: others may have written between two of them. */
  const oneByOne = (connection: Connection, calls: ReadonlyArray<Call<Write, unknown, StoreError>>) =>
    Effect.forEach(
      calls,
      (call) =>
        Effect.flatMap(Effect.zipRight(begin(connection, call.input.operation), session(connection)), (own) =>
          single(connection, own, call)
        ),
      { discard: true }
    )

  /** What these answer, which are of one kind, or one. */
  const doAll = (own: Session, mates: ReadonlyArray<Call<Write, unknown, StoreError>>) =>
    Effect.suspend((): Effect.Effect<ReadonlyArray<unknown>, StoreError> => {
      const [first] = mates
      if (first === undefined) return Effect.succeed([])
      const { combined, verb } = first.input
      return mates.length === 1 || combined === undefined
        ? Effect.map(verb(own), (answer) => [answer])
        : combined.run(
            own,
            mates.map(({ input }) => input.combined?.input)
          )
    })

  const together = (connection: Connection, own: Session, calls: ReadonlyArray<Call<Write, unknown, StoreError>>) =>
    Effect.gen(function* (): Effect.fn.Return<void, StoreError> {
      const answers: Array<unknown> = []
      while (answers.length < calls.length) {
        const exit = yield* Effect.exit(doAll(own, nextOfOneKind(calls, answers.length)))
        if (Exit.isFailure(exit)) {
          yield* rollback(connection)
          over(own, false)
          return yield* oneByOne(connection, calls)
        }
        for (const answer of exit.value) answers.push(answer)
      }
      const committed = yield* Effect.exit(commit(connection, "commit"))
      if (Exit.isFailure(committed)) {
        over(own, false)
        if (isBusy(committed)) return yield* Effect.asVoid(committed)
        // It may stand: what is done again might be there twice
        if (isLost(committed)) return calls.forEach(({ end }) => void end(committed))
        // A constraint that is checked at the end may be of one of them
        return yield* oneByOne(connection, calls)
      }
      for (const [index, call] of calls.entries()) call.end(Exit.succeed(answers[index]))
      over(own, true)
    })

  const transaction = (connection: Connection, waiting: Writes, operation: string) =>
    Effect.flatMap(Effect.zipRight(begin(connection, operation), session(connection)), (own) => {
      const calls = waiting.take()
      const [call] = calls
      return calls.length === 1 && call !== undefined ? single(connection, own, call) : together(connection, own, calls)
    })

  const turn = (waiting: Writes, first: Write) =>
    Effect.tapError(
      use((connection) => transaction(connection, waiting, first.operation)),
      (error) => {
        if (error.reason !== "busy") return Effect.void
        waiting.giveBack()
        // Whoever has waited for its whole time gives up; the others go on
        return Effect.map(clock.monotonic, (now) =>
          waiting.drop((write) => {
            write.since ??= now
            return now - write.since >= limitMillis
          }, Exit.fail(error))
        )
      }
    )

  const write = makeGroup<Write, unknown, StoreError>((waiting, first) => {
    const again = (error: StoreError) => error.reason === "busy" && waiting.has(first)
    return Effect.catchIf(turn(waiting, first), again, () =>
      Effect.retry(turn(waiting, first), { schedule: busyDelays, while: again })
    )
  })

  return <A>(operation: string, verb: Verb<A>, combined?: Combined<A>): Effect.Effect<A, StoreError> =>
    Effect.suspend(() => write({ operation, verb, combined, since: undefined })) as Effect.Effect<A, StoreError>
}
