/**
 * Outages of a worker's database: whichever of its fibers meets one tells of it here, and here it is over.
 */
import { Effect } from "effect"
import type { WorkerState } from "./held.js"

/** What a worker tries again until it works; and at which failure in a row it is an outage, if nothing else has told of one. */
const patience = {
  "storing its settings": 1,
  claiming: 1,
  // An answer that was lost is asked for again at once
  settling: 2,
  // A missed beat or two mean nothing
  "renewing leases": 3
}

export type Doing = keyof typeof patience

/** How it failed last, and how often in a row. */
export interface Failing {
  readonly message: string
  readonly times: number
}

/** It has failed, and is tried again. Each kind is logged once, and an outage is one for all of them. */
export const failing = (state: WorkerState, doing: Doing, error: { readonly message: string }): Effect.Effect<void> =>
  Effect.suspend(() => {
    const { message } = error
    const times = 1 + (state.failing.get(doing)?.times ?? 0)
    state.failing.set(doing, { message, times })
    if (!state.outage && times >= patience[doing]) {
      state.outage = true
      state.publish({ _tag: "Outage", reason: message })
    }
    return times === 1
      ? Effect.logWarning(`queue ${state.queueName}: ${doing} failed; it is tried again until it works`, error)
      : Effect.void
  })

/** The database has answered: the outage is over, unless something else still fails. */
export const works = (state: WorkerState, doing: Doing): void => {
  state.failing.delete(doing)
  if (!state.outage || state.failing.size > 0) return
  state.outage = false
  state.publish({ _tag: "Recovered" })
}

/** It is not tried any more. Whether the outage is over, the next answer tells. */
export const ceases = (state: WorkerState, doing: Doing): void => {
  state.failing.delete(doing)
}
