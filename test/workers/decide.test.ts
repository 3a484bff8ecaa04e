import { Job } from "alkstore"
import { Cause, Effect, Exit, FiberId, Schedule } from "effect"
import fc from "fast-check"
import { describe, expect, test } from "vitest"
import { errorsOf } from "../../src/services/History.js"
import type { JobFailure } from "../../src/services/Job.js"
import { decide, type Ending } from "../../src/workers/decide.js"
import { seed } from "../support/form.js"
import { claimedRow } from "../support/rows.js"

const decided = (ending: Partial<Ending>) =>
  Effect.runSync(
    decide({
      row: claimedRow({ attempt: 2 }),
      exit: Exit.void,
      stop: undefined,
      now: 1_000,
      retry: Schedule.spaced("9 seconds"),
      timeoutMillis: 60_000,
      ...ending
    })
  )

const failing = (error: unknown) => Exit.fail(error)
const interrupted = Exit.interrupt(FiberId.none)

describe("what becomes of a job", () => {
  test("success is an ack, also when the interruption came too late", () => {
    for (const stop of [undefined, "timeout", "shutdown", "unreachable", "cancelled"] as const) {
      expect(decided({ stop, exit: Exit.succeed(1) })).toMatchObject({ settlement: { _tag: "Ack", id: 7, token: 70 } })
    }
  })

  test("a failure or a defect is what the Schedule says (G45, G48)", () => {
    expect(decided({ exit: failing("no") })).toMatchObject({
      settlement: { _tag: "Return", attempt: 2, delayMillis: 9_000 },
      error: { kind: "failure", message: "no", attempt: 2 }
    })
    expect(decided({ exit: Exit.die(new Error("no")) })).toMatchObject({
      settlement: { _tag: "Return", attempt: 2 },
      error: { kind: "defect", message: "no", tag: "Error" }
    })
    expect(decided({ exit: interrupted })).toMatchObject({
      settlement: { _tag: "Return", attempt: 2 },
      error: { kind: "defect", message: "the handler was interrupted by its own program" }
    })
    expect(decided({ exit: failing("no"), retry: Schedule.stop })).toMatchObject({
      settlement: { _tag: "Bury", reason: "exhausted" }
    })
  })

  test("a word of the error channel is heard wherever in the cause it is (G47)", () => {
    const beside = (error: unknown) => Exit.failCause(Cause.parallel(Cause.die("other"), Cause.fail(error)))
    expect(decided({ exit: beside(new Job.Fatal({ error: "no" })) })).toMatchObject({
      settlement: { _tag: "Bury", reason: "failed" }
    })
    expect(decided({ exit: beside(new Job.Snooze({ delay: "5 seconds" })) })).toMatchObject({
      settlement: { _tag: "Return", attempt: 1, delayMillis: 5_000 },
      error: undefined
    })
    expect(decided({ exit: beside(new Job.RetryAfter({ delay: "5 seconds" })) })).toMatchObject({
      settlement: { _tag: "Return", attempt: 2, delayMillis: 5_000 },
      error: { message: "retry requested" }
    })
  })

  test("RetryAfter obeys maxAttempts, Snooze does not spend them (G47)", () => {
    const row = claimedRow({ attempt: 3, maxAttempts: 3 })
    expect(decided({ row, exit: failing(new Job.RetryAfter({ delay: 1 })) })).toMatchObject({
      settlement: { _tag: "Bury", reason: "exhausted" }
    })
    expect(decided({ row, exit: failing(new Job.Snooze({ delay: 1 })) })).toMatchObject({
      settlement: { _tag: "Return", attempt: 2 }
    })
  })

  test("words that come from a stopped handler are not heard: why it was stopped counts", () => {
    const exit = failing(new Job.Fatal({ error: "no" }))
    expect(decided({ exit, stop: "timeout" })).toMatchObject({
      settlement: { _tag: "Return" },
      error: { kind: "timeout" }
    })
    expect(decided({ exit, stop: "shutdown" })).toMatchObject({
      settlement: { _tag: "Return", attempt: 1, delayMillis: 0 }
    })
    expect(decided({ exit, stop: "unreachable" })).toMatchObject({ settlement: { _tag: "Return", attempt: 1 } })
    expect(decided({ exit, stop: "cancelled" })).toMatchObject({ settlement: { _tag: "Bury", reason: "cancelled" } })
    expect(decided({ exit: Exit.void, stop: "stuck" })).toMatchObject({
      settlement: { _tag: "Return", attempt: 2 },
      error: { kind: "stuck" }
    })
  })

  test("the Schedule is given the failure", () => {
    const inputs: Array<JobFailure<never>> = []
    const retry = Schedule.tapInput(Schedule.forever, (input: JobFailure<never>) =>
      Effect.sync(() => inputs.push(input))
    )
    const row = claimedRow({ attempt: 4, failures: 2, failureTimes: "[1,2]", crashes: 1 })
    decided({ row, exit: failing({ _tag: "Busy" }), retry })
    expect(inputs).toHaveLength(3)
    expect(inputs.at(-1)).toMatchObject({
      error: { _tag: "Busy" },
      failures: 3,
      attempt: 4,
      job: { id: 7, crashes: 1 }
    })
    inputs.length = 0
    decided({ exit: interrupted, stop: "timeout", retry })
    expect(inputs[0]?.error).toContain("timeout of 60000 ms")
  })

  test.each([
    ["an Error", new Error("broken")],
    [
      "a Proxy whose traps throw",
      new Proxy(
        {},
        {
          get: () => {
            throw new Error("get")
          },
          has: () => {
            throw new Error("has")
          }
        }
      )
    ]
  ])("a Schedule that dies of %s is replaced by the default delay (G48)", (_, defect) => {
    const retry = Schedule.mapEffect(Schedule.forever, () => Effect.die(defect))
    const row = claimedRow({ failures: 2 })
    expect(decided({ row, exit: failing("no"), retry })).toMatchObject({ settlement: { delayMillis: 4_000 } })
  })

  test("whatever the end, there is a settlement of this job under this lease, and its error can be stored (G48, G49)", () => {
    const ends = fc.oneof(
      fc.anything().map(Exit.fail),
      fc.anything().map(Exit.die),
      fc.anything().map((value) => Exit.failCause(Cause.sequential(Cause.fail(value), Cause.interrupt(FiberId.none)))),
      fc.constant(Exit.failCause(Cause.empty)),
      fc.constant(interrupted)
    )
    const stops = fc.constantFrom(
      undefined,
      "timeout",
      "stuck",
      "shutdown",
      "unreachable",
      "cancelled"
    ) as fc.Arbitrary<Ending["stop"]>
    fc.assert(
      fc.property(ends, stops, fc.integer({ min: 1, max: 25 }), (exit, stop, attempt) => {
        const { settlement } = decided({ exit, stop, row: claimedRow({ attempt }) })
        expect(settlement).toMatchObject({ id: 7, token: 70 })
        expect(settlement._tag).not.toBe("Ack")
        if (settlement._tag !== "Ack") expect(errorsOf(settlement.history).length).toBeLessThanOrEqual(1)
      }),
      { seed }
    )
  })
})
