/** The Lock service. */
import { Lock } from "alkstore"
import { Effect } from "effect"
import type { Case, Operation, World } from "../world.js"
import type { CasesOf } from "./enumerate.js"

type Service = Lock.Lock["Type"]

const calling = (
  name: string,
  call: (service: Service, name: string, lease: Lock.LockLease, world: World) => Operation,
  more: Partial<Case> = {}
): Case => ({
  name,
  ...more,
  alone: true,
  prepare: (world) =>
    Effect.gen(function* () {
      const service = yield* Lock.Lock
      const lease = yield* service.acquire(world.name("lock"))
      return call(service, world.name("lock"), lease, world)
    })
})

/** On a lock that nobody has. */
const free = (
  name: string,
  call: (service: Service, name: string, world: World) => Operation,
  more: Partial<Case> = {}
): Case => ({
  name,
  ...more,
  alone: true,
  prepare: (world) => Effect.map(Lock.Lock, (service) => call(service, world.name("lock"), world))
})

/** A dead holder's lock is free when its lease ends. */
const briefly = "400 millis"
const freeLater: NonNullable<Case["later"]> = (world) =>
  Effect.flatMap(Lock.Lock, (service) =>
    Effect.flatMap(service.acquire(world.name("lock"), { timeout: "5 seconds" }), service.release)
  )

export const lockCases: CasesOf<Service> = {
  tryAcquire: [free("a free one", (service, name) => service.tryAcquire(name))],
  acquire: [
    free("a free one", (service, name) => service.acquire(name, { ttl: briefly })),
    calling("one that lapses meanwhile", (service, name, _, world) =>
      Effect.zipRight(
        world.operator(`UPDATE ${world.database.table("locks")} SET expires_at = 1 WHERE name = '${name}'`),
        service.acquire(name, { ttl: briefly, timeout: "5 seconds" })
      )
    )
  ],
  renew: [calling("one's own", (service, _, lease) => service.renew(lease))],
  release: [calling("one's own", (service, _, lease) => service.release(lease), { done: ["LockLost"] })],
  forceRelease: [calling("another's", (service, name) => service.forceRelease(name))],
  list: [calling("one", (service) => service.list)],
  withLock: [
    free(
      "around a mark",
      (service, name, world) =>
        service.withLock(name, { ttl: briefly, timeout: "5 seconds" })(
          world.operator(`INSERT INTO marks VALUES ('${name}')`)
        ),
      { adds: true, later: freeLater }
    )
  ]
}
