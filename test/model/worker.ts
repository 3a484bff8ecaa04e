/** As workers claim and renew: through the store, which tells them more than the handles do. */
import { Queue } from "alkstore"
import { Effect } from "effect"
import { makeJob } from "../../src/services/handle.js"
import type { EngineServices } from "../support/engines.js"
import { ask } from "./calls.js"
import { type Before, before, claimed, holds, isRisky } from "./claims.js"
import type { Apart, Simple } from "./commands.js"
import type { QueueName } from "./queues.js"
import { type Answer, agree, demand, describe, type Scene } from "./scene.js"
import { isClaimable, isExpired, isLapsed, metAt } from "./state.js"

type Run<A = void> = Effect.Effect<A, unknown, EngineServices>
type Fetch = Extract<Simple, { readonly _tag: "fetch" }>

/** What the store answered, with handles instead of rows. */
export const fetchReal = ({ limit, prefetch, queue, visibility: visibilityMillis, worker }: Fetch) =>
  Effect.gen(function* () {
    const store = yield* Queue.Queue
    const request = { queue, limit, prefetch, visibilityMillis, worker: `worker ${worker}`, probe: true }
    const result = yield* store.claim(request)
    const handle = (row: (typeof result.jobs)[number]) => makeJob(store, row, JSON.parse(row.payload) as unknown).handle
    const jobs = result.jobs.map(handle)
    return { ...result, jobs }
  })

type Fetched = Effect.Effect.Success<ReturnType<typeof fetchReal>>

/** Nothing has to be moved out of the way first: what is claimed is one walk's. */
export const isCalm = ({ marked, pending, state }: Scene, queue: QueueName): boolean =>
  !marked &&
  pending.size === 0 &&
  !state.live.some((job) => job.queue === queue && (isExpired(job, state.now) || isLapsed(job, state.now)))

/** In milliseconds: the next job that is due, or lease that ends, as far as a claim looks. */
const nextIn = ({ state }: Scene, queue: QueueName): number | undefined => {
  const { live, now, paused } = state
  const mine = live.filter((job) => job.queue === queue)
  const ends = mine.flatMap(({ lease }) => (lease === null ? [] : [lease.deadline]))
  const due = mine.filter((job) => job.lease === null && job.open && metAt(job) > now).map(metAt)
  const all = [...ends, ...(paused.includes(queue) ? [] : due)]
  return all.length === 0 ? undefined : Math.max(0, Math.min(...all) - now)
}

/** `calm`: as it was before the fetch. */
export const fetched = (scene: Scene, command: Fetch, was: Before, calm: boolean, answer: Answer<Fetched>): void => {
  agree("fetch", { ...answer, ok: true }, { ok: true })
  if (!("ok" in answer)) return
  const { jobs, more, nextInMillis, paused } = answer.ok
  const { count, state } = scene
  const { limit, prefetch, queue } = command
  const ready = state.live.filter((job) => job.queue === queue && isClaimable(state, job))
  ready.sort((a, b) => (before(a, b) ? -1 : 1))
  const walk = ready.slice(0, limit + prefetch)
  const wanted = walk.filter((job, index) => index < limit || !isRisky(job))
  if (wanted.length < walk.length) count("fetch: leaves one to a free handler")
  if (wanted.length > limit) count("fetch: ahead")
  if (calm) {
    agree(
      "fetch: ids",
      jobs.map(({ id }) => id),
      wanted.map(({ id }) => id)
    )
    agree("fetch: more", more, walk.length > wanted.length || walk.length === limit + prefetch)
    if (!more) agree("fetch: next", nextInMillis, nextIn(scene, queue))
  }
  agree("fetch: paused", paused, state.paused.includes(queue))
  // Who has enough for its free handlers does not wait for ordering keys that are to be looked at
  const enough = !calm && jobs.length >= limit
  const left = ready.find(({ id }) => !jobs.some((job) => job.id === id))
  demand(
    more || enough || left === undefined || (scene.depth > 0 && scene.pending.has(left.uid)),
    () => `a fetch said that there is no more, and left ${left && describe(left)}`
  )
  claimed(scene, command, was, { ok: jobs })
  count("fetch")
}

/** All leases of one queue that are in anybody's hands, good and stale ones, in one statement; and what to hear of them. */
export const beat = (scene: Scene, { queue }: Extract<Apart, { readonly _tag: "beat" }>): Run =>
  Effect.gen(function* () {
    const store = yield* Queue.Queue
    const { count, state } = scene
    const hands = scene.hands.filter((hand) => hand.queue === queue)
    const renewals = hands.map(({ job, token }) => ({
      id: job.id,
      token,
      visibilityMillis: job.lease.visibilityMillis,
      progress: undefined
    }))
    const outcomes = yield* ask(scene, store.renew(renewals))
    const wanted = hands.map((hand) => {
      const job = holds(state, hand)
      if (job?.lease === undefined || job.lease === null)
        return state.live.some(({ id }) => id === hand.job.id) ? "lost" : "gone"
      job.lease.deadline = state.now + job.lease.visibility
      return job.cancelRequested ? "cancelled" : "renewed"
    })
    for (const outcome of wanted) count(`beat: ${outcome}`)
    agree("beat", outcomes, { ok: wanted })
    const ids = new Set(hands.map(({ job }) => job.id))
    const called = state.live.filter(({ cancelRequested, id }) => cancelRequested && id !== undefined && ids.has(id))
    const signals = yield* ask(scene, store.signals(queue, [...ids]))
    const sorted =
      "ok" in signals ? { ...signals.ok, cancelled: [...signals.ok.cancelled].sort((a, b) => a - b) } : signals
    const cancelled = called.map(({ id }) => Number(id)).sort((a, b) => a - b)
    agree("signals", sorted, { paused: state.paused.includes(queue), cancelled })
  })
