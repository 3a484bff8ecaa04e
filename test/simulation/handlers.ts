/** The workers of a host, and what their handlers do: mostly well, at times not. */
import { SqlClient } from "@effect/sql"
import { Job, Outbox, Queue, Supervisor, type Worker } from "alkstore"
import { Cause, Effect, Exit } from "effect"
import type { Fleet, Host } from "./fleet.js"
import type { Handling, Said } from "./oracle/oracle.js"
import { Books, Keyed, Mail, Morgue, type Payload, Plain, retry, Ticks, timeoutMillis, visibility } from "./queues.js"
import type { Process } from "./world.js"

type Way = "well" | "long" | "fails" | "dies" | "fatal" | "snooze" | "retryAfter" | "hangs" | "sleeps" | "byHand"

const ways = [
  [70, "well"],
  [5, "long"],
  [9, "fails"],
  [3, "dies"],
  [2, "fatal"],
  [3, "snooze"],
  [3, "retryAfter"],
  [1, "hangs"],
  [1, "sleeps"],
  [3, "byHand"]
] as const satisfies ReadonlyArray<readonly [number, Way]>

const calm = [
  [80, "well"],
  [20, "long"]
] as const satisfies ReadonlyArray<readonly [number, Way]>

interface Running {
  readonly id: number
  readonly lease: { readonly token: number }
  readonly queue: string
}

const saidBy = (exit: Exit.Exit<unknown, unknown>): Said => {
  if (Exit.isSuccess(exit)) return { _tag: "done" }
  if (Cause.isInterruptedOnly(exit.cause)) return { _tag: "interrupted" }
  const error = Cause.squash(exit.cause)
  if (error instanceof Job.Fatal) return { _tag: "fatal" }
  if (error instanceof Job.Snooze) return { _tag: "again", millis: Number(error.delay), spent: false }
  if (error instanceof Job.RetryAfter) return { _tag: "again", millis: Number(error.delay), spent: true }
  return { _tag: "failed" }
}

export const makeHandlers = (fleet: Fleet, host: Host, process: Process) => {
  const { faults, oracle, world } = fleet
  const { chance } = world

  const sleep = (low: number, high: number) => Effect.sleep(chance.between(low, high))
  const soon = () => (chance.happens(0.6) ? sleep(1, 900) : sleep(1_000, 60_000))

  const act = (way: Way): Effect.Effect<unknown, unknown> => {
    switch (way) {
      case "well":
      case "byHand":
        return soon()
      case "long":
        return sleep(180_000, 700_000)
      case "fails":
        return Effect.zipRight(soon(), Effect.fail("as it happens"))
      case "dies":
        return Effect.zipRight(soon(), Effect.die(new Error("a defect")))
      case "fatal":
        return Effect.zipRight(soon(), Job.fatal("never again"))
      case "snooze":
        return Job.snooze(chance.between(1_000, 900_000))
      case "retryAfter":
        return Effect.zipRight(soon(), Job.retryAfter(chance.between(1_000, 900_000)))
      case "hangs":
        return Effect.uninterruptible(sleep(60_000, 500_000))
      case "sleeps":
        return sleep(timeoutMillis, 2 * timeoutMillis)
    }
  }

  const watched = <A, E, R>(
    job: Running,
    way: string,
    self: (handling: Handling) => Effect.Effect<A, E, R>
  ): Effect.Effect<A, E, R> =>
    Effect.suspend(() => {
      const { id, lease, queue } = job
      world.note(process.name, `runs ${id} of ${queue} under ${lease.token}: ${way}`)
      const handling = oracle.started(process, id, lease.token, way === "hangs" ? "stubborn" : "worker")
      fleet.ambush(process, way === "long" || way === "sleeps" || way === "hangs")
      return Effect.onExit(self(handling), (exit) =>
        Effect.sync(() => {
          handling.said ??= saidBy(exit)
          world.note(process.name, `${id} under ${lease.token} ${handling.said._tag}`)
          oracle.ended(handling)
        })
      )
    })

  const write = (job: Running) =>
    Effect.flatMap(
      SqlClient.SqlClient,
      (sql) => sql`INSERT INTO effects (id, token) VALUES (${job.id}, ${job.lease.token})`
    )

  /** The job is acked in a transaction of the handler's own, with what it has written. */
  const byHand = (job: Running & Pick<Job.Job<unknown>, "ack">, handling: Handling) =>
    Queue.transaction(
      Effect.zipRight(
        write(job),
        Effect.zipRight(
          Effect.sync(() => {
            handling.said = { _tag: "done" }
          }),
          job.ack
        )
      )
    ).pipe(
      Effect.onError(() =>
        Effect.sync(() => {
          handling.said = undefined
        })
      )
    )

  const handler = (job: Job.Job<unknown>) =>
    Effect.suspend(() => {
      const way: Way = chance.weighted(faults.over ? calm : ways)
      return watched(job, way, (handling) =>
        Effect.zipRight(act(way), way === "byHand" ? byHand(job, handling) : Effect.void)
      )
    })

  const bookkeeping = (job: Job.Job<unknown>) =>
    Effect.suspend(() => {
      const way = faults.over
        ? "well"
        : chance.weighted([
            [80, "well"],
            [10, "fails"],
            [4, "snooze"],
            [1, "long"]
          ] as const)
      const pause = way === "long" ? sleep(4_000, 9_000) : sleep(1, 60)
      const end: Effect.Effect<unknown, unknown> =
        way === "fails" ? Effect.fail("after it has written") : way === "snooze" ? Job.snooze(60_000) : Effect.void
      return watched(job, way, () => Effect.zipRight(write(job), Effect.zipRight(pause, end)))
    })

  const policy = {
    timeout: timeoutMillis,
    retry,
    concurrency: chance.between(1, 4),
    visibilityTimeout: `${chance.between(visibility.least, visibility.most)} seconds`
  } as const satisfies Worker.PolicyOptions<unknown>

  /** The relay of an outbox: what it delivers is watched as what it is beneath, a job. */
  const relay = () => {
    const ofMine = new Map<number, { way: Way; times: number }>()
    const beneath = Outbox.relay<Payload, unknown>({
      ...policy,
      deliver: ({ id, message: { n } }) => {
        const mine = ofMine.get(n) ?? { way: "well", times: 0 }
        mine.times++
        oracle.delivers(n, id)
        return act(mine.way)
      }
    })
    return {
      ...beneath,
      handler: (job: Job.Job<Payload>) =>
        Effect.suspend(() => {
          const mine = { way: chance.weighted<Way>(faults.over ? calm : ways), times: 0 }
          ofMine.set(job.payload.n, mine)
          return watched(job, mine.way, () =>
            Effect.onExit(beneath.handler(job), (exit) =>
              Effect.sync(() => {
                const told = `message ${job.payload.n} is delivered ${mine.times} times in one attempt`
                if (mine.times > 1 || (Exit.isSuccess(exit) && mine.times === 0)) oracle.court.wrong(told)
              })
            )
          )
        })
    }
  }

  const specs = [
    Supervisor.worker(Plain, { ...policy, handler }),
    Supervisor.worker(Keyed, { ...policy, handler }),
    Supervisor.worker(Books, { transactional: true, retry, visibilityTimeout: "150 seconds", handler: bookkeeping }),
    Supervisor.worker(Mail.queue, relay()),
    Supervisor.worker(Ticks, { ...policy, handler }),
    Supervisor.worker(Morgue, { ...policy, handler })
  ] as const
  const names = [Plain, Keyed, Books, Mail, Ticks, Morgue].map(({ name }) => name)
  for (const place of placesOf(host.index))
    process.slots.set(names[place] as string, { size: place === 2 ? 1 : policy.concurrency, running: 0 })
  return placesOf(host.index).map((place) => specs[place])
}

/** One queue or two for each host: the plain ones on half of them, each of the others on two or three. */
const placesOf = (index: number): ReadonlyArray<0 | 1 | 2 | 3 | 4 | 5> =>
  ([[0, 1], [1, 4], [2, 0], [3], [4, 0], [5, 1], [0, 3], [2], [3, 0], [5, 4]] as const)[index] ?? []
