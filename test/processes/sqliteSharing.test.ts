/** One SQLite file and several processes: wakes, locks held by strangers, an event loop that stands still. */
import Database from "better-sqlite3"
import { Effect, Either } from "effect"
import { expect, it } from "vitest"
import { firstTime, Tasks, task } from "../support/processes/config.js"
import { only, openPlace } from "../support/processes/place.js"
import { until } from "../support/until.js"

it("another process is woken long before its poll, also after a checkpoint that empties the log (G57, G60)", async () => {
  await using place = await openPlace("sqlite")
  const worker = await place.worker({ pollMillis: 30_000 })
  const delays: Array<number> = []
  const soon = async () => {
    const [id = 0] = await place.enqueue(task("nothing"))
    const enqueued = Date.now()
    const { at } = await place.noted("start", { id, pid: worker.pid })
    delays.push(at - enqueued)
    expect(at - enqueued).toBeLessThan(2_000)
    await until("it is done", async () => (await place.live()).length === 0)
  }
  for (let i = 0; i < 3; i++) await soon()
  const third = new Database(place.database)
  for (let i = 0; i < 3; i++) {
    const [result] = third.pragma("wal_checkpoint(TRUNCATE)") as ReadonlyArray<{ readonly busy: number }>
    expect(result?.busy).toBe(0)
    await soon()
  }
  third.close()
  await soon()
  // The slow look alone, once a second, would find each of them almost a second late
  expect(delays.sort((a, b) => a - b)[3]).toBeLessThan(500)
}, 60_000)

/** The longest time for which nothing else could run in this process. */
const longestGap = async (during: () => Promise<unknown>): Promise<number> => {
  let last = performance.now()
  let gap = 0
  const tick = () => {
    const now = performance.now()
    gap = Math.max(gap, now - last)
    last = now
  }
  const timer = setInterval(tick, 20)
  await during()
  tick()
  clearInterval(timer)
  return gap
}

it("an enqueue waits for a stranger's write lock without blocking the event loop (G16)", async () => {
  await using place = await openPlace("sqlite", { sqlite: { busyLimit: "30 seconds" } })
  const holder = place.start({ role: "hold", holdMillis: 3_000 })
  await place.noted("ready", { pid: holder.pid })
  const gap = await longestGap(async () => {
    expect(await place.enqueue(task("nothing"))).toHaveLength(1)
  })
  expect(only(place.ledger(), "end", { pid: holder.pid })).toHaveLength(1)
  expect(gap).toBeLessThan(1_000)
  expect(await holder.ended()).toBe(0)
}, 60_000)

it("an enqueue that waited for a stranger's write lock up to its limit fails as busy (G88)", async () => {
  await using place = await openPlace("sqlite", { sqlite: { busyLimit: "3 seconds" } })
  await place.enqueue(task("nothing"))
  const holder = place.start({ role: "hold", holdMillis: 15_000 })
  await place.noted("ready", { pid: holder.pid })
  const gap = await longestGap(async () => {
    const answer = await place.run(Effect.either(Tasks.enqueue(task("nothing"))))
    expect(Either.isLeft(answer) && answer.left).toMatchObject({ _tag: "StoreError", reason: "busy", retryable: true })
  })
  expect(only(place.ledger(), "end")).toEqual([])
  expect(gap).toBeLessThan(1_000)
  holder.signal("SIGKILL")
  await holder.ended()
  await place.enqueue(task("nothing"))
  expect(await place.live()).toHaveLength(2)
}, 60_000)

it("a handler that holds its event loop beyond the lease loses the job, and its process goes on (G28, G78)", async () => {
  await using place = await openPlace("sqlite")
  const visibilityMillis = 1_000
  const workers = [await place.worker({ visibilityMillis }), await place.worker({ visibilityMillis })]
  const [id = 0] = await place.enqueue(firstTime("spin", 3_000))
  const { pid } = await place.noted("start", { id, attempt: 1 })
  const [spinner, other] = workers[0]?.pid === pid ? workers : [workers[1], workers[0]]
  if (spinner === undefined || other === undefined) throw new Error("there are two")
  await place.noted("end", { id, attempt: 2, pid: other.pid })
  await place.noted("EventLoopBlocked", { pid: spinner.pid })
  await place.noted("LeaseLost", { id, pid: spinner.pid })
  other.signal("SIGTERM")
  expect(await other.ended()).toBe(0)
  const [next = 0] = await place.enqueue(task("nothing"))
  await place.noted("end", { id: next, attempt: 1, pid: spinner.pid })
  await until("all is done", async () => (await place.live()).length === 0)
  expect(only(place.ledger(), "start", { id })).toHaveLength(2)
  expect(await place.dead()).toEqual([])
}, 60_000)
