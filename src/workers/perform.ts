/**
 * What a started handler does with its one job: decodes it, finds who is for it, calls it.
 */
import { Effect, Either, Exit, type Scope } from "effect"
import type { SettleError } from "../services/Errors.js"
import type { reader } from "../services/encode.js"
import { leaseLost, makeJob } from "../services/handle.js"
import type { Job } from "../services/Job.js"
import * as Settlement from "../services/Settlement.js"
import { databaseNow, type Held, offerSettle, type Run, type WorkerState } from "./held.js"
import { inTransaction } from "./transactional.js"

/** The handler for a payload, or undefined when there is none for its tag. */
export type Dispatch<A> = (payload: A) => ((job: Job<A>) => Effect.Effect<unknown, unknown, Scope.Scope>) | undefined

/** Decodes a payload, or says why it cannot, and goes on. */
export type Decode<A> = ReturnType<typeof reader<A, unknown>>

/** How the jobs of a batch ended, by lease token. No handler can answer with one. */
export class Ends {
  constructor(readonly byToken: ReadonlyMap<number, Exit.Exit<unknown, unknown>>) {}
}

/** How the jobs of a run ended, where its handler has told them apart; otherwise they all end as it does. */
export const endsOf = (exit: Exit.Exit<unknown, unknown>): Ends["byToken"] | undefined =>
  Exit.isSuccess(exit) && exit.value instanceof Ends ? exit.value.byToken : undefined

/** Does the work of a run. Called where it may be interrupted. */
export type Perform = (state: WorkerState, run: Run) => Effect.Effect<unknown, unknown, Scope.Scope>

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
    return decode(held.row.payload, (payload): Effect.Effect<unknown, unknown, Scope.Scope> => {
      if (Either.isLeft(payload)) return unreadable(state, run, held, payload.left)
      const handler = dispatch(payload.right)
      if (handler === undefined) return unreadable(state, run, held, "this worker has no handler for its tag")
      const job = handleOf(state, held, payload.right)
      const called = () => call(handler, job)
      return state.policy.transactional ? inTransaction(state, held, Effect.suspend(called)) : called()
    })
  }
