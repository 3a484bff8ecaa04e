/**
 * Who was settled or renewed: an id and a token together. Of several claims of one job, settled at once, at most one still
 * holds it.
 */
import type { Row } from "../../engine.js"
import { int, intOrNull } from "./rows.js"

interface Claim {
  readonly id: number
  readonly token: number
}

/** The rows that were found under their tokens, by id. */
export type Done = Map<number, Row>

export const addDone = (done: Done, rows: ReadonlyArray<Row>): Done => {
  for (const row of rows) done.set(int(row.id), row)
  return done
}

export const doneRow = (done: Done, { id, token }: Claim): Row | undefined => {
  const row = done.get(id)
  return row !== undefined && int(row.token) === token ? row : undefined
}

export const isDone = (done: Done, claim: Claim): boolean => doneRow(done, claim) !== undefined

/** Why nothing was done under a token, by what was found afterwards: each row with its token. */
export const whyNot = (left: ReadonlyArray<Row>) => {
  const tokens = new Map(left.map((row) => [int(row.id), intOrNull(row.token)]))
  return ({ id, token }: Claim): "gone" | "busy" | "lost" =>
    !tokens.has(id) ? "gone" : tokens.get(id) === token ? "busy" : "lost"
}
