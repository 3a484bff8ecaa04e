/** SIGKILL at named points: between which two statements does something go wrong? */
import { describe, expect, it } from "vitest"
import { type Arena, type Engine, engines, expectSafe, openArena } from "./arena.js"
import type { Config, Point, Style } from "./config.js"

interface Case {
  readonly name: string
  readonly style: Style
  readonly point: (engine: Engine) => Point
  /** The handler's transaction had been committed when its process died: the job is not run again. */
  readonly committed: boolean
  /** Effects that are written a second time, outside of a completing transaction. */
  readonly repeated?: number
}

const killBefore = (...statements: ReadonlyArray<string>): Point => ({ when: "before", statements })
const killAfter = (...statements: ReadonlyArray<string>): Point => ({ when: "after", statements })

const claim = "alkstore:claim */"
const ack = "alkstore:ack"
const effect = "INSERT INTO effects"

/** Where a statement is a transaction of its own on PostgreSQL, and one of several on SQLite. */
const afterCommitOf = (statement: string) => (engine: Engine) =>
  engine === "postgres" ? killAfter(statement) : killAfter(statement, "COMMIT")

const inTransactions = (["settling", "transactional"] as const).flatMap(
  (style): ReadonlyArray<Case> => [
    { name: "after the effect, before the ack", style, point: () => killAfter(effect), committed: false },
    { name: "after the ack, before COMMIT", style, point: () => killBefore(effect, ack, "COMMIT"), committed: false },
    {
      name: "after COMMIT, before its answer is read",
      style,
      point: () => killAfter(effect, ack, "COMMIT"),
      committed: true
    }
  ]
)

const cases: ReadonlyArray<Case> = [
  { name: "after the claim, before the handler", style: "settling", point: afterCommitOf(claim), committed: false },
  { name: "in the handler", style: "transactional", point: () => ({ in: "work" }), committed: false },
  {
    name: "after the handler, before the ack",
    style: "worker",
    point: () => killBefore(ack),
    committed: false,
    repeated: 1
  },
  { name: "after the ack, before its answer is read", style: "worker", point: afterCommitOf(ack), committed: true },
  ...inTransactions
]

const quiet: Partial<Config> = { concurrency: 2 }

describe.each(engines)("%s", (engine) => {
  it.concurrent.each(cases)(
    "a worker dies $name, $style (G1, G12, G31, G39, G120)",
    async ({ committed, name, point, repeated = 0, style }) => {
      await using arena = await openArena(engine)
      await arena.order("order", 10)
      await arena.died(arena.start({ ...quiet, role: "work", style, point: point(engine) }))
      const written = (await arena.rows("SELECT name FROM effects")).length
      expect(written).toBe(committed || repeated > 0 ? 1 : 0)
      await arena.ready({ ...quiet, role: "work", style })
      const verdict = await arena.verdict(`killed ${name}, ${style}`)
      expectSafe({ ...verdict, repeated: verdict.repeated - repeated })
      expect(verdict).toMatchObject({ orders: 1, recovered: committed ? 0 : 1, repeated })
    },
    60_000
  )

  it.concurrent("a worker that stops before its ack completes nothing when it goes on behind another (G13, G19, G28)", async () => {
    await using arena = await openArena(engine)
    // Longer than it takes to go on: the other is still at it then
    await arena.order("order", 1_000)
    const victim = arena.start({ ...quiet, role: "work", point: { in: "worked" } })
    const { at: from, pid } = await arena.noted("stopped", { pid: victim.pid })
    const heir = await arena.ready({ ...quiet, role: "work" })
    await arena.noted("start", { attempt: 2, pid: heir.pid })
    victim.signal("SIGCONT")
    arena.fault({ kind: "freeze", pid, from, to: Date.now() })
    await arena.noted("LeaseLost", { attempt: 1, pid })
    const verdict = await arena.verdict("stopped before its ack")
    expectSafe(verdict)
    expect(verdict).toMatchObject({ attempts: 2, lapsed: 1, recovered: 1 })
    const [left] = await arena.rows("SELECT pid FROM effects")
    expect(Number(left?.pid)).toBe(heir.pid)
  }, 60_000)

  it.concurrent.each([
    { name: "before its enqueue", point: killAfter("INSERT INTO orders"), orders: 0 },
    {
      name: "after its enqueue, before COMMIT",
      point: killBefore("INSERT INTO orders", "alkstore:enqueue", "COMMIT"),
      orders: 0
    },
    {
      name: "after COMMIT, before the receipt",
      point: killAfter("INSERT INTO orders", "alkstore:enqueue", "COMMIT"),
      orders: 1
    }
  ])(
    "a producer dies in its transaction, $name (G1, G12)",
    async ({ name, orders, point }) => {
      await using arena = await openArena(engine)
      await arena.died(arena.start({ role: "produce", point }))
      const jobs = await arena.rows(`SELECT id FROM ${engine === "sqlite" ? '"_alkstore_jobs"' : "alkstore.jobs"}`)
      expect(jobs).toHaveLength(orders)
      await arena.ready({ ...quiet, role: "work" })
      const verdict = await arena.verdict(`producer killed ${name}`)
      expectSafe(verdict)
      expect(verdict).toMatchObject({ orders, attempts: orders })
    },
    60_000
  )

  it.concurrent.each([
    { name: "before it commits", point: killBefore("alkstore:give_back", "COMMIT") },
    { name: "when it has committed", point: killAfter("alkstore:give_back", "COMMIT") }
  ])(
    "a sweeper dies while it gives a job back, $name (G44, G54)",
    async ({ name, point }) => {
      await using arena: Arena = await openArena(engine)
      await arena.order("order", 10)
      await arena.died(arena.start({ ...quiet, role: "work", point: { in: "work" } }))
      await arena.died(arena.start({ role: "serve", sweepMillis: 50, point }))
      await arena.ready({ ...quiet, role: "work" })
      const verdict = await arena.verdict(`sweeper killed ${name}`)
      expectSafe(verdict)
      // One crash, one more attempt, whoever has counted it
      expect(verdict).toMatchObject({ attempts: 2, lapsed: 1, recovered: 1 })
      expect(
        arena
          .ledger()
          .filter(({ event }) => event === "start")
          .map(({ attempt }) => attempt)
      ).toEqual([1, 2])
    },
    60_000
  )
})
