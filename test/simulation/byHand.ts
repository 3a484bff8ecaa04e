/** What a process does without a worker: claims and settles, and work under a lock. */
import { Lock } from "alkstore"
import { Effect } from "effect"
import type { Fleet, Services } from "./fleet.js"
import { Plain } from "./queues.js"
import type { Process } from "./world.js"

type Call = Effect.Effect<unknown, unknown, Services>

export const makeByHand = (fleet: Fleet) => {
  const { oracle, world } = fleet
  const { chance } = world

  /** Without a worker: claims, and settles one way or another, or not at all. */
  const claim = (process: Process): Call =>
    Effect.flatMap(Plain.claim({ limit: 3, visibilityTimeout: "1 minute" }), (jobs) =>
      Effect.forEach(jobs, (job) =>
        Effect.suspend(() => {
          const handling = oracle.started(process, job.id, job.lease.token, "hand")
          const settle = (said: NonNullable<typeof handling.said>, how: Call): Call =>
            Effect.suspend(() => {
              handling.said = said
              return how
            })
          const ways: ReadonlyArray<() => Call> = [
            () => settle({ _tag: "done" }, job.ack),
            () => settle({ _tag: "again", millis: 90_000, spent: true }, job.retry({ delay: 90_000 })),
            () => settle({ _tag: "again", millis: 0, spent: false }, job.release),
            () => settle({ _tag: "again", millis: 70_000, spent: false }, job.snooze(70_000)),
            () => settle({ _tag: "fatal" }, job.fail("by hand")),
            () => settle({ _tag: "interrupted" }, Effect.void)
          ]
          return Effect.zipRight(Effect.sleep(chance.between(1, 40_000)), chance.pick(ways)())
        })
      )
    )

  /** What only one process at a time is to do, for longer than the lock is held without a renewal. */
  const alone = (process: Process): Call => {
    const name = chance.pick(["till", "gate"])
    const section = Effect.acquireUseRelease(
      Effect.sync(() => {
        fleet.ambush(process, true)
        return oracle.enters(name, process)
      }),
      () => Effect.sleep(chance.between(1, 90_000)),
      (leave) => Effect.sync(leave)
    )
    return Lock.withLock(name, { ttl: "20 seconds", timeout: chance.pick([0, 60_000]) })(section)
  }

  return { alone, claim }
}
