import { existsSync } from "node:fs"
import { afterAll, beforeAll, describe, expect, inject, it } from "vitest"
import { createDatabase, type Postgres, startPostgres, withClient } from "./postgres.js"

const one = (url: string) => withClient(url, async (client) => (await client.query("SELECT 1 AS one")).rows)

describe("the PostgreSQL of the run", () => {
  it("answers", async () => {
    expect(await one(inject("pgUrl"))).toEqual([{ one: 1 }])
  })

  it("gives every test file a database of its own, empty or a copy", async () => {
    const template = await createDatabase(inject("pgUrl"))
    await withClient(template, (client) => client.query("CREATE TABLE kept (id int)"))
    const copy = await createDatabase(inject("pgUrl"), { template })
    const tables = (url: string) =>
      withClient(url, async (client) => (await client.query("SELECT to_regclass('kept') IS NOT NULL AS kept")).rows)
    expect(await tables(copy)).toEqual([{ kept: true }])
    expect(await tables(await createDatabase(inject("pgUrl")))).toEqual([{ kept: false }])
  })
})

describe("a PostgreSQL of a test's own", () => {
  let postgres: Postgres
  beforeAll(async () => {
    postgres = await startPostgres({ own: true, durable: true, settings: { log_min_duration_statement: "0" } })
  })
  afterAll(() => postgres.stop())

  it("is durable and takes settings", async () => {
    const show = (name: string) => withClient(postgres.url, async (client) => (await client.query(`SHOW ${name}`)).rows)
    expect(await show("fsync")).toEqual([{ fsync: "on" }])
    expect(await show("log_min_duration_statement")).toEqual([{ log_min_duration_statement: "0" }])
  })

  it.each(["smart", "fast", "immediate", "kill"] as const)("comes back with its data after %s", async (mode) => {
    const before = postgres.pid
    await withClient(postgres.url, (client) => client.query(`CREATE TABLE before_${mode} (id int)`))
    await postgres.restart(mode)
    expect(postgres.pid).not.toBe(before)
    await withClient(postgres.url, (client) => client.query(`SELECT FROM before_${mode}`))
  })

  it("is unreachable while it is down", async () => {
    await postgres.kill()
    expect(postgres.pid).toBeUndefined()
    await expect(one(postgres.url)).rejects.toThrow()
    await postgres.start()
    expect(await one(postgres.url)).toEqual([{ one: 1 }])
  })

  it("leaves nothing behind", async () => {
    const other = await startPostgres({ own: true })
    await other.stop()
    expect(existsSync(other.dataDir ?? "")).toBe(false)
    await expect(one(other.url)).rejects.toThrow()
  })
})
