/**
 * No text of a caller's becomes SQL: whatever it is, the database is given the very statements that it is given for a
 * harmless one, and answers the text as it was; or it is refused, and nothing was written.
 */
import { SqlClient } from "@effect/sql"
import { Queue } from "alkstore"
import { Effect, Exit, ManagedRuntime } from "effect"
import fc from "fast-check"
import { afterAll, beforeAll, describe, expect, it } from "vitest"
import { activity } from "../../src/layers/Database/Database.js"
import { type EngineServices, postgres, sqliteFile } from "../support/engines.js"
import { runs, seed, timeout } from "../support/form.js"
import { hostile, hostileName } from "./hostile.js"
import { Fixed, type Surface, surfaces } from "./surfaces.js"
import { makeTap, type Tap } from "./tap.js"

const quiet = { sweeper: false }

/** Nothing that was begun in the background goes on. */
const rest = async () => {
  for (let calm = 0, total = -1; calm < 3; calm++) {
    await new Promise(setImmediate)
    if (activity.open > 0 || activity.total !== total) calm = -1
    total = activity.total
  }
}

/**
 * What is left out: the settings of a connection made anew after an error, and on SQLite what other processes are told
 * of, and the transactions it goes in, which gather as they may.
 */
const beside = /^SET statement_timeout|^(BEGIN IMMEDIATE|COMMIT)$|alkstore:wake/

const harmlessText = "harmless"

/** SQLite: savepoints are numbered. */
const savepoint = /(?<=^(?:SAVEPOINT|RELEASE|ROLLBACK TO) alkstore_)\d+$/

const writes = /\b(INSERT|UPDATE|DELETE|CREATE|DROP|ALTER)\b(?! SKIP LOCKED)/

describe.each([postgres, sqliteFile])("$name", (engine) => {
  const runtime = ManagedRuntime.make(engine.layer({ silent: true, scheduler: false, sqlite: quiet, postgres: quiet }))
  const run = <A, E>(effect: Effect.Effect<A, E, EngineServices>) => runtime.runPromiseExit(effect)
  const sql = (text: string) => Effect.flatMap(SqlClient.SqlClient, (client) => client.unsafe(text))
  /** What no statement of ours may touch. */
  const canary = Effect.all([
    sql("SELECT * FROM canary"),
    sql(
      engine.engine === "postgres"
        ? "SELECT table_schema, table_name, column_name FROM information_schema.columns WHERE table_schema IN ('public', 'alkstore') ORDER BY 1, 2, 3"
        : "SELECT name, sql FROM sqlite_master ORDER BY 1"
    )
  ])
  let tap: Tap
  let alive: unknown
  let counter = 0

  beforeAll(async () => {
    tap = makeTap()
    await run(sql("CREATE TABLE canary (note text)"))
    await run(sql("INSERT INTO canary VALUES ('alive')"))
    await run(Effect.flatMap(Queue.Queue, (queue) => queue.define(Fixed.settings, "worker")))
    alive = await run(canary)
    expect(alive).toMatchObject({ _tag: "Success" })
  })
  afterAll(async () => {
    tap.close()
    await runtime.dispose()
  })

  /** One use of a surface: how it ended, and the statements that it took. */
  const use = async (surface: Surface, text: string) => {
    await rest()
    tap.clear()
    const exit = await run(surface(text, ++counter))
    await rest()
    const texts = tap.texts
      .filter((given) => !beside.test(given))
      .map((given) => given.replace(savepoint, ""))
      .sort()
    await run(Fixed.clear)
    return { exit, texts }
  }

  const check = async (surface: Surface, text: string, harmless: ReadonlyArray<string> | undefined) => {
    const { exit, texts } = await use(surface, text)
    if (Exit.isSuccess(exit)) {
      expect(exit.value).toEqual(exit.value.map(() => text))
      // A text that is accepted only if it is a rule or a duration: there is no harmless one to compare with
      if (harmless !== undefined) expect(texts).toEqual(harmless)
      return
    }
    expect(exit.cause).toMatchObject({
      _tag: "Fail",
      error: { _tag: expect.stringMatching(/^(InvalidArgument|InvalidPayload|StoreError)$/) }
    })
    for (const given of texts)
      if (harmless === undefined || !harmless.includes(given)) expect(given).not.toMatch(writes)
  }

  it.each(Object.entries(surfaces))(
    "G200: %s",
    async (name, surface) => {
      await use(surface, harmlessText)
      const { exit, texts } = await use(surface, harmlessText)
      // One that is compiled once could keep the first text that it met
      for (const given of texts) expect(given).not.toContain(harmlessText)
      const harmless = Exit.isSuccess(exit) ? texts : undefined
      const texts$ = name.includes("queue") ? fc.oneof(hostile, hostileName) : hostile
      await fc.assert(
        fc.asyncProperty(texts$, (text) => check(surface, text, harmless)),
        { seed, numRuns: runs(10, 400) }
      )
      expect(await run(canary)).toEqual(alive)
    },
    timeout(60_000, 600_000)
  )
})
