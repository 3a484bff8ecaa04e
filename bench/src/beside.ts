/**
 * W6, a drain beside rows that are none of its business; W7, a drain under an old snapshot.
 */
import pg from "pg"
import { type Clutter, payloads } from "./contender.js"
import { rate, type Workload } from "./figure.js"
import { analyse, drainAll } from "./inbox.js"

const full: Readonly<Record<string, Clutter>> = {
  // The measure for the others: no rows, and the tables vacuumed, analysed and written out as theirs are
  "W6-clean": { delayed: 0, finished: 0, ready: 0, where: "same queue" },
  "W6-delayed": { delayed: 100_000, finished: 0, ready: 0, where: "same queue" },
  "W6-finished": { delayed: 0, finished: 1_000_000, ready: 0, where: "same queue" },
  "W6-ready": { delayed: 0, finished: 0, ready: 1_000_000, where: "same queue" },
  "W6-other": { delayed: 0, finished: 0, ready: 1_000_000, where: "another queue" }
}

const share = ({ delayed, finished, ready, where }: Clutter, factor: number): Clutter => ({
  delayed: Math.round(delayed * factor),
  finished: Math.round(finished * factor),
  ready: Math.round(ready * factor),
  where
})

/** What is left afterwards is clutter, so only what arrived is counted. */
export const beside: ReadonlyArray<Workload> = Object.entries(full).map(([name, clutter]) => ({
  name,
  clutter: true,
  once: true,
  clean: name === "W6-clean" ? "W3" : "W6-clean",
  run: async ({ contender, sizes, where }, session) => {
    await session.enqueueMany(payloads(sizes.drain), 1_000)
    const rows = share(clutter, sizes.clutter)
    await contender.clutter?.(where, rows)
    const { millis, ...inbox } = await drainAll(session, sizes.drain)
    return [{ ...rate(name, sizes.drain, millis, inbox), rows }]
  }
}))

/** The horizon stays where this snapshot was taken: nothing that dies after it can be cleaned away. */
const holdSnapshot = async (url: string) => {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  await client.query("BEGIN ISOLATION LEVEL REPEATABLE READ")
  await client.query("SELECT count(*) FROM pg_class")
  return async () => {
    await client.query("ROLLBACK")
    await client.end()
  }
}

/** Jobs come and go, then comes the drain: with the snapshot, and without one to compare with. */
const underSnapshot = (name: string, hold: boolean): Workload => ({
  name,
  engine: "postgres",
  once: true,
  ...(hold ? { clean: "W7-clean" } : {}),
  run: async (run, session) => {
    const { sizes, where } = run
    const release = hold ? await holdSnapshot(where) : undefined
    await session.enqueueMany(payloads(sizes.pinned), 1_000)
    await analyse(run)
    const before = await drainAll(session, sizes.pinned)
    await session.enqueueMany(payloads(sizes.drain), 1_000)
    const { millis, ...inbox } = await drainAll(session, sizes.drain)
    const lost = before.lost + inbox.lost + (await session.left())
    await release?.()
    return [rate(name, sizes.drain, millis, { lost, duplicated: before.duplicated + inbox.duplicated })]
  }
})

export const pinned: ReadonlyArray<Workload> = [underSnapshot("W7-clean", false), underSnapshot("W7", true)]
