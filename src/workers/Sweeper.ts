/**
 * The sweeper: a supervised fiber that dead-letters what has expired and frees what has a lapsed lease. One process of
 * the fleet sweeps at a time; nothing breaks when none or all do.
 *
 * @since 0.1.0
 */
import { Effect, Either, Layer, Schedule } from "effect"
import { forkLoop } from "../schedule/forkLoop.js"
import * as Maintenance from "../schedule/Maintenance.js"
import { reconnect } from "../schedule/Reconnect.js"
import { InvalidArgument } from "../services/Errors.js"
import { checkOptions } from "../services/input.js"
import { Lock } from "../services/Lock.js"
import { Queue } from "../services/QueueStore.js"

/** The name of the lock under which one process of the fleet sweeps at a time. */
const sweepLock = "__alkstore_sweep"

/**
 * @since 0.1.0
 * @category models
 */
export interface SweeperOptions {
  /** When to sweep. Default: every 15 s, jittered. */
  readonly schedule?: Schedule.Schedule<unknown> | undefined
}

/** A Layer's option about the sweeper; undefined where it is switched off. */
export const checkSweeper = (
  option: boolean | SweeperOptions | undefined
): Either.Either<SweeperOptions | undefined, InvalidArgument> => {
  if (option === false) return Either.right(undefined)
  const options = option instanceof Object ? option : {}
  const names = checkOptions(options, ["schedule"], "sweeper")
  if (Either.isLeft(names)) return Either.left(names.left)
  return options.schedule === undefined || Schedule.isSchedule(options.schedule)
    ? Either.right(options)
    : Either.left(
        new InvalidArgument({ argument: "sweeper.schedule", message: "sweeper.schedule: is not a Schedule of Effect" })
      )
}

/**
 * Sweeps on a Schedule until the scope closes.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = ({ schedule = Maintenance.sweep }: SweeperOptions = {}): Layer.Layer<never, never, Queue | Lock> =>
  Layer.scopedDiscard(
    Effect.gen(function* () {
      const queue = yield* Queue
      const lock = yield* Lock
      // A pass that does not get the lock at once leaves the work to who has it
      const pass = queue.sweepExpired().pipe(
        lock.withLock(sweepLock, { ttl: "30 seconds", timeout: 0 }),
        Effect.catchTags({ LockTimeout: () => Effect.void, LockLost: () => Effect.void }),
        // Somebody writes for long: the next pass is soon
        Effect.catchIf(
          (error) => error._tag === "StoreError" && error.reason === "busy",
          () => Effect.void
        )
      )
      yield* pass.pipe(
        Effect.catchAll((error) => Effect.logWarning("sweep failed; it is tried again", error)),
        Effect.repeat(schedule),
        Effect.zipRight(Effect.never),
        Effect.tapErrorCause((cause) => Effect.logError("the sweeper died and is started again", cause)),
        Effect.sandbox,
        Effect.retry(reconnect),
        Effect.withTracerEnabled(false),
        queue.detached,
        forkLoop
      )
    })
  )
