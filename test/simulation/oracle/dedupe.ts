/** Dedupe keys: one live job has each; whoever is told that it is taken is told of a job that has it. */
import type { Queue } from "alkstore"
import type { Change, Row } from "../database.js"
import type { Court, Scene } from "./oracle.js"
import { num } from "./oracle.js"

interface Held {
  readonly id: number
  /** The commit, and the instant until which a window holds it on. */
  freedIn: number | undefined
  until: number
}

export const makeDedupe = (court: Court) => {
  const held = new Map<string, Held>()
  const of = (row: Row) => `${row.queue} ${row.dedupe_key}`

  const taken = ({ now }: Scene, row: Row): void => {
    const holder = held.get(of(row))
    if (holder !== undefined && holder.id !== num(row.id) && (holder.freedIn === undefined || holder.until > now))
      court.wrong(`${row.id} has the key ${of(row)}, which is held by ${holder.id}`)
    held.set(of(row), { id: num(row.id), freedIn: undefined, until: 0 })
  }

  const freed = ({ changes, now, seq }: Scene, row: Row, window: number): void => {
    const holder = held.get(of(row))
    if (holder === undefined || holder.id !== num(row.id) || holder.freedIn !== undefined) return
    const cancelled = changes.some(
      ({ after, table }) => table === "dead_letters" && num(after?.id) === num(row.id) && after?.reason === "cancelled"
    )
    holder.freedIn = seq
    holder.until = cancelled ? 0 : now + window
  }

  return {
    look: (scene: Scene, { after, before }: Change): void => {
      const row = after ?? before
      if (row === undefined || row.dedupe_key === null) return
      if (before === undefined) taken(scene, row)
      else if (after === undefined) freed(scene, row, num(row.dedupe_window_ms ?? 0))
      else if (row.dedupe_scope === "waiting" && before.token === null && after.token !== null) freed(scene, row, 0)
    },
    /** A receipt, of a call that began at that commit and instant. */
    answered: (key: string, receipt: Queue.Receipt, since: number, at: number): void => {
      if (!receipt.deduplicated) return
      const holder = held.get(key)
      const job = court.jobs.get(receipt.id)
      if (job === undefined) court.wrong(`an enqueue is answered with ${receipt.id}, which never was`)
      // Another may have taken the key since
      else if (holder === undefined || holder.id !== receipt.id) {
        if (job.endedIn !== undefined && job.endedIn < since)
          court.wrong(`an enqueue is answered with ${receipt.id}, which had lost ${key} before`)
      } else if (holder.freedIn !== undefined && holder.freedIn < since && holder.until < at)
        court.wrong(`an enqueue is answered with ${receipt.id}, which had ended and held ${key} no longer`)
    },
    atRest: (select: (text: string) => ReadonlyArray<Row>): void => {
      for (const row of select("SELECT dedupe_key, job_id FROM _alkstore_dedupe_keys WHERE free_at IS NULL"))
        court.wrong(`${row.dedupe_key} is held by ${row.job_id}, which has ended`)
    }
  }
}
