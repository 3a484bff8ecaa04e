/** Which notifications of its own a process leaves out: every order of what can happen, and what it costs a worker. */
import { Queue, Wake, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Context, Duration, Effect, Layer, Redacted, Schema } from "effect"
import pg from "pg"
import { describe, expect, inject, it, test, vi } from "vitest"
import type { Database } from "../../src/layers/Database/Database.js"
import { makeGather } from "../../src/layers/Queue/gather.js"
import type { Receivers } from "../../src/layers/Queue/receivers.js"
import type { Verbs } from "../../src/layers/Queue/verbs.js"
import { makeEchoes } from "../../src/layers/Wake/echoes.js"
import * as PgWake from "../../src/layers/Wake/PgWake.js"
import { live, wait } from "../support/outages.js"
import { createDatabase } from "../support/postgres.js"
import { newJob } from "../support/rows.js"
import { connectTo, postgresChannel } from "../support/steppedEngines.js"

/**
 * What a statement on one connection does. `told`: whoever sent it wakes the listeners when it has ended. `silent`: another
 * verb's, whose wake did not come. `lost`: its answer does not come, and it commits after the wake.
 */
type Kind = "told" | "silent" | "lost"
type Event = "begin" | "commit" | "answer" | "deliver" | "listen" | "deaf"

interface Outcome {
  /** Commits after which nobody was woken, though LISTEN went on. */
  readonly missed: number
  /** All wakes: by notifications, and by who sent the statements. */
  readonly wakes: number
}

const pid = 7
const topic = "letters"

const steps: Readonly<Record<Kind, ReadonlyArray<Event>>> = {
  told: ["begin", "commit", "answer"],
  silent: ["commit"],
  lost: ["begin", "answer", "commit"]
}

/** Plays one order of events. */
const play = (kinds: ReadonlyArray<Kind>, listening: boolean, order: ReadonlyArray<Event>): Outcome => {
  const echoes = makeEchoes()
  const todo = kinds.flatMap((kind) => steps[kind].map((event) => ({ kind, event })))
  let live = listening
  let ended: ((committed: boolean) => boolean) | undefined
  /** Commits after which no wake has come yet. */
  let unwoken = 0
  let wakes = 0
  for (const event of order) {
    if (event === "listen" || event === "deaf") {
      live = event === "listen"
      // Whoever begins to listen wakes everybody; without LISTEN, work is found by polling
      unwoken = 0
      if (live) echoes.listening()
    } else if (event === "deliver") {
      if (echoes.covers(pid, topic)) continue
      wakes++
      unwoken = 0
    } else {
      const kind = todo.shift()?.kind
      if (event === "begin") ended = echoes.begin(pid, topic)
      if (event === "commit" && live) unwoken++
      if (event === "answer") {
        if (ended?.(kind === "told") === true) continue
        wakes++
        unwoken = 0
      }
    }
  }
  return { missed: unwoken, wakes }
}

/** Every order in which these statements, one after the other, their notifications and LISTEN can come. */
const orders = (kinds: ReadonlyArray<Kind>, listening: boolean, turns: number): ReadonlyArray<ReadonlyArray<Event>> => {
  const all = kinds.flatMap((kind) => steps[kind])
  const found: Array<ReadonlyArray<Event>> = []
  const go = (done: ReadonlyArray<Event>, next: number, pending: number, live: boolean, left: number): void => {
    if (next === all.length && pending === 0) found.push(done)
    const event = all[next]
    if (event !== undefined) go([...done, event], next + 1, pending + (event === "commit" && live ? 1 : 0), live, left)
    if (pending > 0) go([...done, "deliver"], next, pending - 1, live, left)
    if (left > 0) go([...done, live ? "deaf" : "listen"], next, 0, !live, left - 1)
  }
  go([], 0, 0, listening, turns)
  return found
}

const kinds: ReadonlyArray<Kind> = ["told", "silent"]
const scripts: ReadonlyArray<ReadonlyArray<Kind>> = kinds.flatMap((a) =>
  kinds.flatMap((b) => kinds.flatMap((c) => [[a, b, c], [a, b, "lost"] as const]))
)

describe("notifications of one's own", () => {
  it("G193: no order of commits, answers, notifications and LISTEN leaves out one that nobody was woken for", () => {
    let played = 0
    for (const script of scripts)
      for (const listening of [true, false])
        for (const order of orders(script, listening, 2)) {
          played++
          expect(play(script, listening, order).missed, `${script}: ${order}`).toBe(0)
        }
    expect(played).toBeGreaterThan(10_000)
  })

  it("and the wakes of who sent them are one for each, where only such are sent and LISTEN goes on", () => {
    for (const order of orders(["told", "told", "told"], true, 0))
      expect(play(["told", "told", "told"], true, order).wakes, String(order)).toBe(3)
  })

  it("are heard where they come from other connections, or are about other topics", () => {
    const echoes = makeEchoes()
    echoes.begin(pid, topic)(true)
    expect(echoes.covers(pid + 1, topic)).toBe(false)
    expect(echoes.covers(pid, "parcels")).toBe(false)
    expect(echoes.covers(pid, topic)).toBe(true)
    expect(echoes.covers(pid, topic)).toBe(false)
  })

  it("of jobs that are handed over in their statement, and notified to nobody, are none (G196)", () =>
    Effect.gen(function* () {
      for (const handed of [true, false]) {
        const echoes = makeEchoes()
        let rung = 0
        const session = { writes: true, joined: false, pid, execute: () => Effect.succeed([]) }
        const db = { apart: (_access, _operation, verb) => verb(session) } as Pick<Database, "apart"> as Database
        const receipt = { id: 1, state: "ready", deduplicated: false, replaced: false } as const
        const receivers: Receivers = {
          receive: () => Effect.void,
          enqueue: () => Effect.succeed({ receipts: [receipt], handed })
        }
        const ring = () => Effect.sync(() => void rung++)
        const enqueue = makeGather(db, receivers, {} as Verbs, ring, echoes)
        expect(yield* enqueue(topic, [newJob])).toEqual([receipt])
        expect(rung).toBe(handed ? 0 : 1)
        // What is notified next is not taken for it
        expect(echoes.covers(pid, Wake.queueTopic(topic))).toBe(!handed)
      }
    }).pipe(Effect.runPromise))

  it("whose echo never comes are not kept without end", () => {
    const echoes = makeEchoes()
    for (let n = 0; n <= 1_000; n++) echoes.begin(n, topic)(true)
    expect(echoes.covers(1_000, topic)).toBe(true)
    expect(echoes.covers(1, topic)).toBe(false)
  })
})

const Letters = Queue.make("letters", { payload: Schema.Number })

test("G57, G60: an enqueue costs the worker of its own process one claim; others' enqueues and transactions are heard", () =>
  live(
    Effect.gen(function* () {
      const url = Redacted.make(yield* Effect.promise(() => createDatabase(inject("pgUrl"))))
      const options = { sweeper: false, scheduler: false, pollInterval: "1 hour" } as const
      const here = yield* Layer.build(Pg.layerUrl(url, options))
      const there = yield* Layer.build(Pg.layerUrl(url, options))
      const seen: Array<number> = []
      yield* Effect.provide(
        Worker.make(Letters, { handler: ({ payload }) => Effect.sync(() => void seen.push(payload)) }),
        here
      )
      // Of everything that it is told, what comes last
      const heard: Array<string> = []
      const emit = pg.Client.prototype.emit as (...parameters: ReadonlyArray<unknown>) => boolean
      const told = vi.spyOn(pg.Client.prototype, "emit").mockImplementation(function (this: pg.Client, ...parameters) {
        const [event, message] = parameters as unknown as [string, { readonly payload?: string }]
        if (event === "notification") heard.push(String(message.payload))
        return emit.apply(this, parameters)
      })
      const send = pg.Client.prototype.query as (...parameters: ReadonlyArray<unknown>) => unknown
      let claims = 0
      const asked = vi.spyOn(pg.Client.prototype, "query").mockImplementation(function (
        this: pg.Client,
        ...parameters
      ) {
        const [query] = parameters as ReadonlyArray<string | { readonly text: string }>
        if (typeof query === "object" && query.text.startsWith("/* alkstore:claim ")) claims++
        return send.apply(this, parameters)
      })
      yield* Effect.addFinalizer(() => Effect.sync(() => [told, asked].forEach((spy) => void spy.mockRestore())))
      const isLive = (of: Context.Context<Wake.Wake>) =>
        wait("listening", () => Effect.runSync(Context.get(of, Wake.Wake).state)._tag === "Live")
      yield* Effect.all([isLive(here), isLive(there)])
      // What expires is handed to nobody in the statement that enqueues it (G196)
      const letter = (n: number) => Letters.enqueue(n, { expires: "1 hour" })
      yield* Effect.provide(letter(0), here)
      yield* wait("done", () => seen.length === 1)
      claims = 0
      heard.length = 0
      for (let n = 1; n <= 20; n++) {
        yield* Effect.provide(letter(n), here)
        // Both processes hear of each
        yield* wait("handled and heard", () => seen.length === n + 1 && heard.length >= 2 * n)
      }
      expect(claims).toBe(20)
      yield* Effect.provide(Letters.enqueue(21), there)
      yield* wait("another process's", () => seen.length === 22)
      yield* Effect.provide(Queue.transaction(Letters.enqueue(22)), here)
      yield* wait("the application's", () => seen.length === 23)
    }).pipe(Effect.scoped)
  ))

test("G61, G193: what was to be heard when LISTEN was lost is not taken for what is notified later", () =>
  live(
    Effect.gen(function* () {
      const url = yield* Effect.promise(() => createDatabase(inject("pgUrl")))
      const client = yield* connectTo(url)
      const { processID } = client as unknown as { readonly processID: number }
      const echoes = makeEchoes()
      const layer = PgWake.layer({
        connection: { connectionString: url },
        channel: postgresChannel,
        pollInterval: Duration.hours(1),
        connectTimeoutMillis: 5_000,
        probeTimeoutMillis: 2_000,
        echoes
      })
      const wake = Context.get(yield* Layer.build(layer), Wake.Wake)
      const is = (state: Wake.WakeState["_tag"]) =>
        wait(`it is ${state}`, () => Effect.runSync(wake.state)._tag === state)
      yield* is("Live")
      const { await: woken } = yield* wake.subscribe(topic)
      // Whose notification never comes
      echoes.begin(processID, topic)(true)
      yield* Effect.promise(() =>
        client.query(
          "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'alkstore-wake'"
        )
      )
      yield* Effect.timeout(woken, "20 seconds")
      yield* is("Live")
      yield* Effect.promise(() => client.query(`SELECT pg_notify('${postgresChannel}', '${topic}')`))
      yield* Effect.timeout(woken, "20 seconds")
    })
  ))
