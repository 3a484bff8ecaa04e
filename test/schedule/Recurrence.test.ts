/** When schedules fire: the calendar, daylight saving, periods. */
import { Either } from "effect"
import fc from "fast-check"
import { describe, expect, test } from "vitest"
import { between, parse, type Recurrence, restore } from "../../src/schedule/Recurrence.js"
import type { Rule } from "../../src/services/ScheduleStore.js"
import { seed } from "../support/form.js"

const parsed = (rule: Rule): Recurrence => Either.getOrThrow(parse(rule))

const cron = (expression: string, timeZone = "UTC") => parsed({ cron: expression, timeZone })

const at = (text: string): number => Date.parse(text)

/** The boundaries after an instant and before another, by the minute. */
const fires = (recurrence: Recurrence, from: string, until: string): ReadonlyArray<string> => {
  const found: Array<string> = []
  let boundary = recurrence.next(at(from))
  while (boundary !== undefined && boundary < at(until)) {
    found.push(new Date(boundary).toISOString().slice(0, 16))
    boundary = recurrence.next(boundary)
  }
  return found
}

const newYork = "America/New_York"

describe("G112 daylight saving", () => {
  test("a fixed time in the gap fires once, at its end", () => {
    expect(fires(cron("30 2 * * *", newYork), "2025-03-09T00:00Z", "2025-03-11T00:00Z")).toEqual([
      "2025-03-09T07:00",
      "2025-03-10T06:30"
    ])
    expect(fires(cron("15,30 2 * * *", newYork), "2025-03-09T00:00Z", "2025-03-10T00:00Z")).toEqual([
      "2025-03-09T07:00"
    ])
    expect(fires(cron("0 2,3 * * *", newYork), "2025-03-09T00:00Z", "2025-03-10T00:00Z")).toEqual(["2025-03-09T07:00"])
    expect(fires(cron("15 2 * * *", "Australia/Lord_Howe"), "2025-10-04T00:00Z", "2025-10-05T00:00Z")).toEqual([
      "2025-10-04T15:30"
    ])
    // Midnight is the hour that Chile leaves out
    expect(fires(cron("@daily", "America/Santiago"), "2025-09-06T12:00Z", "2025-09-08T12:00Z")).toEqual([
      "2025-09-07T04:00",
      "2025-09-08T03:00"
    ])
  })

  test("a fixed time in the repeated hour fires in the first pass only", () => {
    const nightly = cron("30 1 * * *", newYork)
    expect(fires(nightly, "2025-11-01T12:00Z", "2025-11-04T00:00Z")).toEqual(["2025-11-02T05:30", "2025-11-03T06:30"])
    expect(fires(nightly, "2025-11-02T06:10Z", "2025-11-04T00:00Z")).toEqual(["2025-11-03T06:30"])
    expect(fires(cron("30 1 * * *", "Europe/London"), "2025-10-25T12:00Z", "2025-10-27T12:00Z")).toEqual([
      "2025-10-26T00:30",
      "2025-10-27T01:30"
    ])
    expect(fires(cron("45 1 * * *", "Australia/Lord_Howe"), "2025-04-05T00:00Z", "2025-04-06T00:00Z")).toEqual([
      "2025-04-05T14:45"
    ])
    expect(fires(cron("0 9-11 * * *", newYork), "2025-11-02T00:00Z", "2025-11-03T00:00Z")).toEqual([
      "2025-11-02T14:00",
      "2025-11-02T15:00",
      "2025-11-02T16:00"
    ])
  })

  test("wildcards and steps go on in real time through the repeated hour and the gap", () => {
    expect(fires(cron("*/15 * * * *", newYork), "2025-11-02T06:05Z", "2025-11-02T06:31Z")).toEqual([
      "2025-11-02T06:15",
      "2025-11-02T06:30"
    ])
    expect(fires(cron("0 * * * *", newYork), "2025-11-02T04:30Z", "2025-11-02T08:30Z")).toEqual([
      "2025-11-02T05:00",
      "2025-11-02T06:00",
      "2025-11-02T07:00",
      "2025-11-02T08:00"
    ])
    expect(fires(cron("*/30 * * * *", newYork), "2025-03-09T06:15Z", "2025-03-09T07:45Z")).toEqual([
      "2025-03-09T06:30",
      "2025-03-09T07:00",
      "2025-03-09T07:30"
    ])
    expect(fires(cron("*/30 1 * * *", newYork), "2025-11-02T00:00Z", "2025-11-03T00:00Z")).toEqual([
      "2025-11-02T05:00",
      "2025-11-02T05:30",
      "2025-11-02T06:00",
      "2025-11-02T06:30"
    ])
    expect(fires(cron("0 */6 * * *", "Asia/Kolkata"), "2025-06-01T00:00Z", "2025-06-02T00:00Z")).toEqual([
      "2025-06-01T00:30",
      "2025-06-01T06:30",
      "2025-06-01T12:30",
      "2025-06-01T18:30"
    ])
  })

  test("a day that a zone left out altogether", () => {
    expect(fires(cron("0 12 * * *", "Pacific/Apia"), "2011-12-29T00:00Z", "2011-12-31T12:00Z")).toEqual([
      "2011-12-29T22:00",
      "2011-12-30T10:00",
      "2011-12-30T22:00"
    ])
  })
})

const minute = 60_000
const hour = 60 * minute

/** Instants at which the offsets of the zones change; two zones without any are among them. */
const transitions: ReadonlyArray<readonly [zone: string, change: number]> = [
  [newYork, at("2025-03-09T07:00Z")],
  [newYork, at("2025-11-02T06:00Z")],
  [newYork, at("2026-03-08T07:00Z")],
  ["Europe/London", at("2025-03-30T01:00Z")],
  ["Europe/London", at("2025-10-26T01:00Z")],
  ["Australia/Lord_Howe", at("2025-04-05T15:00Z")],
  ["Australia/Lord_Howe", at("2025-10-04T15:30Z")],
  ["America/Santiago", at("2025-04-06T03:00Z")],
  ["America/Santiago", at("2025-09-07T04:00Z")],
  ["Asia/Kolkata", at("2025-03-09T07:00Z")],
  ["UTC", at("2025-11-02T06:00Z")]
]

type Wall = { readonly minute: number; readonly hour: number; readonly weekday: number }

/** Expressions that go on in real time, and whether a local minute matches them. */
const clockwork: ReadonlyArray<readonly [expression: string, matches: (wall: Wall) => boolean]> = [
  ["* * * * *", () => true],
  ["*/15 * * * *", (wall) => wall.minute % 15 === 0],
  ["7 * * * *", (wall) => wall.minute === 7],
  ["0 */2 * * *", (wall) => wall.minute === 0 && wall.hour % 2 === 0],
  ["*/20 1 * * *", (wall) => wall.minute % 20 === 0 && wall.hour === 1],
  ["10-40/10 * * * 0", (wall) => [10, 20, 30, 40].includes(wall.minute) && wall.weekday === 0]
]

const wallOf = (zone: string) => {
  const format = new Intl.DateTimeFormat("en-GB", {
    timeZone: zone,
    weekday: "short",
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23"
  })
  return (instant: number): Wall => {
    const [weekday = "", time = ""] = format.format(instant).split(" ")
    const [hours, minutes] = time.split(":")
    const days = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"]
    return { hour: Number(hours), minute: Number(minutes), weekday: days.indexOf(weekday.slice(0, 3)) }
  }
}

describe("G112 through every change of offset", () => {
  const place = fc.constantFrom(...transitions)
  const expression = fc.constantFrom(
    ...clockwork.map(([text]) => text),
    ...["30 2 * * *", "30 1 * * *", "0 0 * * *", "15,45 1,2 * * *", "59 23 * * 6", "0 12 1 * *", "30 2 29 2 *"],
    ...["@daily", "@weekly", "*/7 * * * * *", "0 30 1 * * *"]
  )
  const offset = fc.integer({ min: -3 * hour, max: 3 * hour })

  test("the next boundary is after, later instants have no earlier ones, and none is left out", () => {
    fc.assert(
      fc.property(place, expression, offset, offset, ([zone, change], text, one, other) => {
        const recurrence = cron(text, zone)
        const [early, late] = [change + Math.min(one, other), change + Math.max(one, other)]
        const first = recurrence.next(early) as number
        const second = recurrence.next(late) as number
        expect(first).toBeGreaterThan(early)
        expect(second).toBeGreaterThan(late)
        expect(second).toBeGreaterThanOrEqual(first)
        // Whoever looks in between sees the same boundaries
        if (first > late) expect(second).toBe(first)
        else expect(recurrence.next(first - 1)).toBe(first)
      }),
      { seed, numRuns: 2_000 }
    )
  })

  test.each(clockwork)("%s fires at every instant whose local time matches, and at no other", (text, matches) => {
    for (const [zone, change] of transitions) {
      const wall = wallOf(zone)
      const expected: Array<number> = []
      for (let instant = change - 26 * hour; instant < change + 26 * hour; instant += minute)
        if (matches(wall(instant))) expected.push(instant)
      const recurrence = cron(text, zone)
      const found: Array<number> = []
      let boundary = recurrence.next(change - 26 * hour - 1) as number
      while (boundary < change + 26 * hour) {
        found.push(boundary)
        boundary = recurrence.next(boundary) as number
      }
      expect(found).toEqual(expected)
    }
  })

  test("a fixed local time fires exactly once a local day", () => {
    const day = (zone: string) => {
      const format = new Intl.DateTimeFormat("en-CA", { timeZone: zone })
      return (instant: number) => format.format(instant)
    }
    fc.assert(
      fc.property(
        place,
        fc.integer({ min: 0, max: 23 }),
        fc.integer({ min: 0, max: 59 }),
        ([zone, change], hours, minutes) => {
          const recurrence = cron(`${minutes} ${hours} * * *`, zone)
          const days = new Set<string>()
          const dayOf = day(zone)
          for (let instant = change - 72 * hour; instant < change + 72 * hour; instant += 15 * minute)
            days.add(dayOf(instant))
          // The first and the last are not seen whole
          const whole = [...days].slice(1, -1)
          const seen: Array<string> = []
          let boundary = recurrence.next(change - 72 * hour) as number
          while (boundary < change + 72 * hour) {
            if (whole.includes(dayOf(boundary))) seen.push(dayOf(boundary))
            boundary = recurrence.next(boundary) as number
          }
          expect(seen).toEqual(whole)
        }
      ),
      { seed, numRuns: 300 }
    )
  })
})

describe("G113 expressions", () => {
  const days = (text: string, from: string, until: string) =>
    fires(cron(text), from, until).map((boundary) => boundary.slice(5, 10))

  test("a day of the month and a day of the week, both given: either", () => {
    expect(days("0 0 13 * 5", "2025-06-01T00:00Z", "2025-06-30T00:00Z")).toEqual(["06-06", "06-13", "06-20", "06-27"])
    expect(days("0 0 1-7 * 1", "2025-05-31T12:00Z", "2025-06-30T12:00Z")).toHaveLength(11)
    expect(days("0 0 * * 1", "2025-06-01T00:00Z", "2025-06-15T00:00Z")).toEqual(["06-02", "06-09"])
  })

  test("Sunday is 0 and 7, names, ranges over the end of the week, the last day of a month, the n-th weekday", () => {
    const june = ["2025-06-01T12:00Z", "2025-06-10T12:00Z"] as const
    expect(days("0 0 * * 7", ...june)).toEqual(["06-08"])
    expect(days("0 0 * * SUN", ...june)).toEqual(["06-08"])
    expect(days("0 0 * * 5-7", ...june)).toEqual(["06-06", "06-07", "06-08"])
    expect(days("0 0 * jun sat,sun", ...june)).toEqual(["06-07", "06-08"])
    expect(days("0 0 L * *", "2025-01-01T00:00Z", "2025-04-01T00:00Z")).toEqual(["01-31", "02-28", "03-31"])
    expect(days("0 0 * * MON#1", "2025-01-01T00:00Z", "2025-04-01T00:00Z")).toEqual(["01-06", "02-03", "03-03"])
  })

  test("leap days, months of 31 days, macros, seconds, steps that do not divide the hour", () => {
    const years = (from: string) => fires(cron("0 0 29 2 *"), from, "2110-01-01T00:00Z").map((text) => text.slice(0, 4))
    expect(years("2025-01-01T00:00Z").slice(0, 3)).toEqual(["2028", "2032", "2036"])
    expect(years("2097-01-01T00:00Z")).toEqual(["2104", "2108"])
    expect(fires(cron("0 * 29 2 *", newYork), "2025-01-01T00:00Z", "2028-02-29T07:00Z")).toEqual([
      "2028-02-29T05:00",
      "2028-02-29T06:00"
    ])
    expect(days("0 0 31 * *", "2025-01-01T00:00Z", "2025-06-15T00:00Z")).toEqual(["01-31", "03-31", "05-31"])
    const next = (text: string) => new Date(cron(text).next(at("2025-06-04T10:20:30Z")) as number).toISOString()
    expect(next("@hourly")).toBe("2025-06-04T11:00:00.000Z")
    expect(next("@daily")).toBe("2025-06-05T00:00:00.000Z")
    expect(next("@weekly")).toBe("2025-06-08T00:00:00.000Z")
    expect(next("@monthly")).toBe("2025-07-01T00:00:00.000Z")
    expect(next("@yearly")).toBe("2026-01-01T00:00:00.000Z")
    expect(next("*/5 * * * * *")).toBe("2025-06-04T10:20:35.000Z")
    expect(fires(cron("*/7 * * * *"), "2025-06-04T10:45Z", "2025-06-04T11:10Z").map((text) => text.slice(-2))).toEqual([
      "49",
      "56",
      "00",
      "07"
    ])
  })

  test("the last weekday of a month, and the n-th, however it is written", () => {
    for (const weekday of ["5L", "FRI#L", "5#L", "fri#l"])
      expect(fires(cron(`0 0 * * ${weekday}`), "2025-06-01T00:00Z", "2025-08-01T00:00Z")).toEqual([
        "2025-06-27T00:00",
        "2025-07-25T00:00"
      ])
    expect(fires(cron("0 0 * * FRI#2"), "2025-06-01T00:00Z", "2025-07-01T00:00Z")).toEqual(["2025-06-13T00:00"])
  })

  const refused = (rule: Rule) => Either.getOrThrow(Either.flip(parse(rule)))

  test.each([
    ...["", "* * * *", "60 * * * *", "*/0 * * * *", "5-1 * * * *", "a b c d e", "0 0 * * 8", "*/61 * * * *"],
    ...["1 2 3 4 5 6 7", "0 24 * * *", "0 0 32 * *", "0 0 0 * *", "1,,2 * * * *", "@reboot", "? * * * *"],
    ...["0 0 15W * *", "0 0 ? * *", "5/10 * * * *", "+1 * * * *", "1.5 * * * *", "* * * * * 2025"],
    ...["5* * * * *", "0 2* * * *", "0 9-17* * * *", "*/5* * * * *", "1,5* * * * *", "30* * * * * *", "0 0 15* * *"],
    ...["0 0 1L5 * *", "0 0 L15 * *", "0 0 15L * *", "0 0 1-3L * *", "0 0 LL * *", "0 0 1 1* *", "0 0 * * 1*"]
  ])("%j is refused", (expression) => {
    expect(refused({ cron: expression }).argument).toBe("cron")
  })

  test.each(["0 0 30 2 *", "0 0 31 4,6 *", "0 0 0 30 2 *"])("%j, which can never fire, is refused", (expression) => {
    expect(refused({ cron: expression }).message).toContain("never")
  })

  test.each(["Mars/Olympus", "EST5EDT ", "", "+02:00", "local", "UTC+2"])("zone %j is refused", (timeZone) => {
    expect(refused({ cron: "0 0 * * *", timeZone }).argument).toBe("timeZone")
  })

  test("the message names what is wrong", () => {
    expect(refused({ cron: "60 * * * *" }).message).toBe('cron: "60 * * * *": Invalid value for minute: 60')
    expect(refused({ cron: "0 0 W * *" }).message).toContain('"W" is not a day of the month')
    expect(refused({ cron: "0 0 1 13 *" }).message).toContain("month: 13")
    expect(refused({ cron: "0 0 32 1 *" }).message).toContain("day: 32")
    expect(refused({ cron: "0 0 0 1 *" }).message).toContain("day: 0")
    expect(refused({ cron: "0 0 1 JANUARY *" }).message).toContain('"JANUARY" is not a month')
    expect(refused({ cron: "0 0 1 JANFEB *" }).message).toContain('"JANFEB" is not a month')
    expect(refused({ cron: "0 0 * * MONDAY" }).message).toContain('"MONDAY" is not a day of the week')
  })
})

describe("G111 periods", () => {
  test("boundaries lie on the anchor, whenever one looks", () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1_000, max: 1_000_000_000 }),
        fc.integer({ min: -1_000_000_000_000, max: 4_000_000_000_000 }),
        fc.integer({ min: 0, max: 4_000_000_000_000 }),
        (every, anchor, after) => {
          const recurrence = parsed({ every, anchor: new Date(anchor) })
          const next = recurrence.next(after) as number
          expect(next).toBeGreaterThan(after)
          expect(next - after).toBeLessThanOrEqual(every)
          expect(Math.abs((next - anchor) % every)).toBe(0)
        }
      ),
      { seed }
    )
  })

  test("@every says the same, without an anchor: from the Unix epoch", () => {
    expect(parsed({ cron: "@every 90s" }).rule).toEqual(parsed({ every: "90 seconds" }).rule)
    expect(parsed({ cron: "@every 1h30m" }).rule.everyMillis).toBe(90 * minute)
    expect(parsed({ cron: "@every 5 minutes" }).next(0)).toBe(5 * minute)
  })

  test.each<Rule>([
    { every: 0 },
    { every: "500 millis" },
    { every: -1 },
    { every: "soon" as "1 second" },
    { every: Number.NaN },
    { cron: "@every 0s" },
    { cron: "@every soon" },
    { cron: "@every 5m", timeZone: "Europe/Berlin" },
    { every: "1 minute", anchor: new Date(Number.NaN) },
    { every: "1 minute", cron: "* * * * *" },
    { every: "1 minute", timeZone: "Europe/Berlin" } as Rule,
    { cron: "* * * * *", anchor: new Date(0) } as Rule,
    { cron: "@every 5m", anchor: new Date(0) } as Rule,
    {} as Rule
  ])("%o is refused", (rule) => {
    expect(Either.isLeft(parse(rule))).toBe(true)
  })
})

test("what is stored of a rule is parsed as the same recurrence", () => {
  const rules: ReadonlyArray<Rule> = [
    { cron: "30 2 * * *", timeZone: newYork },
    { cron: "@daily" },
    { cron: "@every 90s" },
    { every: "7 minutes", anchor: new Date(1_234_567) }
  ]
  for (const rule of rules) {
    const recurrence = parsed(rule)
    const again = Either.getOrThrow(restore(recurrence.rule))
    expect(again.rule).toEqual(recurrence.rule)
    expect(again.next(at("2025-03-09T00:00Z"))).toBe(recurrence.next(at("2025-03-09T00:00Z")))
  }
  expect(Either.isLeft(restore({ cron: null, timeZone: null, everyMillis: null, anchor: null }))).toBe(true)
  expect(Either.isLeft(restore({ cron: "xx", timeZone: "UTC", everyMillis: null, anchor: null }))).toBe(true)
})

describe("the boundaries of a stretch of time", () => {
  test("are all of them, or the last ones", () => {
    const every = parsed({ every: "1 minute" })
    expect(between(every, 60_000, 180_000, 100)).toEqual([60_000, 120_000, 180_000])
    expect(between(every, 60_000, 180_000, 1)).toEqual([180_000])
    expect(between(every, 61_000, 119_000, 1)).toEqual([])
    expect(between(every, 61_000, 120_000, 1)).toEqual([120_000])
  })

  test("after years of downtime, the last ones, without walking through all", () => {
    const asked: Array<number> = []
    const counted = (recurrence: Recurrence): Recurrence => ({
      ...recurrence,
      next: (after) => {
        asked.push(after)
        return recurrence.next(after)
      }
    })
    const [from, until] = [at("2020-01-01T00:00Z"), at("2026-06-01T00:00Z")]
    for (const text of ["* * * * * *", "* * * 1 1 *", "0 0 29 2 *", "* * * * *"]) {
      const last = between(counted(cron(text)), from, until, 100)
      expect(last).toEqual([...last].sort((a, b) => a - b))
      expect(cron(text).next(last.at(-1) as number)).toBeGreaterThan(until)
      expect(last).toHaveLength(text === "0 0 29 2 *" ? 2 : 100)
    }
    expect(asked.length).toBeLessThan(40_000)
  })
})
