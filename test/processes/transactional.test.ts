/** Transactional workers that are killed: what a handler wrote and its ack stand or fall together. */
import { Queue } from "alkstore"
import { Effect } from "effect"
import { describe, expect, it } from "vitest"
import { Effects, firstTime, task } from "../support/processes/config.js"
import { engines, only, openPlace, type Place } from "../support/processes/place.js"
import { until } from "../support/until.js"

const visibilityMillis = 1_500

/** The ids of the jobs whose handlers' writes have been committed. */
const effects = (place: Place) =>
  place.run(
    Effect.flatMap(Queue.Queue, (queue) =>
      Effect.map(queue.list(Effects.name, { limit: 1_000, after: 0 }), (rows) =>
        rows.map(({ payload }) => Number(payload)).sort((a, b) => a - b)
      )
    )
  )

describe.each(engines)("%s", (engine) => {
  it("killed before its COMMIT, a transactional handler has written nothing; killed after it, all (G120)", async () => {
    await using place = await openPlace(engine)
    const before = await place.worker({ visibilityMillis, transactional: true })
    const [first = 0] = await place.enqueue(firstTime("kill"))
    expect(await before.ended()).toBe("SIGKILL")
    expect(await effects(place)).toEqual([])
    expect(await place.live()).toMatchObject([{ id: first, state: "leased" }])
    const after = await place.worker({ visibilityMillis, transactional: true, killAfterAck: true })
    expect(await after.ended(20_000)).toBe("SIGKILL")
    expect(await effects(place)).toEqual([first])
    expect(await place.live()).toEqual([])
    expect(only(place.ledger(), "start", { id: first })).toHaveLength(2)
  }, 60_000)

  it("killed at any moment, transactional handlers and their acks stand or fall together (G120)", async () => {
    await using place = await openPlace(engine)
    const ids = await place.enqueue(...Array.from({ length: 150 }, () => task("sleep", 5)))
    for (let round = 0; round < 2; round++) {
      const victim = await place.worker({ visibilityMillis, transactional: true, concurrency: 3 })
      await until("some are done", async () => (await place.live()).length < 150 - 30 * (round + 1), 20_000)
      victim.signal("SIGKILL")
      expect(await victim.ended()).toBe("SIGKILL")
    }
    await place.worker({ visibilityMillis, transactional: true, concurrency: 3 })
    await until("every job is done", async () => (await place.live()).length === 0, 20_000)
    expect(await effects(place)).toEqual([...ids].sort((a, b) => a - b))
    expect(await place.dead()).toEqual([])
  }, 60_000)
})
