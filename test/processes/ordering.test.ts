/** Ordered jobs under workers that are killed, each in a process of its own. */
import { Effect } from "effect"
import { describe, expect, it } from "vitest"
import { Tasks, task } from "../support/processes/config.js"
import { engines, only, openPlace } from "../support/processes/place.js"
import { until } from "../support/until.js"

const keys = 12
const each = 30
const kills = 4
const visibilityMillis = 1_500

describe.each(engines)("%s", (engine) => {
  it("jobs of a key start in order and never beside each other, though workers are killed (G31, G44, G160, G164)", async () => {
    await using place = await openPlace(engine)
    const keyOf = new Map<number, number>()
    const enqueue = async (count: number) => {
      const jobs = Array.from({ length: count }, (_, n) => task("sleep", n % 9))
      const receipts = await place.run(
        Tasks.enqueueMany(jobs, (_, n) => ({ orderingKey: `key ${n % keys}`, maxAttempts: 100 })).pipe(
          Effect.map((all) => all.map(({ id }) => id))
        )
      )
      receipts.forEach((id, n) => {
        keyOf.set(id, n % keys)
      })
    }
    const killed = new Map<number, number>()
    const workers = await Promise.all([1, 2, 3].map(() => place.worker({ visibilityMillis, concurrency: 8 })))
    for (let round = 0; round < kills; round++) {
      await enqueue((keys * each) / kills)
      await until("some of them run", () => only(place.ledger(), "start").length > (keyOf.size * 2) / 3 - 30, 30_000)
      const victim = workers.shift()
      victim?.signal("SIGKILL")
      await victim?.ended()
      killed.set(victim?.pid ?? 0, Date.now())
      workers.push(await place.worker({ visibilityMillis, concurrency: 8 }))
    }
    await until("every job is done", async () => (await place.live()).length === 0, 40_000)
    expect(await place.dead()).toEqual([])

    const entries = place.ledger()
    const ended = new Set(only(entries, "end").map(({ id }) => id))
    expect(ended.size).toBe(keys * each)
    // Each key: a job starts when the one before it has ended, and again only when its lease has
    for (let key = 0; key < keys; key++) {
      const mine = entries.filter(({ id }) => id !== undefined && keyOf.get(id) === key)
      const order: Array<number> = []
      let running: (typeof mine)[number] | undefined
      for (const entry of mine) {
        if (entry.event === "end" || entry.event === "interrupted") running = undefined
        if (entry.event !== "start") continue
        const again = order.at(-1) === entry.id
        if (!again) order.push(entry.id ?? 0)
        if (running !== undefined) {
          expect(again, `${entry.id} started while ${running.id} ran`).toBe(true)
          // Or its lease has ended by time: a machine that is too busy renews too late
          const dead = (killed.get(running.pid) ?? Number.POSITIVE_INFINITY) <= entry.at
          expect(dead || entry.at - running.at > visibilityMillis / 2, `${entry.id} ran on in ${running.pid}`).toBe(
            true
          )
        }
        running = entry
      }
      expect(order).toEqual([...keyOf].filter(([, of]) => of === key).map(([id]) => id))
    }
  }, 120_000)
})
