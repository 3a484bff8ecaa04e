/**
 * A handler whose writes and whose ack are one transaction. The ack is the last statement before COMMIT and is fenced
 * by the lease: without the lease there is no commit. After a COMMIT whose answer was lost the acknowledger's own settle
 * finds out: the job is gone if it took place, and still under this token if it did not.
 */
import { Effect, Predicate, type Scope } from "effect"
import type { StoreError } from "../services/Errors.js"
import { leaseLost } from "../services/handle.js"
import { Snooze } from "../services/Job.js"
import * as Settlement from "../services/Settlement.js"
import { explains } from "./acknowledger.js"
import { arm, type Held, renewalOf, type WorkerState } from "./held.js"
import { lose } from "./interrupt.js"

/** When no transaction could be begun, the handler did not run: its attempt is not spent. */
const notBegunDelay = "1 second"

/**
 * Whether what the handler itself settled still stands: a part of the transaction may have been rolled back. While the
 * transaction is open it has the row locked; where nobody else can write meanwhile, nobody else has settled it.
 */
const stands = (state: WorkerState, held: Held) =>
  state.queue.singleWriter
    ? Effect.succeed(true)
    : state.queue.renew([renewalOf(state, held, undefined)]).pipe(
        state.queue.detached,
        Effect.map(([outcome]) => outcome === "busy")
      )

const fence = (state: WorkerState, held: Held) =>
  Effect.gen(function* () {
    const { row } = held
    const ack = Settlement.done(row)
    // What it said last goes into the completed job
    if (held.progress !== undefined) yield* state.queue.renewWithin([renewalOf(state, held, held.progress)])
    const [outcome = "lost"] = yield* state.queue.settle(row.queue, [ack])
    if (outcome === "done") {
      held.settledByHand = ack
      return
    }
    if (explains(held.settledByHand, outcome) && (yield* stands(state, held))) return
    lose(state, held, yield* state.clock.monotonic)
    yield* leaseLost(row)
  })

export const inTransaction = (
  state: WorkerState,
  held: Held,
  handled: Effect.Effect<unknown, unknown, Scope.Scope>
): Effect.Effect<unknown, unknown> =>
  Effect.suspend(() => {
    let begun = false
    const { run } = held
    const startedAt = run?.startedAt ?? 0
    /** Its time begins with its transaction: what it waits for that is not its own. */
    const counts = (from: number): void => {
      if (run !== undefined) run.startedAt = from
    }
    counts(Number.POSITIVE_INFINITY)
    const body = Effect.flatMap(state.clock.monotonic, (now) => {
      begun = true
      counts(now)
      arm(state, now + state.policy.timeoutMillis)
      // What the handler's finalizers write belongs to it
      return Effect.scoped(handled)
    })
    const whole = Effect.ensuring(
      state.queue.transaction(Effect.zipRight(body, fence(state, held))),
      Effect.sync(() => {
        if (!begun) counts(startedAt)
      })
    )
    return Effect.catchIf(
      whole,
      (error) => !begun && Predicate.isTagged(error, "StoreError") && (error as StoreError).retryable,
      (error) =>
        Effect.zipRight(
          Effect.logWarning(`queue ${state.queueName}: no transaction could be begun for job ${held.row.id}`, error),
          Effect.fail(new Snooze({ delay: notBegunDelay }))
        )
    )
  })
