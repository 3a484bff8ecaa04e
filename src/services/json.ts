/**
 * JSON that loses nothing: what it would change or drop in silence is refused instead.
 */
import { Either, Schema } from "effect"

/** Nesting beyond this is refused: it would overflow the stack of some later reader. */
export const maxDepth = 500

const path = (parts: ReadonlyArray<string | number>): string =>
  parts.length === 0 ? "the value" : `at ${parts.join(".").slice(0, 200)}`

/** A Schema.Class without fields encodes to its own instance, which is as good as `{}`. */
const isFieldless = (value: object, constructor: unknown): boolean =>
  Schema.isSchema(constructor) && Reflect.ownKeys(value).length === 0

/** The first thing in a value that JSON cannot carry, in words; or undefined. Undefined properties are left out, as in JSON. */
const flaw = (value: unknown, at: Array<string | number>): string | undefined => {
  if (at.length > maxDepth) return `it is nested deeper than ${maxDepth} levels, or circular`
  switch (typeof value) {
    case "string":
    case "boolean":
      return undefined
    case "number":
      return Number.isFinite(value) ? undefined : `${path(at)}: ${value} is not a JSON number`
    case "object":
      break
    default:
      return `${path(at)}: ${typeof value} is not JSON`
  }
  if (value === null) return undefined
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) {
      at.push(i)
      const found = flaw(value[i], at)
      if (found !== undefined) return found
      at.pop()
    }
    return undefined
  }
  const prototype = Object.getPrototypeOf(value)
  if (prototype !== Object.prototype && prototype !== null && !isFieldless(value, prototype.constructor)) {
    return `${path(at)}: ${prototype?.constructor?.name ?? "an object with a prototype"} is not JSON; encode it in the Schema`
  }
  if (typeof (value as { toJSON?: unknown }).toJSON === "function") return `${path(at)}: has a toJSON method`
  for (const [name, inner] of Object.entries(value)) {
    if (inner === undefined) continue
    at.push(name)
    const found = flaw(inner, at)
    if (found !== undefined) return found
    at.pop()
  }
  return undefined
}

/** The JSON text of a value, or why there is none. Never throws. */
export const toJson = (value: unknown, maxBytes: number): Either.Either<string, string> => {
  try {
    const found = value === undefined ? "the value is undefined" : flaw(value, [])
    if (found !== undefined) return Either.left(found)
    const text = JSON.stringify(value)
    const bytes = Buffer.byteLength(text)
    return bytes <= maxBytes
      ? Either.right(text)
      : Either.left(`it has ${bytes} bytes as JSON; at most ${maxBytes} are allowed`)
  } catch (cause) {
    return Either.left(
      `it cannot be turned into JSON: ${cause instanceof Error ? cause.message : "a getter or toJSON threw"}`
    )
  }
}

/** Parses JSON text that we or somebody else wrote; `undefined` when it is not JSON. */
export const parseJson = (text: string | null | undefined): unknown => {
  if (text === null || text === undefined) return undefined
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
