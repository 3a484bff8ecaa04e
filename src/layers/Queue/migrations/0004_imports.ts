/**
 * Version 4: what a namespace is called among others, and what it has taken over from them: see `Transfer`.
 */
import type { Names, PerEngine } from "../../engine.js"

interface Types {
  readonly big: string
  readonly text: string
  readonly name: string
  readonly random: string
}

const types: PerEngine<Types> = {
  postgres: { big: "bigint", text: "text", name: 'text COLLATE "C"', random: "gen_random_uuid()::text" },
  sqlite: { big: "INTEGER", text: "TEXT", name: "TEXT", random: "lower(hex(randomblob(16)))" }
}

const tables = (n: Names, t: Types): ReadonlyArray<string> => [
  `CREATE TABLE ${n.identity} (id ${t.text} NOT NULL)`,
  `INSERT INTO ${n.identity} (id) VALUES (${t.random})`,
  `CREATE TABLE ${n.imports} (
  origin ${t.name} NOT NULL,
  kind ${t.name} NOT NULL,
  source ${t.name} NOT NULL,
  target_id ${t.big},
  imported_at ${t.big} NOT NULL,
  PRIMARY KEY (origin, kind, source)
)`
]

export const imports: PerEngine<(n: Names) => ReadonlyArray<string>> = {
  postgres: (n) => tables(n, types.postgres),
  sqlite: (n) => tables(n, types.sqlite)
}
