/**
 * renew: all leases in one worker's hands, again for their visibility timeout from now. A row that somebody has locked
 * at this moment is skipped (`busy`, not lost): one slow transaction never costs the other leases.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { Renewal, RenewOutcome } from "../../../services/QueueStore.js"
import { type Names, type PerEngine, type Row, type Session, statement } from "../../engine.js"
import { addDone, doneRow, isDone, whyNot } from "./byToken.js"
import { idAmong, listed } from "./lists.js"

type Renew = (
  n: Names
) => (session: Session, renewals: ReadonlyArray<Renewal>) => Effect.Effect<ReadonlyArray<RenewOutcome>, StoreError>

const outcomes = (
  renewals: ReadonlyArray<Renewal>,
  renewed: ReadonlyArray<Row>,
  left: ReadonlyArray<Row>
): ReadonlyArray<RenewOutcome> => {
  const done = addDone(new Map(), renewed)
  const missed = whyNot(left)
  return renewals.map((renewal) => {
    const row = doneRow(done, renewal)
    if (row === undefined) return missed(renewal)
    return row.cancel_requested_at !== null ? "cancelled" : "renewed"
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
    FROM input i WHERE j.id = i.id AND j.token = i.token AND j.id = ANY (ARRAY(SELECT id FROM held))
    RETURNING j.id, j.token, j.cancel_requested_at`
  )
  const look = statement(n, "renew_look", `SELECT id, token FROM ${n.jobs} WHERE ${idAmong.postgres}`)
  return (session, renewals) =>
    Effect.gen(function* () {
      const rows = yield* session.execute(renew, {
        ids: renewals.map((r) => r.id),
        tokens: renewals.map((r) => r.token),
        visibility: renewals.map((r) => r.visibilityMillis),
        progress: renewals.map((r) => r.progress ?? null)
      })
      const done = addDone(new Map(), rows)
      const missed = renewals.filter((r) => !isDone(done, r))
      const left = missed.length === 0 ? [] : yield* session.execute(look, { ids: missed.map((r) => r.id) })
      return outcomes(renewals, rows, left)
    })
}

/** Those with progress one by one; the others, as nearly all are, at once for each length of their leases. */
const sqlite: Renew = (n) => {
  const renewed = (progress: string, which: string) =>
    `UPDATE ${n.jobs} SET visible_at = ${n.now} + :visibility, visibility_ms = :visibility${progress} WHERE ${which} RETURNING id, token, cancel_requested_at`
  const one = statement(n, "renew", renewed(", progress = :progress", "id = :id AND token = :token"))
  const many = statement(
    n,
    "renew_all",
    renewed(
      "",
      `id IN (SELECT j.id FROM ${listed("leases", ["id", "token"])} AS i CROSS JOIN ${n.jobs} j NOT INDEXED WHERE j.id = i.id AND j.token = i.token)`
    )
  )
  const look = statement(n, "renew_look", `SELECT id, token FROM ${n.jobs} WHERE ${idAmong.sqlite}`)
  return (session, renewals) =>
    Effect.gen(function* () {
      const rows: Array<Row> = []
      for (const { id, progress, token, visibilityMillis: visibility } of renewals)
        if (progress !== undefined) rows.push(...(yield* session.execute(one, { id, token, visibility, progress })))
      const others = renewals.filter(({ progress }) => progress === undefined)
      for (const visibility of new Set(others.map((r) => r.visibilityMillis))) {
        const leases = others.filter((r) => r.visibilityMillis === visibility).map((r) => [r.id, r.token])
        rows.push(...(yield* session.execute(many, { leases: JSON.stringify(leases), visibility })))
      }
      const done = addDone(new Map(), rows)
      const missed = renewals.filter((r) => !isDone(done, r)).map((r) => r.id)
      const left = missed.length === 0 ? [] : yield* session.execute(look, { ids: JSON.stringify(missed) })
      return outcomes(renewals, rows, left)
    })
}

export const renew: PerEngine<Renew> = { postgres, sqlite }
