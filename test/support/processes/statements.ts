/** Watching the statements of this process on their way to the driver, and its answers, on either engine. */

export interface StatementWatch {
  readonly before?: (text: string) => void
  /** The database has executed it, and nobody in this process knows yet. */
  readonly after?: (text: string) => void
}

type Callback = (error: unknown, ...rest: ReadonlyArray<unknown>) => void

const watchPostgres = async ({ after, before }: StatementWatch) => {
  const { default: pg } = await import("pg")
  const { query } = pg.Client.prototype as { query: (...args: ReadonlyArray<unknown>) => unknown }
  Object.assign(pg.Client.prototype, {
    query(this: unknown, ...args: ReadonlyArray<unknown>) {
      const text = String((args[0] as { readonly text?: string }).text ?? args[0])
      before?.(text)
      const told = args.map((arg) =>
        typeof arg !== "function"
          ? arg
          : (error: unknown, ...rest: ReadonlyArray<unknown>) => {
              if (!error) after?.(text)
              ;(arg as Callback)(error, ...rest)
            }
      )
      const answer = query.apply(this, told)
      if (answer instanceof Promise) void answer.then(() => after?.(text)).catch(() => {})
      return answer
    }
  })
}

const watchSqlite = async ({ after, before }: StatementWatch) => {
  const { default: Database } = await import("better-sqlite3")
  const statement = Object.getPrototypeOf(new Database(":memory:").prepare("SELECT 1"))
  for (const method of ["all", "run", "get"] as const) {
    const original = statement[method]
    statement[method] = function (this: { readonly source: string }, ...args: ReadonlyArray<unknown>) {
      before?.(this.source)
      const answer = original.apply(this, args)
      after?.(this.source)
      return answer
    }
  }
}

export const watchStatements = (engine: "postgres" | "sqlite", watch: StatementWatch): Promise<void> =>
  engine === "postgres" ? watchPostgres(watch) : watchSqlite(watch)

/** Calls `hit` when the last of these texts comes, after all the others have come by in their order. */
export const inOrder = (texts: ReadonlyArray<string>, hit: () => void) => {
  let passed = 0
  return (text: string): void => {
    if (!text.includes(texts[passed] ?? "")) return
    passed++
    if (passed === texts.length) hit()
  }
}
