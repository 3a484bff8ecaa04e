/**
 * What the engines answer about schedules, in our types.
 */

import type { StoredRule } from "../../schedule/Recurrence.js"
import { parseJson } from "../../services/json.js"
import type { CatchUp, NewSchedule, Overlap, ScheduleInfo } from "../../services/ScheduleStore.js"
import type { Parameters, Row } from "../engine.js"
import { bool, int, intOrNull, textOrNull } from "../Queue/statements/rows.js"
import { never } from "./decide.js"

const date = (value: unknown): Date | undefined => {
  const millis = intOrNull(value)
  return millis === null ? undefined : new Date(millis)
}

export const scheduleInfo = (row: Row): ScheduleInfo => {
  const message = textOrNull(row.last_error)
  const waiting = row.paused_at === null && int(row.next_at) !== never
  return {
    name: String(row.name),
    queue: String(row.queue),
    cron: textOrNull(row.cron) ?? undefined,
    timeZone: textOrNull(row.time_zone) ?? undefined,
    everyMillis: intOrNull(row.every_ms) ?? undefined,
    anchor: date(row.anchor),
    payload: parseJson(textOrNull(row.payload)),
    options: parseJson(textOrNull(row.options)),
    catchUp: String(row.catch_up) as CatchUp,
    overlap: String(row.overlap) as Overlap,
    declared: bool(row.declared),
    pausedAt: date(row.paused_at),
    nextAt: waiting ? date(row.next_at) : undefined,
    lastAt: date(row.last_at),
    fired: int(row.fired),
    skipped: int(row.skipped),
    lastError:
      message === null ? undefined : { message, at: new Date(int(row.last_error_at)), failures: int(row.failures) },
    createdAt: new Date(int(row.created_at)),
    updatedAt: new Date(int(row.updated_at))
  }
}

/** What a put sets, as parameters and by column. */
export const givenOf = (schedule: NewSchedule, rule: StoredRule): Parameters => ({
  queue: schedule.queue,
  cron: rule.cron,
  timeZone: rule.timeZone,
  everyMs: rule.everyMillis,
  anchor: rule.anchor,
  payload: schedule.payload,
  options: schedule.options,
  catchUp: schedule.catchUp,
  overlap: schedule.overlap
})

export const sameRule = (row: Row, rule: StoredRule): boolean =>
  textOrNull(row.cron) === rule.cron &&
  textOrNull(row.time_zone) === rule.timeZone &&
  intOrNull(row.every_ms) === rule.everyMillis &&
  intOrNull(row.anchor) === rule.anchor

export const sameSchedule = (row: Row, schedule: NewSchedule, rule: StoredRule): boolean =>
  sameRule(row, rule) &&
  row.queue === schedule.queue &&
  row.payload === schedule.payload &&
  row.options === schedule.options &&
  row.catch_up === schedule.catchUp &&
  row.overlap === schedule.overlap
