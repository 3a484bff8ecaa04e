#!/usr/bin/env node
/**
 * `alkstore migrate` brings the tables of a namespace up to date, or checks that they are, from a deploy script whose
 * role may change the schema; `alkstore export` and `alkstore import` move what is in them to another namespace. Only
 * the driver of the database in question is loaded.
 *
 * @since 0.1.0
 */
import { existsSync } from "node:fs"
import { createRequire } from "node:module"
import { Command } from "commander"
import { Cause, Effect, Either, Exit, Layer, Option, Redacted, Stream } from "effect"
import { checkUrl, withoutSecrets } from "./layers/Database/connectionUrl.js"
import { latest } from "./layers/Queue/migrations/migrate.js"
import { storeError } from "./layers/storeError.js"
import { InvalidArgument, QueuesInUse, SchemaMismatch } from "./services/Errors.js"
import * as Transfer from "./services/Transfer.js"
import { isCutShort } from "./services/transferLines.js"

const help = `
One of --url, --file or DATABASE_URL says which database. The password of a url is never printed.

Exit codes:
  0  the tables are up to date, or were brought up to date
  1  the tables are not up to date (--check), or are too new for this version
  2  the command line is wrong; nothing was done
  3  the database cannot be reached, or refused, or its driver is not installed`

const transferHelp = `
One of --url, --file or DATABASE_URL says which database. The password of a url is never printed.

Exit codes:
  0  done, all of it
  1  the tables are not up to date; in use (export); cut short, or records refused (import): what was imported stays,
     import again; or the output cannot be written
  2  the command line is wrong, there is no such queue, or the input is no export
  3  the database cannot be reached, or refused, or its driver is not installed
  141  nobody reads the output any more`

interface TargetOptions {
  readonly url?: string
  readonly file?: string
  readonly namespace?: string
}

interface MigrateOptions extends TargetOptions {
  readonly check?: true
}

interface ExportOptions extends TargetOptions {
  readonly queue?: ReadonlyArray<string>
  readonly completed?: true
  readonly schedules: boolean
  readonly force?: true
}

/** A database as the command line names it: what may be printed of it, and its layer. */
interface Target {
  readonly shown: string
  readonly open: (migrate: boolean) => Promise<Layer.Layer<Transfer.Transfer, unknown>>
}

class WrongUsage extends Error {}

class NoDriver extends Error {}

/** Of the drivers only those that are used need to be installed. */
const without =
  (driver: string) =>
  (error: NodeJS.ErrnoException): never => {
    if (error.code !== "ERR_MODULE_NOT_FOUND" || !error.message.includes(`'${driver}'`)) throw error
    throw new NoDriver(`its driver is not installed; npm install ${driver}`)
  }

/** What is printed cannot be written, or nobody reads it any more. */
class Unwritten extends Error {
  readonly gone: boolean
  constructor(error: NodeJS.ErrnoException) {
    super(`the output cannot be written: ${error.message}`)
    this.gone = error.code === "EPIPE"
  }
}

/** What a shell says of a program that SIGPIPE has ended. */
const readerGone = 141

/** Whatever is printed may have a url in it: one that was given for something else, say. */
const complain = (text: string) => console.error(withoutSecrets(text))
const say = (text: string) => console.log(withoutSecrets(text))

const postgres = (text: string, namespace: string | undefined): Target => {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (
    url === undefined ||
    !/^postgres(ql)?:$/.test(url.protocol) ||
    Either.isLeft(checkUrl("url", Redacted.make(text)))
  )
    throw new WrongUsage("the url is not of the form postgres://user@host:5432/database")
  return {
    // Parameters may hold a password as well
    shown: `${url.protocol}//${url.username === "" ? "" : `${url.username}@`}${url.host}${url.pathname}`,
    open: async (migrate) => {
      const Pg = await import("./Pg.js").catch(without("@effect/sql-pg"))
      // A migration of big tables may take its time
      const options = {
        namespace,
        migrate,
        sweeper: false,
        scheduler: false,
        listen: false,
        statementTimeout: "1 hour"
      } as const
      return Pg.layerUrl(Redacted.make(text), options)
    }
  }
}

const sqlite = (file: string, namespace: string | undefined, verb: string | undefined): Target => {
  if (verb !== undefined && !existsSync(file)) throw new WrongUsage(`there is no file ${file} to ${verb}`)
  return {
    shown: file,
    open: async (migrate) => {
      const Sqlite = await import("./Sqlite.js").catch(without("@effect/sql-sqlite-node"))
      const options = { namespace, migrate, sweeper: false, scheduler: false, watch: false }
      if (migrate) return Sqlite.layerFile(file, options)
      // As the file is: WAL mode would be a change of it
      const { SqliteClient } = await import("@effect/sql-sqlite-node")
      const client = Layer.catchAllCause(SqliteClient.layer({ filename: file, disableWAL: true }), (cause) =>
        Layer.fail(storeError("connect", Cause.squash(cause)))
      )
      return Layer.provideMerge(Sqlite.layer(options), client)
    }
  }
}

/** `verb`: what can only be done to a file that is there. */
const targetOf = ({ file, namespace, url }: TargetOptions, verb?: string): Target => {
  if (file !== undefined && url !== undefined) throw new WrongUsage("--url and --file exclude each other")
  // An unset variable of a script: SQLite would take it for a database that is gone with the process
  if (file === "") throw new WrongUsage("--file names no file")
  if (file !== undefined) return sqlite(file, namespace, verb)
  const text = url ?? process.env.DATABASE_URL
  if (text === undefined || text === "") throw new WrongUsage("which database? Give --url, --file or DATABASE_URL")
  return postgres(text, namespace)
}

const opened = (target: Target, migrate: boolean) => Effect.promise(() => target.open(migrate))

/** Opens the database and closes it again: the layer migrates or verifies on the way. */
const visit = (target: Target, migrate: boolean): Promise<Exit.Exit<unknown, unknown>> =>
  Effect.runPromiseExit(Effect.scoped(Effect.flatMap(opened(target, migrate), Layer.build)))

const problem = (cause: Cause.Cause<unknown>): { readonly code: number; readonly message: string } => {
  const failure = Cause.failureOption(cause)
  const defect = Option.getOrUndefined(Cause.dieOption(cause))
  if (defect instanceof NoDriver) return { code: 3, message: defect.message }
  if (Option.isNone(failure)) return { code: 3, message: withoutSecrets(`unexpected: ${Cause.squash(cause)}`) }
  const error = failure.value
  if (error instanceof SchemaMismatch || error instanceof QueuesInUse || error instanceof Unwritten)
    return { code: 1, message: error.message }
  if (error instanceof InvalidArgument && isCutShort(error)) return { code: 1, message: error.message }
  if (error instanceof InvalidArgument) return { code: 2, message: error.message }
  return { code: 3, message: storeError("connect", error).message }
}

const migrate = async (options: MigrateOptions): Promise<number> => {
  const target = targetOf(options, options.check === true ? "check" : undefined)
  const verified = await visit(target, false)
  if (Exit.isSuccess(verified)) {
    say(`${target.shown}: the tables are up to date (version ${latest})`)
    return 0
  }
  const found = Option.getOrUndefined(Cause.failureOption(verified.cause))
  const behind = found instanceof SchemaMismatch && found.found < found.expected
  const migrated = behind && options.check !== true ? await visit(target, true) : verified
  if (Exit.isSuccess(migrated)) {
    say(`${target.shown}: migrated from version ${behind ? found.found : "?"} to version ${latest}`)
    return 0
  }
  const { code, message } = problem(migrated.cause)
  complain(`${target.shown}: ${message}`)
  return code
}

/** Runs an effect on the database and says what kept it from its end. */
const using = async <A>(target: Target, effect: Effect.Effect<A, unknown, Transfer.Transfer>): Promise<A | number> => {
  const exit = await Effect.runPromiseExit(
    Effect.flatMap(opened(target, false), (layer) => Effect.provide(effect, layer))
  )
  if (Exit.isSuccess(exit)) return exit.value
  const { code, message } = problem(exit.cause)
  complain(`${target.shown}: ${message}`)
  return code
}

/** Waits for a reader that is slower; one that has gone away ends it. */
const print = (text: string): Effect.Effect<void, Unwritten> =>
  Effect.async((resume) => {
    process.stdout.write(text, (error) => resume(error ? Effect.fail(new Unwritten(error)) : Effect.void))
  })

const exportTo = async ({ completed, force, queue, schedules, ...options }: ExportOptions) => {
  const records = Transfer.export({ completed, force, queues: queue, schedules })
  const lines = Transfer.toJsonLines(records)
  // Each write hears of its own error; what the stream says besides would end the process
  process.stdout.on("error", () => {})
  const printed = Stream.runForEachChunk(lines, (chunk) => print([...chunk].join("")))
  const gone = (error: unknown) => error instanceof Unwritten && error.gone
  return using(
    targetOf(options, "export"),
    Effect.catchIf(Effect.as(printed, 0), gone, () => Effect.succeed(readerGone))
  )
}

const importFrom = async (options: TargetOptions): Promise<number> => {
  const target = targetOf(options, "import into; `alkstore migrate` makes one")
  const text = Stream.fromAsyncIterable(process.stdin.setEncoding("utf8") as AsyncIterable<string>, (error) => error)
  const summary = await using(target, Transfer.import(Transfer.fromJsonLines(text)))
  if (typeof summary === "number") return summary
  const { complete, refusals, ...rest } = summary
  for (const { message } of refusals) complain(`refused: ${message}`)
  for (const [what, tally] of Object.entries(rest)) {
    if (typeof tally === "string") continue
    say(`${what}: ${tally.imported} imported, ${tally.skipped} there already, ${tally.refused} refused`)
  }
  if (!complete)
    complain("the export was cut short, or records are missing: what there was is imported; import the whole again")
  return complete && refusals.length === 0 ? 0 : 1
}

const acting =
  <A>(act: (options: A) => Promise<number>) =>
  async (options: A): Promise<void> => {
    try {
      process.exitCode = await act(options)
    } catch (error) {
      if (!(error instanceof WrongUsage)) throw error
      complain(`error: ${error.message}`)
      process.exitCode = 2
    }
  }

const program = new Command("alkstore")
  .description("Durable job queues for Effect on PostgreSQL and SQLite")
  .version((createRequire(import.meta.url)("../package.json") as { readonly version: string }).version)
  .configureOutput({ outputError: (text, write) => write(withoutSecrets(text)) })
  .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2))

const command = (name: string, description: string, after: string) =>
  program
    .command(name)
    .description(description)
    .option("--url <url>", "of the PostgreSQL database; default: DATABASE_URL")
    .option("--file <path>", "of the SQLite database")
    .option("--namespace <name>", "schema (default: alkstore) or table prefix (default: _alkstore_)")
    .addHelpText("after", after)

command("migrate", "Bring the tables up to date", help)
  .option("--check", "change nothing; fail when the tables are not up to date")
  .action(acting(migrate))
command("export", "Write jobs, dead letters, schedules and settings to stdout, as lines of JSON", transferHelp)
  .option("--queue <names...>", "only these queues")
  .option("--completed", "retained completed jobs, too")
  .option("--no-schedules", "without schedules")
  .option("--force", "though queues are not paused or jobs are leased: they may run in both places")
  .action(acting(exportTo))
command(
  "import",
  "Take over what an export has written, from stdin; what was taken over before is skipped",
  transferHelp
).action(acting(importFrom))

await program.parseAsync()
