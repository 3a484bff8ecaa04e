/**
 * list: live jobs and dead letters of a queue, for people.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { DeadRow, LiveRow } from "../../../services/QueueStore.js"
import { type Names, type PerEngine, type Session, statement } from "../../engine.js"
import { deadRow, int, liveRow } from "./rows.js"

export interface List {
  readonly live: (
    session: Session,
    queue: string,
    after: number,
    limit: number
  ) => Effect.Effect<ReadonlyArray<LiveRow>, StoreError>
  readonly dead: (session: Session, queue: string, limit: number) => Effect.Effect<ReadonlyArray<DeadRow>, StoreError>
}

const make = (n: Names): List => {
  const live = statement(
    n,
    "list",
    `SELECT j.*, ${n.now} AS now FROM ${n.jobs} j WHERE j.queue = :queue AND j.id > :after ORDER BY j.id LIMIT :limit`
  )
  const dead = statement(
    n,
    "dead_letters",
    `SELECT * FROM ${n.deadLetters} WHERE queue = :queue ORDER BY died_at DESC, id DESC LIMIT :limit`
  )
  return {
    live: (session, queue, after, limit) =>
      Effect.map(session.execute(live, { queue, after, limit }), (rows) =>
        rows.map((row) => liveRow(row, int(row.now)))
      ),
    dead: (session, queue, limit) => Effect.map(session.execute(dead, { queue, limit }), (rows) => rows.map(deadRow))
  }
}

/** The two engines share these statements. */
export const list: PerEngine<(n: Names) => List> = { postgres: make, sqlite: make }
