/** Claims and settles, in the model. */
import type { Job as RealJob } from "alkstore"
import type { Settling } from "./commands.js"
import { bury, complete, failed, giveBack } from "./ends.js"
import type { QueueName } from "./queues.js"
import { type Answer, agree, demand, describe, type Hand, ownHeaders, plainPayload, type Scene } from "./scene.js"
import { isClaimable, isExpired, isLapsed, type Job, type State } from "./state.js"

/** Whether one is claimed before another. */
export const before = (a: Job, b: Job): boolean =>
  a.priority !== b.priority
    ? a.priority > b.priority
    : a.dueAt !== b.dueAt
      ? a.dueAt < b.dueAt
      : (a.id ?? 0) < (b.id ?? 0)

const take = (scene: Scene, job: Job, token: number, visibility: number): void => {
  const { now } = scene.state
  job.attempt++
  job.lease = { token, claimedAt: now, visibility, deadline: now + visibility }
  if (job.dedupeScope !== "waiting") return
  scene.count("claim: frees a key")
  scene.state.keys = scene.state.keys.filter((key) => key.uid !== job.uid || key.freeAt !== null)
}

/** Each claim has a greater token than all before it, and none has one twice. */
const checkToken = (scene: Scene, token: number): void => {
  demand(!scene.tokens.has(token), () => `lease token ${token} was given out twice`)
  demand(token > scene.lastToken, () => `lease token ${token} is not above ${scene.lastToken}`)
  scene.tokens.add(token)
}

/** What the handle says of the job. */
const checkHandle = (job: Job, real: RealJob.Job<unknown>): void => {
  const { attempt, crashes, dedupeKey, failures, maxAttempts, orderingKey, payload, priority, progress } = real
  agree(
    describe(job),
    {
      attempt,
      crashes,
      dedupeKey,
      failures,
      maxAttempts,
      orderingKey,
      payload: plainPayload(payload),
      priority,
      progress
    },
    {
      attempt: job.attempt,
      crashes: job.crashes,
      dedupeKey: job.dedupeKey ?? undefined,
      failures: job.failures,
      maxAttempts: job.maxAttempts,
      orderingKey: job.orderingKey ?? undefined,
      payload: job.payload,
      priority: job.priority,
      progress: job.progress ?? undefined
    }
  )
  agree(
    `${describe(job)}, the rest`,
    {
      headers: ownHeaders(real.headers),
      due: real.dueAt.getTime(),
      enqueued: real.enqueuedAt.getTime(),
      expires: real.expiresAt?.getTime(),
      errors: real.errors.map(({ kind }) => kind),
      lives: real.history.length,
      deadline: real.lease.deadline,
      token: real.lease.token
    },
    {
      headers: { ...job.headers },
      due: job.dueAt,
      enqueued: job.enqueuedAt,
      expires: job.expiresAt ?? undefined,
      errors: job.errors.map(({ kind }) => kind),
      lives: job.history.length,
      deadline: job.lease?.deadline,
      token: job.lease?.token
    }
  )
}

/** What the claim has to consider, at the least: lapsed leases and what comes behind them may come with the next. */
export type Before = ReadonlyArray<Job>

/** To be asked before what the claim met on its way is moved. */
export const readyFor = ({ pending, state }: Scene, queue: QueueName): Before =>
  state.live.filter((job) => job.queue === queue && isClaimable(state, job) && !pending.has(job.uid))

const jobOf = (state: State, queue: QueueName, id: number): Job => {
  const job = state.live.find((live) => live.queue === queue && live.id === id)
  if (job === undefined) throw new Error(`job ${id} was claimed from ${queue}, where it is not`)
  return job
}

/** One that crashed before, or is on its last attempt: only for a free handler, never ahead of one. */
export const isRisky = ({ attempt, crashes, maxAttempts }: Job): boolean => crashes > 0 || attempt + 1 >= maxAttempts

interface Asked {
  readonly queue: QueueName
  readonly limit: number
  readonly prefetch?: number
}

/** In order; nobody who is left behind was to come first; and as many as there are. */
const checkChoice = (scene: Scene, taken: ReadonlyArray<Job>, asked: Asked, was: Before): void => {
  const { limit, prefetch = 0, queue } = asked
  const { depth, pending, state } = scene
  const claimable = state.live.filter((job) => job.queue === queue && isClaimable(state, job))
  for (const [index, job] of taken.entries()) {
    demand(claimable.includes(job), () => `${describe(job)} was claimed and is not ready`)
    const next = taken[index + 1]
    demand(next === undefined || before(job, next), () => `${describe(job)} came before ${next && describe(next)}`)
    const passed = was.find(
      (other) =>
        !taken.includes(other) && claimable.includes(other) && before(other, job) && !(prefetch > 0 && isRisky(other))
    )
    demand(passed === undefined, () => `${describe(job)} was claimed instead of ${passed && describe(passed)}`)
  }
  demand(taken.length <= limit + prefetch, () => `${taken.length} were claimed, not ${limit + prefetch}`)
  demand(
    prefetch === 0 || taken.filter(isRisky).length <= limit,
    () => `more than ${limit} were claimed that only a free handler may have`
  )
  if (taken.length >= limit || state.paused.includes(queue)) return
  // Within a transaction, what it has done to an ordering key is found by claims after its commit
  const left = claimable.find((job) => !taken.includes(job) && !(depth > 0 && pending.has(job.uid)))
  demand(left === undefined, () => `${left && describe(left)} is ready and was not claimed, with room for it`)
  const lapsed = state.live.find((job) => job.queue === queue && isLapsed(job, state.now))
  demand(
    lapsed === undefined,
    () => `the lease of ${lapsed && describe(lapsed)} has ended, and a claim with room left it`
  )
  const spent = state.live.find((job) => job.queue === queue && isExpired(job, state.now) && job.open)
  demand(
    spent === undefined || depth > 0,
    () => `${spent && describe(spent)} has expired, and a claim with room left it`
  )
}

export const claimed = (
  scene: Scene,
  command: Asked & { readonly visibility: number; readonly worker: number },
  was: Before,
  answer: Answer<ReadonlyArray<RealJob.Job<unknown>>>
): void => {
  const { queue, visibility, worker } = command
  const real = "ok" in answer ? answer.ok : []
  agree("claim", { ...answer, ok: true }, { ok: true })
  const { count, state } = scene
  const taken = real.map(({ id }) => jobOf(state, queue, id))
  demand(new Set(taken).size === taken.length, () => "a job was claimed twice by one claim")
  checkChoice(scene, taken, command, was)
  for (const [index, job] of taken.entries()) {
    const handle = real[index] as RealJob.Job<unknown>
    const { token } = handle.lease
    checkToken(scene, token)
    if (job.crashes > 0) count("claim: after a crash")
    if (job.failures > 0) count("claim: after a failure")
    if (job.history.length > 0) count("claim: after a requeue")
    if (job.orderingKey !== null) count("claim: ordered")
    if (job.attempt + 1 === job.maxAttempts) count("claim: last attempt")
    if (job.progress !== null) count("claim: progress")
    take(scene, job, token, visibility)
    checkHandle(job, handle)
    scene.hands.push({ uid: job.uid, token, queue, worker, job: handle })
  }
  scene.lastToken = Math.max(scene.lastToken, ...taken.map((job) => job.lease?.token ?? 0))
  count(taken.length === 0 ? (state.paused.includes(queue) ? "claim: paused" : "claim: none") : "claim")
  if (taken.length > 1) count("claim: several")
}

const day = 86_400_000

/** A claim of everything by a process that reads numbers only: the others go back, or are given up after a day. */
export const claimedNarrow = (
  scene: Scene,
  visibility: number,
  was: Before,
  answer: Answer<ReadonlyArray<RealJob.Job<unknown>>>
): void => {
  const { count, state } = scene
  const all = state.live.filter((job) => job.queue === "jobs" && isClaimable(state, job))
  const strange = all.filter(
    (job) => typeof job.payload !== "number" && !(scene.depth > 0 && scene.pending.has(job.uid))
  )
  // Out of the way while the others are compared
  for (const job of strange) take(scene, job, -1, visibility)
  claimed(scene, { queue: "jobs", limit: Number.POSITIVE_INFINITY, visibility, worker: 0 }, was, answer)
  for (const job of strange) {
    const since = job.undecodableSince ?? state.now
    const waited = state.now - since
    if (waited >= day) {
      count("undecodable: dead")
      failed(job, "undecodable", state.now)
      bury(state, job, "undecodable")
      continue
    }
    count("undecodable: back")
    giveBack(state, job, state.now + Math.min(300_000, Math.max(1_000, waited)), job.attempt - 1)
    job.undecodableSince = since
  }
}

/** The job that a claim in somebody's hand still holds. */
export const holds = (state: State, { token, uid }: Pick<Hand, "token" | "uid">): Job | undefined =>
  state.live.find((job) => job.uid === uid && job.lease?.token === token)

export const defaultDelay = (failures: number): number => Math.min(86_400_000, 1_000 * 2 ** (failures - 1))

const attemptFailed = (scene: Scene, job: Job, dead: boolean, delay: number | undefined, error: string): void => {
  const { now } = scene.state
  failed(job, "failure", now, error)
  const spent = job.attempt >= job.maxAttempts
  if (!dead && spent) scene.count("settle: exhausted")
  if (dead || spent) bury(scene.state, job, dead ? "failed" : "exhausted")
  else giveBack(scene.state, job, now + (delay ?? defaultDelay(job.failures)), job.attempt)
}

const apply = (scene: Scene, job: Job, how: Settling, delay: number | undefined, error: string): void => {
  const { state } = scene
  if (how === "ack") complete(state, job)
  else if (how === "release" || how === "snooze")
    giveBack(state, job, state.now + (how === "snooze" ? (delay ?? 0) : 0), job.attempt - 1)
  else attemptFailed(scene, job, how === "fail", delay, error)
}

export const settled = (
  scene: Scene,
  hand: Hand,
  command: { readonly how: Settling; readonly delay?: number; readonly error: string },
  answer: Answer<void>
): void => {
  const job = holds(scene.state, hand)
  if (job === undefined) {
    scene.count(`settle: ${command.how}, lease lost`)
    agree(command.how, answer, { error: "LeaseLost" })
    return
  }
  agree(command.how, answer, { ok: undefined })
  if (isLapsed(job, scene.state.now)) scene.count("settle: after the lease's end")
  if (job.cancelRequested) scene.count(`settle: ${command.how}, to be cancelled`)
  scene.count(`settle: ${command.how}`)
  apply(scene, job, command.how, command.delay, command.error)
  job.undecodableSince = null
}
