/** Passwords stay out of what the library says. */
import { inspect } from "node:util"
import { Queue } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Cause, Effect, Exit, Redacted, Schema } from "effect"
import { expect, inject, test } from "vitest"
import { createDatabase } from "../support/postgres.js"

const secret = "hunter2-in-the-url"
const Letters = Queue.make("letters", { payload: Schema.String })

test.each([
  ["nobody listens", `postgres://someone:${secret}@127.0.0.1:1/db`, "connection"],
  ["the host is unknown", `postgres://someone:${secret}@nowhere.invalid/db`, "connection"],
  ["the url is none", `postgres://someone:${secret}@[nonsense/db`, undefined]
] as const)("G89 an error when %s does not have the password", async (_, url, reason) => {
  const good = Redacted.make(await createDatabase(inject("pgUrl")))
  const layer = Pg.layerUrl(good, { connection: { url: Redacted.make(url) }, listen: false })
  const exit = await Effect.runPromiseExit(Effect.provide(Letters.enqueue("a"), layer))
  expect(Exit.isFailure(exit)).toBe(true)
  if (Exit.isSuccess(exit)) return
  expect(Cause.isFailure(exit.cause)).toBe(true)
  if (reason !== undefined) expect(Cause.squash(exit.cause)).toMatchObject({ _tag: "StoreError", reason })
  expect(`${inspect(exit, { depth: 10 })} ${Cause.pretty(exit.cause)} ${JSON.stringify(exit)}`).not.toContain(secret)
})
