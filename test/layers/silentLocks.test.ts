/** Locks whose database does not answer: who holds one lets go of it before anybody else can have it. */
import { type AddressInfo, connect, createServer } from "node:net"
import { Lock } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Effect, Exit, Fiber, Layer, Redacted } from "effect"
import { expect, inject, test } from "vitest"
import { createDatabase } from "../support/postgres.js"
import { startProxy } from "../support/proxy.js"

const engine = (url: string, options: Pg.Options = {}) =>
  Layer.fresh(Pg.layerUrl(Redacted.make(url), { sweeper: false, scheduler: false, listen: false, ...options }))

/** Forwards what is sent; what is answered once it is told so comes that much later, and then nothing comes any more. */
const startLate = async (target: string, lateMillis: number) => {
  const to = new URL(target)
  let late = false
  let silent = false
  const server = createServer((client) => {
    const database = connect(Number(to.port), to.hostname)
    const end = () => {
      client.destroy()
      database.destroy()
    }
    for (const socket of [client, database]) socket.on("error", end).on("close", end)
    client.on("data", (data) => void (silent || database.write(data)))
    database.on("data", (data) => {
      if (silent) return
      if (!late) return void client.write(data)
      setTimeout(() => {
        silent = true
        client.write(data)
      }, lateMillis)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  const { port } = server.address() as AddressInfo
  return {
    url: Object.assign(new URL(target), { port: String(port) }).href,
    begin: () => {
      late = true
    },
    close: () => server.close()
  }
}

/** Two processes want a lock; the first one's network is not what it was. Each says when it was in. */
const contest = (
  first: ReturnType<typeof engine>,
  second: ReturnType<typeof engine>,
  ttl: "1 second" | "2 seconds",
  trouble: () => void
) =>
  Effect.gen(function* () {
    const one = yield* Layer.build(first)
    const two = yield* Layer.build(second)
    yield* Effect.provide(Lock.withLock("warm")(Effect.void), one)
    const said: Array<string> = []
    const say = (what: string) => Effect.sync(() => void said.push(what))
    const inside = Effect.acquireUseRelease(
      say("the first enters"),
      () => Effect.never,
      () => say("the first leaves")
    )
    const holder = yield* Effect.fork(Effect.provide(Lock.withLock("k", { ttl })(inside), one))
    trouble()
    yield* Effect.iterate(0, { while: () => said.length === 0, body: () => Effect.as(Effect.sleep(5), 0) })
    yield* Effect.provide(Lock.withLock("k", { timeout: "20 seconds" })(say("the second enters")), two)
    expect(said).toEqual(["the first enters", "the first leaves", "the second enters"])
    return holder
  })

test("a network that swallows everything: the holder is interrupted in time, not when its renewal gives up (G67, G68)", async () => {
  const url = await createDatabase(inject("pgUrl"))
  const proxy = await startProxy(url)
  const silence = () => void setTimeout(proxy.hold, 500)
  await Effect.runPromise(
    Effect.gen(function* () {
      const holder = yield* contest(engine(proxy.url), engine(url), "2 seconds", silence)
      proxy.pass()
      expect(String(yield* Fiber.await(holder))).toContain("LockLost")
    }).pipe(Effect.scoped, Effect.ensuring(Effect.promise(proxy.close)))
  )
})

test("how long the answer to its acquire took is a part of a lock's time (G67, G68)", async () => {
  const url = await createDatabase(inject("pgUrl"))
  const late = await startLate(url, 700)
  await Effect.runPromise(
    Effect.gen(function* () {
      const holder = yield* contest(
        engine(late.url, { statementTimeout: "1 second" }),
        engine(url),
        "1 second",
        late.begin
      )
      // To let go of what is lost waits for the database
      late.close()
      expect(Exit.isFailure(yield* Fiber.await(holder))).toBe(true)
    }).pipe(Effect.scoped)
  )
})
