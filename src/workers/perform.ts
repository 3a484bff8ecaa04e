/**
 * What a started handler does with its one job: decodes it, finds who is for it, calls it.
 */
import { Effect, Either, type Exit, type Scope } from "effect"
import type { SettleError } from "../services/Errors.js"
import type { decoder } from "../services/encode.js"
import { leaseLost, makeJob } from "../services/handle.js"
import type { Job } from "../services/Job.js"
import * as Settlement from "../services/Settlement.js"
import { databaseNow, type Held, offerSettle, type Run, type WorkerState } from "./held.js"
import { inTransaction } from "./transactional.js"

/** The handler for a payload, or undefined when there is none for its tag. */
export type Dispatch<A> = (payload: A) => ((job: Job<A>) => Effect.Effect<unknown, unknown, Scope.Scope>) | undefined

/** Decodes a payload, or says why it cannot, and goes on. */
export type Decode<A> = ReturnType<typeof decoder<A, unknown>>

/**
 * Does the work of a run. Success is the end of each of its members, by lease token, where the handler has told them
 * apart; otherwise they all end as it does.
 */
export type Perform = (
  state: WorkerState,
  run: Run
) => Effect.Effect<ReadonlyMap<number, Exit.Exit<unknown, unknown>> | undefined, unknown, Scope.Scope>

export const handleOf = <A>(state: WorkerState, held: Held, payload: A) =>
  makeJob(state.queue, held.row, payload, {
    heartbeat: (progress): Effect.Effect<void, SettleError> =>
      Effect.suspend(() => {
        if (held.phase !== "running" || held.stop !== undefined) return Effect.fail(leaseLost(held.row))
        if (progress !== undefined) held.progress = progress
        held.beat = true
        state.beats.unsafeOpen()
        return Effect.void
      }),
    settling: (settlement) => {
      const before = held.settledByHand
      held.settledByHand = settlement
      return (done = before) => {
        held.settledByHand = done
      }
    }
  }).handle

/** Calls a handler. What it throws is caught here: there are values that the runtime itself cannot bear to catch. */
export const call = <J, B, E, R>(handler: (jobs: J) => Effect.Effect<B, E, R>, jobs: J): Effect.Effect<B, E, R> => {
  try {
    return handler(jobs)
  } catch (error) {
    return Effect.die(error)
  }
}

/** A job that this worker cannot read goes its own way at once. */
export const unreadable = (state: WorkerState, run: Run, held: Held, reason: string): Effect.Effect<void> =>
  Effect.map(databaseNow(state, held.row), (now) => {
    if (held.phase !== "running") return
    run.members.splice(run.members.indexOf(held), 1)
    state.publish({ _tag: "Undecodable", job: held.ref, reason })
    offerSettle(state, held, Settlement.undecodable(held.row, now, reason))
  })

/** One job per run. */
export const performOne =
  <A>(decode: Decode<A>, dispatch: Dispatch<A>): Perform =>
  (state, run) => {
    const held = run.members[0] as Held
    return decode(held.row.payload, (payload): Effect.Effect<undefined, unknown, Scope.Scope> => {
      const handler = Either.isRight(payload) ? dispatch(payload.right) : undefined
      if (Either.isLeft(payload)) return Effect.as(unreadable(state, run, held, payload.left), undefined)
      if (handler === undefined)
        return Effect.as(unreadable(state, run, held, "this worker has no handler for its tag"), undefined)
      const job = handleOf(state, held, payload.right)
      return Effect.as(
        state.policy.transactional
          ? inTransaction(
              state,
              held,
              Effect.suspend(() => call(handler, job))
            )
          : call(handler, job),
        undefined
      )
    })
  }
