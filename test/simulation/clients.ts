/** What the applications of the fleet ask for: one call at a time, of a process that is able to make it. */
import { SqlClient } from "@effect/sql"
import { Queue, Schedules } from "alkstore"
import { Cause, Effect, Exit, Predicate } from "effect"
import { makeByHand } from "./byHand.js"
import type { Fleet, Host, Services } from "./fleet.js"
import { Books, Keyed, Mail, Plain, plans, schedules } from "./queues.js"
import type { Process } from "./world.js"

type Call = Effect.Effect<unknown, unknown, Services>

const minute = 60_000

/** Errors that a call may have while things go wrong: statements that fail, leases that end, schedules that are not put yet. */
const expected = [
  "SqlError",
  "EnqueueUncertain",
  "LeaseLost",
  "LockLost",
  "LockTimeout",
  "ScheduleNotFound",
  "Rollback"
]
const reasons = ["busy", "connection", "full", "uncertain"]

const isExpected = (error: unknown): boolean =>
  Predicate.isTagged(error, "StoreError")
    ? reasons.includes(String((error as { reason?: unknown }).reason))
    : Predicate.hasProperty(error, "_tag") && expected.includes(String(error._tag))

class Rollback {
  readonly _tag = "Rollback"
}

export const makeClients = (fleet: Fleet) => {
  const { oracle, world } = fleet
  const { chance } = world
  const byHand = makeByHand(fleet)
  let last = 0
  const fresh = () => ({ n: ++last })
  let calls = 0

  /** Whether an error says that nothing was written. */
  const saysNothing = (exit: Exit.Exit<unknown, unknown>): boolean => {
    if (Exit.isSuccess(exit)) return false
    const error = Cause.squash(exit.cause)
    return (
      Predicate.isTagged(error, "Rollback") ||
      Predicate.isTagged(error, "SqlError") ||
      (Predicate.isTagged(error, "StoreError") && (error as { reason?: string }).reason !== "uncertain")
    )
  }

  /** Adds jobs, and holds the call to its word. */
  const adding = (numbers: ReadonlyArray<number>, kept: boolean, call: Call): Call =>
    Effect.flatMap(Effect.exit(call), (exit) => {
      if (Exit.isSuccess(exit) && kept) oracle.promised(numbers)
      if (saysNothing(exit)) oracle.refused(numbers)
      return exit
    })

  const delay = () => (chance.happens(0.3) ? chance.between(1_000, 100 * minute) : 0)
  const common = () => ({ delay: delay(), priority: chance.between(-2, 3), maxAttempts: chance.between(1, 6) })

  const expiring = () => (chance.happens(0.2) ? { expires: chance.between(1_000, 30 * minute) } : {})

  const enqueuePlain = (): Call => {
    const payload = fresh()
    return adding([payload.n], true, Plain.enqueue(payload, { ...common(), ...expiring() }))
  }

  const enqueueDedupe = (): Call => {
    const payload = fresh()
    const dedupeKey = `d${chance.below(6)}`
    const options = {
      ...common(),
      dedupeKey,
      ...(chance.happens(0.3) ? { dedupeScope: "waiting" as const } : {}),
      ...(chance.happens(0.2) ? { dedupeWindow: chance.between(minute, 60 * minute) } : {}),
      ...(chance.happens(0.3) ? { onDuplicate: "replace" as const } : {})
    }
    return Effect.suspend(() => {
      const since = oracle.court.seq()
      const at = world.now
      const call = Effect.tap(Plain.enqueue(payload, options), (receipt) =>
        Effect.sync(() => {
          oracle.answered(`plain ${dedupeKey}`, receipt, since, at)
          if (!receipt.deduplicated) oracle.promised([payload.n])
        })
      )
      return adding([payload.n], false, call)
    })
  }

  const some = (least: number, most: number, enqueue: (payloads: ReadonlyArray<{ n: number }>) => Call): Call => {
    const payloads = Array.from({ length: chance.between(least, most) }, fresh)
    const numbers = payloads.map(({ n }) => n)
    return adding(numbers, true, enqueue(payloads))
  }

  const enqueueMany = (): Call => some(2, 8, (payloads) => Plain.enqueueMany(payloads, common))

  const place = () => ({ ...common(), ...expiring(), orderingKey: `k${chance.below(3)}` })
  const enqueueKeyed = (): Call => some(1, 4, (payloads) => Keyed.enqueueMany(payloads, place))

  /** An order is written with the job or the message that it means, and at times taken back. */
  const order = (enqueue: (payload: { n: number }) => Effect.Effect<unknown, unknown, Queue.Queue>): Call => {
    const payload = fresh()
    const goesWrong = chance.happens(0.25)
    return adding(
      [payload.n],
      !goesWrong,
      Queue.transaction(
        Effect.gen(function* () {
          const sql = yield* SqlClient.SqlClient
          yield* sql`INSERT INTO orders (n) VALUES (${payload.n})`
          yield* enqueue(payload)
          if (chance.happens(0.05)) yield* Effect.sleep(chance.between(1, 7_000))
          if (goesWrong) yield* Effect.fail(new Rollback())
        })
      )
    )
  }

  const publish = (payload: { n: number }) => Effect.map(Mail.publish(payload), (id) => oracle.delivers(payload.n, id))

  const asking = (process: Process, what: string, call: Call): Call =>
    Effect.acquireUseRelease(
      Effect.sync(() => oracle.asks(process, what)),
      () => call,
      (done) => Effect.sync(done)
    )

  const live = () => {
    const all = [...oracle.jobs.values()].filter(({ endedIn, queue }) => endedIn === undefined && queue in queues)
    return all.length === 0 ? undefined : chance.pick(all)
  }
  const queues = { plain: Plain, keyed: Keyed, books: Books, mail: Mail }
  const queueOf = (name: string) => queues[name as keyof typeof queues]
  const anyQueue = () => chance.pick(Object.values(queues))

  const cancel = (process: Process): Call => {
    const job = live()
    if (job === undefined) return Effect.void
    const queue = queueOf(job.queue)
    return asking(
      process,
      "cancel",
      job.row.ordering_key !== null && chance.happens(0.3)
        ? queue.cancelMany({ orderingKey: String(job.row.ordering_key) })
        : queue.cancel(job.id)
    )
  }

  const change = (): Call => {
    const job = live()
    if (job === undefined) return Effect.void
    const queue = queueOf(job.queue)
    return chance.pick<() => Call>([
      () => queue.runNow({ id: job.id }),
      () => queue.reschedule({ id: job.id }, { delay: chance.between(1_000, 60 * minute) }),
      () => queue.setPriority({ id: job.id }, chance.between(-5, 6))
    ])()
  }

  const requeue = (): Call => anyQueue().deadLetters.requeue({ all: true }, { delay: delay() })

  const purge = (process: Process): Call => {
    const queue = chance.pick([Plain, Mail])
    return asking(process, `purge ${queue.name}`, queue.deadLetters.purge({ all: true }))
  }

  /** Whoever paused it may be dead by then: somebody else resumes it; and once more, if the pause has come after that. */
  const resuming = (millis: number, resume: () => Call, name: string) => {
    for (const late of [0, 60 * minute]) world.after(millis + late, () => anybody(resume, name))
  }

  const pause = (): Call => {
    const queue = anyQueue()
    resuming(chance.between(10_000, 30 * minute), () => queue.resume, "resume")
    return queue.pause
  }

  const pauseSchedule = (): Call => {
    const { name } = chance.pick(plans)
    resuming(chance.between(10_000, 180 * minute), () => Schedules.resume(name), "resume schedule")
    return Schedules.pause(name)
  }

  /** Many at once, each a few steps of the process, or some milliseconds, after the other. */
  const volley = (): Call =>
    Effect.forEach(
      Array.from({ length: chance.between(2, 6) }, fresh),
      (payload) => {
        const steps = chance.happens(0.5)
          ? Effect.sleep(chance.between(1, 60))
          : Effect.repeatN(Effect.yieldNow(), chance.below(60))
        return Effect.zipRight(steps, Effect.either(adding([payload.n], true, Plain.enqueue(payload))))
      },
      { concurrency: "unbounded" }
    )

  const kinds: ReadonlyArray<readonly [weight: number, name: string, call: (process: Process) => Call]> = [
    [22, "enqueue", enqueuePlain],
    [14, "enqueue with a dedupe key", enqueueDedupe],
    [6, "enqueue many", enqueueMany],
    [8, "volley", volley],
    [6, "lock", byHand.alone],
    [14, "enqueue with ordering keys", enqueueKeyed],
    [10, "order with a job", () => order((payload) => Books.enqueue(payload))],
    [10, "order with a message", () => order(publish)],
    [5, "cancel", cancel],
    [4, "change", change],
    [3, "requeue", requeue],
    [2, "purge", purge],
    [3, "pause", pause],
    [2, "pause schedule", pauseSchedule],
    [2, "trigger", () => Schedules.trigger(chance.pick(plans).name)],
    [2, "put", () => Schedules.put(chance.pick(schedules))],
    [3, "claim by hand", byHand.claim]
  ]

  const ask = (host: Host, process: Process, name: string, call: Call): void => {
    calls++
    fleet.fork(
      host,
      Effect.map(Effect.exit(call), (exit) => {
        const error = Exit.isSuccess(exit) ? undefined : Cause.squash(exit.cause)
        const tag = Predicate.hasProperty(error, "_tag") ? String(error._tag) : String(error)
        world.note(process.name, `${name}: ${error === undefined ? "ok" : tag}`)
        if (error !== undefined && !isExpected(error)) oracle.court.wrong(`${name} fails with ${tag}: ${error}`)
        return exit
      })
    )
  }

  /** Somebody who can, until it is done. */
  const anybody = (call: () => Call, name: string): void => {
    const hosts = fleet.able()
    const again = () => world.after(5_000, () => anybody(call, name))
    if (hosts.length === 0) return void again()
    const host = chance.pick(hosts)
    const { process } = host
    if (process === undefined) return void again()
    let done = false
    const finish = Effect.sync(() => {
      done = true
    })
    ask(host, process, name, Effect.zipLeft(Effect.suspend(call), finish))
    world.after(30_000, () => {
      if (!done) anybody(call, name)
    })
  }

  return {
    calls: () => calls,
    anybody,
    /** Letters that hold their ordering key let it go. */
    letGo: (): void => {
      const [host] = fleet.able()
      if (host?.process !== undefined)
        ask(host, host.process, "let go", asking(host.process, "purge mail", Mail.deadLetters.purge({ all: true })))
    },
    /** One call of a kind that chance picks, if anybody can make it. */
    act: (): void => {
      const hosts = fleet.able()
      if (hosts.length === 0) return
      const host = chance.pick(hosts)
      const { process } = host
      if (process === undefined) return
      const [name, call] = chance.weighted(kinds.map(([weight, ...kind]) => [weight, kind] as const))
      ask(
        host,
        process,
        name,
        Effect.suspend(() => call(process))
      )
    }
  }
}
