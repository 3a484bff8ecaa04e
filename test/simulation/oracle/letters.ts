/** Dead letters and completed jobs: moved, never copied; kept as long as their queue says; their envelopes. */
import type { Row } from "../database.js"
import type { Court, Scene } from "./oracle.js"
import { num } from "./oracle.js"

/** Of an envelope: the job that died. */
const originOf = (row: Row | undefined): number | undefined =>
  (JSON.parse(String(row?.payload)) as { readonly origin?: { readonly id: number } }).origin?.id

export const makeLetters = (court: Court) => {
  const { settings, wrong } = court

  const requeues = (scene: Scene, row: Row) =>
    scene.changes.some(
      ({ after, before, table }) =>
        table === "dead_letters" && after === undefined && before !== undefined && before.payload === row.payload
    )

  const went = (scene: Scene, table: "dead_letters" | "completed_jobs", at: string, keep: string): void => {
    const added = new Set(
      scene.changes.flatMap(({ after, before, table: name }) =>
        name === "jobs" && after !== undefined && before === undefined ? [num(after.id)] : []
      )
    )
    const requeued = scene.changes.filter(({ after, before, table: name }) => name === "jobs" && after && !before)
    for (const { after, before, table: name } of scene.changes) {
      if (name !== table || before === undefined || after !== undefined) continue
      if (table === "dead_letters") {
        if (added.has(num(before.id)) || requeued.some((change) => change.after?.payload === before.payload)) {
          court.note(scene, `requeues ${before.id}`)
          continue
        }
        if (court.asked(scene.by, `purge ${before.queue}`)) continue
      }
      const retain = settings.get(String(before.queue))?.[keep]
      if (retain === null || retain === undefined || num(before[at]) + num(retain) > scene.now)
        wrong(`${scene.by.name}: ${before.id} of ${before.queue} is gone from ${table} before its time`)
    }
  }

  return {
    /** Whether a job that is added was there before: it is requeued, or an envelope. */
    comesBack: (scene: Scene, row: Row): boolean => originOf(row) !== undefined || requeues(scene, row),
    /** What was to be kept for a while has gone when it has passed, and as long again as a sweep may take. */
    atRest: (select: (text: string) => ReadonlyArray<Row>, sweep: number): void => {
      const { now } = court.world
      const left = (table: string, at: string, keep: string) => {
        for (const row of select(`SELECT id, queue, ${at} AS at FROM _alkstore_${table}`)) {
          const retain = settings.get(String(row.queue))?.[keep]
          if (retain !== null && retain !== undefined && num(row.at) + num(retain) + sweep < now)
            wrong(`${row.id} of ${row.queue} is in ${table} for longer than it is to be kept`)
        }
      }
      left("dead_letters", "died_at", "retain_dead_ms")
      left("completed_jobs", "completed_at", "retain_completed_ms")
    },
    look: (scene: Scene): void => {
      for (const { after, before, table } of scene.changes) {
        if (table !== "dead_letters" || before !== undefined || after === undefined) continue
        const gone = scene.changes.some(
          (change) => change.table === "jobs" && change.after === undefined && num(change.before?.id) === num(after.id)
        )
        if (!gone) wrong(`${after.id} is dead, and no job`)
        const to = settings.get(String(after.queue))?.dead_letter_queue
        if (typeof to !== "string" || after.reason === "cancelled") continue
        const sent = scene.changes.filter(
          (change) => change.table === "jobs" && change.before === undefined && change.after?.queue === to
        )
        const mine = sent.filter((change) => originOf(change.after) === num(after.id))
        if (mine.length !== 1) wrong(`${after.id} is dead, and ${mine.length} envelopes tell of it`)
      }
      went(scene, "dead_letters", "died_at", "retain_dead_ms")
      went(scene, "completed_jobs", "completed_at", "retain_completed_ms")
    }
  }
}
