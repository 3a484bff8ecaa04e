/** Whatever has happened before: all that is live can move on, comes to its end, and leaves nothing behind. */
import { Queue } from "alkstore"
import { Effect } from "effect"
import type { FaultServices } from "./engines.js"
import { dangling } from "./state.js"
import { acksOf, claim, type World } from "./world.js"

const distinct = (rows: ReadonlyArray<Readonly<Record<string, unknown>>>): ReadonlyArray<string> => [
  ...new Set(rows.map(({ queue }) => String(queue)))
]

/** An hour passes: what is delayed is due, and leases have ended. */
const later = ({ database, operator }: World) =>
  operator(
    `UPDATE ${database.table("jobs")} SET visible_at = visible_at - 7200000 WHERE visible_at IS NOT NULL;
     UPDATE ${database.table("queues")} SET paused_at = NULL WHERE paused_at IS NOT NULL`
  )

const rounds = 8

/** Answers what is wrong, if anything. */
export const drain = (world: World): Effect.Effect<ReadonlyArray<string>, unknown, FaultServices> =>
  Effect.gen(function* () {
    const store = yield* Queue.Queue
    for (let round = 0; round < rounds; round++) {
      const { dead_letters: letters = [], jobs = [] } = yield* Effect.promise(world.database.look)
      if (jobs.length === 0) break
      yield* later(world)
      yield* store.sweepExpired()
      for (const queue of distinct(jobs)) {
        const rows = yield* claim(queue, 100)
        yield* store.settle(queue, acksOf(rows))
      }
      // Keys that letters hold are let go by hand
      if (round >= rounds / 2)
        for (const queue of distinct(letters))
          yield* store.purgeDead(queue, {
            ids: null,
            reasons: null,
            from: null,
            until: null,
            error: null,
            orderingKey: null
          })
    }
    yield* store.sweepExpired()
    const raw = yield* Effect.promise(world.database.look)
    const stuck = (raw.jobs ?? []).map(({ ordering_key, payload }) => `stuck: ${payload} ${ordering_key ?? ""}`)
    const held = (raw.dedupe_keys ?? []).filter(({ free_at }) => free_at === null)
    return [
      ...stuck,
      ...held.map(({ dedupe_key }) => `dedupe key ${dedupe_key} is held for ever`),
      ...(raw.lane_marks ?? []).map(({ ordering_key }) => `ordering key ${ordering_key} is marked for ever`),
      ...dangling(raw)
    ]
  })
