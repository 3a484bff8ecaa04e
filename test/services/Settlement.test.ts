import fc from "fast-check"
import { describe, expect, test } from "vitest"
import { errorsOf, jobError } from "../../src/services/History.js"
import * as Settlement from "../../src/services/Settlement.js"
import { seed } from "../support/form.js"
import { claimedRow } from "../support/rows.js"

const error = jobError({ at: 5, attempt: 3, kind: "failure", error: "no" })
const hour = 3_600_000

describe("a settlement", () => {
  test("of a failed attempt: back after the delay, or dead (exhausted) on the last or without a delay (G40, G46)", () => {
    const row = claimedRow({ attempt: 3, maxAttempts: 4 })
    expect(Settlement.failed(row, error, 7_000)).toMatchObject({
      _tag: "Return",
      id: row.id,
      token: row.token,
      attempt: 3,
      delayMillis: 7_000,
      history: { failures: 1 }
    })
    expect(Settlement.failed({ ...row, attempt: 4 }, error, 7_000)).toMatchObject({ _tag: "Bury", reason: "exhausted" })
    expect(Settlement.failed(row, error, null)).toMatchObject({ _tag: "Bury", reason: "exhausted" })
  })

  test("given back: the attempt is not spent, the history is as it was (G40)", () => {
    const row = claimedRow({ attempt: 3, failures: 2, errors: JSON.stringify([error]) })
    const settlement = Settlement.givenBack(row, 5)
    expect(settlement).toMatchObject({ _tag: "Return", attempt: 2, delayMillis: 5 })
    expect(settlement._tag === "Return" && settlement.history).toMatchObject({ failures: 2, errors: row.errors })
    expect(Settlement.givenBack(claimedRow({ attempt: 0 }), 0)).toMatchObject({ attempt: 0 })
  })

  test("of the undecodable: 1 s at first, as long as it has been so, at most 5 min, dead after a day (G26)", () => {
    const row = claimedRow({ attempt: 1, maxAttempts: 1 })
    const at = (since: number | null, now: number) =>
      Settlement.undecodable({ ...row, undecodableSince: since }, now, "not a number")
    expect(at(null, hour)).toMatchObject({ _tag: "Return", attempt: 0, delayMillis: 1_000, undecodableSince: hour })
    expect(at(hour, hour + 60_000)).toMatchObject({ delayMillis: 60_000, undecodableSince: hour })
    expect(at(hour, 3 * hour)).toMatchObject({ delayMillis: 300_000 })
    expect(at(hour, 25 * hour - 1)).toMatchObject({ _tag: "Return" })
    const letter = at(hour, 25 * hour)
    expect(letter).toMatchObject({ _tag: "Bury", reason: "undecodable" })
    expect(letter._tag === "Bury" && errorsOf(letter.history)).toMatchObject([{ message: "not a number" }])
    // A failure in between shows that somebody could read it
    expect(Settlement.failed({ ...row, maxAttempts: 5, undecodableSince: hour }, error, 1)).toMatchObject({
      undecodableSince: null
    })
  })

  test("of a lapsed lease: back in its place, or dead (crashed) when attempts or crashes are spent (G52)", () => {
    const lapsed = (row: Partial<Settlement.ClaimedRow>, maxCrashes = 5) =>
      Settlement.lapsed({ ...claimedRow(row), worker: "w-1", maxCrashes }, 9)
    expect(lapsed({ attempt: 2, maxAttempts: 3, crashes: 4 })).toMatchObject({
      _tag: "Return",
      attempt: 2,
      delayMillis: null,
      history: { crashes: 5, failures: 0 }
    })
    expect(lapsed({ attempt: 3, maxAttempts: 3 })).toMatchObject({ _tag: "Bury", reason: "crashed" })
    expect(lapsed({ crashes: 5, maxAttempts: 100 })).toMatchObject({ _tag: "Bury", reason: "crashed" })
    expect(lapsed({ crashes: 0, maxAttempts: 100 }, 0)).toMatchObject({ _tag: "Bury", reason: "crashed" })
    expect(lapsed({ cancelRequested: true, maxAttempts: 100 })).toMatchObject({ _tag: "Bury", reason: "cancelled" })
    const settlement = lapsed({ maxAttempts: 100 })
    expect(settlement._tag === "Return" && errorsOf(settlement.history)).toMatchObject([{ kind: "crash", at: 9 }])
  })

  test("names the job and the lease in every case", () => {
    fc.assert(
      fc.property(
        fc.nat(),
        fc.nat(),
        fc.nat(50),
        fc.nat(50),
        fc.nat(90_000_000),
        (id, token, attempt, crashes, now) => {
          const row = claimedRow({ id, token, attempt, crashes, undecodableSince: 0 })
          const all = [
            Settlement.failed(row, error, now),
            Settlement.fatal(row, error),
            Settlement.givenBack(row, now),
            Settlement.undecodable(row, now, "no"),
            Settlement.lapsed({ ...row, worker: null, maxCrashes: 5 }, now)
          ]
          for (const settlement of all) expect(settlement).toMatchObject({ id, token })
        }
      ),
      { seed }
    )
  })

  test("the default delay doubles from 1 s and stays at 24 h", () => {
    expect([0, 1, 2, 3, 17, 18, 2_000].map(Settlement.defaultDelayMillis)).toEqual([
      1_000, 1_000, 2_000, 4_000, 65_536_000, 86_400_000, 86_400_000
    ])
  })
})
