/** Claims take what is first: by priority, the instant from which it is ready, and id. */
import type { Row } from "../database.js"
import { type Court, num, type Scene } from "./oracle.js"

const isBefore = (a: Row, b: Row): boolean =>
  num(b.priority) - num(a.priority) < 0 ||
  (a.priority === b.priority &&
    (num(a.visible_at) < num(b.visible_at) || (a.visible_at === b.visible_at && num(a.id) < num(b.id))))

/** Only a hand that is free takes it. */
const isRisky = (row: Row) => num(row.crashes) > 0 || num(row.attempt) + 1 >= num(row.max_attempts)

export const makeOrder = (court: Court) => ({
  /** Before the changes of the commit are known to the court. */
  look: ({ by, changes, since }: Scene): void => {
    const jobs = changes.filter(({ table }) => table === "jobs")
    const claimed = jobs.flatMap(({ after, before }) =>
      before !== undefined && after !== undefined && before.token === null && after.token !== null ? [before] : []
    )
    if (claimed.length === 0) return
    const mine = new Set(jobs.map(({ after, before }) => num((after ?? before)?.id)))
    const last = claimed.reduce((a, b) => (isBefore(a, b) ? b : a))
    for (const { id, row } of court.live())
      if (
        row.queue === last.queue &&
        row.token === null &&
        row.visible_at !== null &&
        num(row.visible_at) <= since &&
        (row.expires_at === null || num(row.expires_at) > court.world.now) &&
        !mine.has(id) &&
        !isRisky(row) &&
        isBefore(row, last)
      )
        court.wrong(`${by.name} claims ${last.id} of ${last.queue} before ${id}`)
  }
})
