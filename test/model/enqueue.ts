/** Enqueues, in the model: what their receipts say, and what there is afterwards. */
import type { EnqueueSpec } from "./commands.js"
import { bury, freshJob, join } from "./ends.js"
import { type QueueName, settings } from "./queues.js"
import { type Answer, agree, demand, identify, type Receipt, type Scene } from "./scene.js"
import { isExpired, type Job, type Key, type State, stateOf } from "./state.js"

export interface Wanted {
  readonly queue: QueueName
  readonly payload: unknown
  readonly priority: number
  readonly maxAttempts: number
  readonly dueAt: number
  readonly expiresMillis: number | null
  readonly expiresAt: number | null
  readonly headers: Readonly<Record<string, string>> | null
  readonly dedupeKey: string | null
  readonly dedupeScope: "waiting" | null
  readonly dedupeWindow: number | null
  readonly replace: boolean
  readonly orderingKey: string | null
}

const dueOf = (spec: EnqueueSpec, now: number): number =>
  spec.runAt === undefined ? now + (spec.delay ?? 0) : Math.max(now, now + spec.runAt)

const wanted = (queue: QueueName, spec: EnqueueSpec, now: number): Wanted => {
  const defaults = settings[queue]
  const dueAt = dueOf(spec, now)
  const expiresMillis = spec.expiresAt !== undefined ? null : (spec.expires ?? defaults.expiresMillis)
  return {
    queue,
    payload: spec.payload,
    priority: spec.priority ?? defaults.priority,
    maxAttempts: spec.maxAttempts ?? defaults.maxAttempts,
    dueAt,
    expiresMillis,
    expiresAt:
      spec.expiresAt !== undefined ? now + spec.expiresAt : expiresMillis === null ? null : dueAt + expiresMillis,
    headers: spec.headers === undefined ? null : spec.headers,
    dedupeKey: spec.dedupeKey ?? null,
    dedupeScope: spec.dedupeScope === "waiting" ? "waiting" : null,
    dedupeWindow: spec.dedupeWindow ?? null,
    replace: spec.onDuplicate === "replace",
    orderingKey: spec.orderingKey ?? null
  }
}

const replaceWith = (job: Job, { dueAt, expiresAt, expiresMillis, headers, payload, priority }: Wanted): void => {
  Object.assign(job, { payload, headers, priority, dueAt, expiresAt, expiresMillis })
  Object.assign(job, { attempt: 0, crashes: 0, failures: 0, errors: [], failureTimes: [] })
  Object.assign(job, { progress: null, undecodableSince: null })
}

/** Who holds the key at this moment. What has expired is dead before it swallows another. */
const holder = (state: State, { dedupeKey, queue }: Wanted): Key | undefined => {
  const find = () =>
    state.keys.find(
      ({ freeAt, key, queue: of }) => of === queue && key === dedupeKey && (freeAt === null || freeAt > state.now)
    )
  const live = state.live.find((job) => job.uid === find()?.uid)
  if (live !== undefined && find()?.freeAt === null && isExpired(live, state.now)) bury(state, live, "expired")
  return dedupeKey === null ? undefined : find()
}

const held = (scene: Scene, key: Key, want: Wanted): Receipt => {
  const { count, state } = scene
  const id = key.id as number
  const job = state.live.find(({ uid }) => uid === key.uid)
  if (key.freeAt !== null || job === undefined) {
    count("enqueue: held by a window")
    return { id, state: "ended", deduplicated: true, replaced: false }
  }
  const replaced = want.replace && job.lease === null
  if (replaced) replaceWith(job, want)
  count(replaced ? "enqueue: replaced" : want.replace ? "enqueue: not replaced, leased" : "enqueue: deduplicated")
  return { id, state: stateOf(job, state.now), deduplicated: true, replaced }
}

/** Adds a job, or says whose receipt it gets; `job` when it is new, with its id still unknown. */
export const add = (scene: Scene, want: Wanted): { readonly receipt: Receipt } | { readonly job: Job } => {
  const { state } = scene
  const key = holder(state, want)
  if (key !== undefined) return { receipt: held(scene, key, want) }
  const { replace: _, ...rest } = want
  const job = freshJob(state, rest)
  if (want.dedupeKey !== null) {
    state.keys = state.keys.filter((old) => old.queue !== want.queue || old.key !== want.dedupeKey)
    state.keys.push({ queue: want.queue, key: want.dedupeKey, uid: job.uid, id: undefined, freeAt: null })
  }
  join(state, job)
  return { job }
}

/** A new id, above those of its ordering key, whose order is that of the ids. */
const checkNew = (scene: Scene, job: Job, real: Receipt, lastId: number): Receipt => {
  const { orderingKey, queue, uid } = job
  const lane = scene.state.live.filter((other) => other.queue === queue && other.orderingKey === orderingKey)
  const behind = orderingKey === null ? undefined : lane.find((other) => other.uid !== uid && (other.id ?? 0) > real.id)
  demand(real.id > lastId, () => `new job ${real.id} has an id at or before ${lastId}`)
  demand(
    behind === undefined,
    () => `new job ${real.id} has an id before ${behind?.id}, which is before it in ${orderingKey}`
  )
  identify(scene, job, real.id)
  const state = stateOf(job, scene.state.now)
  scene.count(`enqueue: ${state}`)
  return { id: real.id, state, deduplicated: false, replaced: false }
}

/** Whatever is wrong may be what is told. */
const refusals = (queue: QueueName, specs: ReadonlyArray<EnqueueSpec>, now: number): ReadonlyArray<string> => {
  const strange = queue === "numbers" && specs.some(({ payload }) => typeof payload !== "number")
  const late = specs.some((spec) => spec.expiresAt !== undefined && now + spec.expiresAt <= dueOf(spec, now))
  return [...(strange ? ["InvalidPayload"] : []), ...(late ? ["InvalidArgument"] : [])]
}

/** PostgreSQL: all keys of a batch with ordering keys are cleared of what has expired before the first job is added. */
const clearFirst = (scene: Scene, queue: QueueName, specs: ReadonlyArray<EnqueueSpec>): void => {
  const ordered = specs.some(({ dedupeKey, orderingKey }) => dedupeKey !== undefined && orderingKey !== undefined)
  if (scene.engine.engine !== "postgres" || specs.length < 2 || !ordered) return
  const seen = new Set<string | undefined>()
  for (const spec of specs) {
    if (!seen.has(spec.dedupeKey)) holder(scene.state, wanted(queue, spec, scene.state.now))
    seen.add(spec.dedupeKey)
  }
}

/** In the order of the specs; all or none. */
export const enqueued = (
  scene: Scene,
  queue: QueueName,
  specs: ReadonlyArray<EnqueueSpec>,
  answer: Answer<ReadonlyArray<Receipt>>
): void => {
  const { now } = scene.state
  const refused = refusals(queue, specs, now)
  if (refused.length > 0) {
    const told = refused.find((error) => "error" in answer && answer.error === error) ?? refused[0]
    scene.count(`enqueue: ${told}`)
    agree("enqueue", answer, { error: told })
    return
  }
  const receipts = "ok" in answer ? answer.ok : []
  agree("enqueue", { ...answer, ok: receipts.length }, { ok: specs.length })
  const { lastId } = scene
  clearFirst(scene, queue, specs)
  for (const [index, spec] of specs.entries()) {
    const real = receipts[index] as Receipt
    const added = add(scene, wanted(queue, spec, now))
    agree(`receipt ${index}`, real, "job" in added ? checkNew(scene, added.job, real, lastId) : added.receipt)
  }
  scene.count(specs.length === 1 ? "enqueue" : specs.length === 0 ? "enqueue: none" : "enqueue: batch")
}
