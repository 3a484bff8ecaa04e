/**
 * One call of a handler for many jobs, each of which ends on its own.
 */
import { Effect, Either, Exit, type Scope } from "effect"
import { isNonEmptyReadonlyArray, type NonEmptyReadonlyArray } from "effect/Array"
import type { Job } from "../services/Job.js"
import type { Held, WorkerState } from "./held.js"
import { call, type Decode, Ends, handleOf, type Perform, unreadable } from "./perform.js"

/** A batch handler as the worker runs it: what it answers is looked at, whatever its type says. */
export type AnyBatchHandler<A> = (jobs: NonEmptyReadonlyArray<Job<A>>) => Effect.Effect<unknown, unknown, Scope.Scope>

/**
 * The next jobs for a free slot: none while they may still wait for others. A job that crashed before is alone in its
 * batch: were it what kills its process, it would take others' attempts with it again and again.
 */
export const nextMembers = ({ buffer, policy }: WorkerState): Array<Held> => {
  const [first] = buffer
  if (first === undefined) return []
  if (policy.batchSize === 1 || first.row.crashes > 0) {
    buffer.shift()
    return [first]
  }
  const crashed = buffer.findIndex(({ row }) => row.crashes > 0)
  const count = Math.min(policy.batchSize, crashed === -1 ? buffer.length : crashed)
  const filling = count < policy.batchSize && crashed === -1 && policy.maxWaitMillis > 0 && !first.ripe
  return filling ? [] : buffer.splice(0, count)
}

const exitOf = (outcome: unknown): Exit.Exit<unknown, unknown> | undefined => {
  if (Either.isEither(outcome)) return Either.isRight(outcome) ? Exit.void : Exit.fail(outcome.left)
  return Exit.isExit(outcome) ? outcome : undefined
}

/** An answer that cannot be matched with the jobs says of none of them how it ended: it is the failure of all. */
const outcomesOf = (state: WorkerState, members: ReadonlyArray<Held>, answer: unknown) => {
  if (!Array.isArray(answer)) return Effect.succeed(undefined)
  const exits = answer.map(exitOf)
  if (exits.length === members.length && !exits.includes(undefined))
    return Effect.succeed(
      new Ends(new Map(members.map((held, index) => [held.row.token, exits[index] as Exit.Exit<unknown, unknown>])))
    )
  const wrong =
    exits.length === members.length
      ? `outcome ${exits.indexOf(undefined)} of a batch is neither an Either nor an Exit`
      : `a batch handler answered ${exits.length} outcomes for ${members.length} jobs`
  return Effect.zipRight(
    Effect.logError(`queue ${state.queueName}: ${wrong}; all of its jobs fail`),
    Effect.die(new Error(wrong))
  )
}

export const performBatch =
  <A>(decode: Decode<A>, handler: AnyBatchHandler<A>): Perform =>
  (state, run) =>
    Effect.gen(function* () {
      const members: Array<Held> = []
      const jobs: Array<Job<A>> = []
      for (const held of [...run.members]) {
        const payload = yield* decode(held.row.payload, Effect.succeed)
        if (Either.isLeft(payload)) yield* unreadable(state, run, held, payload.left)
        else if (held.phase === "running") {
          members.push(held)
          jobs.push(handleOf(state, held, payload.right))
        }
      }
      if (!isNonEmptyReadonlyArray(jobs)) return undefined
      return yield* outcomesOf(state, members, yield* call(handler, jobs))
    })
