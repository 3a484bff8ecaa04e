/**
 * What a job remembers of its failed attempts.
 *
 * @since 0.1.0
 */
import { Cause } from "effect"
import { describe, type JobError } from "./Job.js"
import { parseJson } from "./json.js"
import type { PastLife } from "./Operations.js"

/**
 * The counters and the history that a settle writes back with the row.
 *
 * @since 0.1.0
 * @category models
 */
export interface History {
  readonly crashes: number
  readonly failures: number
  /** JSON array of `JobError`, or null. */
  readonly errors: string | null
  /** JSON array of the instants of the failures, the first one always among them; or null. */
  readonly failureTimes: string | null
}

/**
 * @since 0.1.0
 * @category models
 */
export const maxErrors = 10

const maxFailureTimes = 100

/** At most so many UTF-8 bytes as JSON, cut between characters, without anything a database could refuse. */
const storable = (text: string, bytes: number): string => {
  const head = text
    .slice(0, bytes)
    .replaceAll("\u0000", "\uFFFD")
    .replace(/\p{Surrogate}/gu, "\uFFFD")
  if (jsonBytes(head) <= bytes) return head
  let size = 0
  let end = 0
  for (const character of head) {
    size += jsonBytes(character)
    if (size > bytes) break
    end += character.length
  }
  return head.slice(0, end)
}

/** Without the quotes; a control character takes six. */
const jsonBytes = (text: string): number => Buffer.byteLength(JSON.stringify(text)) - 2

const tagOf = (error: unknown): string | undefined => {
  try {
    if (typeof error !== "object" || error === null) return undefined
    const tag = (error as { _tag?: unknown })._tag
    const name = typeof tag === "string" ? tag : error instanceof Error ? error.name : undefined
    return name === undefined ? undefined : storable(name, 200)
  } catch {
    return undefined
  }
}

/**
 * A failed attempt as it is stored. Never throws, whatever the error is.
 *
 * @since 0.1.0
 * @category constructors
 */
export const jobError = (options: {
  readonly at: number
  readonly attempt: number
  readonly kind: JobError["kind"]
  readonly error: unknown
  readonly cause?: Cause.Cause<unknown> | undefined
}): JobError => {
  const tag = tagOf(options.error)
  const detail = pretty(options.cause)
  return {
    at: options.at,
    attempt: options.attempt,
    kind: options.kind,
    // With the tag and the rest, within 8 KiB
    message: storable(describe(options.error), 2_000),
    ...(tag === undefined ? {} : { tag }),
    ...(detail === undefined ? {} : { detail: storable(detail, 4_000) })
  }
}

const pretty = (cause: Cause.Cause<unknown> | undefined): string | undefined => {
  try {
    return cause === undefined ? undefined : Cause.pretty(cause)
  } catch {
    return undefined
  }
}

const arrayOf = <A>(text: string | null, is: (value: unknown) => value is A): ReadonlyArray<A> => {
  const parsed = parseJson(text)
  return Array.isArray(parsed) ? parsed.filter(is) : []
}

const isJobError = (value: unknown): value is JobError =>
  typeof value === "object" && value !== null && typeof (value as JobError).message === "string"

/**
 * The stored errors of a row, oldest first.
 *
 * @since 0.1.0
 * @category conversions
 */
export const errorsOf = (row: { readonly errors: string | null }): ReadonlyArray<JobError> =>
  arrayOf(row.errors, isJobError)

/**
 * The stored instants of a row's failures, oldest first.
 *
 * @since 0.1.0
 * @category conversions
 */
export const failureTimesOf = (row: { readonly failureTimes: string | null }): ReadonlyArray<number> =>
  arrayOf(row.failureTimes, (value) => typeof value === "number")

/**
 * The history as it is, untouched.
 *
 * @since 0.1.0
 * @category constructors
 */
export const sameHistory = (row: History): History => ({
  crashes: row.crashes,
  failures: row.failures,
  errors: row.errors,
  failureTimes: row.failureTimes
})

const withError = (row: History, error: JobError): string => {
  const kept = [...errorsOf(row).slice(1 - maxErrors), error]
  return JSON.stringify(kept)
}

/**
 * The history with one more failure.
 *
 * @since 0.1.0
 * @category constructors
 */
export const failedHistory = (row: History, error: JobError): History => {
  const times = [...failureTimesOf(row), error.at]
  const [first = error.at, ...rest] = times
  return {
    crashes: row.crashes,
    failures: row.failures + 1,
    errors: withError(row, error),
    failureTimes: JSON.stringify([first, ...rest.slice(1 - maxFailureTimes)])
  }
}

/**
 * The history with one more crash: a lease that ended unsettled.
 *
 * @since 0.1.0
 * @category constructors
 */
export const crashedHistory = (row: History, error: JobError): History => ({
  crashes: row.crashes + 1,
  failures: row.failures,
  errors: withError(row, error),
  failureTimes: row.failureTimes
})

const maxLives = 5

const isLife = (value: unknown): value is PastLife =>
  typeof value === "object" && value !== null && typeof (value as PastLife).diedAt === "number"

/**
 * The stored earlier lives of a job, oldest first.
 *
 * @since 0.1.0
 * @category conversions
 */
export const livesOf = (history: string | null): ReadonlyArray<PastLife> => arrayOf(history, isLife)

/**
 * The stored lives with one more: at most five.
 *
 * @since 0.1.0
 * @category constructors
 */
export const withLife = (history: string | null, life: PastLife): string =>
  JSON.stringify([...livesOf(history).slice(1 - maxLives), life])
