/**
 * The ways to enqueue: payloads encoded, options checked, and the jobs sent. What is bad input is found before anything
 * is written. No generators here and no needless steps: each is paid for with every job.
 */
import { Chunk, Context, Effect, Either, Stream } from "effect"
import { type Defaults, type EnqueueOptions, placement } from "./EnqueueOptions.js"
import type { EnqueueError, InvalidArgument, InvalidPayload } from "./Errors.js"
import type { encoder } from "./encode.js"
import { checkInteger, checkOptions, checkThrows } from "./input.js"
import { type NewJob, Queue, type QueueSettings, type Receipt } from "./QueueStore.js"
import { sending } from "./telemetry.js"

/** A job ready to be sent, or what is wrong with it; an effect where the Schema is one. */
type Prepared =
  | Either.Either<NewJob, InvalidArgument | InvalidPayload>
  | Effect.Effect<NewJob, InvalidArgument | InvalidPayload>

export interface Enqueues<A> {
  readonly name: string
  readonly settings: QueueSettings
  /** What is wrong with the definition, if anything. */
  readonly checked: Either.Either<unknown, InvalidArgument>
  readonly defaults: Defaults
  readonly encode: ReturnType<typeof encoder<A, unknown>>
}

/** The service, in one step of the runtime; an enqueue takes it with every job. */
const withQueue = <B, E>(use: (queue: Queue["Type"]) => Effect.Effect<B, E>): Effect.Effect<B, E, Queue> =>
  Effect.withFiberRuntime((fiber) => use(Context.get(fiber.currentContext as Context.Context<Queue>, Queue)))

/** A job of a placement: field by field, since a copy by spread would cost more than all else about it. */
const placed = (rest: Omit<NewJob, "payload">, payload: string): NewJob => ({
  payload,
  priority: rest.priority,
  maxAttempts: rest.maxAttempts,
  delayMillis: rest.delayMillis,
  runAt: rest.runAt,
  expiresMillis: rest.expiresMillis,
  expiresAt: rest.expiresAt,
  dedupeKey: rest.dedupeKey,
  dedupeScope: rest.dedupeScope,
  dedupeWindowMillis: rest.dedupeWindowMillis,
  replace: rest.replace,
  orderingKey: rest.orderingKey,
  headers: rest.headers
})

/**
 * The ways to add jobs to a queue.
 *
 * @since 0.1.0
 * @category models
 */
export interface EnqueueVerbs<A> {
  /** Adds a job. Inside a transaction of the queue's client it commits or rolls back with it. */
  readonly enqueue: (payload: A, options?: EnqueueOptions) => Effect.Effect<Receipt, EnqueueError, Queue>
  /** Adds all in one transaction, or none; receipts in order. */
  readonly enqueueMany: (
    payloads: Iterable<A>,
    options?: EnqueueOptions | ((payload: A, index: number) => EnqueueOptions)
  ) => Effect.Effect<ReadonlyArray<Receipt>, EnqueueError, Queue>
  /** Adds chunk by chunk, each committed on its own, without holding the whole; answers how many were added. */
  readonly enqueueStream: <E, R>(
    payloads: Stream.Stream<A, E, R>,
    options?: {
      readonly chunkSize?: number | undefined
      readonly job?: EnqueueOptions | ((payload: A, index: number) => EnqueueOptions) | undefined
    }
  ) => Effect.Effect<{ readonly enqueued: number; readonly deduplicated: number }, EnqueueError | E, Queue | R>
}

/** The options of all, or of each. */
type JobOptions<A> = EnqueueOptions | ((payload: A, index: number) => EnqueueOptions) | undefined

export const makeEnqueue = <A>({ checked, defaults, encode, name, settings }: Enqueues<A>): EnqueueVerbs<A> => {
  /** Checked once: what most jobs are enqueued with. */
  const unadorned = placement({}, defaults)

  const prepare = (payload: A, index: number, job: EnqueueOptions | undefined): Prepared => {
    const rest = job === undefined ? unadorned : placement(job, defaults)
    if (Either.isLeft(rest)) return Either.left(rest.left)
    const text = encode(payload, index)
    return Either.isEither(text)
      ? Either.map(text, (payload) => placed(rest.right, payload))
      : Effect.map(text, (payload) => placed(rest.right, payload))
  }

  const send = <B>(
    queue: Queue["Type"],
    jobs: ReadonlyArray<NewJob>,
    answer: (receipts: ReadonlyArray<Receipt>) => B
  ): Effect.Effect<B, EnqueueError> => {
    if (jobs.length === 0) return Effect.succeed(answer([]))
    const sent = sending(name, jobs, (carried) => queue.enqueue(name, carried), answer)
    const define = queue.define(settings, "producer")
    return define === Effect.void ? sent : Effect.zipRight(define, sent)
  }

  /** The first that is bad input is the failure of all, before anything is written. `from`: the index of the first. */
  const gather = (
    payloads: Iterable<A>,
    job: JobOptions<A>,
    from: number
  ): Effect.Effect<ReadonlyArray<NewJob>, InvalidArgument | InvalidPayload> => {
    const jobs: Array<NewJob> = []
    const each = (payload: A, index: number): Prepared => {
      if (typeof job !== "function") return prepare(payload, index, job)
      const options = checkThrows("options", "the function", () => job(payload, index))
      return Either.isLeft(options) ? Either.left(options.left) : prepare(payload, index, options.right)
    }
    const iterable = <B>(run: () => B) => checkThrows("payloads", "the iterable", run)
    const begun = iterable(() => payloads[Symbol.iterator]())
    if (Either.isLeft(begun)) return Effect.fail(begun.left)
    const iterator = begun.right
    /** The next one to be prepared; undefined at the end. */
    const step = (): Prepared | undefined => {
      const next = iterable((): readonly [A] | undefined => {
        const { done, value } = iterator.next()
        return done === true ? undefined : [value]
      })
      if (Either.isLeft(next)) return Either.left(next.left)
      return next.right && each(next.right[0], from + jobs.length)
    }
    // As a loop would: who stops early says so, and has a better error than one that comes of it
    const close = () => void iterable(() => iterator.return?.())
    const go = (): Effect.Effect<ReadonlyArray<NewJob>, InvalidArgument | InvalidPayload> => {
      for (let prepared = step(); prepared !== undefined; prepared = step()) {
        if (!Either.isEither(prepared))
          return Effect.flatMap(
            Effect.onError(prepared, () => Effect.sync(close)),
            (one) => {
              jobs.push(one)
              return go()
            }
          )
        if (Either.isLeft(prepared)) {
          close()
          return Effect.fail(prepared.left)
        }
        jobs.push(prepared.right)
      }
      return Effect.succeed(jobs)
    }
    return go()
  }

  const enqueueFrom = (from: number, payloads: Iterable<A>, job: JobOptions<A>) =>
    withQueue((queue) =>
      Either.isLeft(checked)
        ? Effect.fail(checked.left)
        : Effect.flatMap(gather(payloads, job, from), (jobs) => send(queue, jobs, (receipts) => receipts))
    )

  const enqueue: EnqueueVerbs<A>["enqueue"] = (payload, job) =>
    withQueue((queue) => {
      if (Either.isLeft(checked)) return Effect.fail(checked.left)
      const prepared = prepare(payload, 0, job)
      const first = ([receipt]: ReadonlyArray<Receipt>) => receipt as Receipt
      if (!Either.isEither(prepared)) return Effect.flatMap(prepared, (row) => send(queue, [row], first))
      return Either.isLeft(prepared) ? Effect.fail(prepared.left) : send(queue, [prepared.right], first)
    })

  return {
    enqueue,
    enqueueMany: (payloads, job) => enqueueFrom(0, payloads, job),
    enqueueStream: (payloads, options = {}) => {
      const { chunkSize = 1_000, job } = options
      const checked = Effect.zipRight(
        checkOptions(options, ["chunkSize", "job"]),
        checkInteger("chunkSize", chunkSize, 1, 100_000)
      )
      return Effect.flatMap(checked, (size) => {
        let offset = 0
        return payloads.pipe(
          Stream.grouped(size),
          Stream.mapEffect((chunk) => {
            const from = offset
            offset += chunk.length
            return enqueueFrom(from, Chunk.toReadonlyArray(chunk), job)
          }),
          Stream.runFold({ enqueued: 0, deduplicated: 0 }, (sum, receipts) => {
            const deduplicated = receipts.filter((receipt) => receipt.deduplicated).length
            return {
              enqueued: sum.enqueued + receipts.length - deduplicated,
              deduplicated: sum.deduplicated + deduplicated
            }
          })
        )
      })
    }
  }
}
