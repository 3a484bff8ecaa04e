/**
 * Runs: round by round, workload by workload, contender by contender; each measurement in a process and a database of
 * its own. One JSON line each on stdout, then a table. Fails if this library lost a job, handled one twice, or broke.
 */
import { appendFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { startPostgres } from "../../test/support/postgres.js"
import type { Contender } from "./contender.js"
import { readEnvironment } from "./environment.js"
import type { Figure, Line, Workload } from "./figure.js"
import { measure } from "./measurement.js"
import { measurements, readPlan, reasonAgainst } from "./plan.js"
import { report } from "./report.js"

const plan = readPlan(process.argv.slice(2))
const results = fileURLToPath(new URL("../results/", import.meta.url))
mkdirSync(results, { recursive: true })
const jsonl = join(results, "latest.jsonl")
writeFileSync(jsonl, "")

const print = (line: object) => {
  const text = `${JSON.stringify(line)}\n`
  process.stdout.write(text)
  appendFileSync(jsonl, text)
}

const lines: Array<Line> = []
const broken: Array<string> = []
const started = Date.now()
const folder = mkdtempSync(join(tmpdir(), "alkstore-bench-"))
const postgres = plan.contenders.some(({ engine }) => engine === "postgres")
  ? await startPostgres({ durable: true, own: true })
  : undefined
let databases = 0
const freshDatabase = async (engine: string): Promise<string> => {
  if (engine === "postgres" && postgres !== undefined) return postgres.createDatabase()
  // A directory each: watching one is watching one database
  const directory = join(folder, String(databases++))
  mkdirSync(directory)
  return join(directory, "bench.db")
}

/** Its share of the clean rate that the same contender had in the same round. */
const ofClean = (figure: Figure, { clean }: Workload, { engine, name }: Contender, round: number) => {
  const rate = lines.find(
    (line) => line.workload === clean && line.engine === engine && line.contender === name && line.round === round
  )?.value
  return rate === undefined ? {} : { ofClean: Math.round((figure.value * 1_000) / rate) / 1_000 }
}

const take = async (round: number, workload: Workload, contender: Contender) => {
  const { engine, name, settings } = contender
  const start = Date.now()
  const where = await freshDatabase(engine)
  const { error, figures } = await measure(plan, contender, workload, where)
  const tookSeconds = Math.round((Date.now() - start) / 100) / 10
  const note = (what: string) => {
    if (contender.ours === true) broken.push(`${engine} ${workload.name}, round ${round}: ${what}`)
  }
  if (error !== undefined) {
    print({ round, workload: workload.name, contender: name, engine, error, tookSeconds })
    note(error)
  }
  for (const figure of figures) {
    const value = Math.round(figure.value * 1_000) / 1_000
    const more = { ...ofClean(figure, workload, contender, round), settings, tookSeconds }
    const line: Line = { round, contender: name, engine, ...figure, value, ...more }
    lines.push(line)
    print(line)
    if (figure.lost > 0 || figure.duplicated > 0) note(`${figure.lost} lost, ${figure.duplicated} duplicated`)
  }
}

const announce = async () => {
  const environment = await readEnvironment(postgres?.url, await freshDatabase("sqlite"))
  print({ environment, full: plan.full, rounds: plan.rounds, sizes: plan.sizes })
  for (const contender of plan.contenders) {
    const { engine, name, scale, settings } = contender
    print({ contender: name, engine, settings, ...(scale === undefined ? {} : { scale }) })
    for (const workload of plan.workloads) {
      const skipped = reasonAgainst(contender, workload)
      if (skipped) print({ workload: workload.name, contender: name, engine, skipped })
    }
  }
  return environment
}

try {
  const environment = await announce()
  for (let round = 0; round < plan.rounds; round++)
    for (const { contender, workload } of measurements(plan, round)) await take(round, workload, contender)
  const minutes = ((Date.now() - started) / 60_000).toFixed(1)
  const head = `${plan.full ? "Full" : "Short"} form, ${plan.rounds} rounds, ${minutes} minutes, medians; in parentheses, the share of the clean rate.`
  const facts = Object.entries(environment).map(([name, value]) => `${name} ${value}`)
  const settings = plan.contenders.map((one) => `- ${one.name} (${one.engine}): ${one.settings}`)
  const verdict =
    broken.length === 0 ? "Exact delivery: nothing lost, nothing duplicated." : `BROKEN: ${broken.join("; ")}`
  const text = [head, facts.join(", "), report(lines, plan.contenders), verdict, settings.join("\n")].join("\n\n")
  process.stdout.write(`\n${text}\n`)
  writeFileSync(join(results, "latest.md"), `${text}\n`)
  if (broken.length > 0) process.exitCode = 1
} finally {
  await postgres?.stop()
  rmSync(folder, { recursive: true, force: true })
}
