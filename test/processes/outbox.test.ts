/** A relay that is killed while it delivers to a real HTTP server. */
import { createServer } from "node:http"
import type { AddressInfo } from "node:net"
import { transaction } from "alkstore"
import { Effect } from "effect"
import { describe, expect, it } from "vitest"
import { Event, Events } from "../support/processes/config.js"
import { engines, openPlace } from "../support/processes/place.js"
import { until } from "../support/until.js"

interface Arrival {
  readonly id: string
  readonly pid: number
  readonly key: string | null
  readonly n: number
}

/** Answers each request after a while, and some of them with an error; remembers all that arrived whole. */
const receiver = async () => {
  const arrivals: Array<Arrival> = []
  const server = createServer((request, response) => {
    let body = ""
    request.setEncoding("utf8").on("data", (text: string) => {
      body += text
    })
    request.on("end", () => {
      const arrival: Arrival = JSON.parse(body)
      const first = !arrivals.some(({ id }) => id === arrival.id)
      arrivals.push(arrival)
      setTimeout(() => response.writeHead(first && arrival.n % 4 === 3 ? 503 : 204).end(), 30)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  return {
    arrivals,
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    }
  }
}

describe.each(engines)("%s", (engine) => {
  it("a relay that is killed in the middle of deliveries loses none and keeps their order (G171, G174, G175)", async () => {
    await using place = await openPlace(engine)
    await using server = await receiver()
    const keys = ["a", "b", "c", null]
    const count = 25
    const published = new Map<string, Event>()
    for (let n = 0; n < count; n++) {
      const events = keys.map((key) => new Event({ key, n }))
      const ids = await place.run(transaction(Events.publishMany(events)))
      for (const [index, id] of ids.entries()) published.set(id, events[index] as Event)
    }
    await place.run(
      Effect.ignore(transaction(Effect.zipRight(Events.publish(new Event({ key: "a", n: -1 })), Effect.fail("no"))))
    )
    const config = { role: "relay", url: server.url, concurrency: 10, visibilityMillis: 1_500 } as const

    for (const arrived of [20, 50]) {
      const relay = place.start(config)
      // It has sent requests that are not answered yet: that is where it dies
      await until(`${arrived} have arrived; ${relay.output()}`, () => server.arrivals.length >= arrived, 30_000)
      relay.signal("SIGKILL")
      expect(await relay.ended()).toBe("SIGKILL")
    }
    const last = place.start(config)
    const left = async () => (await place.run(Events.list())).length
    await until(`all are delivered; ${last.output()}`, async () => (await left()) === 0, 30_000)
    last.signal("SIGTERM")
    expect(await last.ended()).toBe(0)

    const first = new Map<string, Arrival>()
    for (const arrival of server.arrivals) if (!first.has(arrival.id)) first.set(arrival.id, arrival)
    // Each at least once, under the id it was published with, and nothing else
    expect(new Map([...first].map(([id, { key, n }]) => [id, { key, n }]))).toEqual(
      new Map([...published].map(([id, { key, n }]) => [id, { key, n }]))
    )
    for (const key of ["a", "b", "c"]) {
      const order = [...first.values()].filter((arrival) => arrival.key === key).map(({ n }) => n)
      expect(order).toEqual(Array.from({ length: count }, (_, n) => n))
    }
    // What was on its way at a kill came again, from another process
    const senders = (id: string) =>
      new Set(server.arrivals.filter((arrival) => arrival.id === id).map(({ pid }) => pid))
    expect([...published.keys()].filter((id) => senders(id).size > 1).length).toBeGreaterThan(0)
    expect(await place.run(Events.deadLetters.list())).toEqual([])
  }, 90_000)
})
