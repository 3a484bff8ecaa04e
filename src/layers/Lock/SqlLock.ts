/**
 * Named locks as rows: taken by one upsert that wins only over a free or lapsed row, fenced by the namespace's token
 * counter. No session advisory lock: those vanish with a connection and tell nobody.
 */
import { Duration, Effect, Either, Layer, Option, Random } from "effect"
import { sleepMillis } from "../../schedule/Polling.js"
import { lockRenewal, lockWaitMillis } from "../../schedule/Renewal.js"
import { Clock } from "../../services/Clock.js"
import { InvalidArgument, LockLost, LockTimeout } from "../../services/Errors.js"
import { checkDuration, checkKey } from "../../services/input.js"
import { Lock, type LockLease, type Service } from "../../services/Lock.js"
import { lockTopic, Wake } from "../../services/Wake.js"
import { type Database, detached } from "../Database/Database.js"
import { int } from "../Queue/statements/rows.js"
import { makeAnnounce } from "../Wake/announce.js"
import { lockVerbs } from "./statements.js"

const reserved = "__alkstore_"

const lost = (name: string, token: number) =>
  new LockLost({ lock: name, token, message: `lock ${name} is no longer held under token ${token}` })

interface Request {
  readonly name: string
  readonly ttlMillis: number
}

const check = (name: string, ttl: Duration.DurationInput = "30 seconds"): Either.Either<Request, InvalidArgument> =>
  Either.gen(function* () {
    const checked = yield* checkKey("lock name", name)
    return { name: checked, ttlMillis: yield* checkDuration("ttl", ttl, { min: 100, max: 86_400_000 }) }
  })

const checkPublic = (name: string, ttl?: Duration.DurationInput) =>
  typeof name === "string" && name.startsWith(reserved)
    ? Either.left(
        new InvalidArgument({
          argument: "lock name",
          message: `lock name: names that begin with ${reserved} are reserved`
        })
      )
    : check(name, ttl)

const make = (db: Database) =>
  Effect.gen(function* () {
    const wake = yield* Wake
    const clock = yield* Clock
    const verbs = lockVerbs[db.names.engine](db.names)
    const owner = `${process.pid}-${(yield* Random.nextIntBetween(0, 2 ** 31)).toString(36)}`

    const { change: announce } = makeAnnounce(db, wake, yield* Effect.scope)

    const take = ({ name, ttlMillis }: Request) =>
      Effect.map(
        db.apart("write", "lock", (session) => verbs.acquire(session, name, owner, ttlMillis)),
        Option.map(({ expiresAt, token }): LockLease => ({ name, token, expiresAt, ttlMillis }))
      )

    const free = (lease: LockLease) =>
      Effect.tap(
        db.apart("write", "unlock", (session) => verbs.release(session, lease.name, lease.token)),
        () => detached(announce([lockTopic(lease.name)]))
      )

    /** Attempts of which the last may have been made when the fiber is interrupted: what it took is given back. */
    const givingBack = <A, E>(attempts: (attempt: ReturnType<typeof take>) => Effect.Effect<A, E>, request: Request) =>
      Effect.suspend(() => {
        let taken: Option.Option<LockLease> = Option.none()
        const attempt = Effect.uninterruptible(
          Effect.tap(take(request), (result) =>
            Effect.sync(() => {
              taken = result
            })
          )
        )
        const giveBack = Effect.suspend(() => (Option.isSome(taken) ? Effect.either(free(taken.value)) : Effect.void))
        return Effect.onInterrupt(attempts(attempt), () => giveBack)
      })

    const takeOnce = (request: Request) => givingBack((attempt) => attempt, request)

    /** Waits for wakes, for the end of the holder's lease, and polls under both. Interrupted, it holds nothing. */
    const waitFor = (request: Request) => givingBack((attempt) => Effect.scoped(untilTaken(request, attempt)), request)

    const untilTaken = (request: Request, attempt: ReturnType<typeof take>) =>
      Effect.gen(function* () {
        const subscription = yield* wake.subscribe(lockTopic(request.name))
        for (;;) {
          const taken = yield* attempt
          if (Option.isSome(taken)) return taken.value
          const left = yield* db.apart("read", "lock", (session) => verbs.freeIn(session, request.name))
          const look = Math.min(left, lockWaitMillis, Duration.toMillis(wake.pollInterval))
          yield* Effect.raceFirst(subscription.await, Effect.sleep(sleepMillis(look)))
        }
      })

    /** The first attempt is outside the time limit: a timeout of 0 means one attempt. */
    const acquireWithin = (request: Request, timeout: Duration.DurationInput | undefined) => {
      if (timeout === undefined) return waitFor(request)
      const busy = (millis: number) =>
        new LockTimeout({ lock: request.name, message: `lock ${request.name} was not free within ${millis} ms` })
      return Effect.gen(function* () {
        const millis = yield* checkDuration("timeout", timeout)
        if (millis > 0)
          return yield* Effect.timeoutFail(waitFor(request), {
            duration: sleepMillis(millis),
            onTimeout: () => busy(millis)
          })
        const taken = yield* takeOnce(request)
        return Option.isSome(taken) ? taken.value : yield* busy(millis)
      })
    }

    const renew: Service["renew"] = (lease) =>
      Effect.flatMap(
        db.apart("write", "lock_renew", (session) => verbs.renew(session, lease.name, lease.token, lease.ttlMillis)),
        Option.match({
          onNone: () => Effect.fail(lost(lease.name, lease.token)),
          onSome: (expiresAt) => Effect.succeed({ ...lease, expiresAt })
        })
      )

    /** Renews every third of the ttl; fails when the lock is lost, or was not renewed in time to be sure of it. */
    const keep = (lease: LockLease) =>
      Effect.gen(function* () {
        let renewedAt = yield* clock.monotonic
        const beat = Effect.gen(function* () {
          const start = yield* clock.monotonic
          yield* renew(lease)
          renewedAt = start
        })
        const giveUp = Effect.gen(function* () {
          const left = renewedAt + lease.ttlMillis * 0.9 - (yield* clock.monotonic)
          yield* Effect.sleep(sleepMillis(left))
        }).pipe(
          Effect.repeat({
            while: () => Effect.map(clock.monotonic, (now) => now < renewedAt + lease.ttlMillis * 0.9)
          }),
          Effect.zipRight(Effect.fail(lost(lease.name, lease.token)))
        )
        const beats = beat.pipe(
          Effect.catchTags({
            StoreError: () => Effect.void,
            TransactionOpen: () => Effect.void,
            InvalidArgument: () => Effect.void
          }),
          Effect.repeat(lockRenewal(lease.ttlMillis)),
          Effect.zipRight(Effect.never)
        )
        return yield* Effect.raceFirst(beats, Effect.disconnect(giveUp))
      }).pipe(Effect.withTracerEnabled(false), detached)

    const service: Service = {
      tryAcquire: (name, options) => Effect.flatMap(checkPublic(name, options?.ttl), takeOnce),
      acquire: (name, options) =>
        Effect.flatMap(checkPublic(name, options?.ttl), (request) => acquireWithin(request, options?.timeout)),
      renew,
      release: (lease) =>
        Effect.flatMap(free(lease), (released) =>
          released ? Effect.void : Effect.fail(lost(lease.name, lease.token))
        ),
      forceRelease: (name) =>
        Effect.flatMap(check(name), () =>
          Effect.tap(
            db.apart("write", "unlock", (session) => verbs.forceRelease(session, name)),
            () => detached(announce([lockTopic(name)]))
          )
        ),
      list: Effect.map(
        db.apart("read", "locks", (session) => verbs.list(session)),
        (rows) =>
          rows.map((row) => ({
            name: String(row.name),
            token: int(row.token),
            owner: String(row.owner),
            acquiredAt: new Date(int(row.acquired_at)),
            expiresAt: new Date(int(row.expires_at))
          }))
      ),
      // The library's own locks come this way too, so reserved names pass
      withLock: (name, options) => (self) =>
        Effect.flatMap(check(name, options?.ttl), (request) =>
          Effect.acquireUseRelease(
            Effect.interruptible(acquireWithin(request, options?.timeout)),
            (lease) => Effect.raceFirst(self, keep(lease)),
            (lease) => Effect.either(free(lease))
          )
        )
    }
    return service
  })

/** The Lock service of a database whose tables are there. */
export const layer = (db: Database) => Layer.scoped(Lock, make(db))
