/** The command line as a deploy script runs it: a process of its own, judged by what it prints and its exit code. */
import { execFile, spawnSync } from "node:child_process"
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync } from "node:fs"
import { createRequire } from "node:module"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import BetterSqlite from "better-sqlite3"
import { afterAll, beforeAll, describe, expect, inject, it } from "vitest"
import { latest } from "../src/layers/Queue/migrations/migrate.js"
import { createDatabase, withClient } from "./support/postgres.js"

const root = fileURLToPath(new URL("..", import.meta.url))
const directory = mkdtempSync(join(tmpdir(), "alkstore-cli-"))
/** The package as it is built, inside the repository, so that it finds its dependencies. */
const built = join(root, "test/.tmp/cli")

beforeAll(() => {
  rmSync(built, { recursive: true, force: true })
  mkdirSync(built, { recursive: true })
  cpSync(join(root, "package.json"), join(built, "package.json"))
  const compiler = join(createRequire(import.meta.url).resolve("typescript/package.json"), "../bin/tsc")
  const args = [compiler, "-p", join(root, "tsconfig.build.json"), "--outDir", join(built, "dist")]
  const { stdout } = spawnSync(process.execPath, args, { encoding: "utf8" })
  expect(stdout).toBe("")
})

afterAll(() => {
  rmSync(directory, { recursive: true, force: true })
  rmSync(built, { recursive: true, force: true })
})

interface Ran {
  readonly code: number
  readonly out: string
  readonly err: string
}

const alkstore = (args: ReadonlyArray<string>, env: Readonly<Record<string, string>> = {}): Promise<Ran> =>
  new Promise((resolve) => {
    const { DATABASE_URL: _, ...rest } = process.env
    const child = execFile(
      process.execPath,
      [join(built, "dist/cli.js"), ...args],
      { env: { ...rest, ...env } },
      (_error, out, err) => resolve({ code: child.exitCode ?? -1, out, err })
    )
  })

/** The url with a password in it: the server trusts everybody, so any will do. */
const withPassword = (url: string): string => Object.assign(new URL(url), { password: "hunter2" }).href

describe("alkstore migrate", () => {
  it("brings a SQLite file up to date, once, and checks it (G84, G85)", async () => {
    const file = join(directory, "app.db")
    expect(await alkstore(["migrate", "--file", file, "--check"])).toMatchObject({ code: 2, out: "" })
    expect(existsSync(file)).toBe(false)
    expect(await alkstore(["migrate", "--file", file])).toEqual({
      code: 0,
      out: `${file}: migrated from version 0 to version ${latest}\n`,
      err: ""
    })
    const again = { code: 0, out: `${file}: the tables are up to date (version ${latest})\n`, err: "" }
    expect(await alkstore(["migrate", "--file", file, "--check"])).toEqual(again)
    const other = await alkstore(["migrate", "--file", file, "--namespace", "other_", "--check"])
    expect(other).toMatchObject({ code: 1, out: "" })
    expect(other.err).toContain("run `alkstore migrate`")
    const db = new BetterSqlite(file, { readonly: true })
    const tables = db.prepare("SELECT name FROM sqlite_master WHERE name LIKE 'other%'").all()
    db.close()
    expect(tables).toEqual([])
  })

  it("brings a PostgreSQL schema up to date, by --url or DATABASE_URL, and never prints the password (G84, G89)", async () => {
    const url = await createDatabase(inject("pgUrl"))
    const runs = [
      await alkstore(["migrate", "--url", withPassword(url), "--namespace", "my-jobs", "--check"]),
      await alkstore(["migrate", "--url", withPassword(url), "--namespace", "my-jobs"]),
      await alkstore(["migrate", "--namespace", "my-jobs", "--check"], { DATABASE_URL: withPassword(url) })
    ]
    expect(runs.map(({ code }) => code)).toEqual([1, 0, 0])
    expect(runs[1]?.out).toContain(`migrated from version 0 to version ${latest}`)
    expect(runs[2]?.out).toContain(`up to date (version ${latest})`)
    expect(runs.map(({ err, out }) => out + err).join("")).not.toContain("hunter2")
    const { rows } = await withClient(url, (client) =>
      client.query(`SELECT max(version) AS latest FROM "my-jobs".migrations`)
    )
    expect(rows).toEqual([{ latest }])
  })

  it("says what keeps it from the database, without the password, and exits with 3 (G88, G89)", async () => {
    const [unreachable, missing, nowhere] = await Promise.all([
      alkstore(["migrate", "--url", "postgres://app:hunter2@127.0.0.1:1/app?password=hunter2"]),
      alkstore(["migrate", "--url", `${withPassword(inject("pgUrl"))}_missing`]),
      alkstore(["migrate", "--file", join(directory, "missing", "app.db")])
    ])
    expect(unreachable).toMatchObject({ code: 3, out: "" })
    expect(unreachable.err).toContain("postgres://app@127.0.0.1:1/app: ")
    expect(unreachable.err).toContain("cannot be reached")
    expect(unreachable.err).not.toContain("hunter2")
    expect(missing).toMatchObject({ code: 3, out: "" })
    expect(missing.err).toContain("does not exist")
    expect(nowhere).toMatchObject({ code: 3, out: "" })
    expect(nowhere.err).toContain("directory does not exist")
  })

  it("leaves tables that are too new as they are, and exits with 1 (G86)", async () => {
    const file = join(directory, "new.db")
    await alkstore(["migrate", "--file", file])
    const db = new BetterSqlite(file)
    db.exec("INSERT INTO _alkstore_migrations VALUES (99, 'later', 99, 0)")
    db.close()
    const refused = await alkstore(["migrate", "--file", file])
    expect(refused).toMatchObject({ code: 1, out: "" })
    expect(refused.err).toContain("upgrade the library")
  })

  it.each([
    ["nothing to migrate", []],
    ["two databases", ["--url", "postgres://localhost/a", "--file", "a.db"]],
    ["a url of another kind", ["--url", "mysql://app:hunter2@localhost/a"]],
    ["an unknown option", ["--bogus"]],
    ["a bad prefix", ["--file", join(directory, "bad.db"), "--namespace", "b;c"]]
  ])("refuses %s, and exits with 2", async (_, args) => {
    const refused = await alkstore(["migrate", ...args])
    expect(refused).toMatchObject({ code: 2, out: "" })
    expect(refused.err).not.toBe("")
    expect(refused.err).not.toContain("hunter2")
    expect(refused.err).not.toContain("    at ")
  })

  it("documents its exit codes", async () => {
    const { code, out } = await alkstore(["migrate", "--help"])
    expect(code).toBe(0)
    expect(out).toMatch(/Exit codes:\n {2}0 .*\n {2}1 .*\n {2}2 .*\n {2}3 /)
  })
})
