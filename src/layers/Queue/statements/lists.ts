/**
 * Lists as parameters: an array on PostgreSQL, JSON text on SQLite; and conditions that several verbs have.
 */
import type { Names, PerEngine } from "../../engine.js"

/** The parameter's value; null stays null. */
export const listOf: PerEngine<(values: ReadonlyArray<unknown> | null) => unknown> = {
  postgres: (values) => values,
  sqlite: (values) => (values === null ? null : JSON.stringify(values))
}

/** Whether a row's id is among `:ids`. */
export const idAmong: PerEngine<string> = {
  postgres: "id = ANY (:ids::bigint[])",
  sqlite: "id IN (SELECT value FROM json_each(:ids))"
}

/** SQLite: a parameter, the JSON text of an array of arrays, as rows whose parts have names. */
export const listed = (parameter: string, columns: ReadonlyArray<string>): string =>
  `(SELECT ${columns.map((column, at) => `e.value ->> ${at} AS ${column}`).join(", ")} FROM json_each(:${parameter}) AS e)`

/** The lease has ended, or was written by a clock that ran ahead: it would begin only in the future. */
export const leaseOver = (n: Names, alias: string) =>
  `(${alias}visible_at <= ${n.now} OR ${alias}visible_at - ${alias}visibility_ms > ${n.latest})`

/**
 * When a waiting job is met next: once it is due, or by its expiry, which frees its ordering key. Both are SQL expressions, that of
 * the expiry may be null.
 */
export const metAt: PerEngine<(due: string, expiry: string) => string> = {
  postgres: (due, expiry) => `least(${due}, ${expiry})`,
  sqlite: (due, expiry) => `min(${due}, coalesce(${expiry}, ${due}))`
}
