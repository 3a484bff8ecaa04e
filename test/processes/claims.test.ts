/** Several workers and producers, each a process of its own, on one database. */
import { describe, expect, it } from "vitest"
import { engines, only, openPlace } from "../support/processes/place.js"
import { until } from "../support/until.js"

const each = 10_000

describe.each(engines)("%s", (engine) => {
  it("every job is run once, by one of four processes, while two others enqueue (G1, G19, G82)", async () => {
    await using place = await openPlace(engine)
    const workers = await Promise.all(Array.from({ length: 4 }, () => place.worker({ concurrency: 20 })))
    const producers = [1, 2].map(() => place.start({ role: "produce", count: each, batch: 100 }))
    for (const producer of producers) expect(await producer.ended(90_000)).toBe(0)
    await until("every job is done", async () => (await place.live()).length === 0, 60_000)
    for (const worker of workers) worker.signal("SIGTERM")
    for (const worker of workers) expect(await worker.ended()).toBe(0)

    const entries = place.ledger()
    const receipts = only(entries, "receipt").map(({ id }) => id)
    const starts = only(entries, "start")
    expect(new Set(receipts).size).toBe(2 * each)
    expect(starts).toHaveLength(2 * each)
    expect(new Set(starts.map(({ id }) => id))).toEqual(new Set(receipts))
    expect(starts.filter(({ attempt }) => attempt !== 1)).toEqual([])
    expect(await place.dead()).toEqual([])
    // Otherwise nothing was shared
    expect(new Set(starts.map(({ pid }) => pid)).size).toBe(4)
    // On a machine that is too busy loops stall, and waits for SQLite's one lock are given up and tried again: no harm
    const outputs = [...workers, ...producers].map((child) => child.output())
    expect(outputs.filter((output) => /BUSY_SNAPSHOT|ERROR|Restarted/.test(output))).toEqual([])
  }, 200_000)
})
