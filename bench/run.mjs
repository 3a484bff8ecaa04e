/**
 * Installs the peers and builds the library where that has not been done, bundles the benchmarks, starts them.
 */
import { spawnSync } from "node:child_process"
import { cpSync, existsSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { build } from "esbuild"

const here = fileURLToPath(new URL(".", import.meta.url))

// Their output is no figure: it goes to stderr
const npm = (cwd, ...args) => {
  const { status } = spawnSync("npm", args, { cwd, stdio: ["ignore", 2, 2], shell: process.platform === "win32" })
  if (status !== 0) process.exit(status ?? 1)
}

if (!existsSync(`${here}/node_modules`)) npm(here, "ci", "--no-audit", "--no-fund")
if (!existsSync(`${here}/../dist/index.js`)) npm(`${here}/..`, "run", "build")

const externals = {
  name: "externals",
  setup(b) {
    b.onResolve({ filter: /^alkstore(\/.*)?$/ }, ({ path }) => ({
      path: `../../dist/${path === "alkstore" ? "index" : path.slice(9)}.js`,
      external: true
    }))
    b.onResolve({ filter: /^[^./]/ }, ({ path, kind }) =>
      kind === "entry-point" ? undefined : { path, external: true }
    )
  }
}
await build({
  absWorkingDir: here,
  entryPoints: ["src/main.ts", "src/measure.ts", "src/helper.ts"],
  bundle: true,
  format: "esm",
  platform: "node",
  target: "node20",
  outdir: "out",
  logLevel: "warning",
  plugins: [externals]
})
// The process that ends the tests' PostgreSQL after a kill is started as a file beside the bundle
cpSync(`${here}/../test/support/postgres/watchdog.mjs`, `${here}/out/postgres/watchdog.mjs`)

const { status } = spawnSync(process.execPath, [`${here}/out/main.js`, ...process.argv.slice(2)], { stdio: "inherit" })
process.exit(status ?? 1)
