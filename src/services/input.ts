/**
 * Checks of what callers give us. Each answers a value or an `InvalidArgument` that names the argument and says
 * what would be right; nothing here throws.
 */
import { Duration, Either } from "effect"
import { InvalidArgument } from "./Errors.js"
import { describe } from "./Job.js"

type Checked<A> = Either.Either<A, InvalidArgument>

const refuse = (argument: string, message: string) =>
  Either.left(new InvalidArgument({ argument, message: `${argument}: ${message}` }))

const show = (value: unknown): string => {
  try {
    return typeof value === "string" ? JSON.stringify(value.slice(0, 80)) : String(value).slice(0, 80)
  } catch {
    return typeof value
  }
}

/** What callers' own code answers; what it throws is bad input like any other. */
export const checkThrows = <A>(argument: string, what: string, run: () => A): Checked<A> =>
  Either.try({
    try: run,
    catch: (error) => new InvalidArgument({ argument, message: `${argument}: ${what} threw: ${describe(error)}` })
  })

/** 9999-12-31T23:59:59.999Z: no instant in a row lies beyond it. */
export const maxInstant = 253_402_300_799_999

const queueName = /^[A-Za-z0-9_.:/-]{1,128}$/

export const checkQueueName = (name: unknown): Checked<string> =>
  typeof name === "string" && queueName.test(name)
    ? Either.right(name)
    : refuse("queue name", `${show(name)} is not 1 to 128 of A-Z a-z 0-9 _ . : / -`)

/** Keys and lock names: 1 to 512 bytes of well-formed text without NUL. */
export const checkKey = (argument: string, key: unknown): Checked<string> => {
  if (typeof key !== "string") return refuse(argument, `${show(key)} is not a string`)
  const bytes = Buffer.byteLength(key)
  if (bytes < 1 || bytes > 512) return refuse(argument, `has ${bytes} bytes; 1 to 512 are allowed`)
  if (key.includes("\u0000")) return refuse(argument, "contains a NUL character")
  if (/\p{Surrogate}/u.test(key)) return refuse(argument, "contains a lone surrogate")
  return Either.right(key)
}

export const checkInteger = (argument: string, value: unknown, min: number, max: number): Checked<number> =>
  typeof value === "number" && Number.isInteger(value) && value >= min && value <= max
    ? Either.right(value)
    : refuse(argument, `${show(value)} is not a whole number from ${min} to ${max}`)

export const checkOneOf = <A extends string>(argument: string, value: A, allowed: ReadonlyArray<A>): Checked<A> =>
  allowed.includes(value) ? Either.right(value) : refuse(argument, `${show(value)} is not ${allowed.join(" or ")}`)

/** Nothing is ignored: what is misspelled, or belongs elsewhere, is refused. `kind`: what its names are. */
export const checkNames = (
  argument: string,
  kind: string,
  value: unknown,
  names: ReadonlyArray<string>
): Checked<void> => {
  if (typeof value !== "object" || value === null) return refuse(argument, `${show(value)} is not an object`)
  const strange = Object.keys(value).find((name) => !names.includes(name))
  return strange === undefined
    ? Either.void
    : refuse(argument, `${strange.slice(0, 80)} is no ${kind}; there are ${names.join(", ")}`)
}

type NamesOf<A> = A extends unknown ? keyof A & string : never

/** Options none of which is misspelled, or belongs elsewhere. */
export const checkOptions = <A extends object>(
  options: A,
  names: ReadonlyArray<NamesOf<A>>,
  argument = "options"
): Checked<void> => checkNames(argument, "option", options, names)

const negative = (input: unknown): boolean =>
  typeof input === "number"
    ? input < 0
    : typeof input === "bigint"
      ? input < 0n
      : typeof input === "string"
        ? input.trim().startsWith("-")
        : Array.isArray(input) && input.some((part) => typeof part === "number" && !(part >= 0))

/** From the shortest to one that never ends: for what is only waited for. */
export const endless = { min: 1, max: Number.POSITIVE_INFINITY }

/** A duration in whole milliseconds, rounded up. An infinite one only where `max` is. */
export const checkDuration = (
  argument: string,
  input: unknown,
  range: { readonly min?: number; readonly max?: number } = {}
): Checked<number> => {
  const { max = maxInstant, min = 0 } = range
  if (typeof input === "number" && Number.isNaN(input)) return refuse(argument, "is NaN")
  if (negative(input)) return refuse(argument, `${show(input)} is negative`)
  const decoded = Duration.decodeUnknown(input)
  if (decoded._tag === "None") return refuse(argument, `${show(input)} is not a duration; try "10 seconds"`)
  const millis = Math.ceil(Duration.toMillis(decoded.value))
  if (millis >= min && millis <= max) return Either.right(millis)
  const allowed = max === Number.POSITIVE_INFINITY ? `${min} ms or more` : `between ${min} ms and ${max} ms`
  return refuse(argument, `${show(input)} is not ${allowed}`)
}

/** An instant in milliseconds since the Unix epoch, up to the year 9999. */
export const checkInstant = (argument: string, input: unknown): Checked<number> => {
  const millis =
    input instanceof Date
      ? input.getTime()
      : typeof input === "object" && input !== null && "epochMillis" in input
        ? input.epochMillis
        : Number.NaN
  if (typeof millis !== "number" || Number.isNaN(millis))
    return refuse(argument, `${show(input)} is not a valid Date or DateTime`)
  if (millis > maxInstant) return refuse(argument, "lies beyond the year 9999; is it in the right unit?")
  return Either.right(Math.ceil(millis))
}

const maxHeaderBytes = 16 * 1024

/** Headers as stored: the JSON text of a map of strings, at most 16 KiB, or null when there are none. */
export const checkHeaders = (headers: unknown): Checked<string | null> => {
  if (headers === undefined) return Either.right(null)
  if (typeof headers !== "object" || headers === null || Array.isArray(headers))
    return refuse("headers", "are not a map of strings")
  try {
    const entries = Object.entries(headers)
    for (const [name, value] of entries) {
      if (typeof value !== "string") return refuse("headers", `${show(name)} is not a string`)
    }
    if (entries.length === 0) return Either.right(null)
    // Not the object itself: a getter or a Proxy could answer something else the second time
    const text = JSON.stringify(Object.fromEntries(entries))
    const bytes = Buffer.byteLength(text)
    return bytes <= maxHeaderBytes
      ? Either.right(text)
      : refuse("headers", `have ${bytes} bytes; at most ${maxHeaderBytes} are allowed`)
  } catch {
    return refuse("headers", "cannot be read: a getter or a Proxy threw")
  }
}

/** Table prefixes: they become part of identifiers. */
export const checkPrefix = (prefix: unknown): Checked<string> =>
  typeof prefix !== "string" || !/^[A-Za-z0-9_]{1,64}$/.test(prefix)
    ? refuse("namespace", `${show(prefix)} is not 1 to 64 of A-Z a-z 0-9 _`)
    : /^sqlite_/i.test(prefix)
      ? refuse("namespace", "names that begin with sqlite_ are SQLite's")
      : Either.right(prefix)

/** Schema names: quoted everywhere, so any text; short, because channels are named after them. */
export const checkSchema = (schema: unknown): Checked<string> => {
  if (typeof schema !== "string" || schema === "") return refuse("namespace", `${show(schema)} is not a schema name`)
  if (Buffer.byteLength(schema) > 52) return refuse("namespace", "has more than 52 bytes")
  if (schema.includes("\u0000") || /\p{Surrogate}/u.test(schema))
    return refuse("namespace", "contains a NUL character or a lone surrogate")
  if (schema.startsWith("pg_")) return refuse("namespace", "names that begin with pg_ are PostgreSQL's")
  return Either.right(schema)
}
