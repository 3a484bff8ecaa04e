/** Workers that are killed, kill themselves, or are stopped for longer than their leases. */
import { transaction } from "alkstore"
import { Effect, Either } from "effect"
import { describe, expect, it } from "vitest"
import { firstTime, Tasks, task } from "../support/processes/config.js"
import { type Child, engines, only, openPlace, type Place } from "../support/processes/place.js"
import { until } from "../support/until.js"

const visibilityMillis = 1_500
const takeoverMillis = visibilityMillis + 5_000

const empty = (place: Place) => until("every job is done", async () => (await place.live()).length === 0, 20_000)

/** Stops a process that does not hold SQLite's write lock at that moment, which would stop everybody else too. */
const freeze = (place: Place, child: Child) =>
  until("the process is stopped outside of a write", async () => {
    child.signal("SIGSTOP")
    if (Either.isRight(await place.run(Effect.either(transaction(Effect.void))))) return true
    child.signal("SIGCONT")
    return false
  })

/** Workers one after another, each started when the one before has died, until it is done. */
const restarting = async (place: Place, done: () => Promise<boolean>) => {
  let worker = await place.worker({ visibilityMillis })
  let alive = true
  const watch = () =>
    void worker.ended(60_000).then(
      () => {
        alive = false
      },
      () => {}
    )
  watch()
  await until(
    "restarted workers are done",
    async () => {
      if (await done()) return true
      if (!alive) {
        alive = true
        worker = await place.worker({ visibilityMillis })
        watch()
      }
      return false
    },
    40_000
  )
}

describe.each(engines)("%s", (engine) => {
  it("a job whose process is killed is taken over once, when its lease has ended (G31, G44)", async () => {
    await using place = await openPlace(engine)
    const first = await place.worker({ visibilityMillis })
    const [id = 0] = await place.enqueue(firstTime("sleep", 60_000))
    await place.noted("start", { id, attempt: 1 })
    await place.worker({ visibilityMillis })
    await place.worker({ visibilityMillis })
    first.signal("SIGKILL")
    expect(await first.ended()).toBe("SIGKILL")
    await place.noted("end", { id, attempt: 2 }, takeoverMillis)
    await empty(place)
    expect(only(place.ledger(), "start", { id }).map(({ attempt }) => attempt)).toEqual([1, 2])
    expect(await place.dead()).toEqual([])
  }, 60_000)

  it("a job that kills its process ends as a dead letter, and its neighbours are done (G52)", async () => {
    await using place = await openPlace(engine)
    const before = await place.enqueue(task("nothing"), task("nothing"))
    const { id } = await place.run(Tasks.enqueue(task("kill"), { maxAttempts: 3 }))
    const after = await place.enqueue(task("nothing"), task("nothing"))
    await restarting(place, async () => (await place.live()).length === 0)
    expect(only(place.ledger(), "start", { id }).map(({ attempt }) => attempt)).toEqual([1, 2, 3])
    expect(await place.dead()).toMatchObject([{ id, reason: "crashed", attempts: 3, crashes: 3 }])
    for (const other of [...before, ...after]) await place.noted("end", { id: other })
  }, 60_000)

  it("a crash on the only attempt is not repeated (G52)", async () => {
    await using place = await openPlace(engine)
    const { id } = await place.run(Tasks.enqueue(task("kill"), { maxAttempts: 1 }))
    await restarting(place, async () => (await place.live()).length === 0)
    expect(only(place.ledger(), "start", { id })).toHaveLength(1)
    expect(await place.dead()).toMatchObject([{ id, reason: "crashed", attempts: 1, crashes: 1 }])
  }, 60_000)

  it("a process that was stopped for longer than its lease cannot ack, the new holder can (G19, G28)", async () => {
    await using place = await openPlace(engine)
    const sleeper = await place.worker({ visibilityMillis })
    // Each attempt acks 4 s after its start: the first while the second still holds the job
    const [id = 0] = await place.enqueue(task("ack", 4_000))
    await place.noted("start", { id, attempt: 1 })
    await freeze(place, sleeper)
    const other = await place.worker({ visibilityMillis })
    await place.noted("start", { id, attempt: 2, pid: other.pid }, takeoverMillis)
    sleeper.signal("SIGCONT")
    await place.noted("ack refused: LeaseLost", { id, pid: sleeper.pid })
    await place.noted("LeaseLost", { id, pid: sleeper.pid })
    expect((await place.live()).map(({ attempt, state }) => [state, attempt])).toEqual([["leased", 2]])
    await place.noted("ack accepted", { id, attempt: 2, pid: other.pid })
    await empty(place)
    other.signal("SIGTERM")
    expect(await other.ended()).toBe(0)
    const [next = 0] = await place.enqueue(task("nothing"))
    await place.noted("end", { id: next, attempt: 1, pid: sleeper.pid })
    await empty(place)
    expect(only(place.ledger(), "start", { id })).toHaveLength(2)
    expect(await place.dead()).toEqual([])
  }, 60_000)
})
