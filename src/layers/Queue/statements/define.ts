/**
 * define: makes a queue's settings known to the fleet. A worker's word beats a producer's, in whatever order they come;
 * nothing is written when nothing changes.
 */
import { Effect } from "effect"
import type { StoreError } from "../../../services/Errors.js"
import type { QueueSettings } from "../../../services/QueueStore.js"
import { makeTurn, type Names, type PerEngine, type Row, type Session, same, statement } from "../../engine.js"
import { textOrNull } from "./rows.js"

const settings = [
  "max_crashes",
  "retain_completed_ms",
  "retain_dead_ms",
  "dead_letter_queue",
  "on_dead",
  "defaults",
  "defined_by"
]
/** The parameters of the settings, in their order. */
const parameters = [":maxCrashes", ":retainCompleted", ":retainDead", ":deadLetterQueue", ":onDead", ":defaults", ":by"]

type By = "producer" | "worker"

export interface Define {
  /** Whether there is nothing to write. */
  readonly known: (session: Session, settings: QueueSettings, by: By) => Effect.Effect<boolean, StoreError>
  readonly upsert: (session: Session, settings: QueueSettings, by: By) => Effect.Effect<void, StoreError>
  /** Waits for whoever else looks whether dead letters would come back, until the end of its transaction. */
  readonly turn: (session: Session) => Effect.Effect<void, StoreError>
  /** The dead-letter queues that follow from a queue's, up to `name` if that is among them. */
  readonly leadsTo: (session: Session, from: string, name: string) => Effect.Effect<boolean, StoreError>
}

const make = (n: Names): Define => {
  const upsert = statement(
    n,
    "define",
    `INSERT INTO ${n.queues} AS q (name, ${settings.join(", ")}, updated_at)
    VALUES (:name, ${parameters.join(", ")}, ${n.now})
    ON CONFLICT (name) DO UPDATE SET ${settings.map((column) => `${column} = excluded.${column}`).join(", ")}, updated_at = excluded.updated_at
    WHERE (q.defined_by = 'producer' OR excluded.defined_by = 'worker')
      AND NOT (${settings.map((column) => same[n.engine](`q.${column}`, `excluded.${column}`)).join(" AND ")})`
  )
  const known = statement(
    n,
    "define_known",
    `SELECT 1 AS known FROM ${n.queues} q WHERE q.name = :name
      AND ((q.defined_by <> 'producer' AND :by <> 'worker') OR (${settings
        .map((column, index) => same[n.engine](`q.${column}`, parameters[index] ?? ""))
        .join(" AND ")}))`
  )
  const follow = statement(n, "define_follow", `SELECT dead_letter_queue FROM ${n.queues} WHERE name = :name`)
  const turn = makeTurn(n, "define_turn")
  const values = (queue: QueueSettings, by: By) => ({
    name: queue.name,
    maxCrashes: queue.maxCrashes,
    retainCompleted: queue.retainCompletedMillis,
    retainDead: queue.retainDeadMillis,
    deadLetterQueue: queue.deadLetterQueue,
    onDead: queue.onDead,
    defaults: queue.defaults,
    by
  })
  const isKnown: Define["known"] = (session, queue, by) =>
    Effect.map(session.execute(known, values(queue, by)), (rows) => rows.length > 0)
  return {
    known: isKnown,
    // An upsert that changes nothing would still wait for whoever has the row locked: a pause in an open transaction
    upsert: (session, queue, by) =>
      Effect.flatMap(isKnown(session, queue, by), (done) =>
        done ? Effect.void : Effect.asVoid(session.execute(upsert, values(queue, by)))
      ),
    turn: (session) => turn(session, `alkstore:define:${n.namespace}`),
    leadsTo: (session, from, name) =>
      Effect.gen(function* () {
        const met = new Set<string>()
        let at: string | null = from
        while (at !== null && !met.has(at)) {
          if (at === name) return true
          met.add(at)
          const rows: ReadonlyArray<Row> = yield* session.execute(follow, { name: at })
          at = textOrNull(rows[0]?.dead_letter_queue)
        }
        return false
      })
  }
}

/** The two engines share these statements. */
export const define: PerEngine<(n: Names) => Define> = { postgres: make, sqlite: make }
