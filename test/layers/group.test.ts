/** Calls that share a run: in every mixture of calls, interrupts and runs that fail, each ends once and nobody waits for ever. */
import { Cause, Deferred, Effect, Exit, Fiber, FiberId, TestContext } from "effect"
import fc from "fast-check"
import { describe, expect, test } from "vitest"
import { makeGroup, type Waiting } from "../../src/layers/Database/group.js"
import { seed } from "../support/form.js"

/** What a run does with those that wait. */
interface Run {
  /** Turns that it waits before it takes any; it can be interrupted then. */
  readonly before: number
  /** How many it takes at most. */
  readonly most: number
  /** Turns between taking and ending, and then before it goes on with what it has given back. */
  readonly during: number
  readonly ending: Ending
}

/**
 * - `each`: a value for each; `own`: an error for every third, a value for the others
 * - `fails`, `dies`: the run does, of what it has taken; `unready`, `broken`: the same before it has taken any
 * - `half`: one call is ended, and the run fails; `later`: all is given back and taken by the same run again
 */
type Ending = "each" | "own" | "fails" | "dies" | "unready" | "broken" | "half" | "later"

type Step =
  | { readonly _tag: "Call" }
  /** Of one of the calls so far. */
  | { readonly _tag: "Interrupt"; readonly which: number }
  | { readonly _tag: "Rest"; readonly turns: number }

type Group = Waiting<number, string, string>

const plain: Run = { before: 0, most: 100, during: 0, ending: "each" }

/** More turns than any script takes. */
const patience = 400

const turns = (count: number) => Effect.repeatN(Effect.yieldNow(), count)

/** Plays a script and answers whatever was wrong with it. */
const play = (runs: ReadonlyArray<Run>, steps: ReadonlyArray<Step>) =>
  Effect.gen(function* () {
    const wrong: Array<string> = []
    const arrived: Array<number> = []
    /** Taken and neither ended nor given back. */
    const held = new Set<number>()
    const ends = new Map<number, Exit.Exit<string, string>>()
    /** Those of which a run that had taken nothing was led. */
    const refused = new Map<number, Exit.Exit<string, string>>()
    /** Those that a run has failed with, and who led it. */
    const failed = new Map<number, { readonly leader: number; readonly exit: Exit.Exit<string, string> }>()
    const over = new Set<number>()
    const interrupted = new Set<number>()
    let active = 0
    let next = 0

    const take = (waiting: Group, most: number) => {
      let left = most
      const calls = waiting.take(() => left-- > 0)
      for (const { input } of calls) {
        if (over.has(input)) wrong.push(`${input} was taken after its end`)
        const leader = failed.get(input)?.leader
        if (ends.has(input) || (leader !== undefined && !interrupted.has(leader))) wrong.push(`${input} was done again`)
        held.add(input)
      }
      return calls
    }

    const run = (waiting: Group, leader: number): Effect.Effect<void, string> =>
      Effect.suspend(() => {
        const { before, during, ending, most } = runs[next++] ?? plain
        const without = (exit: Exit.Exit<never, string>) => {
          refused.set(leader, exit)
          return exit
        }
        const work = Effect.suspend((): Effect.Effect<void, string> => {
          if (ending === "unready") return without(Exit.fail("unready"))
          if (ending === "broken") return without(Exit.die("broken"))
          const calls = take(waiting, most)
          const end = (index: number, exit: Exit.Exit<string, string>) => {
            const call = calls[index]
            if (call === undefined || ends.has(call.input)) return
            held.delete(call.input)
            ends.set(call.input, exit)
            call.end(exit)
          }
          const rest = (exit: Exit.Exit<never, string>) => {
            for (const { input } of calls) {
              held.delete(input)
              if (!ends.has(input)) failed.set(input, { leader, exit })
            }
            return exit
          }
          return Effect.zipRight(
            turns(during),
            Effect.suspend((): Effect.Effect<void, string> => {
              if (ending === "fails") return rest(Exit.fail("failed"))
              if (ending === "dies") return rest(Exit.die("died"))
              if (ending === "later") {
                waiting.giveBack()
                for (const { input } of calls) held.delete(input)
                return Effect.void
              }
              if (ending === "half") {
                end(0, Exit.succeed(`value ${calls[0]?.input}`))
                return rest(Exit.fail("failed"))
              }
              calls.forEach(({ input }, index) => {
                end(
                  index,
                  ending === "own" && input % 3 === 0 ? Exit.fail(`error ${input}`) : Exit.succeed(`value ${input}`)
                )
              })
              return Effect.void
            })
          )
        })
        const once = Effect.zipRight(turns(before), Effect.uninterruptible(work))
        return ending === "later" ? Effect.zipRight(once, Effect.zipRight(turns(during), run(waiting, leader))) : once
      })

    const call = makeGroup<number, string, string>((waiting, leader) =>
      Effect.acquireUseRelease(
        Effect.sync(() => {
          if (active++ > 0) wrong.push("two runs at once")
        }),
        () => run(waiting, leader),
        () => Effect.sync(() => active--)
      )
    )

    const fibers: Array<Fiber.RuntimeFiber<string, string>> = []
    const start = Effect.gen(function* () {
      const input = fibers.length
      // One that waits for ever must not keep the test waiting
      const fiber = yield* Effect.forkDaemon(
        Effect.suspend(() => {
          arrived.push(input)
          return call(input)
        })
      )
      fiber.addObserver(() => {
        if (held.has(input)) wrong.push(`${input} ended while its run was under way`)
        over.add(input)
      })
      fibers.push(fiber)
      return fiber
    })

    for (const step of steps) {
      if (step._tag === "Call") yield* start
      else if (step._tag === "Rest") yield* turns(step.turns)
      else if (fibers.length > 0) {
        const which = step.which % fibers.length
        interrupted.add(which)
        yield* Fiber.interruptAsFork(fibers[which] as Fiber.RuntimeFiber<string, string>, FiberId.none)
      }
    }

    const waitFor = Effect.gen(function* () {
      for (let turn = 0; turn < patience && over.size < fibers.length; turn++) yield* Effect.yieldNow()
    })
    yield* waitFor
    // Whoever comes when all is over finds nobody in its way
    next = runs.length
    yield* start
    yield* waitFor

    for (const [input, fiber] of fibers.entries()) {
      const exit = fiber.unsafePoll()
      if (exit === null) {
        wrong.push(`${input} waits for ever`)
        continue
      }
      const cut = Exit.isFailure(exit) && Cause.isInterrupted(exit.cause)
      const expected = [ends.get(input), failed.get(input)?.exit, refused.get(input)].filter((end) => end !== undefined)
      if (cut && !interrupted.has(input)) wrong.push(`${input} was interrupted, and nobody had asked for it`)
      if (!cut && !expected.some((end) => String(end) === String(exit)))
        wrong.push(`${input} ended with ${exit}, expected ${expected}`)
    }
    if (ends.get(fibers.length - 1)?._tag !== "Success") wrong.push("the last one was not done")

    const done = [...ends].flatMap(([input, exit]) => (Exit.isSuccess(exit) ? [arrived.indexOf(input)] : []))
    if (done.some((place, index) => index > 0 && place < (done[index - 1] as number)))
      wrong.push(`not in the order of arrival: ${done}`)
    return wrong
  }).pipe(Effect.runPromise)

const small = fc.integer({ min: 0, max: 4 })

const anyRun = (endings: ReadonlyArray<Ending>): fc.Arbitrary<Run> =>
  fc.record({
    before: small,
    most: fc.constantFrom(1, 2, 100),
    during: small,
    ending: fc.constantFrom(...endings)
  })

const anyStep: fc.Arbitrary<Step> = fc.oneof(
  { weight: 4, arbitrary: fc.constant<Step>({ _tag: "Call" }) },
  { weight: 2, arbitrary: fc.record({ _tag: fc.constant("Interrupt" as const), which: fc.nat(20) }) },
  { weight: 3, arbitrary: fc.record({ _tag: fc.constant("Rest" as const), turns: small }) }
)

const scripts = (endings: ReadonlyArray<Ending>, steps: ReadonlyArray<Step["_tag"]>) =>
  fc.tuple(
    fc.array(anyRun(endings), { maxLength: 8 }),
    fc.array(
      anyStep.filter(({ _tag }) => steps.includes(_tag)),
      { minLength: 1, maxLength: 24 }
    )
  )

const check = (script: fc.Arbitrary<[ReadonlyArray<Run>, ReadonlyArray<Step>]>) =>
  fc.assert(
    fc.asyncProperty(script, async ([runs, steps]) => {
      expect((await play(runs, steps)).join("\n")).toBe("")
    }),
    { seed, numRuns: 2_000 }
  )

describe("calls that share a run", () => {
  test("end once each, in order, and keep the lead, whatever is interrupted (G190, G191, G192)", () =>
    check(scripts(["each", "own", "unready", "broken"], ["Call", "Interrupt", "Rest"])))

  test("and whatever fails (G190, G192)", () =>
    check(
      scripts(["each", "own", "fails", "dies", "unready", "broken", "half", "later"], ["Call", "Interrupt", "Rest"])
    ))

  test("in every order of few steps, with runs that wait before they take and before they end (G191)", async () => {
    const steps: ReadonlyArray<Step> = [
      { _tag: "Call" },
      { _tag: "Interrupt", which: 0 },
      { _tag: "Interrupt", which: 1 },
      { _tag: "Rest", turns: 0 },
      { _tag: "Rest", turns: 2 }
    ]
    const orders = (length: number): ReadonlyArray<ReadonlyArray<Step>> =>
      length === 0 ? [[]] : orders(length - 1).flatMap((rest) => steps.map((step) => [...rest, step]))
    const run: Run = { before: 1, most: 2, during: 1, ending: "own" }
    for (const order of orders(4)) {
      const script: ReadonlyArray<Step> = [{ _tag: "Call" }, { _tag: "Call" }, ...order]
      const wrong = await play([run, run, run], script)
      expect([...wrong, JSON.stringify(script)]).toEqual([JSON.stringify(script)])
    }
  })

  test("all that are ready come into one, all that come meanwhile into the next; nobody waits for a timer", () =>
    Effect.gen(function* () {
      const sizes: Array<number> = []
      const gate = yield* Deferred.make<void>()
      const call = makeGroup<number, number, never>((waiting) =>
        Effect.uninterruptible(
          Effect.suspend(() => {
            const calls = waiting.take()
            sizes.push(calls.length)
            return Effect.map(sizes.length === 1 ? Deferred.await(gate) : Effect.void, () => {
              for (const { end, input } of calls) end(Exit.succeed(input))
            })
          })
        )
      )
      const several = (from: number) =>
        Effect.forEach([0, 1, 2, 3, 4], (n) => call(from + n), { concurrency: "unbounded" })
      const first = yield* Effect.fork(several(0))
      while (sizes.length === 0) yield* Effect.yieldNow()
      const second = yield* Effect.fork(several(5))
      yield* turns(20)
      expect(sizes).toEqual([5])
      yield* Deferred.succeed(gate, undefined)
      expect(yield* Fiber.join(first)).toEqual([0, 1, 2, 3, 4])
      expect(yield* Fiber.join(second)).toEqual([5, 6, 7, 8, 9])
      expect(sizes).toEqual([5, 5])
      // A clock whose sleeps never end is no hindrance
      yield* Effect.forEach([10, 11, 12], call)
      expect(sizes).toEqual([5, 5, 1, 1, 1])
    }).pipe(Effect.provide(TestContext.TestContext), Effect.runPromise))
})
