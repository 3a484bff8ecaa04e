/** How a worker's process ends. */
import { describe, expect, it } from "vitest"
import { task } from "../support/processes/config.js"
import { engines, only, openPlace } from "../support/processes/place.js"
import { until } from "../support/until.js"

describe.each(engines)("%s", (engine) => {
  it("SIGTERM lets short jobs end, gives the others back and starts none (G81, G82)", async () => {
    await using place = await openPlace(engine)
    const graceMillis = 2_500
    const visibilityMillis = 60_000
    const worker = await place.worker({ graceMillis, visibilityMillis, concurrency: 4 })
    // A worker claims ahead when it knows how quick its handlers are
    await place.enqueue(...Array.from({ length: 200 }, () => task("nothing")))
    await until("the quick ones are done", async () => (await place.live()).length === 0)
    const ids = await place.enqueue(
      ...[1_500, 1_500, 30_000, 30_000].map((millis) => task("sleep", millis)),
      ...Array.from({ length: 50 }, () => task("nothing"))
    )
    const running = ids.slice(0, 4)
    const short = ids.slice(0, 2)
    const rest = ids.slice(2)
    for (const id of running) await place.noted("start", { id })
    const ahead = (await place.live()).filter(({ state }) => state === "leased")
    expect(ahead.length).toBeGreaterThan(4)

    worker.signal("SIGTERM")
    expect(await worker.ended(graceMillis + 3_000)).toBe(0)
    const live = await place.live()
    expect(live.map(({ id }) => id)).toEqual(rest)
    for (const row of live) expect(row).toMatchObject({ state: "ready", attempt: 0, crashes: 0, failures: 0 })
    const mine = place.ledger().filter(({ id, pid }) => pid === worker.pid && ids.includes(id ?? 0))
    expect(only(mine, "start").map(({ id }) => id)).toEqual(running)
    expect(only(mine, "end").map(({ id }) => id)).toEqual(short)
    expect(only(mine, "interrupted")).toHaveLength(2)

    // At once, though a lease of theirs would have lasted for a minute
    const heir = await place.worker({ visibilityMillis })
    for (const id of rest) await place.noted("start", { id, attempt: 1, pid: heir.pid }, 5_000)
    expect(only(place.ledger(), "start").filter(({ id }) => short.includes(id ?? 0))).toHaveLength(2)
  }, 60_000)

  it("a handler that ignores its interruption does not keep the process (G83)", async () => {
    await using place = await openPlace(engine)
    const graceMillis = 500
    const worker = await place.worker({ graceMillis })
    const [id = 0] = await place.enqueue(task("never"))
    await place.noted("start", { id })
    worker.signal("SIGTERM")
    expect(await worker.ended(graceMillis + 4_000)).toBe(0)
    expect((await place.live()).map((row) => row.id)).toEqual([id])
  }, 60_000)

  it("a process whose scope is closed ends by itself (G82)", async () => {
    await using place = await openPlace(engine)
    const ids = await place.enqueue(...Array.from({ length: 5 }, () => task("nothing")))
    const child = place.start({ role: "finish", count: ids.length })
    for (const id of ids) await place.noted("end", { id })
    expect(await child.ended(5_000)).toBe(0)
    expect(await place.live()).toEqual([])
  }, 60_000)
})
