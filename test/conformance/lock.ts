/** Named locks: one holder at a time, tokens that only grow, and nothing left behind. */
import { SqlClient } from "@effect/sql"
import { Errors, Lock, Queue, transaction } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Clock, Deferred, Effect, Exit, Fiber, FiberRef, Layer, Option, Schedule, TestClock } from "effect"
import { expect } from "vitest"
import * as Sweeper from "../../src/workers/Sweeper.js"
import { claimOne, failsWith, freshName, freshQueue, live, refuse, type Suite, virtual } from "./support.js"
import { makeGauge, withQueue } from "./workerSupport.js"

const held = (name: string) => Effect.map(Lock.list, (locks) => locks.some((lock) => lock.name === name))

const token = (name: string) => Effect.map(Lock.acquire(name, { timeout: 0 }), (lease) => lease.token)

/** Ends as soon as waiters can have noticed: at once when they are woken, at their next look when they are not. */
const noticed = (silent: boolean) => (silent ? Testing.advance("10 seconds") : Testing.settle)

/** Pairs that collide under a common 32-bit hash: CRC-32, FNV-1a, and the sum of times 31. */
const colliding = [
  ["plumless", "buckeroo"],
  ["costarring", "liquid"],
  ["Aa", "BB"]
] as const

/** Under a lock of 10 s for as long as that can be had; when it was interrupted, and what came of it. */
const heldForEver = (name: string) =>
  Effect.gen(function* () {
    const interrupted: Array<number> = []
    const running = yield* Effect.never.pipe(
      Effect.onInterrupt(() => Effect.map(Clock.currentTimeMillis, (now) => void interrupted.push(now))),
      Lock.withLock(name, { ttl: "10 seconds" }),
      Effect.either,
      Effect.fork
    )
    yield* Testing.settle
    return { interrupted, running }
  })

export const lockSuite: Suite = (engine, options) => {
  virtual(engine, options, "locks", (it) => {
    it.effect("have one holder at a time (G67)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const now = yield* Clock.currentTimeMillis
        const lease = yield* Lock.acquire(name, { ttl: "10 seconds" })
        expect(lease).toEqual({ name, token: expect.any(Number), expiresAt: now + 10_000, ttlMillis: 10_000 })
        expect(Option.isNone(yield* Lock.tryAcquire(name))).toBe(true)
        yield* failsWith(Lock.acquire(name, { timeout: 0 }), "LockTimeout")
        yield* Lock.release(lease)
        const next = yield* Lock.tryAcquire(name)
        expect(Option.getOrThrow(next).ttlMillis).toBe(30_000)
      })
    )

    it.effect("are held to their end when the clock has been set back by up to 30 s, and no longer (G38, G67)", () =>
      Effect.gen(function* () {
        const sql = yield* SqlClient.SqlClient
        const name = freshName("lock")
        const setBack = (millis: number) =>
          sql.unsafe(`UPDATE ${engine.table("locks")} SET expires_at = expires_at + ${millis} WHERE name = '${name}'`)
        yield* Lock.acquire(name, { ttl: "10 seconds" })
        yield* setBack(30_000)
        expect(Option.isNone(yield* Lock.tryAcquire(name))).toBe(true)
        yield* TestClock.adjust(39_999)
        expect(Option.isNone(yield* Lock.tryAcquire(name))).toBe(true)
        yield* TestClock.adjust(1)
        expect(Option.isSome(yield* Lock.tryAcquire(name))).toBe(true)
        yield* setBack(30_001)
        expect(Option.isSome(yield* Lock.tryAcquire(name))).toBe(true)
      })
    )

    it.effect("have tokens that only grow: after a release, an end, a force, over all names and jobs (G27, G67)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const tokens: Array<number> = []
        const first = yield* Lock.acquire(name)
        tokens.push(first.token)
        yield* Lock.release(first)
        tokens.push((yield* Lock.acquire(name, { ttl: "1 second" })).token)
        yield* TestClock.adjust("1 second")
        tokens.push(yield* token(name))
        yield* Lock.forceRelease(name)
        tokens.push(yield* token(name))
        tokens.push(yield* token(freshName("lock")))
        const queue = freshQueue()
        yield* queue.enqueue(1)
        tokens.push((yield* claimOne(queue)).lease.token)
        yield* Lock.forceRelease(name)
        tokens.push(yield* token(name))
        expect(tokens).toEqual([...new Set(tokens)].sort((a, b) => a - b))
      })
    )

    it.effect("are free when the lease of a dead holder ends, and not before (G69)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        yield* Lock.acquire(name, { ttl: "1 minute" })
        yield* TestClock.adjust(59_999)
        expect(Option.isNone(yield* Lock.tryAcquire(name))).toBe(true)
        yield* TestClock.adjust(1)
        expect(Option.isSome(yield* Lock.tryAcquire(name))).toBe(true)
      })
    )

    it.effect("leave no row behind when their holder is dead and nobody takes them again (G69)", () =>
      Effect.gen(function* () {
        const sql = yield* SqlClient.SqlClient
        const rows = Effect.map(
          sql<{ name: string }>`SELECT name FROM ${sql.literal(engine.table("locks"))} ORDER BY name`,
          (all) => all.map(({ name }) => name)
        )
        const [dead, late, alive] = ["dead", "late", "alive"].map(freshName) as [string, string, string]
        yield* Lock.acquire(dead, { ttl: "10 seconds" })
        yield* TestClock.adjust("5 seconds")
        const lease = yield* Lock.acquire(late, { ttl: "10 seconds" })
        yield* TestClock.adjust("15 seconds")
        yield* Lock.acquire(alive, { ttl: "10 seconds" })
        yield* Queue.sweepExpired
        const left = yield* rows
        expect(left).not.toContain(dead)
        expect(left).toEqual(expect.arrayContaining([late, alive]))
        // One that ended, and that nobody has taken, can still be renewed by a holder that is late
        expect((yield* Lock.renew(lease)).token).toBe(lease.token)
      })
    )

    it.effect("are held from the renewal on, for the ttl (G70)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        let lease = yield* Lock.acquire(name, { ttl: "10 seconds" })
        for (let n = 0; n < 4; n++) {
          yield* TestClock.adjust("9 seconds")
          const renewed = yield* Lock.renew(lease)
          expect(renewed).toEqual({ ...lease, expiresAt: (yield* Clock.currentTimeMillis) + 10_000 })
          lease = renewed
          expect(Option.isNone(yield* Lock.tryAcquire(name))).toBe(true)
        }
        // From now on for longer than it was taken for
        const longer = yield* Lock.renew({ ...lease, ttlMillis: 60_000 })
        expect(longer.expiresAt).toBe((yield* Clock.currentTimeMillis) + 60_000)
        expect(Option.isNone(yield* Lock.tryAcquire(name))).toBe(true)
        yield* TestClock.adjust("1 minute")
        expect(Option.isSome(yield* Lock.tryAcquire(name))).toBe(true)
      })
    )

    it.effect("under an old token, renew and release are LockLost and change nothing (G70)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const old = yield* Lock.acquire(name, { ttl: "1 second" })
        yield* TestClock.adjust("2 seconds")
        const holder = yield* Lock.acquire(name)
        const before = yield* Lock.list
        expect(yield* failsWith(Lock.renew(old), "LockLost")).toMatchObject({ lock: name, token: old.token })
        expect(yield* failsWith(Lock.release(old), "LockLost")).toMatchObject({ lock: name, retryable: false })
        expect(yield* Lock.list).toEqual(before)
        yield* Lock.renew(holder)
        yield* Lock.release(holder)
        yield* failsWith(Lock.release(holder), "LockLost")
        yield* failsWith(Lock.renew(holder), "LockLost")
        expect(yield* held(name)).toBe(false)
      })
    )

    it.effect("are listed by name while they are held, with holder and times", () =>
      Effect.gen(function* () {
        const names = [freshName("b"), freshName("a"), freshName("c")]
        const now = yield* Clock.currentTimeMillis
        const leases = yield* Effect.forEach(names, (name, index) => Lock.acquire(name, { ttl: (index + 1) * 1_000 }))
        const listed = Effect.map(Lock.list, (locks) => locks.filter(({ name }) => names.includes(name)))
        const found = yield* listed
        expect(found.map(({ name }) => name)).toEqual([...names].sort())
        expect(found.find(({ name }) => name === names[0])).toEqual({
          name: names[0],
          token: leases[0]?.token,
          owner: expect.stringMatching(/./),
          acquiredAt: new Date(now),
          expiresAt: new Date(now + 1_000)
        })
        yield* TestClock.adjust(1_000)
        expect((yield* listed).map(({ name }) => name)).toEqual([...names.slice(1)].sort())
      })
    )

    it.effect("let one of several sweepers sweep at a time, and the others leave it to that one (G54)", () =>
      Effect.gen(function* () {
        const gauge = makeGauge()
        let passes = 0
        const sweeper = Layer.build(Layer.fresh(Sweeper.layer({ schedule: Schedule.spaced("1 second") })))
        yield* withQueue(
          (real) => ({
            sweepExpired: () => {
              const pass = Effect.zipLeft(real.sweepExpired(), Effect.sleep("5 seconds"))
              return gauge.during(Effect.tap(pass, () => void passes++))
            }
          }),
          Effect.replicateEffect(sweeper, 2)
        )
        yield* Testing.advance("20 seconds")
        expect(gauge.most()).toBe(1)
        expect(passes).toBe(3)
      }).pipe(Effect.scoped)
    )

    it.effect("forceRelease frees whoever's lock it is, and says whether there was one", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        expect(yield* Lock.forceRelease(name)).toBe(false)
        const lease = yield* Lock.acquire(name)
        expect(yield* Lock.forceRelease(name)).toBe(true)
        expect(yield* held(name)).toBe(false)
        yield* failsWith(Lock.renew(lease), "LockLost")
      })
    )

    it.effect("have names told apart byte by byte, colliding hashes and SQL-looking ones too (G67)", () =>
      Effect.gen(function* () {
        const names = [
          ...colliding.flat(),
          "a",
          "A",
          "a ",
          "é",
          "e\u0301",
          "'; DROP TABLE locks; --",
          "%",
          ":now",
          "$1",
          "#x"
        ]
        const leases = yield* Effect.forEach(names, (name) => Lock.acquire(name, { timeout: 0 }))
        expect(new Set(leases.map((lease) => lease.token)).size).toBe(names.length)
        yield* Lock.release(leases[0] as (typeof leases)[number])
        expect(yield* held("plumless")).toBe(false)
        expect(yield* held("buckeroo")).toBe(true)
        yield* Effect.forEach(leases.slice(1), Lock.release)
      })
    )

    it.effect("refuse leases of names that are none (G6)", () =>
      Effect.gen(function* () {
        for (const name of ["", "a\u0000", "\ud83d", "x".repeat(513), 5 as never]) {
          const lease: Lock.LockLease = { name, token: 1, expiresAt: 0, ttlMillis: 1_000 }
          for (const call of [Lock.renew(lease), Lock.release(lease), Lock.forceRelease(name)])
            expect((yield* failsWith(Effect.asVoid(call), "InvalidArgument")).argument).toBe("lock name")
        }
      })
    )

    it.effect("refuse names and times that are none, and the reserved prefix (G6, G71)", () =>
      Effect.gen(function* () {
        const names = ["", "a\u0000", "\ud83d", "x".repeat(513), 5 as never, "__alkstore_", "__alkstore_sweep"]
        for (const name of names) {
          expect((yield* failsWith(Lock.tryAcquire(name), "InvalidArgument")).argument).toBe("lock name")
          expect((yield* failsWith(Lock.acquire(name), "InvalidArgument")).argument).toBe("lock name")
        }
        for (const ttl of [0, 99, -1, Number.NaN, Number.POSITIVE_INFINITY, 86_400_001]) {
          const name = freshName("lock")
          expect((yield* failsWith(Lock.tryAcquire(name, { ttl }), "InvalidArgument")).argument).toBe("ttl")
          yield* failsWith(Effect.void.pipe(Lock.withLock(name, { ttl })), "InvalidArgument")
          expect(yield* held(name)).toBe(false)
        }
        const timeout = Lock.acquire(freshName("lock"), { timeout: -1 })
        expect((yield* failsWith(timeout, "InvalidArgument")).argument).toBe("timeout")
      })
    )
  })

  virtual(engine, options, "waiting for a lock", (it) => {
    it.effect("ends with a release (G69)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const holder = yield* Lock.acquire(name, { ttl: "1 hour" })
        const waiter = yield* Effect.fork(Lock.acquire(name))
        yield* Testing.advance("1 minute")
        expect(yield* Fiber.poll(waiter)).toEqual(Option.none())
        yield* Lock.release(holder)
        yield* noticed(options.silent)
        const exit = Option.getOrThrow(yield* Fiber.poll(waiter))
        expect(Exit.isSuccess(exit) && exit.value.token).toBeGreaterThan(holder.token)
      })
    )

    it.effect("ends with the end of a dead holder's lease (G69)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        yield* Lock.acquire(name, { ttl: "1 minute" })
        const waiter = yield* Effect.fork(Lock.acquire(name))
        yield* Testing.advance(59_999)
        expect(yield* Fiber.poll(waiter)).toEqual(Option.none())
        yield* Testing.advance(1)
        expect(Option.isSome(yield* Fiber.poll(waiter))).toBe(true)
      })
    )

    it.effect("hands it from one to the next: each waiter gets it once (G67, G69)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const order: Array<number> = []
        const one = (n: number) => Effect.sync(() => void order.push(n)).pipe(Lock.withLock(name))
        const first = yield* Lock.acquire(name, { ttl: "1 hour" })
        const waiters = yield* Effect.fork(
          Effect.all(
            [1, 2, 3, 4, 5].map((n) => one(n)),
            { concurrency: "unbounded" }
          )
        )
        yield* Testing.settle
        yield* Lock.release(first)
        yield* Testing.advance("1 minute")
        yield* Fiber.join(waiters)
        expect([...order].sort()).toEqual([1, 2, 3, 4, 5])
        expect(yield* held(name)).toBe(false)
      })
    )

    it.effect("gets a dead holder's lock when its lease ends, not at its next look (G69)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const { expiresAt } = yield* Lock.acquire(name, { ttl: "3300 millis" })
        const waiter = yield* Effect.fork(Effect.zipRight(Lock.acquire(name), Clock.currentTimeMillis))
        yield* Testing.advance("10 seconds")
        expect(yield* Fiber.join(waiter)).toBe(expiresAt)
      })
    )

    it.effect("fails with LockTimeout when the time has passed, and not before (G70)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        yield* Lock.acquire(name, { ttl: "1 hour" })
        const waiter = yield* Effect.fork(Effect.either(Lock.acquire(name, { timeout: "10 seconds" })))
        yield* Testing.advance(9_999)
        expect(yield* Fiber.poll(waiter)).toEqual(Option.none())
        yield* Testing.advance(1)
        const result = yield* Fiber.join(waiter)
        expect(result).toMatchObject({ left: { _tag: "LockTimeout", lock: name, retryable: true } })
        // After one attempt where no time is given
        const once = yield* Effect.fork(Effect.either(Lock.acquire(name, { timeout: 0 })))
        yield* Testing.settle
        expect(Option.isSome(yield* Fiber.poll(once))).toBe(true)
        expect(yield* Fiber.join(once)).toMatchObject({ left: { _tag: "LockTimeout", lock: name } })
        yield* Lock.forceRelease(name)
        yield* Testing.advance("1 minute")
        expect(yield* held(name)).toBe(false)
      })
    )

    it.effect("that is interrupted leaves nothing: the lock is nobody's afterwards (G71)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const holder = yield* Lock.acquire(name, { ttl: "1 hour" })
        const waiters = yield* Effect.forEach([1, 2, 3], () => Effect.fork(Lock.acquire(name)))
        yield* Testing.settle
        yield* Fiber.interruptAll(waiters)
        yield* Lock.release(holder)
        yield* Testing.advance("1 minute")
        expect(yield* held(name)).toBe(false)
      })
    )
  })

  virtual(engine, options, "locks, where the caller cannot be interrupted", (it) => {
    it.effect("withLock ends with its effect, in a finalizer too, and frees the lock (G68)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const locked = Effect.as(Lock.list, "done").pipe(Lock.withLock(name))
        expect(yield* Effect.uninterruptible(locked)).toBe("done")
        const ends: Array<string> = []
        const last = Effect.map(Effect.exit(locked), (exit) => ends.push(exit._tag))
        yield* Effect.scoped(Effect.addFinalizer(() => last))
        // The finalizers of a fiber that is being interrupted are run in it
        const fiber = yield* Effect.fork(Effect.ensuring(Effect.never, last))
        yield* Testing.settle
        yield* Fiber.interrupt(fiber)
        expect(ends).toEqual(["Success", "Success"])
        expect(yield* held(name)).toBe(false)
      })
    )

    it.effect(
      "an interrupt stops neither a wait for the lock, nor its renewal, before the work is done (G67, G68)",
      () =>
        Effect.gen(function* () {
          const name = freshName("lock")
          const holder = yield* Lock.acquire(name, { ttl: "1 hour" })
          const log: Array<string> = []
          const cleanup = Effect.zipRight(
            Effect.sleep("5 minutes"),
            Effect.sync(() => log.push("cleaned"))
          ).pipe(Lock.withLock(name, { ttl: "30 seconds" }), Effect.exit)
          const running = yield* Effect.fork(Effect.ensuring(Effect.void, cleanup))
          yield* Testing.settle
          const interrupting = yield* Effect.fork(Fiber.interrupt(running))
          yield* Testing.advance("1 minute")
          expect(log).toEqual([])
          yield* Lock.release(holder)
          yield* Testing.advance("15 seconds")
          const next = yield* Effect.fork(Effect.map(Lock.acquire(name), () => void log.push("next")))
          yield* Testing.advance("4 minutes")
          expect(log).toEqual([])
          yield* Testing.advance("2 minutes")
          yield* Fiber.join(next)
          yield* Fiber.join(interrupting)
          expect(log).toEqual(["cleaned", "next"])
        })
    )

    it.effect("the lock is held until the finalizers of what was interrupted have run (G67)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const log: Array<string> = []
        const slow = Effect.zipRight(
          Effect.sleep("2 minutes"),
          Effect.sync(() => log.push("cleaned"))
        )
        const running = yield* Effect.never.pipe(
          Effect.onInterrupt(() => slow),
          Lock.withLock(name, { ttl: "30 seconds" }),
          Effect.fork
        )
        yield* Testing.settle
        const interrupting = yield* Effect.fork(Fiber.interrupt(running))
        const next = yield* Effect.fork(Effect.map(Lock.acquire(name), () => void log.push("next")))
        yield* Testing.advance("3 minutes")
        yield* Fiber.join(next)
        yield* Fiber.join(interrupting)
        expect(log).toEqual(["cleaned", "next"])
      })
    )

    it.effect("an acquire gives up after its timeout, and has taken nothing (G70, G71)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const holder = yield* Lock.acquire(name, { ttl: "1 hour" })
        const waiter = yield* Lock.acquire(name, { timeout: "1 second" }).pipe(
          Effect.flip,
          Effect.uninterruptible,
          Effect.fork
        )
        yield* Testing.advance("1 second")
        expect(yield* Fiber.join(waiter)).toMatchObject({ _tag: "LockTimeout" })
        yield* Lock.release(holder)
        yield* Testing.advance("1 minute")
        expect(yield* held(name)).toBe(false)
        // In time, it is taken
        const inTime = yield* Effect.fork(Effect.uninterruptible(Lock.acquire(name, { timeout: "1 second" })))
        yield* Testing.settle
        expect((yield* Fiber.join(inTime)).name).toBe(name)
      })
    )
  })

  virtual(engine, options, "withLock", (it) => {
    it.effect("holds the lock for as long as its effect runs, renewing it (G68)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const running = yield* Effect.fork(
          Effect.sleep("5 minutes").pipe(Effect.as("done"), Lock.withLock(name, { ttl: "30 seconds" }))
        )
        for (let n = 0; n < 29; n++) {
          yield* Testing.advance("10 seconds")
          expect(Option.isNone(yield* Lock.tryAcquire(name))).toBe(true)
        }
        yield* Testing.advance("10 seconds")
        expect(yield* Fiber.join(running)).toBe("done")
        expect(yield* held(name)).toBe(false)
      })
    )

    it.effect("frees it whatever becomes of the effect", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const locked = Lock.withLock(name)
        expect(yield* locked(Effect.succeed(1))).toBe(1)
        expect(yield* held(name)).toBe(false)
        const ref = FiberRef.unsafeMake(0)
        yield* locked(FiberRef.set(ref, 1))
        expect(yield* FiberRef.get(ref)).toBe(1)
        expect(yield* Effect.flip(locked(Effect.fail("mine")))).toBe("mine")
        expect(yield* held(name)).toBe(false)
        yield* Effect.exit(locked(Effect.die("defect")))
        expect(yield* held(name)).toBe(false)
        const running = yield* Effect.fork(locked(Effect.never))
        yield* Testing.settle
        expect(yield* held(name)).toBe(true)
        yield* Fiber.interrupt(running)
        expect(yield* held(name)).toBe(false)
      })
    )

    it.effect("interrupts the effect before the end of a lock that cannot be renewed, with LockLost (G68)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const { interrupted, running } = yield* heldForEver(name)
        const start = yield* Clock.currentTimeMillis
        yield* refuse(engine.engine, "refuse_renewals", engine.table("locks"), `NEW.name = '${name}'`, "UPDATE")
        yield* Testing.advance("1 minute")
        expect(interrupted).toEqual([start + 9_000])
        expect(yield* Fiber.join(running)).toMatchObject({ left: { _tag: "LockLost", lock: name } })
      })
    )

    // PostgreSQL renews beside a transaction
    if (!engine.besideTransactions)
      it.effect("counts its time from when a renewal began, however late its answer comes (G67, G68)", () =>
        Effect.gen(function* () {
          const name = freshName("lock")
          const { interrupted, running } = yield* heldForEver(name)
          const start = yield* Clock.currentTimeMillis
          const second = `NEW.name = '${name}' AND NEW.expires_at > ${start + 16_500}`
          yield* refuse(engine.engine, "refuse_second", engine.table("locks"), second, "UPDATE")
          // The first renewal, after a third of the time, waits for this
          yield* transaction(Testing.advance("6 seconds"))
          yield* Testing.advance("1 minute")
          expect(interrupted).toEqual([start + 3_333 + 9_000])
          expect(yield* Fiber.join(running)).toMatchObject({ left: { _tag: "LockLost", lock: name } })
        })
      )

    it.effect("interrupts the effect when the lock is lost, and fails with LockLost (G68)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const cleaned = yield* Deferred.make<void>()
        const running = yield* Effect.never.pipe(
          Effect.onInterrupt(() => Deferred.succeed(cleaned, undefined)),
          Lock.withLock(name, { ttl: "30 seconds" }),
          Effect.either,
          Effect.fork
        )
        yield* Testing.settle
        yield* Lock.forceRelease(name)
        const thief = yield* Lock.acquire(name, { ttl: "1 hour" })
        yield* Testing.advance("30 seconds")
        expect(yield* Fiber.join(running)).toMatchObject({ left: { _tag: "LockLost", lock: name } })
        expect(yield* Deferred.isDone(cleaned)).toBe(true)
        // The loser's release must not free the thief's lock
        yield* Lock.renew(thief)
      })
    )

    it.effect("waits for its turn, and gives up after the timeout without running (G70)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        let ran = false
        yield* Lock.acquire(name, { ttl: "1 hour" })
        const waiter = yield* Effect.sync(() => {
          ran = true
        }).pipe(Lock.withLock(name, { timeout: "5 seconds" }), Effect.flip, Effect.fork)
        yield* Testing.advance("5 seconds")
        expect(yield* Fiber.join(waiter)).toBeInstanceOf(Errors.LockTimeout)
        expect(ran).toBe(false)
      })
    )
  })

  live(engine, options, "locks, many at once", (it) => {
    it.effect("let one in at a time, with growing tokens (G67)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        let inside = 0
        let most = 0
        const tokens: Array<number> = []
        const enter = Effect.gen(function* () {
          inside++
          most = Math.max(most, inside)
          tokens.push((yield* Lock.list).find((lock) => lock.name === name)?.token ?? 0)
          yield* Effect.sleep(2)
          inside--
        }).pipe(Lock.withLock(name))
        yield* Effect.all(
          Array.from({ length: 8 }, () => enter),
          { concurrency: "unbounded" }
        )
        expect(most).toBe(1)
        expect(tokens).toHaveLength(8)
        expect(tokens).toEqual([...new Set(tokens)].sort((a, b) => a - b))
      })
    )

    it.effect("waiters that are interrupted at any moment leave nothing (G71)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        for (let n = 0; n < 15; n++) {
          const holder = yield* Lock.acquire(name)
          const waiter = yield* Effect.fork(Lock.acquire(name))
          yield* Effect.sleep(n)
          yield* Effect.all([Lock.release(holder), Fiber.interrupt(waiter)], { concurrency: "unbounded" })
          const exit = yield* Fiber.await(waiter)
          // Interrupted too late, it is the holder: whoever has the answer has the lock, and nobody else
          if (Exit.isSuccess(exit)) yield* Lock.release(exit.value)
          expect(yield* held(name)).toBe(false)
        }
      })
    )

    it.effect(
      "an acquire that is interrupted while its statement runs gives the lock back, one that does not wait too (G71)",
      () =>
        Effect.gen(function* () {
          const ways = {
            waiting: (name: string) => Effect.asSome(Lock.acquire(name)),
            "not waiting": (name: string) => Effect.asSome(Lock.acquire(name, { timeout: 0 })),
            trying: (name: string) => Lock.tryAcquire(name),
            "holding it": (name: string) => Lock.withLock(name, { timeout: 0 })(Effect.never)
          }
          for (const [way, take] of Object.entries(ways)) {
            for (let n = 0; n < 20; n++) {
              const name = freshName("lock")
              const taking = yield* Effect.fork(take(name))
              for (let turn = 0; turn < n; turn++) yield* Effect.yieldNow()
              const exit = yield* Fiber.interrupt(taking)
              if (Exit.isSuccess(exit)) yield* Lock.release(Option.getOrThrow(exit.value))
              expect(yield* held(name), `${way}, interrupted after ${n} turns`).toBe(false)
            }
          }
        })
    )
  })
}
