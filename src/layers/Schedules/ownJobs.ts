/**
 * The jobs that a schedule remembers as its own, the latest: also those that are not live, since dead letters can be requeued.
 */
import { Effect } from "effect"
import type { StoreError } from "../../services/Errors.js"
import type { DeadRow } from "../../services/JobRows.js"
import { parseJson } from "../../services/json.js"
import { scheduleHeader } from "../../services/ScheduleStore.js"
import type { Names, Session } from "../engine.js"
import { textOrNull } from "../Queue/statements/rows.js"
import { ownJobStatements } from "./statements.js"

const most = 100

export const ownJobs = (text: string | null): ReadonlyArray<number> => {
  const ids = parseJson(text)
  return Array.isArray(ids) ? ids.filter((id) => Number.isSafeInteger(id)) : []
}

export const withOwnJobs = (own: ReadonlyArray<number>, more: ReadonlyArray<number>): string =>
  JSON.stringify([...new Set([...own, ...more])].slice(-most))

const scheduleOf = ({ headers }: DeadRow): string | undefined => {
  const parsed = parseJson(headers)
  const name = typeof parsed === "object" && parsed !== null ? Reflect.get(parsed, scheduleHeader) : undefined
  return typeof name === "string" ? name : undefined
}

/** Tells the schedules of requeued jobs which of these have a new id. `ids`: by the letters'. */
export const makeRenamed = (n: Names) => {
  const { keepJobs, lock } = ownJobStatements(n)
  return (
    session: Session,
    letters: ReadonlyArray<DeadRow>,
    ids: ReadonlyMap<number, number>
  ): Effect.Effect<void, StoreError> =>
    Effect.forEach(
      letters,
      (letter) => {
        const id = ids.get(letter.id)
        const name = id === undefined || id === letter.id ? undefined : scheduleOf(letter)
        if (id === undefined || name === undefined) return Effect.void
        return Effect.flatMap(session.execute(lock, { name }), ([row]) => {
          const own = ownJobs(textOrNull(row?.live_jobs))
          return own.includes(letter.id)
            ? session.execute(keepJobs, { name, liveJobs: withOwnJobs(own, [id]) })
            : Effect.void
        })
      },
      { discard: true }
    )
}
