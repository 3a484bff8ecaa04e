#!/usr/bin/env node
/**
 * `alkstore migrate`: brings the tables of a namespace up to date, or checks that they are, from a deploy script whose
 * role may change the schema. Only the driver of the database in question is loaded.
 *
 * @since 0.1.0
 */
import { existsSync } from "node:fs"
import { createRequire } from "node:module"
import { Command } from "commander"
import { Cause, Effect, Exit, Layer, Option, Redacted } from "effect"
import { latest } from "./layers/Queue/migrations/migrate.js"
import { storeError } from "./layers/storeError.js"
import { InvalidArgument, SchemaMismatch } from "./services/Errors.js"

const help = `
One of --url, --file or DATABASE_URL says which database. The password of a url is never printed.

Exit codes:
  0  the tables are up to date, or were brought up to date
  1  the tables are not up to date (--check), or are too new for this version
  2  the command line is wrong; nothing was done
  3  the database cannot be reached, or refused`

interface MigrateOptions {
  readonly url?: string
  readonly file?: string
  readonly namespace?: string
  readonly check?: true
}

/** A database as the command line names it: what may be printed of it, and its layer. */
interface Target {
  readonly shown: string
  readonly open: (migrate: boolean) => Promise<Layer.Layer<never, unknown>>
}

class WrongUsage extends Error {}

const postgres = (text: string, namespace: string | undefined): Target => {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url === undefined || !/^postgres(ql)?:$/.test(url.protocol))
    throw new WrongUsage("the url is not of the form postgres://user@host:5432/database")
  return {
    // Parameters may hold a password as well
    shown: `${url.protocol}//${url.username === "" ? "" : `${url.username}@`}${url.host}${url.pathname}`,
    open: async (migrate) => {
      const Pg = await import("./Pg.js")
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

const sqlite = (file: string, namespace: string | undefined, check: boolean): Target => {
  if (check && !existsSync(file)) throw new WrongUsage(`there is no file ${file} to check`)
  return {
    shown: file,
    open: async (migrate) => {
      const Sqlite = await import("./Sqlite.js")
      return Sqlite.layerFile(file, { namespace, migrate, sweeper: false, scheduler: false, watch: false })
    }
  }
}

const targetOf = ({ check, file, namespace, url }: MigrateOptions): Target => {
  if (file !== undefined && url !== undefined) throw new WrongUsage("--url and --file exclude each other")
  if (file !== undefined) return sqlite(file, namespace, check === true)
  const text = url ?? process.env.DATABASE_URL
  if (text === undefined || text === "") throw new WrongUsage("which database? Give --url, --file or DATABASE_URL")
  return postgres(text, namespace)
}

/** Opens the database and closes it again: the layer migrates or verifies on the way. */
const visit = (target: Target, migrate: boolean): Promise<Exit.Exit<unknown, unknown>> =>
  target.open(migrate).then((layer) => Effect.runPromiseExit(Effect.scoped(Layer.build(layer))))

const problem = (cause: Cause.Cause<unknown>): { readonly code: number; readonly message: string } => {
  const error = Option.getOrElse(Cause.failureOption(cause), () => Cause.squash(cause))
  if (error instanceof SchemaMismatch) return { code: 1, message: error.message }
  if (error instanceof InvalidArgument) return { code: 2, message: error.message }
  return { code: 3, message: storeError("connect", error).message }
}

const migrate = async (options: MigrateOptions): Promise<number> => {
  const target = targetOf(options)
  const verified = await visit(target, false)
  if (Exit.isSuccess(verified)) {
    console.log(`${target.shown}: the tables are up to date (version ${latest})`)
    return 0
  }
  const found = Option.getOrUndefined(Cause.failureOption(verified.cause))
  const behind = found instanceof SchemaMismatch && found.found < found.expected
  const migrated = behind && options.check !== true ? await visit(target, true) : verified
  if (Exit.isSuccess(migrated)) {
    console.log(`${target.shown}: migrated from version ${behind ? found.found : "?"} to version ${latest}`)
    return 0
  }
  const { code, message } = problem(migrated.cause)
  console.error(`${target.shown}: ${message}`)
  return code
}

const program = new Command("alkstore")
  .description("Durable job queues for Effect on PostgreSQL and SQLite")
  .version((createRequire(import.meta.url)("../package.json") as { readonly version: string }).version)
  .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2))
program
  .command("migrate")
  .description("Bring the tables up to date")
  .option("--url <url>", "of the PostgreSQL database; default: DATABASE_URL")
  .option("--file <path>", "of the SQLite database")
  .option("--namespace <name>", "schema (default: alkstore) or table prefix (default: _alkstore_)")
  .option("--check", "change nothing; fail when the tables are not up to date")
  .addHelpText("after", help)
  .action(async (options: MigrateOptions) => {
    try {
      process.exitCode = await migrate(options)
    } catch (error) {
      if (!(error instanceof WrongUsage)) throw error
      console.error(`error: ${error.message}`)
      process.exitCode = 2
    }
  })

await program.parseAsync()
