/**
 * The shared transaction of SQLite over a database that is a list, whose write lock others take when a script says so:
 * each call ends once, with what became of its own write.
 */
import { Cause, Clock, Deferred, Duration, Effect, Exit, Fiber, FiberId } from "effect"
import fc from "fast-check"
import { describe, expect, test } from "vitest"
import type { Connection } from "../../src/layers/Database/Database.js"
import { makeWrites } from "../../src/layers/Database/writes.js"
import type { Session } from "../../src/layers/engine.js"
import { StoreError, type StoreErrorReason } from "../../src/services/Errors.js"
import { seed } from "../support/form.js"

/** `slow` gives way to other fibers while its transaction is open. */
type Kind = "ok" | "slow" | "fails" | "dies"

type Step =
  | { readonly _tag: "Write"; readonly kind: Kind; readonly together: boolean }
  /** Of one of the writes so far. */
  | { readonly _tag: "Interrupt"; readonly which: number }
  /** So many fibers' turns. */
  | { readonly _tag: "Yield"; readonly turns: number }
  | { readonly _tag: "Pass"; readonly millis: number }
  /** The application has the one connection; another process has the write lock. */
  | { readonly _tag: "Connection" | "Lock"; readonly held: boolean }

const limitMillis = 500

/** A clock that a script moves, without real time; `Schedule`s sleep by it. */
const makeClock = (done: () => number) => {
  const sleeps: Array<{ readonly at: number; readonly wake: () => void }> = []
  let now = 0
  const clock: Clock.Clock = {
    [Clock.ClockTypeId]: Clock.ClockTypeId,
    unsafeCurrentTimeMillis: () => now,
    unsafeCurrentTimeNanos: () => BigInt(Math.round(now * 1e6)),
    currentTimeMillis: Effect.sync(() => now),
    currentTimeNanos: Effect.sync(() => BigInt(Math.round(now * 1e6))),
    sleep: (duration) =>
      Effect.async((resume) => {
        const sleep = { at: now + Duration.toMillis(duration), wake: () => resume(Effect.void) }
        sleeps.push(sleep)
        return Effect.sync(() => sleeps.splice(sleeps.indexOf(sleep), 1))
      })
  }
  const pass = (millis: number) =>
    Effect.gen(function* () {
      const end = now + millis
      for (;;) {
        // As long as it brings statements: calls that are done one by one take many turns
        for (let before = -1; before !== done(); ) {
          before = done()
          yield* Effect.repeatN(Effect.yieldNow(), 20)
        }
        const next = sleeps.filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0]
        if (next === undefined) break
        now = next.at
        sleeps.splice(sleeps.indexOf(next), 1)
        next.wake()
      }
      now = end
    })
  return { clock, pass, now: () => now }
}

const error = (reason: StoreErrorReason, operation: string) =>
  new StoreError({ reason, operation, message: reason, cause: undefined })

/** What statements meet, one after the other, beside what a script holds for longer. */
interface Meets {
  readonly begins: ReadonlyArray<boolean>
  readonly commits: ReadonlyArray<boolean>
}

/**
 * Plays a script and answers whatever was wrong with it. `meets` says of each BEGIN whether another process writes just then, and of
 * each COMMIT whether one reads, for which it waits without WAL.
 */
const play = (steps: ReadonlyArray<Step>, meets: Meets) => {
  let done = 0
  const { clock, now, pass } = makeClock(() => done)
  return Effect.gen(function* () {
    const wrong: Array<string> = []
    const committed: Array<number> = []
    let pending: Array<number> | undefined
    let transactions = 0
    /** In which transaction a session was made: its present is of then. */
    const made = new WeakMap<Session, number>()
    let locked = false
    const begins = [...meets.begins]
    const commits = [...meets.commits]

    const statements: Record<string, () => Effect.Effect<void, StoreError>> = {
      "BEGIN IMMEDIATE": () => {
        if (pending !== undefined) return Effect.fail(error("other", "begin within a transaction"))
        if (begins.shift() === true || locked) return Effect.fail(error("busy", "begin"))
        pending = []
        transactions++
        return Effect.void
      },
      COMMIT: () => {
        if (pending === undefined) return Effect.fail(error("other", "commit of nothing"))
        if (commits.shift() === true) return Effect.fail(error("busy", "commit"))
        committed.push(...pending)
        pending = undefined
        return Effect.void
      },
      ROLLBACK: () => {
        if (pending === undefined) return Effect.fail(error("other", "rollback of nothing"))
        pending = undefined
        return Effect.void
      }
    }

    const one = yield* Effect.makeSemaphore(1)
    const connection = {} as Connection
    const write = makeWrites({
      clock: {
        source: "process",
        virtual: true,
        now: Effect.sync(now),
        monotonic: Effect.sync(now),
        monotonicOf: now,
        stall: () => Effect.succeed({ millis: 0, mark: 0 }),
        breath: (call) => call,
        lull: () => Effect.void
      },
      limitMillis,
      use: (use) =>
        Effect.uninterruptibleMask((restore) =>
          Effect.zipRight(restore(one.take(1)), Effect.ensuring(use(connection), one.release(1)))
        ),
      session: () =>
        Effect.sync(() => {
          const session = {} as Session
          made.set(session, transactions)
          return session
        }),
      run: (_, text) =>
        Effect.suspend(() => {
          done++
          return statements[text]?.() ?? Effect.die(text)
        })
    })

    const verb = (input: number, kind: Kind) => (session: Session) => {
      if (made.get(session) !== transactions) wrong.push(`${input} has the present of an earlier transaction`)
      const insert = Effect.suspend(() => {
        done++
        if (pending !== undefined) pending.push(input)
        else if (locked) return Effect.fail(error("busy", "insert"))
        else committed.push(input)
        return Effect.succeed(`value ${input}`)
      })
      if (kind === "slow") return Effect.zipLeft(insert, Effect.repeatN(Effect.yieldNow(), 3))
      if (kind === "ok") return insert
      // After it has written
      const fails =
        kind === "fails" ? Effect.fail(error("constraint", `error ${input}`)) : Effect.die(`defect ${input}`)
      return Effect.suspend(() => {
        pending?.push(input)
        return fails
      })
    }

    /** The same for all of these that share a transaction. */
    const combined = (input: number, kind: Kind) => ({
      key: "these",
      input: verb(input, kind),
      run: (session: Session, verbs: ReadonlyArray<unknown>) =>
        Effect.forEach(verbs as ReadonlyArray<ReturnType<typeof verb>>, (one) => one(session))
    })

    const calls: Array<{
      readonly fiber: Fiber.RuntimeFiber<string, StoreError>
      readonly kind: Kind
      readonly began: number
      ended: number
      interrupted: boolean
    }> = []
    const start = (kind: Kind, together: boolean) =>
      Effect.gen(function* () {
        const input = calls.length
        const began = now()
        // One that waits for ever must not keep the test waiting
        const fiber = yield* Effect.forkDaemon(
          write("write", verb(input, kind), together ? combined(input, kind) : undefined)
        )
        const call = { fiber, kind, began, ended: -1, interrupted: false }
        calls.push(call)
        fiber.addObserver(() => {
          call.ended = now()
        })
      })

    let app: Deferred.Deferred<void> | undefined
    for (const step of steps) {
      if (step._tag === "Write") yield* start(step.kind, step.together)
      else if (step._tag === "Yield") yield* Effect.repeatN(Effect.yieldNow(), step.turns)
      else if (step._tag === "Pass") yield* pass(step.millis)
      else if (step._tag === "Lock") {
        // Another process cannot take it while a transaction of ours is open
        if (pending === undefined) locked = step.held
      } else if (step._tag === "Connection") {
        if (app !== undefined) yield* Deferred.succeed(app, undefined)
        app = step.held ? yield* Deferred.make<void>() : undefined
        if (app !== undefined) yield* Effect.forkDaemon(one.withPermits(1)(Deferred.await(app)))
      } else if (step._tag === "Interrupt" && calls.length > 0) {
        const call = calls[step.which % calls.length]
        if (call === undefined) continue
        call.interrupted = true
        yield* Fiber.interruptAsFork(call.fiber, FiberId.none)
      }
    }
    if (app !== undefined) yield* Deferred.succeed(app, undefined)
    // Whoever waits for the lock meets its limit
    yield* pass(2 * limitMillis)
    locked = false
    begins.length = commits.length = 0
    yield* start("ok", false)
    yield* pass(100)

    for (const [input, { began, ended, fiber, interrupted, kind }] of calls.entries()) {
      const times = committed.filter((each) => each === input).length
      const exit = fiber.unsafePoll()
      if (times > 1) wrong.push(`${input} was written ${times} times`)
      if (exit === null) {
        wrong.push(`${input} waits for ever`)
        continue
      }
      if (Exit.isSuccess(exit)) {
        if (exit.value !== `value ${input}`) wrong.push(`${input} got ${exit.value}`)
        if (times !== 1) wrong.push(`${input} was answered and is not there`)
        continue
      }
      if (Cause.isInterrupted(exit.cause)) {
        if (!interrupted) wrong.push(`${input} was interrupted, and nobody had asked for it`)
        continue
      }
      if (times !== 0) wrong.push(`${input} failed and is there: ${exit}`)
      const failure = Cause.squash(exit.cause)
      const busy = failure instanceof StoreError && failure.reason === "busy"
      // The time it waited for the lock began after the call did
      if (busy && (ended - began < limitMillis || ended - began > 3 * limitMillis))
        wrong.push(`${input} was given up after ${ended - began} ms`)
      const own = kind === "fails" ? `error ${input}` : `defect ${input}`
      const says = failure instanceof StoreError ? failure.operation : String(failure)
      if (!busy && (kind === "ok" || kind === "slow" || says !== own)) wrong.push(`${input} failed with ${says}`)
    }
    if (calls.at(-1)?.fiber.unsafePoll()?._tag !== "Success") wrong.push("the last one was not done")
    if (pending !== undefined) wrong.push("a transaction was left open")
    if (committed.some((input, index) => index > 0 && input < (committed[index - 1] as number)))
      wrong.push(`not in the order of arrival: ${committed}`)
    return wrong
  }).pipe(Effect.withClock(clock), Effect.runPromise)
}

const anyWrite: fc.Arbitrary<Step> = fc.record({
  _tag: fc.constant("Write" as const),
  kind: fc.constantFrom<Kind>("ok", "ok", "slow", "fails", "dies"),
  together: fc.boolean()
})

const rests: ReadonlyArray<fc.Arbitrary<Step>> = [
  fc.record({ _tag: fc.constant("Yield" as const), turns: fc.nat(6) }),
  fc.record({ _tag: fc.constant("Pass" as const), millis: fc.constantFrom(5, 40, 300) })
]

const connection: fc.Arbitrary<Step> = fc.record({ _tag: fc.constant("Connection" as const), held: fc.boolean() })
const lock: fc.Arbitrary<Step> = fc.record({ _tag: fc.constant("Lock" as const), held: fc.boolean() })
const interrupt: fc.Arbitrary<Step> = fc.record({ _tag: fc.constant("Interrupt" as const), which: fc.nat(20) })

const script = (...others: ReadonlyArray<fc.Arbitrary<Step>>) =>
  fc.array(fc.oneof({ weight: 3, arbitrary: anyWrite }, ...rests, connection, ...others), {
    minLength: 1,
    maxLength: 24
  })

const some = fc.array(fc.boolean(), { maxLength: 8 })
const none = fc.constant([])

const check = (steps: fc.Arbitrary<ReadonlyArray<Step>>, meets: { [Key in keyof Meets]: fc.Arbitrary<Meets[Key]> }) =>
  fc.assert(
    fc.asyncProperty(steps, fc.record(meets), async (steps, meets) => {
      expect((await play(steps, meets)).join("\n")).toBe("")
    }),
    { seed, numRuns: 1000 }
  )

describe("writes that share a transaction", () => {
  test("end once each with what became of their own, whatever is interrupted, and whoever has the lock or the connection (G190, G191, G192)", () =>
    check(script(interrupt, lock), { begins: none, commits: none }))

  test("and whenever another process comes in between (G190, G192)", () =>
    check(script(lock, interrupt), { begins: some, commits: some }))
})
