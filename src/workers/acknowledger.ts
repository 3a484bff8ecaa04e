/**
 * The acknowledger: writes how jobs ended, many in one statement, as fast as the database answers: what ends while one
 * batch is under way is the next batch. During an outage it keeps trying; the lease decides whether it still counts.
 */
import { Effect } from "effect"
import { outageRetry } from "../schedule/Polling.js"
import { retryWhile } from "../schedule/retryWhile.js"
import type { StoreError } from "../services/Errors.js"
import { errorsOf, jobError } from "../services/History.js"
import { doneOf, type Settlement, type SettleOutcome } from "../services/Settlement.js"
import { forget, type Held, type WorkerState } from "./held.js"
import { renew } from "./leaseKeeper.js"
import { ceases, failing, works } from "./outage.js"

/** Half a thousand rows per statement is where more stops paying; what a claim took, and a little more, goes in one. */
const batchSize = 1_000

const lockedRetryMillis = 20

/** Whether a settle that may have been written before is why this one found the job gone, or somebody else's. */
export const explains = (before: Settlement | undefined, outcome: SettleOutcome): boolean =>
  before !== undefined && (outcome === "gone" || (outcome === "lost" && before._tag === "Return"))

/** A job has been settled: the worker's books, and its events. */
export const conclude = (state: WorkerState, held: Held, settlement: Settlement): void => {
  const job = held.ref
  forget(state, held)
  switch (settlement._tag) {
    case "Ack":
      state.counters.acked++
      state.publish({ _tag: "Acked", job })
      break
    case "Bury":
      state.counters.dead++
      state.publish({ _tag: "Died", job, reason: settlement.reason, error: errorsOf(settlement.history).at(-1) })
      break
    case "Return": {
      const delayMillis = settlement.delayMillis ?? 0
      if (settlement.attempt < held.row.attempt) {
        state.counters.released++
        state.publish({ _tag: "Released", job, delayMillis })
      } else {
        state.counters.retried++
        state.publish({ _tag: "Retried", job, delayMillis, error: errorsOf(settlement.history).at(-1) })
      }
    }
  }
}

/** What came of a settle. */
const answered = (state: WorkerState, held: Held, outcome: SettleOutcome): void => {
  if (outcome === "busy") {
    state.toSettle.push(held)
    return
  }
  // Settled by its own handler, in its transaction, or by a settle of ours whose answer was lost: not a loss
  const known = [held.settledByHand, held.sent ? held.settlement : undefined].find((s) => explains(s, outcome))
  const done = known ?? doneOf(held.settlement as Settlement, outcome)
  if (done !== undefined) {
    conclude(state, held, done)
    return
  }
  forget(state, held)
  // Told when it could not be renewed in time
  if (held.stop === "unreachable") return
  state.counters.lost++
  state.publish({ _tag: "LeaseLost", job: held.ref })
}

/** The same transition with nothing in it that a database could refuse. */
const bare = (settlement: Settlement): Settlement => {
  if (settlement._tag === "Ack") return settlement
  const error = jobError({ at: 0, attempt: 0, kind: "failure", error: "(an error that could not be stored)" })
  return { ...settlement, history: { ...settlement.history, errors: JSON.stringify([error]) } }
}

const settle = (state: WorkerState, batch: ReadonlyArray<Held>, settlements: ReadonlyArray<Settlement>) =>
  Effect.matchEffect(state.queue.settle(state.queueName, settlements, { skipLocked: true }), {
    onFailure: (error) => {
      // The acknowledger runs outside of every transaction
      if (error._tag !== "StoreError") return Effect.die(error)
      if (error.operation !== "connect") for (const held of batch) held.sent = true
      return Effect.fail(error)
    },
    onSuccess: (outcomes) => {
      for (const [index, held] of batch.entries()) answered(state, held, outcomes[index] ?? "lost")
      return Effect.void
    }
  })

/** One job that the database refuses never keeps the others from moving on, nor itself. */
const oneByOne = (state: WorkerState, batch: ReadonlyArray<Held>) =>
  Effect.forEach(
    batch,
    (held) => {
      const settlement = held.settlement as Settlement
      return settle(state, [held], [settlement]).pipe(
        Effect.catchIf(
          (error) => !error.retryable,
          () => settle(state, [held], [bare(settlement)])
        ),
        Effect.catchIf(
          (error) => !error.retryable,
          (error) =>
            Effect.zipRight(
              Effect.logError(
                `queue ${state.queueName}: job ${held.row.id} could not be settled; its lease is left to end`,
                error
              ),
              Effect.sync(() => answered(state, held, "lost"))
            )
        )
      )
    },
    { discard: true }
  )

/**
 * What was last said of a job's progress and is not written yet: whoever has it next is told. What cannot be written keeps no job
 * from being settled.
 */
const writeProgress = (state: WorkerState, batch: ReadonlyArray<Held>): Effect.Effect<void, StoreError> => {
  const said = batch.filter(({ progress }) => progress !== undefined)
  if (said.length === 0) return Effect.void
  return Effect.catchAll(renew(state, said), (error) => {
    if (error._tag === "StoreError" && error.retryable) return Effect.fail(error)
    for (const held of said) held.progress = undefined
    return Effect.logError(`queue ${state.queueName}: progress could not be written`, error)
  })
}

const flush = (state: WorkerState, batch: ReadonlyArray<Held>) => {
  const settled = Effect.catchIf(
    Effect.zipRight(
      writeProgress(state, batch),
      settle(
        state,
        batch,
        batch.map((held) => held.settlement as Settlement)
      )
    ),
    (error: StoreError) => !error.retryable,
    () => oneByOne(state, batch)
  )
  const told = Effect.tapError(settled, (error) => (error.retryable ? failing(state, "settling", error) : Effect.void))
  return Effect.matchEffect(
    retryWhile(told, outageRetry, (error) => error.retryable),
    {
      onSuccess: () => {
        works(state, "settling")
        return Effect.void
      },
      onFailure: (error) => {
        ceases(state, "settling")
        return Effect.logError(`queue ${state.queueName}: settling failed`, error)
      }
    }
  )
}

/**
 * While jobs wait for a slot, more are about to end: as long as each turn of the other fibers brings some, they are
 * waited for. No timer, so nothing is added where handlers take time.
 */
const gather = (state: WorkerState) =>
  Effect.suspend(() => {
    let before = 0
    const grows = () => {
      const more = state.buffer.length > 0 && state.toSettle.length > before && state.toSettle.length < batchSize
      before = state.toSettle.length
      return more
    }
    return Effect.whileLoop({ while: grows, body: () => Effect.yieldNow(), step: () => undefined })
  })

export const acknowledger = (state: WorkerState): Effect.Effect<never> =>
  Effect.gen(function* () {
    if (state.toSettle.length === 0) {
      yield* state.settles.close
      if (state.toSettle.length === 0) yield* state.settles.await
    }
    yield* gather(state)
    const batch = state.toSettle.splice(0, batchSize)
    // Interrupted or dead of a defect: what is not concluded is still to be settled
    const putBack = Effect.sync(
      () => void state.toSettle.unshift(...batch.filter((held) => state.held.get(held.row.token) === held))
    )
    const flushed = Effect.suspend(() => flush(state, batch))
    yield* Effect.onError(flushed, () => putBack)
    // What came back is locked by somebody at this moment: leave it a little
    if (state.toSettle.length > 0 && state.toSettle.every((held) => batch.includes(held)))
      yield* Effect.sleep(lockedRetryMillis)
  }).pipe(Effect.forever)
