/** The options of the engines' Layers: what is not allowed is refused by name, before anything is opened. */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { existsSync, readdirSync } from "node:fs"
import { dirname } from "node:path"
import { Queue, Worker } from "alkstore"
import * as Pg from "alkstore/Pg"
import * as Sqlite from "alkstore/Sqlite"
import { Deferred, Duration, Effect, Layer, Redacted, Schema } from "effect"
import { describe, expect, inject, it } from "vitest"
import { temporaryFile } from "../support/engines.js"
import { live } from "../support/outages.js"
import { createDatabase } from "../support/postgres.js"

const Letters = Queue.make("letters", { payload: Schema.String })

const noDurations = ["bogus", Number.NaN, -1, "-1 second", {}, true]
const noTimeouts = [...noDurations, Duration.infinity, "2 days"]
const noSweepers = [{ schedule: 1 }, { schedule: "15 seconds" }]

const cases = <Name extends string>(options: Record<Name, ReadonlyArray<unknown>>) =>
  Object.entries<ReadonlyArray<unknown>>(options).flatMap(([name, values]) =>
    values.map((value) => [name, value] as const)
  )

const argumentOf = (layer: Layer.Layer<never, unknown>) =>
  live(
    Effect.map(Effect.flip(Layer.build(layer)), (error) => {
      const { _tag, argument, message } = error as { _tag: string; argument: string; message: string }
      expect(_tag).toBe("InvalidArgument")
      expect(message.startsWith(`${argument}: `)).toBe(true)
      return argument
    })
  )

describe("G6: an option that is not allowed is refused, and nothing is opened:", () => {
  it.each(
    cases({
      busyTimeout: noTimeouts,
      busyLimit: noDurations,
      pollInterval: [...noDurations, 0],
      synchronous: ["normal", "FULL; DROP TABLE jobs", 1],
      sweeper: noSweepers
    })
  )("SQLite, %s: %j", (name, value) =>
    live(
      Effect.gen(function* () {
        const filename = yield* temporaryFile
        const options = { [name]: value } as Sqlite.Options
        const argument = yield* Effect.promise(() => argumentOf(Sqlite.layerFile(filename, options)))
        expect(argument).toBe(name === "sweeper" ? "sweeper.schedule" : name)
        expect(existsSync(dirname(filename)) && readdirSync(dirname(filename))).toEqual([])
      })
    )
  )

  it.each(
    cases({
      connectTimeout: [...noTimeouts, 0],
      statementTimeout: [...noTimeouts, 0],
      pollInterval: [...noDurations, 0],
      connections: [1, 101, 2.5, "2", Number.NaN],
      port: [0, 65_536, 1.5, "5432", Number.NaN],
      sweeper: noSweepers
    })
  )("PostgreSQL, %s: %j", async (name, value) => {
    const options = (name === "port" ? { connection: { port: value } } : { [name]: value }) as Pg.Options
    // Nobody listens there: whoever tried to connect would fail otherwise
    const argument = await argumentOf(Pg.layerUrl(Redacted.make("postgres://app@127.0.0.1:1/app"), options))
    expect(argument).toBe({ port: "connection.port", sweeper: "sweeper.schedule" }[name] ?? name)
  })
})

/** A worker gets what its own process enqueues while it waits. */
const works = <E>(layer: Layer.Layer<Sqlite.Services, E>) =>
  live(
    Effect.gen(function* () {
      const got = yield* Deferred.make<string>()
      yield* Worker.make(Letters, { handler: ({ payload }) => Deferred.succeed(got, payload) })
      yield* Effect.sleep(200)
      yield* Letters.enqueue("a")
      return yield* Effect.timeout(Deferred.await(got), "10 seconds")
    }).pipe(Effect.scoped, Effect.provide(layer))
  )

describe("without an end", () => {
  const pollInterval = Duration.infinity

  it("the poll interval: work is found by wakes", async () => {
    const url = Redacted.make(await createDatabase(inject("pgUrl")))
    expect(await works(Pg.layerUrl(url, { pollInterval }))).toBe("a")
    expect(await works(Pg.layerUrl(url, { pollInterval, listen: false }))).toBe("a")
    const file = Layer.unwrapScoped(Effect.map(temporaryFile, (name) => Sqlite.layerFile(name, { pollInterval })))
    expect(await works(file)).toBe("a")
  })

  it("G16: `busyLimit`: an enqueue waits for the write lock as long as it takes", () =>
    live(
      Effect.gen(function* () {
        const filename = yield* temporaryFile
        const options = { busyLimit: Duration.infinity, sweeper: false, scheduler: false } as const
        const mine = yield* Layer.build(Sqlite.layerFile(filename, options))
        const program = `
          const db = new (require("better-sqlite3"))(process.argv[1])
          db.exec("BEGIN IMMEDIATE")
          console.log("held")
          setTimeout(() => { db.exec("ROLLBACK"); db.close() }, 6000)`
        const child = spawn(process.execPath, ["-e", program, filename], { stdio: ["ignore", "pipe", "inherit"] })
        yield* Effect.promise(() => once(child.stdout, "data"))
        const [waited] = yield* Effect.timed(Effect.provide(Letters.enqueue("a"), mine))
        expect(Duration.toSeconds(waited)).toBeGreaterThan(5)
        yield* Effect.promise(() => (child.exitCode === null ? once(child, "exit") : Promise.resolve([])))
      })
    ))
})
