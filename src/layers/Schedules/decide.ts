/**
 * What a due schedule does: which boundaries it fires for, and when it is due again. Pure.
 */
import { Either } from "effect"
import { between, type Recurrence, restore, type StoredRule } from "../../schedule/Recurrence.js"
import { type EnqueueOptions, placement } from "../../services/EnqueueOptions.js"
import { parseJson } from "../../services/json.js"
import type { NewJob } from "../../services/QueueStore.js"
import { boundaryHeader, type CatchUp, type Overlap, scheduleHeader } from "../../services/ScheduleStore.js"
import type { Row } from "../engine.js"
import { int, intOrNull, textOrNull } from "../Queue/statements/rows.js"

/** How many missed boundaries `all` makes up for. */
const mostBoundaries = 100

/**
 * How late a scheduler may come to a boundary under `skip`: one that took over from another is a moment late. What could not be fired
 * when one came is owed, however long that goes on.
 */
const lateMillis = 10_000

/** A schedule with no boundary left is due when no instant is. */
export const never = 253_402_300_799_999

export interface Decision {
  /** The boundaries to fire for, in order. */
  readonly boundaries: ReadonlyArray<number>
  /** The last boundary that has come: none up to it is fired ever again. */
  readonly lastAt: number | null
  readonly nextAt: number
}

export const ruleOf = (row: Row): StoredRule => ({
  cron: textOrNull(row.cron),
  timeZone: textOrNull(row.time_zone),
  everyMillis: intOrNull(row.every_ms),
  anchor: intOrNull(row.anchor)
})

/** The first boundary after now that has not been fired yet: the clock may have stepped back. */
export const nextAfter = (recurrence: Recurrence, now: number, lastAt: number | null): number =>
  recurrence.next(Math.max(now, lastAt ?? now)) ?? never

/** The next boundary once a pause has ended, or what was due before it and cannot be fired still. */
export const afterPause = (recurrence: Recurrence, row: Row, lastAt: number | null): number =>
  int(row.next_at) <= int(row.paused_at) ? int(row.next_at) : nextAfter(recurrence, int(row.now), lastAt)

/** Pauses whose boundaries must not be taken for what is owed from before them, the latest. */
const mostGaps = 10

type Gap = readonly [pausedAt: number, resumedAt: number]

const isGap = (value: unknown): value is Gap =>
  Array.isArray(value) && value.length === 2 && value.every(Number.isSafeInteger)

const gapsOf = (replaced: unknown): ReadonlyArray<Gap> =>
  typeof replaced === "object" && replaced !== null && "gaps" in replaced && Array.isArray(replaced.gaps)
    ? replaced.gaps.filter(isGap)
    : []

/** A rule that another has replaced, and when. */
export const replacedRule = (rule: StoredRule, until: number): string => JSON.stringify({ ...rule, until })

/** The same, owing nothing of a pause that ends now. `owing`: something from before it is owed still. */
export const resumedRule = (row: Row, owing: boolean): string | null => {
  const replaced = parseJson(textOrNull(row.previous_rule))
  const rule = typeof replaced === "object" && replaced !== null && "cron" in replaced ? replaced : undefined
  const gaps = [...gapsOf(replaced), [int(row.paused_at), int(row.now)]].slice(-mostGaps)
  if (rule === undefined) return owing ? JSON.stringify({ gaps }) : null
  return JSON.stringify({ ...rule, until: int(row.now), ...(owing ? { gaps } : {}) })
}

/** The last boundaries that have come since `from`, without those of pauses. */
const comeSince = (recurrence: Recurrence, from: number, row: Row, until: number, limit: number) => {
  let start = from
  const come: Array<number> = []
  const add = (end: number) => {
    if (start <= end) come.push(...between(recurrence, start, end, limit))
  }
  for (const [pausedAt, resumedAt] of gapsOf(parseJson(textOrNull(row.previous_rule)))) {
    add(Math.min(pausedAt, until))
    start = Math.max(start, resumedAt + 1)
  }
  add(until)
  return come.slice(-limit)
}

/**
 * The first boundary of a rule that takes effect now. Two versions that put in turns would otherwise take each other's
 * boundaries away: one that comes back before a second of its boundaries has passed still owes the first.
 */
export const firstAfter = (recurrence: Recurrence, now: number, lastAt: number | null, replaced: unknown): number => {
  if (typeof replaced === "object" && replaced !== null && "until" in replaced && typeof replaced.until === "number") {
    const { gaps: _, until, ...rule } = replaced as { readonly gaps?: unknown; readonly until: number }
    const same = JSON.stringify(rule) === JSON.stringify(recurrence.rule)
    const missed = same ? between(recurrence, Math.max(until, lastAt ?? until) + 1, now, 2) : []
    if (missed.length === 1) return missed[0] as number
  }
  return nextAfter(recurrence, now, lastAt)
}

const policies: ReadonlyArray<CatchUp> = ["latest", "all", "skip"]
const overlaps: ReadonlyArray<Overlap> = ["allow", "skip"]

const oneOf = <A extends string>(what: string, value: unknown, known: ReadonlyArray<A>): Either.Either<A, string> =>
  known.includes(value as A)
    ? Either.right(value as A)
    : Either.left(`${what} ${JSON.stringify(value)} is not known to this version`)

export const overlapOf = (row: Row): Either.Either<Overlap, string> => oneOf("overlap", row.overlap, overlaps)

/** Or why this version cannot fire it. */
export const decide = (row: Row): Either.Either<Decision, string> =>
  Either.gen(function* () {
    const recurrence = yield* Either.mapLeft(restore(ruleOf(row)), ({ message }) => message)
    const catchUp = yield* oneOf("catchUp", row.catch_up, policies)
    const now = int(row.now)
    const owed = int(row.next_at)
    const before = intOrNull(row.last_at)
    if (!Number.isSafeInteger(owed)) return yield* Either.left("next_at is not an instant")
    const from = before === null ? owed : Math.max(owed, before + 1)
    const come = comeSince(recurrence, from, row, now, catchUp === "all" ? mostBoundaries : 1)
    const lastAt = come.at(-1) ?? before
    // `fire_at` is when it was to be looked at: the boundary, or its next attempt
    const inTime = now - (intOrNull(row.fire_at) ?? now) <= lateMillis
    /** What a scheduler has tried: in time, since what is late is not tried. */
    const tried = () =>
      int(row.failures) > 0 ? comeSince(recurrence, from, row, Math.min(now, int(row.last_error_at)), 1) : []
    const recent = come.filter((boundary) => now - boundary <= lateMillis)
    return {
      boundaries: catchUp !== "skip" || inTime ? come : recent.length > 0 ? recent : tried(),
      lastAt,
      nextAt: nextAfter(recurrence, now, lastAt)
    }
  })

/** The job of a schedule, for a boundary or by hand; or why this version cannot enqueue it. */
export const jobOf = (row: Row): Either.Either<(boundary: number | undefined) => NewJob, string> =>
  Either.gen(function* () {
    const options = parseJson(textOrNull(row.options))
    if (typeof options !== "object" || options === null) return yield* Either.left("options are not a JSON object")
    const { headers = {}, ...rest } = options as EnqueueOptions
    const place = yield* Either.mapLeft(
      placement(rest, { maxAttempts: 20, priority: 0, expires: undefined }),
      ({ message }) => message
    )
    const name = String(row.name)
    return (boundary) => ({
      ...place,
      payload: String(row.payload),
      headers: JSON.stringify({
        ...headers,
        [scheduleHeader]: name,
        ...(boundary === undefined ? {} : { [boundaryHeader]: new Date(boundary).toISOString() })
      })
    })
  })
