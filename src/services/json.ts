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

const isPlainObject = (value: object): boolean => {
  const prototype = Object.getPrototypeOf(value)
  return prototype === Object.prototype || prototype === null || isFieldless(value, prototype.constructor)
}

/** Whether JSON carries a value whole, as it nearly always does: without a word on what it cannot, and where that is. */
const isJson = (value: unknown, depth: number): boolean => {
  switch (typeof value) {
    case "string":
    case "boolean":
      return true
    case "number":
      return Number.isFinite(value)
    case "object":
      break
    default:
      return false
  }
  if (value === null) return true
  if (depth === maxDepth) return false
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) if (!isJson(value[i], depth + 1)) return false
    return true
  }
  if (!isPlainObject(value) || typeof (value as { toJSON?: unknown }).toJSON === "function") return false
  for (const name of Object.keys(value)) {
    const inner = (value as Record<string, unknown>)[name]
    if (inner !== undefined && !isJson(inner, depth + 1)) return false
  }
  return true
}

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
  if (!isPlainObject(value)) {
    const { constructor } = Object.getPrototypeOf(value) as { readonly constructor?: { readonly name?: string } }
    return `${path(at)}: ${constructor?.name ?? "an object with a prototype"} is not JSON; encode it in the Schema`
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
    if (value === undefined) return Either.left("the value is undefined")
    const found = isJson(value, 0) ? undefined : flaw(value, [])
    if (found !== undefined) return Either.left(found)
    const text = JSON.stringify(value)
    // A UTF-16 unit takes three bytes at most
    if (3 * text.length <= maxBytes) return Either.right(text)
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
