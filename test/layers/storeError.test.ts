/** What drivers say, in our words: what is tried again, and what is uncertain, depends on it. */
import { SqlError } from "@effect/sql"
import { expect, test } from "vitest"
import { connecting, isUncertain, storeError } from "../../src/layers/storeError.js"

const coded = (code: string) => Object.assign(new Error("no"), { code })

const reasons: Record<string, ReadonlyArray<string>> = {
  conflict: ["40001", "40P01"],
  busy: ["55P03", "SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED", "SQLITE_PROTOCOL"],
  timeout: ["57014", "25P03", "25P04"],
  readonly: ["25006", "SQLITE_READONLY", "SQLITE_READONLY_DIRECTORY"],
  full: ["53100", "SQLITE_FULL"],
  denied: ["28P01", "3D000", "42501", "SQLITE_PERM", "SQLITE_AUTH"],
  constraint: ["23505", "SQLITE_CONSTRAINT_UNIQUE"],
  schema: ["42P01", "3F000", "42703"],
  connection: ["08006", "57P01", "53300", "SQLITE_CANTOPEN", "SQLITE_IOERR_READ", "ECONNRESET", "EPIPE", "EAI_AGAIN"],
  corrupt: ["XX001", "XX002", "SQLITE_CORRUPT", "SQLITE_NOTADB"],
  other: ["22P02", "SQLITE_ERROR", "XX000"]
}

test.each(Object.entries(reasons))("is %s", (reason, codes) => {
  for (const code of codes) {
    expect(storeError("claim", coded(code)), code).toMatchObject({ reason, operation: "claim" })
    const wrapped = new SqlError.SqlError({ cause: coded(code), message: "no" })
    expect(storeError("claim", wrapped), code).toMatchObject({ reason })
  }
})

test("a lost answer is uncertain, unless nothing had been sent that could stand (G11)", () => {
  const lost = coded("ECONNRESET")
  expect(isUncertain(storeError("enqueue", lost))).toBe(true)
  expect(isUncertain(storeError("commit", lost))).toBe(true)
  expect(isUncertain(storeError(connecting, lost))).toBe(false)
  expect(isUncertain(storeError("begin", lost))).toBe(false)
  // The driver has waited in vain; the server has rolled back
  expect(isUncertain(storeError("enqueue", new Error("Query read timeout")))).toBe(true)
  expect(isUncertain(storeError("enqueue", coded("57014")))).toBe(false)
  expect(isUncertain(storeError("enqueue", coded("23505")))).toBe(false)
  // Out of memory, too many connections: the server has answered that it did nothing
  expect(isUncertain(storeError("enqueue", coded("53200")))).toBe(false)
})
