/**
 * For tests: the real SQLite engine in memory, whose time is TestClock's. Workers, leases, backoff and sweeps follow
 * `advance`; nothing waits for real time.
 *
 * @since 0.1.0
 */
import type { SqlClient } from "@effect/sql"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Chunk, type ConfigError, Duration, Effect, Clock as EffectClock, Layer, TestClock } from "effect"
import { macrotask } from "./layers/Clock/macrotask.js"
import { activity } from "./layers/Database/Database.js"
import * as PollWake from "./layers/Wake/PollWake.js"
import { layerWith, type Options, type Services } from "./Sqlite.js"
import {
  InvalidArgument,
  type QueueError,
  type SchemaMismatch,
  type StoreError,
  type TransactionOpen
} from "./services/Errors.js"
import { decoder } from "./services/encode.js"
import { checkOptions } from "./services/input.js"
import type { CompletedRow, DeadRow, LiveRow } from "./services/JobRows.js"
import type { Definition } from "./services/Queue.js"
import { Queue } from "./services/QueueStore.js"

const memory = (options: Options) =>
  layerWith(
    // Instead of every 15 s, which would be thousands of timers, the sweep is part of `advance`
    { sweeper: false, ...options },
    { virtualTime: true, wake: PollWake.layerLocal(Duration.days(1), "", true) }
  )

/**
 * Queue, Schedules, Wake, Clock, Lock and the SqlClient of a fresh in-memory database, ruled by TestClock. A worker that is still
 * running when its test ends is stopped without a grace.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerWithOptions = (
  options: Options = {}
): Layer.Layer<
  Services | SqliteClient.SqliteClient | SqlClient.SqlClient,
  InvalidArgument | SchemaMismatch | StoreError | ConfigError.ConfigError
> => Layer.provideMerge(memory(options), SqliteClient.layer({ filename: ":memory:" }))

/**
 * See `layerWithOptions`.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer: ReturnType<typeof layerWithOptions> = Layer.suspend(() => layerWithOptions())

const quietTurns = 3

/**
 * Waits, in real time, until no database call is under way and none has begun for a few turns of the event loop: what
 * was started has got as far as it can without time passing. Other I/O of a handler is not seen.
 *
 * @since 0.1.0
 * @category time
 */
export const settle: Effect.Effect<void> = Effect.gen(function* () {
  let quiet = 0
  let seen = -1
  while (quiet < quietTurns) {
    yield* macrotask
    quiet = activity.open === 0 && activity.total === seen ? quiet + 1 : 0
    seen = activity.total
  }
})

/**
 * Lets time pass timer by timer; what each timer starts is done before time passes on. At its end the sweep runs.
 *
 * @since 0.1.0
 * @category time
 */
export const advance = (duration: Duration.DurationInput): Effect.Effect<void, TransactionOpen | StoreError, Queue> =>
  Effect.gen(function* () {
    const queue = yield* Queue
    yield* settle
    const target = (yield* EffectClock.currentTimeMillis) + Duration.toMillis(duration)
    while (yield* step(target)) yield* settle
    yield* TestClock.setTime(target)
    yield* settle
    // A handler that waits for time inside a transaction has the one connection
    yield* Effect.unlessEffect(queue.sweepExpired(), queue.holdsWriteLock)
    yield* settle
  })

/** Moves time to the next timer, if there is one by then. */
const step = (target: number) =>
  Effect.gen(function* () {
    const sleeps = Chunk.toReadonlyArray(yield* TestClock.sleeps()).filter((at) => at <= target)
    if (sleeps.length === 0) return false
    // Whole: a TestClock between two milliseconds cannot tell its nanoseconds
    yield* TestClock.setTime(Math.min(target, Math.ceil(Math.min(...sleeps))))
    return true
  })

/** When a sweep would find something to do about a job. */
const endOf = ({ deadline, expiresAt, state }: LiveRow): ReadonlyArray<number> =>
  [state === "leased" ? deadline : expiresAt].filter((at) => at !== null)

/** Of how many of its jobs a drain looks ahead; those behind them have their turn when they are gone. */
const drained = 100

/**
 * Lets time pass until the queue has no live job, at most for so long (default: 30 days). What expires meanwhile, or whose lease
 * ends, is swept, whether a worker runs or not. Fails when some are left.
 *
 * @since 0.1.0
 * @category time
 */
export const drain = <A, I>(
  queue: Definition<A, I>,
  options: { readonly within?: Duration.DurationInput | undefined } = {}
): Effect.Effect<void, QueueError, Queue> =>
  Effect.gen(function* () {
    const service = yield* Queue
    yield* checkOptions(options, ["within"])
    const target = (yield* EffectClock.currentTimeMillis) + Duration.toMillis(options.within ?? "30 days")
    for (;;) {
      yield* settle
      // A handler that waits for time inside a transaction has the one connection
      const busy = yield* service.holdsWriteLock
      const left = busy ? [] : yield* service.list(queue.name, { limit: drained, after: 0 })
      if (!busy && left.length === 0) return
      const now = yield* EffectClock.currentTimeMillis
      const ends = left.flatMap(endOf)
      if (ends.some((at) => at <= now)) {
        const { crashed, expired, recovered } = yield* service.sweepExpired(queue.name)
        if (crashed + expired + recovered > 0) continue
      }
      const next = Math.min(...ends.filter((at) => at > now))
      if (yield* step(Math.min(target, next))) continue
      if (next <= target) {
        yield* TestClock.setTime(next)
        continue
      }
      const what = busy
        ? "a transaction is open, and waits for something else than time"
        : `job ${left[0]?.id} among them; is a worker running?`
      return yield* new InvalidArgument({
        argument: "within",
        message: `queue ${queue.name} still has live jobs: ${what}`
      })
    }
  })

const page = 1_000

/** All rows, page by page, each after the last of the one before. */
const all = <A, E, R>(
  read: (last?: A) => Effect.Effect<ReadonlyArray<A>, E, R>,
  found: ReadonlyArray<A> = []
): Effect.Effect<ReadonlyArray<A>, E, R> =>
  Effect.flatMap(read(found.at(-1)), (rows) =>
    rows.length < page ? Effect.succeed([...found, ...rows]) : all(read, [...found, ...rows])
  )

/**
 * The live jobs of a queue by id, payloads decoded: what has been enqueued and is not done yet.
 *
 * @since 0.1.0
 * @category assertions
 */
export const enqueued = <A, I>(
  queue: Definition<A, I>
): Effect.Effect<ReadonlyArray<Omit<LiveRow, "payload"> & { readonly payload: A }>, QueueError, Queue> =>
  Effect.gen(function* () {
    const service = yield* Queue
    const rows = yield* all((last?: LiveRow) => service.list(queue.name, { limit: page, after: last?.id ?? 0 }))
    return yield* Effect.forEach(rows, (row) =>
      decoder(queue.payload)(row.payload, (payload) =>
        Effect.map(
          Effect.mapError(
            payload,
            (message) => new InvalidArgument({ argument: "payload", message: `job ${row.id}: ${message}` })
          ),
          (decoded) => ({ ...row, payload: decoded })
        )
      )
    )
  })

/**
 * The completed jobs that a queue retains, newest first.
 *
 * @since 0.1.0
 * @category assertions
 */
export const completed = <A, I>(
  queue: Definition<A, I>
): Effect.Effect<ReadonlyArray<CompletedRow>, QueueError, Queue> =>
  all((after?: CompletedRow) => queue.completed({ limit: page, after }))

/**
 * The dead letters of a queue, newest first.
 *
 * @since 0.1.0
 * @category assertions
 */
export const deadLetters = <A, I>(queue: Definition<A, I>): Effect.Effect<ReadonlyArray<DeadRow>, QueueError, Queue> =>
  all((after?: DeadRow) => queue.deadLetters.list({ limit: page, after }))
