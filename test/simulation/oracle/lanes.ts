/** Ordering keys: one at a time, in the order in which they came; a dead letter that holds its key holds it. */
import type { Change, Row } from "../database.js"
import type { Court, Scene } from "./oracle.js"
import { num } from "./oracle.js"

export const makeLanes = (court: Court) => {
  const lanes = new Map<string, Set<number>>()
  const blocks = new Map<string, Set<number>>()
  let lastId = 0
  const lane = (row: Row) => `${row.queue} ${row.ordering_key}`
  const setOf = (sets: Map<string, Set<number>>, key: string) => {
    const set = sets.get(key) ?? new Set<number>()
    sets.set(key, set)
    return set
  }

  const claimed = ({ by }: Scene, row: Row): void => {
    const key = lane(row)
    const id = num(row.id)
    for (const other of setOf(lanes, key))
      if (other < id) court.wrong(`${by.name} claims ${id} of ${key} before ${other}`)
      else if (other !== id && court.jobs.get(other)?.holder !== undefined)
        court.wrong(`${by.name} claims ${id} of ${key} while ${other} is leased`)
    for (const letter of setOf(blocks, key))
      if (letter < id) court.wrong(`${by.name} claims ${id} of ${key}, which letter ${letter} holds`)
  }

  const look = (scene: Scene, { after, before, table }: Change): void => {
    const row = after ?? before
    if (row === undefined) return
    if (table === "lane_blocks") {
      if (after !== undefined) setOf(blocks, lane(row)).add(num(row.letter_id))
      else setOf(blocks, lane(row)).delete(num(row.letter_id))
      return
    }
    if (before === undefined) {
      const known = court.jobs.has(num(row.id))
      if (!known && num(row.id) <= lastId) court.wrong(`${row.id} is the id of another before it`)
      lastId = Math.max(lastId, num(row.id))
    }
    if (row.ordering_key === null) return
    const ids = setOf(lanes, lane(row))
    if (after === undefined) ids.delete(num(row.id))
    else ids.add(num(row.id))
    if (after !== undefined && before !== undefined && before.token === null && after.token !== null)
      claimed(scene, after)
  }

  return {
    look,
    atRest: (select: (text: string) => ReadonlyArray<Row>): void => {
      for (const { letter_id } of select(
        "SELECT letter_id FROM _alkstore_lane_blocks WHERE letter_id NOT IN (SELECT id FROM _alkstore_dead_letters)"
      ))
        court.wrong(`letter ${letter_id} holds its key and is gone`)
    }
  }
}
