/** Producers that are killed while they enqueue. */
import { describe, expect, it } from "vitest"
import { engines, only, openPlace } from "../support/processes/place.js"
import { until } from "../support/until.js"

describe.each(engines)("%s", (engine) => {
  it.each([1, 20])(
    "every receipt that was answered is a job, transactions of %i (G1, G2)",
    async (batch) => {
      await using place = await openPlace(engine)
      const producers = Array.from({ length: 8 }, () => place.start({ role: "produce", count: 1_000_000, batch }))
      const receipts = (pid: number) => only(place.ledger(), "receipt", { pid }).length
      for (const { pid, signal } of producers) {
        await until("it has enqueued some", () => receipts(pid) >= 5 * batch, 30_000)
        signal("SIGKILL")
      }
      for (const producer of producers) expect(await producer.ended()).toBe("SIGKILL")
      const stored = new Set((await place.rows(`SELECT id FROM ${place.table("jobs")}`)).map(({ id }) => Number(id)))
      expect(only(place.ledger(), "receipt").filter(({ id }) => !stored.has(id ?? 0))).toEqual([])
      // A transaction whose answer nobody read may be there too, but never a part of one
      expect(stored.size % batch).toBe(0)
    },
    60_000
  )
})
