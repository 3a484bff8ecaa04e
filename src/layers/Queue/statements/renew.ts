/**
 * renew: all leases in one worker's hands, again for their visibility timeout from now. A row that somebody has locked
 * at this moment is skipped (`busy`, not lost): one slow transaction never costs the other leases.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { Renewal, RenewOutcome } from "../../../services/QueueStore.js"
import { type Names, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { int, intOrNull } from "./rows.js"

type Renew = (
  n: Names
) => (session: Session, renewals: ReadonlyArray<Renewal>) => Effect.Effect<ReadonlyArray<RenewOutcome>, StoreError>

const outcomes = (
  renewals: ReadonlyArray<Renewal>,
  renewed: ReadonlyArray<Row>,
  left: ReadonlyArray<Row>
): ReadonlyArray<RenewOutcome> => {
  const done = new Map(renewed.map((row) => [int(row.id), row.cancel_requested_at !== null]))
  const tokens = new Map(left.map((row) => [int(row.id), intOrNull(row.token)]))
  return renewals.map(({ id, token }) => {
    const cancelled = done.get(id)
    if (cancelled !== undefined) return cancelled ? "cancelled" : "renewed"
    return !tokens.has(id) ? "gone" : tokens.get(id) === token ? "busy" : "lost"
  })
}

const postgres: Renew = (n) => {
  const renew = statement(
    n,
    "renew",
    `WITH input AS (
      SELECT * FROM unnest(:ids::bigint[], :tokens::bigint[], :visibility::bigint[], :progress::text[]) AS i (id, token, visibility, progress)
    ), held AS MATERIALIZED (
      SELECT j.id FROM ${n.jobs} j JOIN input i ON i.id = j.id AND i.token = j.token
      WHERE j.id = ANY (:ids::bigint[]) ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
    )
    UPDATE ${n.jobs} j
    SET visible_at = ${n.now} + i.visibility, visibility_ms = i.visibility, progress = coalesce(i.progress, j.progress)
    FROM input i WHERE j.id = i.id AND j.id = ANY (ARRAY(SELECT id FROM held))
    RETURNING j.id, j.cancel_requested_at`
  )
  const look = statement(n, "renew_look", `SELECT id, token FROM ${n.jobs} WHERE id = ANY (:ids::bigint[])`)
  return (session, renewals) =>
    Effect.gen(function* () {
      const rows = yield* session.execute(renew, {
        ids: renewals.map((r) => r.id),
        tokens: renewals.map((r) => r.token),
        visibility: renewals.map((r) => r.visibilityMillis),
        progress: renewals.map((r) => r.progress ?? null)
      })
      const done = new Set(rows.map((row) => int(row.id)))
      const missed = renewals.filter((r) => !done.has(r.id))
      const left = missed.length === 0 ? [] : yield* session.execute(look, { ids: missed.map((r) => r.id) })
      return outcomes(renewals, rows, left)
    })
}

const sqlite: Renew = (n) => {
  const renew = statement(
    n,
    "renew",
    `UPDATE ${n.jobs} SET visible_at = ${n.now} + :visibility, visibility_ms = :visibility, progress = coalesce(:progress, progress)
    WHERE id = :id AND token = :token RETURNING id, cancel_requested_at`
  )
  const look = statement(n, "renew_look", `SELECT id, token FROM ${n.jobs} WHERE id = :id`)
  return (session, renewals) =>
    Effect.gen(function* () {
      const renewed: Array<Row> = []
      const left: Array<Row> = []
      for (const { id, progress = null, token, visibilityMillis: visibility } of renewals) {
        const rows = yield* session.execute(renew, { id, token, visibility, progress })
        renewed.push(...rows)
        if (rows.length === 0) left.push(...(yield* session.execute(look, { id })))
      }
      return outcomes(renewals, renewed, left)
    })
}

export const renew: PerEngine<Renew> = { postgres, sqlite }
