/** Processes that start together on a database without tables, and processes that are killed while they start. */
import { describe, expect, it } from "vitest"
import { task } from "../support/processes/config.js"
import { type Child, engines, only, openPlace } from "../support/processes/place.js"

const versions = (table: (name: string) => string) =>
  `SELECT version, count(*) AS n FROM ${table("migrations")} GROUP BY version`

describe.each(engines)("%s", (engine) => {
  it.each([1, 2, 3])(
    "eight processes that start together on nothing all work (G84), round %i",
    async () => {
      await using place = await openPlace(engine, { empty: true })
      const children = Array.from({ length: 8 }, () => place.start({ role: "once" }))
      for (const child of children) expect([await child.ended(60_000), child.output()]).toEqual([0, ""])
      expect(new Set(only(place.ledger(), "end").map(({ id }) => id)).size).toBe(8)
      expect(only(place.ledger(), "start")).toHaveLength(8)
      expect(await place.live()).toEqual([])
      const rows = await place.rows(versions(place.table))
      expect(rows.length).toBeGreaterThan(0)
      for (const row of rows) expect(Number(row.n)).toBe(1)
    },
    90_000
  )

  it("a start after starts that were killed works (G84)", async () => {
    await using place = await openPlace(engine, { empty: true })
    const kill = async (child: Child, millis: number) => {
      // Its modules are loaded: from here on it is the database that it works on
      await place.noted("begin", { pid: child.pid }, 30_000)
      setTimeout(() => child.signal("SIGKILL"), millis)
      await child.ended()
    }
    await Promise.all([5, 15, 30, 60, 120, 300].map((millis) => kill(place.start({ role: "once" }), millis)))
    const child = place.start({ role: "work", visibilityMillis: 1_000 })
    await place.noted("ready", { pid: child.pid }, 30_000)
    const [id = 0] = await place.enqueue(task("nothing"))
    await place.noted("end", { id })
    child.signal("SIGTERM")
    expect(await child.ended()).toBe(0)
    for (const row of await place.rows(versions(place.table))) expect(Number(row.n)).toBe(1)
  }, 60_000)
})
