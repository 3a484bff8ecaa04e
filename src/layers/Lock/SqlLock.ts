/**
 * Named locks as rows: taken by one upsert that wins only over a free or lapsed row, fenced by the namespace's token
 * counter. No session advisory lock: those vanish with a connection and tell nobody.
 */
import { Duration, Effect, Either, Fiber, Layer, Option, Random } from "effect"
import { longSleep, sleepMillis } from "../../schedule/Polling.js"
import { lockRenewal, lockWaitMillis } from "../../schedule/Renewal.js"
import { Clock } from "../../services/Clock.js"
import { InvalidArgument, LockLost, LockTimeout } from "../../services/Errors.js"
import { checkDuration, checkKey, checkOptions } from "../../services/input.js"
import { type AcquireOptions, Lock, type LockLease, type Service } from "../../services/Lock.js"
import { lockTopic, Wake } from "../../services/Wake.js"
import { type Database, detached, type Verb } from "../Database/Database.js"
import type { Restore } from "../Database/turns.js"
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

interface Taken {
  readonly lease: LockLease
  /** When its statement was sent, by the monotonic clock: how long its answer took is a part of the lease. */
  readonly since: number
}

const leaseOf = ({ lease }: Taken): LockLease => lease

const check = (
  name: string,
  options: AcquireOptions = {},
  names: ReadonlyArray<keyof AcquireOptions> = ["ttl", "timeout"]
): Either.Either<Request, InvalidArgument> =>
  Either.gen(function* () {
    const checked = yield* checkKey("lock name", name)
    yield* checkOptions(options, names)
    const ttlMillis = yield* checkDuration("ttl", options.ttl ?? "30 seconds", { min: 100, max: 86_400_000 })
    return { name: checked, ttlMillis }
  })

const checkPublic: typeof check = (name, ...options) =>
  typeof name === "string" && name.startsWith(reserved)
    ? Either.left(
        new InvalidArgument({
          argument: "lock name",
          message: `lock name: names that begin with ${reserved} are reserved`
        })
      )
    : check(name, ...options)

const make = (db: Database) =>
  Effect.gen(function* () {
    const wake = yield* Wake
    const clock = yield* Clock
    const verbs = lockVerbs[db.names.engine](db.names)
    const owner = `${process.pid}-${(yield* Random.nextIntBetween(0, 2 ** 31)).toString(36)}`

    const { change: announce } = makeAnnounce(db, wake, yield* Effect.scope)

    const freeing = (name: string, verb: Verb<boolean>) =>
      Effect.tap(db.apart("write", "unlock", verb), () => detached(announce([lockTopic(name)])))

    const free = ({ name, token }: LockLease) => freeing(name, (session) => verbs.release(session, name, token))

    let attempts = 0

    /**
     * One attempt, in a fiber that nothing has interrupted yet. It can be while it waits, for another process's write to
     * SQLite, say; what was taken when the interrupt came is given back.
     */
    const attempt = ({ name, ttlMillis }: Request) =>
      Effect.suspend(() => {
        const own = `${owner}-${++attempts}`
        let taken: Option.Option<Taken> = Option.none()
        const take = db.apart("write", "lock", (session) =>
          Effect.flatMap(clock.monotonic, (since) =>
            Effect.map(verbs.acquire(session, name, own, ttlMillis), (row) => {
              taken = Option.map(row, ({ expiresAt, token }) => ({
                lease: { name, token, expiresAt, ttlMillis },
                since
              }))
              return taken
            })
          )
        )
        const giveBack = Effect.suspend(() =>
          Option.match(taken, {
            onNone: () => Effect.void,
            onSome: ({ lease: { token } }) =>
              Effect.either(freeing(name, (session) => verbs.giveBack(session, name, token, own)))
          })
        )
        return Effect.onInterrupt(Effect.interruptible(take), () => giveBack)
      })

    /** Waits for wakes, for the end of the holder's lease, and polls under both. */
    const untilTaken = (request: Request) =>
      Effect.gen(function* () {
        const subscription = yield* wake.subscribe(lockTopic(request.name))
        const freeIn = db.apart("read", "lock", (session) => verbs.freeIn(session, request.name))
        for (;;) {
          const taken = yield* attempt(request)
          if (Option.isSome(taken)) return taken
          const left = yield* Effect.interruptible(freeIn)
          const look = Math.min(left, lockWaitMillis, Duration.toMillis(wake.pollInterval))
          yield* Effect.interruptible(Effect.raceFirst(subscription.await, Effect.sleep(sleepMillis(look))))
        }
      }).pipe(Effect.scoped)

    /**
     * What some attempts take within a limit, by a fiber that is nobody's child: an interrupt of the caller would reach
     * its children, whether the caller itself can be interrupted (`restore`) or not. Interrupted, it holds nothing.
     */
    const within = <E>(
      attempts: Effect.Effect<Option.Option<Taken>, E>,
      limit: Effect.Effect<void>,
      restore: Restore
    ): Effect.Effect<Option.Option<Taken>, E> =>
      Effect.suspend(() => {
        let taken: Option.Option<Taken> = Option.none()
        const giveBack = Effect.suspend(() =>
          Option.isSome(taken) ? Effect.either(free(taken.value.lease)) : Effect.void
        )
        const trying = Effect.map(Effect.uninterruptible(attempts), (answer) => {
          taken = answer
        })
        const race = Effect.interruptible(Effect.raceFirst(trying, limit))
        return Effect.flatMap(Effect.forkDaemon(race), (fiber) =>
          Effect.matchCauseEffect(restore(Fiber.await(fiber)), {
            // An interrupt may have come with the answer: the caller would never see it
            onSuccess: (exit) =>
              Effect.onInterrupt(Effect.zipRight(exit, restore(Effect.sync(() => taken))), () => giveBack),
            onFailure: (interrupt) =>
              Effect.zipRight(Effect.zipRight(Fiber.interrupt(fiber), giveBack), Effect.failCause(interrupt))
          })
        )
      })

    const takeOnce = (request: Request, restore: Restore) => within(attempt(request), Effect.never, restore)

    /** A timeout of 0 means one attempt, which is not limited. */
    const acquireWithin = (request: Request, timeout: Duration.DurationInput | undefined, restore: Restore) =>
      Effect.gen(function* () {
        const millis = timeout === undefined ? undefined : yield* checkDuration("timeout", timeout)
        const limit = millis === undefined ? Effect.never : longSleep(millis)
        const taken = yield* millis === 0 ? takeOnce(request, restore) : within(untilTaken(request), limit, restore)
        if (Option.isSome(taken)) return taken.value
        const message = `lock ${request.name} was not free within ${millis} ms`
        return yield* new LockTimeout({ lock: request.name, message })
      })

    const renew: Service["renew"] = (lease) =>
      Effect.flatMap(
        db.apart("write", "lock_renew", (session) => verbs.renew(session, lease.name, lease.token, lease.ttlMillis)),
        Option.match({
          onNone: () => Effect.fail(lost(lease.name, lease.token)),
          onSome: (expiresAt) => Effect.succeed({ ...lease, expiresAt })
        })
      )

    /** Renews every third of the ttl; fails when the lock is lost, or was not renewed in time to be sure of it. */
    const keep = ({ lease, since }: Taken) =>
      Effect.gen(function* () {
        let renewedAt = since
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
        // A renewal that gets no answer is not waited for
        return yield* Effect.raceFirst(Effect.disconnect(beats), Effect.disconnect(giveUp))
      }).pipe(Effect.withTracerEnabled(false), detached)

    /**
     * Runs an effect, which is as interruptible as its caller, while the lock is renewed: until it has ended, finalizers
     * included, whoever interrupts it. Then the lock is free.
     */
    const holding = <A, E, R>(taken: Taken, self: Effect.Effect<A, E, R>): Effect.Effect<A, E | LockLost, R> =>
      Effect.gen(function* () {
        let gone: LockLost | undefined
        const running = yield* Effect.fork(self)
        const keeping = Effect.catchAll(keep(taken), (error) => {
          gone = error
          return Fiber.interruptFork(running)
        })
        const keeper = yield* Effect.forkDaemon(Effect.interruptible(keeping))
        const exit = yield* Fiber.await(running)
        yield* Fiber.inheritAll(running)
        yield* Fiber.interrupt(keeper)
        yield* Effect.either(free(taken.lease))
        return yield* gone === undefined ? exit : Effect.fail(gone)
      })

    const service: Service = {
      tryAcquire: (name, options) =>
        Effect.uninterruptibleMask((restore) =>
          Effect.flatMap(checkPublic(name, options, ["ttl"]), (request) =>
            Effect.map(takeOnce(request, restore), Option.map(leaseOf))
          )
        ),
      acquire: (name, options) =>
        Effect.uninterruptibleMask((restore) =>
          Effect.flatMap(checkPublic(name, options), (request) =>
            Effect.map(acquireWithin(request, options?.timeout, restore), leaseOf)
          )
        ),
      renew: (lease) => Effect.zipRight(checkKey("lock name", lease.name), renew(lease)),
      release: (lease) =>
        Effect.flatMap(Effect.zipRight(checkKey("lock name", lease.name), free(lease)), (released) =>
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
        Effect.uninterruptibleMask((restore) =>
          Effect.flatMap(check(name, options), (request) =>
            Effect.flatMap(acquireWithin(request, options?.timeout, restore), (taken) => holding(taken, restore(self)))
          )
        )
    }
    return service
  })

/** The Lock service of a database whose tables are there. */
export const layer = (db: Database) => Layer.scoped(Lock, make(db))
