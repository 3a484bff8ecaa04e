/** What holds in the tables whatever the model says. */
import type { Seen } from "./observe.js"
import { demand, type Scene } from "./scene.js"

type Row = Seen["live"][number]

const laneOf = (row: Row): string => `${row.queue} ${row.orderingKey}`

const lanes = ({ dead, holding, live, marks }: Seen): void => {
  const keyed = live.filter(({ orderingKey }) => orderingKey !== null)
  const open = keyed.filter(({ place }) => place !== "blocked").map(laneOf)
  demand(new Set(open).size === open.length, () => `two of one ordering key at a time: ${open.sort().join(", ")}`)
  const letters = new Map(dead.map((letter) => [letter.id, letter]))
  const held = new Set(holding.map((id) => letters.get(id)).map((letter) => letter && laneOf(letter)))
  demand(!held.has(undefined), () => "an ordering key is held by a dead letter that is not there")
  for (const row of keyed.filter(({ place }) => place === "blocked")) {
    const lane = laneOf(row)
    demand(
      open.includes(lane) || held.has(lane) || marks.has(lane),
      () => `job ${row.id} is blocked by nobody: it can never move on`
    )
  }
}

const keys = ({ keys: held, live }: Seen): void => {
  const byId = new Map(live.map((row) => [row.id, row]))
  for (const { freeAt, id, name } of held) {
    const row = byId.get(id)
    demand(freeAt !== null || row !== undefined, () => `dedupe key ${name} is held by job ${id}, which is not live`)
    demand(
      row === undefined || freeAt !== null || `${row.queue} ${row.dedupeKey}` === name,
      () => `dedupe key ${name} is not that of job ${id}`
    )
  }
  const holders = new Set(held.filter(({ freeAt }) => freeAt === null).map(({ id }) => id))
  for (const row of live)
    demand(
      row.dedupeKey === null || row.dedupeScope === "waiting" || holders.has(row.id),
      () => `job ${row.id} is live and does not hold its dedupe key`
    )
}

const counters = ({ live }: Seen): void => {
  const tokens = live.flatMap(({ token }) => (token === null ? [] : [token]))
  demand(new Set(tokens).size === tokens.length, () => "two leases have one token")
  for (const { attempt, crashes, id, maxAttempts, place } of live) {
    demand(Number(attempt) <= Number(maxAttempts), () => `job ${id} is on attempt ${attempt} of ${maxAttempts}`)
    demand(place !== "leased" || Number(attempt) >= 1, () => `job ${id} is leased on attempt ${attempt}`)
    demand(Number(crashes) <= Number(attempt), () => `job ${id} has crashed ${crashes} times in ${attempt} attempts`)
  }
}

export const check = (scene: Scene, seen: Seen): void => {
  const ids = [...seen.live, ...seen.dead, ...seen.completed].map(({ id }) => id)
  demand(new Set(ids).size === ids.length, () => "a job is in two places")
  demand(scene.engine.engine === "postgres" || seen.marks.size === 0, () => "SQLite has marks of ordering keys")
  lanes(seen)
  keys(seen)
  counters(seen)
}
