/** Schedulers that are killed between their statements, and several at once. */
import { Lock, Schedules } from "alkstore"
import { Effect } from "effect"
import { describe, expect, it } from "vitest"
import { Tasks, task } from "../support/processes/config.js"
import { engines, openPlace, type Place } from "../support/processes/place.js"
import { until } from "../support/until.js"

const everySecond = Schedules.make("every second", {
  every: "1 second",
  queue: Tasks,
  payload: task("nothing"),
  catchUp: "all"
})

const schedulerLock = Effect.flatMap(Lock.Lock, (lock) => lock.forceRelease("__alkstore_scheduler"))

/** In the order in which they were enqueued. */
const boundaries = async (place: Place): Promise<ReadonlyArray<number>> =>
  (await place.live()).map(
    ({ headers }) => Schedules.boundary({ headers: JSON.parse(headers ?? "{}") })?.getTime() ?? 0
  )

const moreThan = (place: Place, count: number) =>
  until(`more than ${count} boundaries`, async () => (await boundaries(place)).length > count, 30_000)

const expectEachOnce = async (place: Place) => {
  const found = await boundaries(place)
  const [first = 0] = found
  expect(found).toEqual(found.map((_, index) => first + index * 1_000))
  return found
}

describe.each(engines)("%s", (engine) => {
  it("G101 a scheduler that is killed between any two statements leaves each boundary exactly one job", async () => {
    await using place = await openPlace(engine)
    await place.run(Schedules.put(everySecond))
    const steps = [
      ["schedule_due", "alkstore:enqueue"],
      ["schedule_due", "schedule_advance"],
      ["schedule_advance", "COMMIT"],
      // The first statement after the commit
      ["schedule_advance", "COMMIT", "alkstore:"]
    ]
    for (const killAt of steps) {
      const before = (await boundaries(place)).length
      const child = place.start({ role: "schedule", killAt })
      expect(await child.ended(30_000)).toBe("SIGKILL")
      // Before the commit nothing was enqueued, after it all
      if (killAt.length === 2) expect(await boundaries(place)).toHaveLength(before)
      else expect((await boundaries(place)).length).toBeGreaterThan(before)
      await place.run(schedulerLock)
    }
    const last = (await expectEachOnce(place)).length
    place.start({ role: "schedule" })
    await moreThan(place, last + 3)
    await expectEachOnce(place)
  })

  it("G102 schedulers of several processes, each of which may think it is the only one", async () => {
    await using place = await openPlace(engine)
    await place.run(Schedules.put(everySecond))
    const children = [0, 1, 2].map(() => place.start({ role: "schedule" }))
    await Promise.all(children.map((child) => place.noted("ready", { pid: child.pid }, 30_000)))
    const start = (await boundaries(place)).length
    // Takes the leadership from whoever has it, all the time
    await until("six more boundaries", async () => {
      await place.run(schedulerLock)
      return (await boundaries(place)).length > start + 6
    })
    await expectEachOnce(place)
    // The leader goes, and the others go on
    children[0]?.signal("SIGKILL")
    children[1]?.signal("SIGTERM")
    expect(await children[1]?.ended()).toBe(0)
    await moreThan(place, (await boundaries(place)).length + 2)
    await expectEachOnce(place)
  })
})
