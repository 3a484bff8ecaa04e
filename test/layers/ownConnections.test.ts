/** Where the Layer's own PostgreSQL connections go when not where the client's go. */
import { type AddressInfo, connect, createServer } from "node:net"
import { Queue, transaction } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Effect, Layer, Redacted, Schema } from "effect"
import { expect, inject, test } from "vitest"
import { createDatabase } from "../support/postgres.js"
import { startProxy } from "../support/proxy.js"

const Letters = Queue.make("letters", { payload: Schema.String })

/** Another way to the same server, that counts who comes. */
const detour = (to: URL) =>
  Effect.acquireRelease(
    Effect.async<{ readonly port: number; readonly passed: () => number; readonly close: () => void }>((resume) => {
      let passed = 0
      const server = createServer((socket) => {
        passed++
        const onward = connect(Number(to.port), to.hostname)
        socket.on("error", () => onward.destroy())
        onward.on("error", () => socket.destroy())
        socket.pipe(onward).pipe(socket)
      })
      server.listen(0, "127.0.0.1", () => {
        const { port } = server.address() as AddressInfo
        resume(Effect.succeed({ port, passed: () => passed, close: () => server.close() }))
      })
    }),
    ({ close }) => Effect.sync(close)
  )

const cases: ReadonlyArray<readonly [string, (port: number, url: URL) => Pg.Options["connection"]]> = [
  ["host and port", (port) => ({ host: "127.0.0.1", port })],
  ["port alone", (port) => ({ port })],
  ["url", (port, url) => ({ url: Redacted.make(Object.assign(new URL(url), { port: String(port) }).href) })]
]

test.each(cases)("a client made from a url, own connections by %s", async (_, connection) => {
  const url = new URL(await createDatabase(inject("pgUrl")))
  const program = Effect.gen(function* () {
    const way = yield* detour(url)
    const layer = Pg.layerUrl(Redacted.make(url.href), { connection: connection(way.port, url), listen: false })
    const [job] = yield* Effect.provide(Effect.zipRight(Letters.enqueue("a"), Letters.claim()), layer)
    return { payload: job?.payload, passed: way.passed() }
  }).pipe(Effect.scoped)
  const { passed, payload } = await Effect.runPromise(program)
  expect(payload).toBe("a")
  expect(passed).toBeGreaterThan(0)
})

test("an enqueue after the Layer was closed fails, and is not uncertain: nothing was sent (G11)", async () => {
  const layer = Pg.layerUrl(Redacted.make(await createDatabase(inject("pgUrl"))), { listen: false })
  const program = Effect.gen(function* () {
    const open = Effect.tap(Layer.build(layer), (context) => Effect.provide(Letters.enqueue("a"), context))
    const context = yield* Effect.scoped(open)
    return yield* Effect.flip(Effect.provide(Letters.enqueue("b"), context))
  })
  expect(await Effect.runPromise(program)).toMatchObject({ _tag: "StoreError", reason: "connection" })
})

test("a transaction that enqueues into a queue the database knows needs no connection but its own (G12)", async () => {
  const url = await createDatabase(inject("pgUrl"))
  const proxy = await startProxy(url)
  const way = { connection: { port: proxy.port }, listen: false, sweeper: false, scheduler: false }
  const process = <A, E>(program: Effect.Effect<A, E, Pg.Services>) =>
    Effect.runPromise(Effect.provide(program, Pg.layerUrl(Redacted.make(url), way)))
  await process(Letters.enqueue("a"))
  await process(Effect.zipRight(Effect.sync(proxy.hold), transaction(Letters.enqueue("b"))))
  proxy.pass()
  const jobs = await process(Letters.claim({ limit: 10 }))
  await proxy.close()
  expect(jobs.map(({ payload }) => payload)).toEqual(["a", "b"])
})
