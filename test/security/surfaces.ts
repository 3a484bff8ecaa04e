/** Every place where a text of a caller's goes into the library, used in the way of callers, and read back. */
import { type Job, Lock, Queue, Schedules, transaction } from "alkstore"
import { Effect, Option, Schema } from "effect"
import type { EngineServices } from "../support/engines.js"
import { storable } from "./hostile.js"

/**
 * Does what a caller would, and answers what should equal the text, or is refused. `n` is unlike that of every other run:
 * what a run leaves behind is not in the way of another.
 */
export type Surface = (text: string, n: number) => Effect.Effect<ReadonlyArray<unknown>, unknown, EngineServices>

export const Fixed = Queue.make("fixed", { payload: Schema.Unknown, retainCompleted: "1 hour" })

/** Values of a wrong type reach us from JavaScript and from JSON. */
const untyped = <A>(value: unknown) => value as A

const first = <A>(values: ReadonlyArray<A>) =>
  Effect.flatMap(Effect.succeed(values[0]), Option.fromNullable) as Effect.Effect<A, Error>

/** Enqueued, claimed, looked at, done. */
const throughQueue = (
  payload: unknown,
  options: Queue.EnqueueOptions,
  read: (job: Job.Job<unknown>) => ReadonlyArray<unknown>
) =>
  Effect.gen(function* () {
    yield* Fixed.enqueue(payload, options)
    const job = yield* Effect.flatMap(Fixed.claim(), first)
    yield* job.ack
    return read(job)
  })

const dead = (fail: (job: Job.Job<unknown>) => Effect.Effect<void, unknown>, options: Queue.EnqueueOptions = {}) =>
  Effect.gen(function* () {
    const { id } = yield* Fixed.enqueue(1, options)
    yield* Effect.flatMap(Effect.flatMap(Fixed.claim(), first), fail)
    return id
  })

/** An error is kept in part when it is long. */
const beginning = (text: string, kept: string | undefined): unknown =>
  kept !== undefined && storable(text).startsWith(kept) && (kept.length > 100 || kept === storable(text)) ? text : kept

const errors: Surface = (text) =>
  Effect.gen(function* () {
    const id = yield* dead((job) => job.fail(text))
    const letter = yield* Effect.flatMap(Fixed.deadLetters.get(id), Option.fromNullable)
    yield* Fixed.deadLetters.list({ error: text === "" ? "none" : text, limit: 1 })
    yield* Fixed.deadLetters.purge({ id })
    return [beginning(text, letter.errors[0]?.message)]
  })

const taggedErrors: Surface = (text) =>
  Effect.gen(function* () {
    const id = yield* dead((job) => job.retry({ error: { _tag: text, message: text }, delay: 0 }), { maxAttempts: 1 })
    const letter = yield* Effect.flatMap(Fixed.deadLetters.get(id), Option.fromNullable)
    yield* Fixed.deadLetters.purge({ id })
    return [text === "" || text.length > 60 ? text : letter.errors[0]?.tag === storable(text) ? text : letter.errors]
  })

const orderingKeys: Surface = (orderingKey) =>
  Effect.gen(function* () {
    yield* Fixed.enqueueMany([1, 2], { orderingKey })
    yield* Fixed.setPriority({ orderingKey }, 1)
    const job = yield* Effect.flatMap(Fixed.claim(), first)
    yield* job.fail("no")
    const letters = yield* Fixed.deadLetters.list({ orderingKey })
    yield* Fixed.deadLetters.requeue({ orderingKey })
    const cancelled = yield* Fixed.cancelMany({ orderingKey })
    yield* Fixed.deadLetters.purge({ orderingKey })
    return [job.orderingKey, letters[0]?.orderingKey, cancelled.cancelled === 2 ? orderingKey : cancelled]
  })

const dedupeKeys: Surface = (dedupeKey, n) =>
  Effect.gen(function* () {
    const one = yield* Fixed.enqueue(n, { dedupeKey, dedupeWindow: "1 second" })
    const two = yield* Fixed.enqueue(n, { dedupeKey, onDuplicate: "replace", delay: "1 hour" })
    const three = yield* transaction(Fixed.enqueueMany([n, n], { dedupeKey, dedupeScope: "waiting" }))
    yield* Fixed.runNow({ dedupeKey })
    const found = yield* Queue.find(one.id)
    const { cancelled } = yield* Fixed.cancelMany({ dedupeKey })
    yield* Fixed.deadLetters.purge({ id: one.id })
    const same = [two, ...three].every(({ id }) => id === one.id) && cancelled === 1
    return [found?.job.dedupeKey, same ? dedupeKey : [one, two, three, cancelled]]
  })

const progress: Surface = (text) =>
  Effect.gen(function* () {
    yield* Fixed.enqueue(1)
    const job = yield* Effect.flatMap(Fixed.claim(), first)
    yield* Effect.onError(job.heartbeat({ [text]: text }), () => Effect.ignore(job.ack))
    const row = yield* Effect.flatMap(Queue.find(job.id), Option.fromNullable)
    yield* job.ack
    return Object.entries(JSON.parse(row.job.progress ?? "{}")).flat()
  })

/** Every operation of a queue of that name. */
const queueNames: Surface = (text, n) =>
  Effect.gen(function* () {
    const queue = Queue.make(`${text}${n}`, { payload: Schema.Unknown, retainCompleted: "1 second" })
    yield* queue.enqueue(1)
    yield* queue.enqueueMany([1, 2, 3], { orderingKey: "o" })
    yield* Effect.all([queue.pause, queue.resume, queue.counts, queue.list(), queue.running(), queue.completed()])
    const job = yield* Effect.flatMap(queue.claim(), first)
    yield* job.ack
    const row = yield* Effect.flatMap(Queue.find(job.id), Option.fromNullable)
    yield* Effect.flatMap(Effect.flatMap(queue.claim(), first), (next) => next.fail("no"))
    yield* queue.deadLetters.requeue({ reason: "failed" }, { to: Fixed })
    yield* Effect.all([Fixed.clear, queue.deadLetters.purge({ all: true }), queue.clear, queue.sweepExpired])
    const names = yield* Queue.names
    return [job.queue, row.job.queue, names.find((name) => name === `${text}${n}`)].map((name) =>
      name === `${text}${n}` ? text : name
    )
  })

/** Settings that name another queue. */
const deadLetterQueues: Surface = (text, n) =>
  Effect.gen(function* () {
    const to = Queue.make(`${text}/${n}`, { payload: Schema.Unknown })
    const queue = Queue.make(`from-${n}`, { payload: Schema.Unknown, deadLetterQueue: to.name })
    yield* queue.enqueue(1)
    yield* Effect.flatMap(Effect.flatMap(queue.claim(), first), (job) => job.fail("no"))
    const envelope = yield* Effect.flatMap(to.claim(), first)
    yield* envelope.ack
    yield* queue.deadLetters.purge({ all: true })
    return [envelope.queue === `${text}/${n}` ? text : envelope.queue]
  })

const scheduleNames: Surface = (text) =>
  Effect.gen(function* () {
    const nightly = Schedules.make(text, { cron: "0 3 * * *", queue: Fixed, payload: text })
    yield* Schedules.put(nightly)
    const info = yield* Effect.flatten(Schedules.get(text))
    yield* Effect.all([Schedules.pause(text), Schedules.resume(text), Schedules.trigger(text)])
    const job = yield* Effect.flatMap(Fixed.claim(), first)
    yield* job.ack
    const listed = (yield* Schedules.list).map(({ name }) => name)
    yield* Schedules.remove(text)
    return [info.name, info.payload, job.headers[Schedules.scheduleHeader], job.payload, ...listed]
  })

/** What its jobs are enqueued with. */
const scheduleOptions: Surface = (text) =>
  Effect.gen(function* () {
    const options = { dedupeKey: text, orderingKey: text, headers: { [text]: text } }
    yield* Schedules.put(
      Schedules.make("options", { every: "1 day", queue: Fixed, payload: { [text]: text }, ...options })
    )
    yield* Schedules.trigger("options")
    const job = yield* Effect.flatMap(Fixed.claim(), first)
    yield* job.ack
    yield* Schedules.remove("options")
    const { [Schedules.scheduleHeader]: _, ...headers } = job.headers
    return [job.dedupeKey, job.orderingKey, Object.entries(headers), Object.entries(job.payload as object)].flat(2)
  })

/** Accepted only where it is a rule. */
const rule =
  (of: (text: string) => object): Surface =>
  (text) =>
    Effect.gen(function* () {
      yield* Schedules.put(
        Schedules.make("rule", untyped<Schedules.Options<unknown, unknown>>({ queue: Fixed, payload: 1, ...of(text) }))
      )
      yield* Schedules.remove("rule")
      return []
    })

const locks: Surface = (text) =>
  Effect.gen(function* () {
    const lease = yield* Lock.acquire(text, { timeout: 0 })
    const held = yield* Lock.list
    yield* Lock.renew(lease)
    const second = yield* Lock.tryAcquire(text)
    yield* Lock.release(lease)
    yield* Lock.withLock(text)(Effect.void)
    yield* Lock.forceRelease(text)
    return [lease.name, ...held.map(({ name }) => name), Option.isNone(second) ? text : second]
  })

/** By the service beneath, as a worker claims: whose name is kept with the row. */
const workerNames: Surface = (worker) =>
  Effect.gen(function* () {
    const store = yield* Queue.Queue
    const { id } = yield* Fixed.enqueue(1)
    const request = { queue: "fixed", limit: 1, prefetch: 0, visibilityMillis: 30_000, worker, probe: true }
    const { jobs } = yield* store.claim(request)
    const found = yield* Effect.flatMap(Queue.find(id), Option.fromNullable)
    yield* store.settle("fixed", [{ _tag: "Ack", id, token: jobs[0]?.token ?? 0 }])
    const kept = found._tag === "Live" ? found.job.worker : found._tag
    // Nothing checks here: a lone surrogate has no bytes
    return [/\p{Surrogate}/u.test(worker) ? worker : kept]
  })

/** Options that are no texts, or one of a few: refused, unless the text is a duration. */
const options =
  (call: (text: string) => Effect.Effect<unknown, unknown, EngineServices>): Surface =>
  (text) =>
    Effect.as(call(text), [])

const enqueueOption = (name: string, more: object = {}) =>
  options((text) => Fixed.enqueue(1, untyped({ ...more, [name]: text })))

export const surfaces: Readonly<Record<string, Surface>> = {
  payloads: (text) => throughQueue(text, {}, (job) => [job.payload]),
  "names of properties": (text) =>
    throughQueue({ [text]: [text] }, {}, (job) => Object.entries(job.payload as object).flat(2)),
  headers: (text) => throughQueue(1, { headers: { [text]: text } }, (job) => Object.entries(job.headers).flat()),
  "dedupe keys": dedupeKeys,
  "ordering keys": orderingKeys,
  progress,
  "errors of handlers": errors,
  "tags of errors": taggedErrors,
  "queue names": queueNames,
  "dead-letter queues": deadLetterQueues,
  "schedule names": scheduleNames,
  "options of schedules": scheduleOptions,
  "cron expressions": rule((cron) => ({ cron })),
  "@every": rule((text) => ({ cron: `@every ${text}` })),
  "time zones": rule((timeZone) => ({ cron: "0 3 * * *", timeZone })),
  periods: rule((every) => ({ every })),
  anchors: rule((anchor) => ({ every: "1 day", anchor })),
  "policies of schedules": rule((overlap) => ({ every: "1 day", overlap, catchUp: overlap })),
  "lock names": locks,
  "worker names": workerNames,
  delays: enqueueOption("delay"),
  instants: enqueueOption("runAt"),
  priorities: enqueueOption("priority"),
  attempts: enqueueOption("maxAttempts"),
  expiries: enqueueOption("expires"),
  windows: enqueueOption("dedupeWindow", { dedupeKey: "w" }),
  "words of duplicates": enqueueOption("onDuplicate", { dedupeKey: "d" }),
  "scopes of keys": enqueueOption("dedupeScope", { dedupeKey: "s" }),
  limits: options((text) => Fixed.claim({ limit: untyped(text) })),
  visibility: options((text) => Fixed.claim({ visibilityTimeout: untyped(text) })),
  ids: options((text) => Queue.find(untyped(text))),
  "ids of letters": options((text) => Fixed.deadLetters.purge({ id: untyped(text) })),
  reasons: options((text) => Fixed.deadLetters.requeue({ reason: untyped(text) })),
  states: options((text) => Fixed.cancelMany({ state: untyped([text]) })),
  criteria: options((text) => Fixed.cancelMany(untyped({ [text]: text }))),
  "instants of filters": options((text) => Fixed.runNow({ enqueuedAfter: untyped(text) })),
  "texts in errors": options((text) => Fixed.deadLetters.list({ error: text })),
  cursors: options((text) => Fixed.list({ after: { id: untyped(text) } })),
  "cursors of letters": options((text) => Fixed.deadLetters.list({ after: untyped({ id: text, diedAt: text }) })),
  "cursors of running jobs": options((text) => Fixed.running({ after: untyped({ id: text, deadline: text }) })),
  times: options((text) => Fixed.reschedule({ all: true }, { delay: untyped(text) })),
  "new priorities": options((text) => Fixed.setPriority({ all: true }, untyped(text)))
}
