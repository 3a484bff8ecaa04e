/** The command line as a deploy script runs it: a process of its own, judged by what it prints and its exit code. */
import { spawn } from "node:child_process"
import { once } from "node:events"
import {
  closeSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync
} from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import BetterSqlite from "better-sqlite3"
import { afterAll, beforeAll, describe, expect, inject, it } from "vitest"
import { latest } from "../src/layers/Queue/migrations/migrate.js"
import { createDatabase, withClient } from "./support/postgres.js"
import { compile, type Ran, runNode } from "./support/programs.js"

const root = fileURLToPath(new URL("..", import.meta.url))
const directory = mkdtempSync(join(tmpdir(), "alkstore-cli-"))
/** The package as it is built, inside the repository, so that it finds its dependencies. */
const built = join(root, "test/.tmp/cli")

beforeAll(async () => {
  rmSync(built, { recursive: true, force: true })
  mkdirSync(built, { recursive: true })
  cpSync(join(root, "package.json"), join(built, "package.json"))
  expect(await compile("-p", join(root, "tsconfig.build.json"), "--outDir", join(built, "dist"))).toBe("")
})

afterAll(() => {
  rmSync(directory, { recursive: true, force: true })
  rmSync(built, { recursive: true, force: true })
})

const alkstore = (
  args: ReadonlyArray<string>,
  env: Readonly<Record<string, string>> = {},
  input = ""
): Promise<Ran> => {
  const { DATABASE_URL: _, ...rest } = process.env
  return runNode([join(built, "dist/cli.js"), ...args], { env: { ...rest, ...env }, input })
}

/** The url with a password in it: the server trusts everybody, so any will do. */
const withPassword = (url: string): string => Object.assign(new URL(url), { password: "hunter2" }).href

describe("G202: no password is printed where", () => {
  it.each([
    ["the server is missing", ["migrate", "--url", "postgres://app:hunter2@127.0.0.1:1/a?sslpassword=hunter2"], 3],
    ["it is cut short by its slash", ["migrate", "--url", "postgres://app:1/hunter2@127.0.0.1:1/a"], 2],
    ["it is cut short by its hash", ["export", "--url", "postgres://app:1#hunter2@127.0.0.1:1/a"], 2],
    ["settings are listed", ["migrate", "--url", "host=127.0.0.1 password=hunter2"], 2],
    ["it is taken for a command", ["postgres://app:hunter2@localhost/a"], 2],
    ["it is taken for an argument", ["migrate", "postgres://app:hunter2@localhost/a"], 2],
    ["it is taken for an option", ["migrate", "--ulr=postgres://app:hunter2@localhost/a"], 2],
    ["it is taken for a file", ["export", "--file", "postgres://app:hunter2@localhost/a?password=hunter2"], 2],
    ["it is taken for a namespace", ["migrate", "--file", ":memory:", "--namespace", "postgres://a:hunter2@h/a"], 2]
  ])("%s", async (_, args, code) => {
    const ran = await alkstore(args)
    expect(ran).toMatchObject({ code, out: "" })
    expect(ran.err).not.toBe("")
    expect(ran.err).not.toContain("hunter2")
  })
})

describe("without a driver", () => {
  /** Where the package is installed, and its optional drivers are not. */
  const home = join(directory, "no-drivers")
  beforeAll(() => {
    cpSync(built, home, { recursive: true })
    const installed = join(root, "node_modules")
    const drivers = ["@effect/sql-pg", "@effect/sql-sqlite-node"]
    const names = readdirSync(installed).flatMap((name) =>
      name.startsWith("@") ? readdirSync(join(installed, name)).map((one) => `${name}/${one}`) : [name]
    )
    mkdirSync(join(home, "node_modules"))
    for (const name of names) {
      if (drivers.includes(name) || name.startsWith(".")) continue
      if (name.includes("/")) mkdirSync(join(home, "node_modules", name, ".."), { recursive: true })
      symlinkSync(join(installed, name), join(home, "node_modules", name))
    }
  })

  it.each([
    ["migrate, PostgreSQL", ["migrate", "--url", "postgres://app@127.0.0.1:1/a"], "@effect/sql-pg"],
    ["migrate, SQLite", ["migrate", "--file", join(directory, "no-driver.db")], "@effect/sql-sqlite-node"],
    ["export", ["export", "--url", "postgres://app@127.0.0.1:1/a"], "@effect/sql-pg"],
    ["import", ["import", "--url", "postgres://app@127.0.0.1:1/a"], "@effect/sql-pg"]
  ])("%s names it, and exits with 3", async (_, args, driver) => {
    const { code, err, out } = await runNode([join(home, "dist/cli.js"), ...args], { env: process.env, input: "" })
    expect({ code, out }).toEqual({ code: 3, out: "" })
    expect(err).toMatch(new RegExp(`^[^\n]*: its driver is not installed; npm install ${driver}\n$`))
  })
})

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
    // Whoever only looks leaves an application's file as it is, to the byte
    const theirs = join(directory, "theirs.db")
    new BetterSqlite(theirs).exec("CREATE TABLE notes (id INTEGER PRIMARY KEY)").close()
    const before = readFileSync(theirs)
    expect(await alkstore(["migrate", "--file", theirs, "--check"])).toMatchObject({ code: 1, out: "" })
    expect(readFileSync(theirs).equals(before)).toBe(true)
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
    ["a file without a name", ["--file", ""]],
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

describe("alkstore export and import", () => {
  const jobs = [`'"first"'`, `'"naïve \\u0000"'`, `'{"n":3}'`]
  const fill = (file: string, paused: boolean) => {
    const db = new BetterSqlite(file)
    db.exec(`INSERT INTO _alkstore_queues (name, defined_by, updated_at, paused_at) VALUES ('a', 'worker', 0, ${paused ? 1 : "NULL"});
      INSERT INTO _alkstore_jobs (queue, payload, priority, attempt, max_attempts, enqueued_at, due_at, visible_at)
      VALUES ${jobs.map((payload) => `('a', ${payload}, 0, 0, 20, 1, 1, 1)`).join(", ")}`)
    db.close()
  }

  it("move a SQLite file into PostgreSQL, once (G184)", async () => {
    const file = join(directory, "moving.db")
    const url = await createDatabase(inject("pgUrl"))
    expect((await alkstore(["migrate", "--file", file])).code).toBe(0)
    fill(file, true)
    const dump = await alkstore(["export", "--file", file])
    expect(dump).toMatchObject({ code: 0, err: "" })
    const lines = dump.out.trimEnd().split("\n")
    expect(lines.map((line) => JSON.parse(line).type)).toEqual(["alkstore", "queue", "job", "job", "job", "end"])

    const early = await alkstore(["import", "--url", withPassword(url)], {}, dump.out)
    expect(early).toMatchObject({ code: 1, out: "" })
    expect(early.err).toContain("alkstore migrate")
    await alkstore(["migrate", "--url", url])
    const cut = await alkstore(["import", "--url", url], {}, lines.slice(0, 4).join("\n"))
    expect(cut).toMatchObject({ code: 1 })
    expect(cut.out).toContain("jobs: 2 imported, 0 there already, 0 refused")
    expect(cut.err).toContain("cut short")
    // Within a line: what came before it is imported all the same
    const within = await alkstore(
      ["import", "--url", url],
      {},
      `${lines.slice(0, 4).join("\n")}\n${lines[4]?.slice(0, 20)}`
    )
    expect(within).toMatchObject({ code: 1, out: "" })
    expect(within.err).toContain("line 5 is not an object in JSON: it was cut short")
    for (const none of ["hello", `${lines[0]}\nhello\n`])
      expect(await alkstore(["import", "--url", url], {}, none)).toMatchObject({ code: 2 })
    const whole = await alkstore(["import", "--url", withPassword(url)], {}, dump.out)
    expect(whole).toMatchObject({ code: 0, err: "" })
    expect(whole.out).toContain("jobs: 1 imported, 2 there already, 0 refused")
    const { rows } = await withClient(url, (client) => client.query("SELECT payload FROM alkstore.jobs ORDER BY id"))
    expect(rows.map(({ payload }) => `'${payload}'`)).toEqual(jobs)
  })

  it("end quietly when nobody reads any more, and say what keeps it from being written (G184)", async () => {
    const file = join(directory, "unread.db")
    await alkstore(["migrate", "--file", file])
    fill(file, true)
    const args = [join(built, "dist/cli.js"), "export", "--file", file]
    const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "pipe"] })
    child.stdout.destroy()
    let err = ""
    child.stderr.on("data", (text) => {
      err += String(text)
    })
    const [code] = await once(child, "close")
    expect({ code, err }).toEqual({ code: 141, err: "" })
    if (!existsSync("/dev/full")) return
    const full = openSync("/dev/full", "w")
    const unwritten = spawn(process.execPath, args, { stdio: ["ignore", full, "pipe"] })
    closeSync(full)
    let said = ""
    unwritten.stderr?.on("data", (text) => {
      said += String(text)
    })
    expect((await once(unwritten, "close"))[0]).toBe(1)
    expect(said).toContain("cannot be written: ")
    expect(said).toContain("ENOSPC")
  })

  it("refuse what is in use, no export, and a database that is not there (G181, G183, G184)", async () => {
    const file = join(directory, "in-use.db")
    await alkstore(["migrate", "--file", file])
    fill(file, false)
    const busy = await alkstore(["export", "--file", file])
    expect(busy).toMatchObject({ code: 1, out: "" })
    expect(busy.err).toContain("not paused: a")
    const one = await alkstore(["export", "--file", file, "--force", "--queue", "a"])
    expect(one.out.split("\n")).toHaveLength(jobs.length + 4)
    const none = await alkstore(["export", "--file", file, "--force", "--queue", "a", "nope"])
    expect(none).toMatchObject({ code: 2, out: "" })
    expect(none.err).toContain("there is no queue nope")
    expect(await alkstore(["import", "--file", file], {}, "hello\n")).toMatchObject({ code: 2, out: "" })
    expect(await alkstore(["import", "--file", file], {}, "")).toMatchObject({ code: 2, out: "" })
    expect(await alkstore(["export", "--file", join(directory, "none.db")])).toMatchObject({ code: 2, out: "" })
    const unreachable = await alkstore(["export", "--url", "postgres://app:hunter2@127.0.0.1:1/app"])
    expect(unreachable).toMatchObject({ code: 3, out: "" })
    expect(unreachable.err).not.toContain("hunter2")
  })
})
