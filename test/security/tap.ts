/** The texts of all statements that either driver is given, whoever gives them: library, client or test. */
import BetterSqlite from "better-sqlite3"
import pg from "pg"

type Method = (...args: ReadonlyArray<unknown>) => unknown

export interface Tap {
  /** In the order of their execution. */
  readonly texts: ReadonlyArray<string>
  readonly clear: () => void
  readonly close: () => void
}

/** Calls `seen` before each call of a method of a prototype. */
const before = (prototype: object, name: string, seen: (self: unknown, args: ReadonlyArray<unknown>) => void) => {
  const methods = prototype as Record<string, Method>
  const original = methods[name] as Method
  methods[name] = function (this: unknown, ...args: ReadonlyArray<unknown>): unknown {
    seen(this, args)
    return Reflect.apply(original, this, args)
  }
  return () => {
    methods[name] = original
  }
}

const textOf = (request: unknown): string =>
  typeof request === "string" ? request : String((request as { readonly text?: unknown }).text)

export const makeTap = (): Tap => {
  const texts: Array<string> = []
  const memory = new BetterSqlite(":memory:")
  const statement: object = Object.getPrototypeOf(memory.prepare("SELECT 1"))
  memory.close()
  const ran = (self: unknown) => void texts.push((self as BetterSqlite.Statement).source)
  const undo = [
    before(pg.Client.prototype, "query", (_, [request]) => void texts.push(textOf(request))),
    before(statement, "all", ran),
    before(statement, "get", ran),
    before(statement, "run", ran)
  ]
  return {
    texts,
    clear: () => {
      texts.length = 0
    },
    close: () => {
      for (const step of undo) step()
    }
  }
}
