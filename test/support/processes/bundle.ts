/**
 * A child's program in one file: loading it from its sources, with all the modules of its packages, would take each
 * process several seconds of processor time. It lies where the native driver is found from.
 */
import { mkdirSync, rmSync } from "node:fs"
import { basename, join } from "node:path"
import { fileURLToPath } from "node:url"
import { build } from "esbuild"

const bundled = new Map<string, Promise<string>>()

const bundleOne = async (entry: URL): Promise<string> => {
  const directory = fileURLToPath(new URL("../../../node_modules/.cache/alkstore/", import.meta.url))
  mkdirSync(directory, { recursive: true })
  const outfile = join(directory, `${basename(entry.pathname, ".ts")}-${process.pid}.mjs`)
  process.once("exit", () => rmSync(outfile, { force: true }))
  await build({
    entryPoints: [fileURLToPath(entry)],
    outfile,
    bundle: true,
    platform: "node",
    format: "esm",
    external: ["better-sqlite3", "pg-native"],
    banner: {
      js: 'import { createRequire as requireFrom } from "node:module"; const require = requireFrom(import.meta.url);'
    },
    logLevel: "error"
  })
  return outfile
}

/** Bundles a program, once, and answers the file, which goes with this process. */
export const bundle = (entry: URL): Promise<string> => {
  const found = bundled.get(entry.href) ?? bundleOne(entry)
  bundled.set(entry.href, found)
  return found
}
