/**
 * When a schedule fires: boundaries from fixed anchors, by cron expressions in a time zone or by a period. Pure.
 *
 * The cron library finds matching local times, as if in UTC, where no hour is missing or repeated; what daylight saving
 * makes of them is decided here.
 *
 * @since 0.1.0
 */
import { Cron } from "croner"
import { type DateTime, Duration, Either } from "effect"
import { InvalidArgument } from "../services/Errors.js"
import { checkDuration, checkInstant } from "../services/input.js"
import type { Rule } from "../services/ScheduleStore.js"
import { makeZone, type Zone } from "./zone.js"

/**
 * A recurrence, parsed. What is stored of it is in `rule`.
 *
 * @since 0.1.0
 * @category models
 */
export interface Recurrence {
  /** Either a cron expression and its zone, or a period and its anchor in milliseconds; the others are null. */
  readonly rule: StoredRule
  /** The first boundary after an instant: always later than it. `undefined` when there is none any more. */
  readonly next: (after: number) => number | undefined
}

/**
 * @since 0.1.0
 * @category models
 */
export interface StoredRule {
  readonly cron: string | null
  readonly timeZone: string | null
  readonly everyMillis: number | null
  readonly anchor: number | null
}

const refuse = (argument: string, message: string) =>
  Either.left(new InvalidArgument({ argument, message: `${argument}: ${message}` }))

/** A Map: an object would answer to `constructor`, too. */
const macros: ReadonlyMap<string, string> = new Map([
  ["@hourly", "0 * * * *"],
  ["@daily", "0 0 * * *"],
  ["@midnight", "0 0 * * *"],
  ["@weekly", "0 0 * * 0"],
  ["@monthly", "0 0 1 * *"],
  ["@yearly", "0 0 1 1 *"],
  ["@annually", "0 0 1 1 *"]
])

/** A list of such values, ranges of them and steps; and of what else may stand there alone. */
const listOf = (value: string, alone = value): RegExp => {
  const item = `(?:(?:\\*|(?:${value})(?:-(?:${value}))?)(?:/\\d+)?|${alone})`
  return new RegExp(`^${item}(?:,${item})*$`, "i")
}

const weekday = "\\d+|SUN|MON|TUE|WED|THU|FRI|SAT"

/** What each field may be written with; the library would take more, some of it with a meaning that few expect. */
const characters: ReadonlyArray<readonly [field: string, allowed: RegExp]> = [
  ["second", listOf("\\d+")],
  ["minute", listOf("\\d+")],
  ["hour", listOf("\\d+")],
  ["day of the month", listOf("\\d+", "L")],
  ["month", listOf("\\d+|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC")],
  ["day of the week", listOf(weekday, `(?:${weekday})(?:#(?:\\d+|L)|L)`)]
]

/** The library counts days and months from 0, also in what it says. */
const saidOf = (error: unknown): string =>
  String((error as Error).message)
    .replace(/^CronPattern: /, "")
    .replace(
      /^(Invalid value for (?:day|month): )(-?\d+)$/,
      (_, said: string, value: string) => `${said}${Number(value) + 1}`
    )

const second = 1_000
const day = 86_400_000
const from2000 = 946_684_800_000

const parseCron = (text: string, zone: Zone): Either.Either<Recurrence["next"], InvalidArgument> => {
  const shown = JSON.stringify(text)
  const fields = (macros.get(text.trim().toLowerCase()) ?? text).trim().split(/\s+/)
  if (fields.length !== 5 && fields.length !== 6)
    return refuse("cron", `${shown} has not five fields (minute hour day month weekday), or six with the second first`)
  const written = fields.length === 6 ? fields : ["0", ...fields]
  for (const [index, [field, allowed]] of characters.entries()) {
    if (!allowed.test(written[index] as string))
      return refuse("cron", `${shown}: ${JSON.stringify(written[index])} is not a ${field}`)
  }
  try {
    // With an offset instead of a zone the library needs no calendar of the system's, and is a hundred times as fast
    const cron = new Cron(written.join(" "), { utcOffset: 0, mode: "6-part", paused: true })
    const nextLocal = (local: number) => cron.nextRun(new Date(Math.floor(local / second) * second))?.getTime()
    if (nextLocal(from2000) === undefined) return refuse("cron", `${shown} can never fire: there is no such date`)
    const clockwork = written.slice(1, 3).some((field) => /[*/]/.test(field))
    return Either.right(clockwork ? inRealTime(zone, nextLocal) : atLocalTimes(zone, nextLocal))
  } catch (error) {
    return refuse("cron", `${shown}: ${saidOf(error)}`)
  }
}

/** Fixed local times: each fires once, the first time it comes; one that is skipped, at the end of the gap. */
const atLocalTimes = (zone: Zone, nextLocal: (local: number) => number | undefined) => (after: number) => {
  let local = nextLocal(after + zone.offset(after))
  while (local !== undefined) {
    const at = zone.firstAt(local)
    if (at > after) return at
    local = nextLocal(local)
  }
  return undefined
}

/** Every instant whose local time matches, in both passes of a repeated hour: time goes on as ever. */
const inRealTime = (zone: Zone, nextLocal: (local: number) => number | undefined) => (after: number) => {
  let from = after
  // Local times up to this one are behind us
  let behind = after + zone.offset(after)
  for (let far = false; ; far = true) {
    const offset = zone.offset(from)
    const local = nextLocal(behind)
    if (local === undefined) return undefined
    const at = local - offset
    const horizon = Math.min(at, from + day)
    if (zone.offset(horizon) !== offset) {
      const change = zone.changeIn(from, horizon)
      if (at < change) return at
      from = change
      behind = change + zone.offset(change) - 1
    } else if (at <= horizon) {
      return at
    } else {
      // A change can bring local times back within a day of here, or move the one that was found
      from = far ? Math.max(horizon, at - 2 * day) : horizon
      behind = from + zone.offset(from)
    }
  }
}

/** The end of what a `Date` of four digits can be: as `input.ts` has it for every instant in a row. */
const lastInstant = 253_402_300_799_999

const periodic = (every: number, anchor: number) => (after: number) => {
  const next = anchor + (Math.floor((after - anchor) / every) + 1) * every
  return next > lastInstant ? undefined : next
}

const parsePeriod = (
  argument: string,
  every: unknown,
  anchor: Date | DateTime.DateTime | undefined
): Either.Either<Recurrence, InvalidArgument> =>
  Either.gen(function* () {
    const everyMillis = yield* checkDuration(argument, every, { min: second, max: 1_000 * 366 * day })
    const from = anchor === undefined ? 0 : yield* checkInstant("anchor", anchor)
    if (Math.abs(from) > lastInstant) return yield* refuse("anchor", "lies too far from the present")
    return {
      rule: { cron: null, timeZone: null, everyMillis, anchor: from },
      next: periodic(everyMillis, from)
    }
  })

const units: Readonly<Record<string, number>> = { ms: 1, s: second, m: 60 * second, h: 3_600 * second, d: day }

/** `90s`, `1h30m`, or any duration of Effect's: `5 minutes`. */
const durationOf = (text: string): unknown =>
  /^(\d+(ms|s|m|h|d))+$/.test(text)
    ? [...text.matchAll(/(\d+)(ms|s|m|h|d)/g)].reduce(
        (sum, [, count, unit]) => sum + Number(count) * (units[unit as string] as number),
        0
      )
    : text

/**
 * Parses a rule; one that can never fire, or whose zone is unknown, is refused.
 *
 * @since 0.1.0
 * @category constructors
 */
export const parse = (rule: Rule): Either.Either<Recurrence, InvalidArgument> => {
  if ("every" in rule && rule.every !== undefined) {
    if ("cron" in rule && rule.cron !== undefined) return refuse("cron", "give cron or every, not both")
    if ("timeZone" in rule && rule.timeZone !== undefined) return refuse("timeZone", "every has no time zone")
    return parsePeriod("every", rule.every, rule.anchor)
  }
  const { cron, timeZone } = rule as { readonly cron: unknown; readonly timeZone?: unknown }
  if (typeof cron !== "string") return refuse("cron", "give a cron expression, or every")
  if ("anchor" in rule && rule.anchor !== undefined) return refuse("anchor", "only every has an anchor")
  const every = /^\s*@every\s+(.+?)\s*$/.exec(cron)
  if (every !== null) {
    if (timeZone !== undefined) return refuse("timeZone", "@every has no time zone")
    return parsePeriod("cron", durationOf(every[1] as string), undefined)
  }
  return Either.gen(function* () {
    const name = timeZone ?? "UTC"
    const zone = yield* Either.fromNullable(
      makeZone(name),
      () =>
        new InvalidArgument({
          argument: "timeZone",
          message: `timeZone: ${JSON.stringify(name)} is not an IANA time zone, as Europe/Berlin is`
        })
    )
    const next = yield* parseCron(cron, zone)
    return { rule: { cron: cron.trim(), timeZone: zone.name, everyMillis: null, anchor: null }, next }
  })
}

/**
 * Parses a rule as it was stored.
 *
 * @since 0.1.0
 * @category constructors
 */
export const restore = (stored: StoredRule): Either.Either<Recurrence, InvalidArgument> =>
  stored.cron === null
    ? parse({ every: Duration.millis(stored.everyMillis ?? Number.NaN), anchor: new Date(stored.anchor ?? 0) })
    : parse({ cron: stored.cron, timeZone: stored.timeZone ?? undefined })

/**
 * The boundaries from `from` to `until`, both included, in order; when there are more than `limit`, the last ones. Costs
 * no more for a long time than for a short one.
 *
 * @since 0.1.0
 * @category accessors
 */
export const between = (recurrence: Recurrence, from: number, until: number, limit: number): ReadonlyArray<number> => {
  // Looks back from the end, ever farther, until there are enough; a look that would find far too many is cut short
  const bound = 4 * limit + 100
  let tooFew = 0
  let tooMany = Number.POSITIVE_INFINITY
  for (let span = 64 * second; ; ) {
    const found: Array<number> = []
    let at = recurrence.next(Math.max(from, until - span) - 1)
    while (at !== undefined && at <= until && found.length <= bound) {
      found.push(at)
      at = recurrence.next(at)
    }
    if (found.length > bound) tooMany = span
    else if (found.length >= limit || !(until - span > from)) return found.slice(-limit)
    else tooFew = span
    span = tooMany === Number.POSITIVE_INFINITY ? span * 2 : (tooFew + tooMany) / 2
  }
}
