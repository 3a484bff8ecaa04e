/**
 * The one error map: what a driver says, in our words. Passwords never reach a message: drivers do not put
 * connection strings into theirs, and we add none.
 */
import { StoreError, type StoreErrorReason } from "../services/Errors.js"

const byCode: ReadonlyArray<readonly [RegExp, StoreErrorReason]> = [
  // PostgreSQL: https://www.postgresql.org/docs/current/errcodes-appendix.html
  [/^(40001|40P01)$/, "conflict"],
  [/^55P03$/, "busy"],
  [/^(57014|25P03|25P04)$/, "timeout"],
  [/^25006$/, "readonly"],
  [/^53100$/, "full"],
  [/^(28...|3D000|42501)$/, "denied"],
  [/^23...$/, "constraint"],
  [/^(42P01|3F000|42703)$/, "schema"],
  [/^(08...|57P..|53...)$/, "connection"],
  [/^XX00[12]$/, "corrupt"],
  // SQLite: https://www.sqlite.org/rescode.html
  [/^SQLITE_(BUSY|LOCKED|PROTOCOL)/, "busy"],
  [/^SQLITE_READONLY/, "readonly"],
  [/^SQLITE_FULL/, "full"],
  [/^SQLITE_(CORRUPT|NOTADB)/, "corrupt"],
  [/^SQLITE_(PERM|AUTH)/, "denied"],
  [/^SQLITE_CANTOPEN/, "connection"],
  [/^SQLITE_IOERR/, "connection"],
  [/^SQLITE_CONSTRAINT/, "constraint"],
  // Node
  [/^(ECONN|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ENOTFOUND|EAI_)/, "connection"]
]

const byMessage: ReadonlyArray<readonly [RegExp, StoreErrorReason]> = [
  [/Query read timeout|timeout exceeded when trying to connect|statement deadline/i, "timeout"],
  // The driver's word for a server that accepted and then said nothing
  [/^timeout expired$/i, "connection"],
  [/terminat|not queryable|Connection (error|ended|closed)|socket|Client was closed|Failed to acquire/i, "connection"],
  [/no such (table|column)/i, "schema"],
  [/directory does not exist|database connection is not open|cannot start a transaction within/i, "connection"]
]

const field = (value: unknown, name: string): unknown =>
  typeof value === "object" && value !== null ? (value as Record<string, unknown>)[name] : undefined

/** The driver's own error: `SqlError` wraps it as its cause. */
const innermost = (error: unknown): unknown => (field(error, "_tag") === "SqlError" ? field(error, "cause") : error)

const textOf = (error: unknown): string => {
  const message = field(error, "message")
  return typeof message === "string" && message !== "" ? message : String(field(error, "code") ?? error)
}

export const reasonOf = (error: unknown): StoreErrorReason => {
  const cause = innermost(error)
  const code = field(cause, "code")
  if (typeof code === "string") {
    const found = byCode.find(([pattern]) => pattern.test(code))
    if (found !== undefined) return found[1]
  }
  const message = textOf(cause)
  return byMessage.find(([pattern]) => pattern.test(message))?.[1] ?? "other"
}

const advice: Partial<Record<StoreErrorReason, string>> = {
  connection: "the database cannot be reached, or the connection broke",
  uncertain: "the connection broke during COMMIT; the transaction may or may not have committed",
  busy: "another connection holds the lock",
  readonly: "the database is read-only",
  full: "the disk is full",
  corrupt: "the database file is damaged or not a database; it was left as it is",
  denied: "the database refuses this user",
  schema: "tables are missing or different; run `alkstore migrate`"
}

/** The operation of an error that came before anything was sent. */
export const connecting = "connect"

export const storeError = (
  operation: string,
  error: unknown,
  reason: StoreErrorReason = reasonOf(error)
): StoreError =>
  error instanceof StoreError
    ? error
    : new StoreError({
        reason,
        operation,
        message: `${operation}: ${[advice[reason], textOf(innermost(error))].filter(Boolean).join(": ")}`,
        cause: error
      })

/** The answer to a statement was lost after it was sent: what it did may stand. */
export const isUncertain = (error: StoreError): boolean => {
  if (error.operation === connecting || error.operation === "begin") return false
  const code = (error.cause as { code?: unknown } | undefined)?.code
  // The server has said that it did not do it, for want of something
  if (typeof code === "string" && code.startsWith("53")) return false
  return error.reason === "connection" || (error.reason === "timeout" && typeof code !== "string")
}
