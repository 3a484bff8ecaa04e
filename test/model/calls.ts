/** The calls of the engine that commands stand for. */
import { type Queue, Schedules } from "alkstore"
import { Effect } from "effect"
import {
  type DeadFilterSpec,
  type EnqueueSpec,
  type LiveFilterSpec,
  type ScheduleName,
  type Simple,
  schedules
} from "./commands.js"
import { pick } from "./operations.js"
import { type QueueName, queues } from "./queues.js"
import type { Answer, Hand, Scene } from "./scene.js"
import type { ScheduleSpec } from "./state.js"

/** What a call answers; its failure is an answer too. */
export const ask = <A, E extends { readonly _tag: string }, R>(
  scene: Scene,
  call: Effect.Effect<A, E, R>
): Effect.Effect<Answer<A>, never, R> =>
  Effect.match(call, {
    onSuccess: (ok): Answer<A> => ({ ok }),
    onFailure: (error): Answer<A> => {
      scene.failures++
      return { error: error._tag }
    }
  })

const optionsOf = (spec: EnqueueSpec, now: number) => {
  const { expires, expiresAt, payload: _, runAt, ...rest } = spec
  return {
    ...rest,
    expires: expiresAt === undefined ? expires : new Date(now + expiresAt),
    ...(runAt === undefined ? {} : { runAt: new Date(now + runAt) })
  }
}

/** Of a queue whose payload may be anything; `numbers` refuses what is not one, which is what is asked. */
export const definition = (queue: QueueName) => queues[queue] as (typeof queues)["jobs"]

export const enqueueReal = (queue: QueueName, specs: ReadonlyArray<EnqueueSpec>, now: number) => {
  const [only] = specs
  const { enqueue, enqueueMany } = definition(queue)
  return only !== undefined && specs.length === 1
    ? Effect.map(enqueue(only.payload, optionsOf(only, now)), (receipt) => [receipt])
    : enqueueMany(
        specs.map(({ payload }) => payload),
        (_, index) => optionsOf(specs[index] as EnqueueSpec, now)
      )
}

export const settleReal = (hand: Hand, { delay, error, how }: Extract<Simple, { readonly _tag: "settle" }>) => {
  const { job } = hand
  switch (how) {
    case "ack":
      return job.ack
    case "release":
      return job.release
    case "snooze":
      return job.snooze(delay ?? 0)
    case "fail":
      return job.fail(error)
    case "retry":
      return job.retry({ error, ...(delay === undefined ? {} : { delay }) })
  }
}

export const liveFilter = (scene: Scene, filter: LiveFilterSpec): Queue.JobFilter => {
  if (filter.by === "all") return { all: true }
  if (filter.by === "any") return { id: pick(scene.ids, filter.at)?.id ?? 0 }
  switch (filter.by) {
    case "state":
      return { state: filter.state }
    case "several":
      return { id: filter.ats.map((at) => pick(scene.ids, at)?.id ?? 0) }
    case "keyAndState":
      return { orderingKey: filter.key, state: [filter.state] }
    case "age": {
      const { now } = scene.state
      return { enqueuedAfter: new Date(now - filter.most), enqueuedBefore: new Date(now - filter.least) }
    }
    default:
      return { [filter.by]: filter.key }
  }
}

export const deadFilter = (scene: Scene, filter: DeadFilterSpec): Queue.DeadLetterFilter => {
  switch (filter.by) {
    case "all":
      return { all: true }
    case "any":
      return { id: pick(scene.ids, filter.at)?.id ?? 0 }
    case "orderingKey":
      return { orderingKey: filter.key }
    case "reason":
      return { reason: filter.reasons }
    case "error":
      return { error: filter.text }
    case "older":
      return { diedBefore: new Date(scene.state.now - filter.than) }
    case "younger":
      return { diedAfter: new Date(scene.state.now - filter.than) }
    case "several":
      return { id: filter.ats.map((at) => pick(scene.ids, at)?.id ?? 0) }
    case "keyAndReason":
      return { orderingKey: filter.key, reason: filter.reasons }
  }
}

export const scheduleOf = (name: ScheduleName, { queue, ...spec }: ScheduleSpec) =>
  Schedules.make(name, { ...schedules[name].rule, ...spec, queue: queues[queue] })
