/** Runs commands against an engine and the model; after each, the two agree. */
import type { SqlClient } from "@effect/sql"
import { Lock, Queue, Schedules, transaction } from "alkstore"
import { settle as quiet } from "alkstore/Testing"
import { Effect, TestClock } from "effect"
import type { EngineServices } from "../support/engines.js"
import { ask, deadFilter, definition, enqueueReal, liveFilter, scheduleOf, settleReal } from "./calls.js"
import { claimed, claimedNarrow, holds, readyFor, settled } from "./claims.js"
import type { Command, LiveFilterSpec, Simple, Story, Transaction } from "./commands.js"
import { complete } from "./ends.js"
import { enqueued } from "./enqueue.js"
import { apiAgrees, locksAgree, schedulesAgree } from "./introspection.js"
import { check } from "./invariants.js"
import { compare, look, openSoon, resolve } from "./observe.js"
import * as operations from "./operations.js"
import { narrowJobs, type QueueName, queues } from "./queues.js"
import * as recurring from "./recurring.js"
import { agree, type Scene } from "./scene.js"
import type { State } from "./state.js"
import { beat, fetched, fetchReal, isCalm } from "./worker.js"

type Run<A = void> = Effect.Effect<A, unknown, EngineServices>

/** A state that nobody has told PostgreSQL of yet cannot be asked for. */
const isUncertain = (scene: Scene, filter: LiveFilterSpec): boolean => "state" in filter && scene.pending.size > 0

/** What a claim met on its way, and moved. */
const met = (scene: Scene, queue: QueueName): Run =>
  Effect.gen(function* () {
    yield* quiet
    const seen = yield* look(scene)
    resolve(scene, seen, queue)
    scene.pending = openSoon(scene, seen)
  })

const claim = (scene: Scene, command: Extract<Simple, { readonly _tag: "claim" | "claimNarrow" | "fetch" }>): Run =>
  Effect.gen(function* () {
    const queue = command._tag === "claimNarrow" ? "jobs" : command.queue
    const was = readyFor(scene, queue)
    if (command._tag === "fetch") {
      const calm = isCalm(scene, queue)
      const answer = yield* ask(scene, fetchReal(command))
      yield* met(scene, queue)
      return fetched(scene, command, was, calm, answer)
    }
    const { visibility: visibilityTimeout } = command
    const answer = yield* command._tag === "claim"
      ? ask(scene, definition(queue).claim({ limit: command.limit, visibilityTimeout }))
      : ask(scene, narrowJobs.claim({ limit: 1_000, visibilityTimeout }))
    yield* met(scene, queue)
    if (command._tag === "claim") claimed(scene, command, was, answer)
    else claimedNarrow(scene, command.visibility, was, answer)
  })

/** All acks of one queue that are in anybody's hands, good and stale ones, in one statement. */
const ackMany = (scene: Scene, queue: QueueName): Run =>
  Effect.gen(function* () {
    const store = yield* Queue.Queue
    const hands = scene.hands.filter((hand) => hand.queue === queue)
    const acks = hands.map(({ job, token }) => ({ _tag: "Ack" as const, id: job.id, token }))
    const outcomes = yield* ask(scene, store.settle(queue, acks))
    const held = hands.map((hand) => holds(scene.state, hand))
    for (const job of held) if (job !== undefined) complete(scene.state, job)
    const isLive = (id: number) => scene.state.live.some((job) => job.id === id)
    const wanted = hands.map(({ job }, index) =>
      held[index] !== undefined ? "done" : isLive(job.id) ? "lost" : "gone"
    )
    scene.count(wanted.length === 0 ? "ackMany: none" : new Set(wanted).size > 1 ? "ackMany: mixed" : "ackMany")
    agree("ackMany", outcomes, { ok: wanted })
  })

const simple = (scene: Scene, command: Simple): Run => {
  const { now } = scene.state
  switch (command._tag) {
    case "enqueue":
      return Effect.map(ask(scene, enqueueReal(command.queue, command.jobs, now)), (answer) =>
        enqueued(scene, command.queue, command.jobs, answer)
      )
    case "claim":
    case "claimNarrow":
    case "fetch":
      return claim(scene, command)
    case "settle": {
      const hand = operations.handAt(scene, command.at)
      if (hand === undefined) return Effect.void
      return Effect.map(ask(scene, settleReal(hand, command)), (answer) => settled(scene, hand, command, answer))
    }
    case "ackMany":
      return ackMany(scene, command.queue)
    case "cancel": {
      const target = operations.pick(scene.ids, command.at)
      if (target === undefined) return Effect.void
      const { id, queue } = target
      return Effect.map(ask(scene, definition(queue).cancel(id)), (answer) =>
        operations.cancelled(scene, queue, id, answer)
      )
    }
    case "cancelMany":
      if (isUncertain(scene, command.filter)) return Effect.void
      return Effect.map(ask(scene, definition(command.queue).cancelMany(liveFilter(scene, command.filter))), (answer) =>
        operations.cancelledMany(scene, command, answer)
      )
    case "change":
      return isUncertain(scene, command.filter) ? Effect.void : change(scene, command)
    case "clear":
      return Effect.map(ask(scene, definition(command.queue).clear), (answer) =>
        operations.cleared(scene, command.queue, answer)
      )
    case "pause":
    case "resume":
      return Effect.map(ask(scene, definition(command.queue)[command._tag]), (answer) =>
        operations.setPaused(scene, command.queue, command._tag === "pause", answer)
      )
    case "requeue": {
      const { delay, filter, queue, to } = command
      const call = definition(queue).deadLetters.requeue(deadFilter(scene, filter), {
        delay,
        ...(to === undefined ? {} : { to: queues[to] })
      })
      return Effect.map(ask(scene, call), (answer) => operations.requeued(scene, command, answer))
    }
    case "purge":
      return Effect.map(
        ask(scene, definition(command.queue).deadLetters.purge(deadFilter(scene, command.filter))),
        (answer) => operations.purged(scene, command, answer)
      )
    case "schedule":
      return Effect.map(ask(scene, Schedules.put(scheduleOf(command.name, command.spec))), (answer) =>
        recurring.put(scene, command.name, command.spec, answer)
      )
    case "schedulePause":
      return Effect.map(ask(scene, Schedules.pause(command.name)), (a) =>
        recurring.pausedSchedule(scene, command.name, a)
      )
    case "scheduleResume":
      return Effect.map(ask(scene, Schedules.resume(command.name)), (a) =>
        recurring.resumedSchedule(scene, command.name, a)
      )
    case "scheduleRemove":
      return Effect.map(ask(scene, Schedules.remove(command.name)), (a) =>
        recurring.removedSchedule(scene, command.name, a)
      )
    case "trigger":
      return Effect.map(ask(scene, Schedules.trigger(command.name)), (a) => recurring.triggered(scene, command.name, a))
  }
}

const change = (scene: Scene, command: Extract<Simple, { readonly _tag: "change" }>): Run => {
  const { delay, priority, queue, runAt } = command
  const filter = liveFilter(scene, command.filter)
  const real = definition(queue)
  const call =
    priority !== undefined
      ? real.setPriority(filter, priority)
      : runAt !== undefined
        ? real.reschedule(filter, { runAt: new Date(scene.state.now + runAt) })
        : delay === 0
          ? real.runNow(filter)
          : real.reschedule(filter, { delay: delay ?? 0 })
  return Effect.map(ask(scene, call), (answer) => operations.changed(scene, command, answer))
}

class RolledBack {
  readonly _tag = "RolledBack"
}

/** Of the model: a transaction that rolls back leaves nothing. */
const restore = (state: State, snapshot: State): void => void Object.assign(state, snapshot)

const inTransaction = (scene: Scene, { commands, end }: Transaction): Run =>
  Effect.gen(function* () {
    const snapshot = structuredClone(scene.state)
    const { lastId, lastToken } = scene
    scene.depth++
    const body = Effect.gen(function* () {
      for (const command of commands) {
        const lost = scene.failures
        yield* step(scene, command)
        if (end === "strict" && scene.failures > lost) return yield* Effect.fail(new RolledBack())
      }
      if (end === "rollback") return yield* Effect.fail(new RolledBack())
    })
    const committed = yield* transaction(body).pipe(
      Effect.as(true),
      Effect.catchIf(
        (error) => error instanceof RolledBack,
        () => Effect.succeed(false)
      ),
      Effect.ensuring(Effect.sync(() => scene.depth--))
    )
    if (!committed) {
      restore(scene.state, snapshot)
      // Claims that never were gave tokens that are not given again, but others may be below them
      scene.lastToken = lastToken
      // SQLite gives ids back
      scene.lastId = lastId
    }
    scene.count(`transaction: ${committed ? "committed" : end === "strict" ? "failed with a command" : "rolled back"}`)
    if (scene.depth > 0) scene.count(`transaction: nested, ${committed ? "committed" : "rolled back"}`)
  })

const apart = (scene: Scene, command: Exclude<Command, Story>): Run => {
  const { state } = scene
  switch (command._tag) {
    case "transaction":
      return inTransaction(scene, command)
    case "heartbeat": {
      const hand = operations.handAt(scene, command.at)
      if (hand === undefined) return Effect.void
      return Effect.map(ask(scene, hand.job.heartbeat(command.progress)), (answer) =>
        operations.beaten(scene, hand, command.progress, answer)
      )
    }
    case "beat":
      return beat(scene, command)
    case "sweep": {
      const { queue } = command
      const call = queue === undefined ? Queue.sweepExpired : definition(queue).sweepExpired
      return Effect.map(ask(scene, call), (answer) => operations.swept(scene, queue, answer))
    }
    case "fire":
      return Effect.flatMap(Schedules.Schedules, (service) =>
        Effect.map(ask(scene, service.fireDue), (answer) => recurring.fired(scene, answer))
      )
    case "advance":
      state.now += command.millis
      scene.count("advance")
      return TestClock.setTime(state.now)
    case "crash":
      scene.count(scene.hands.some(({ worker }) => worker === command.worker) ? "crash" : "crash: idle")
      scene.hands = scene.hands.filter(({ worker }) => worker !== command.worker)
      return Effect.void
    case "lock":
      return Effect.map(ask(scene, Lock.tryAcquire(command.name, { ttl: command.ttl })), (answer) =>
        recurring.locked(scene, command.name, command.ttl, answer)
      )
    case "forceUnlock":
      return Effect.map(ask(scene, Lock.forceRelease(command.name)), (answer) =>
        recurring.forceUnlocked(scene, command.name, answer)
      )
    case "relock":
    case "unlock": {
      const lease = operations.pick(scene.locks, command.at)
      if (lease === undefined) return Effect.void
      const call: Effect.Effect<unknown, { readonly _tag: string }, Lock.Lock> =
        command._tag === "relock" ? Lock.renew(lease) : Lock.release(lease)
      return Effect.map(ask(scene, call), (answer) =>
        recurring.relocked(scene, lease, command._tag === "relock", answer)
      )
    }
    default:
      return simple(scene, command)
  }
}

/** One command, and a look at everything. */
export const step = (
  scene: Scene,
  command: Command
): Effect.Effect<void, unknown, EngineServices | SqlClient.SqlClient> =>
  Effect.gen(function* () {
    if (command._tag === "story")
      return yield* Effect.forEach(command.commands, (one) => step(scene, one), { discard: true })
    scene.executed++
    if (scene.depth > 0) scene.count(`within a transaction: ${command._tag}`)
    yield* apart(scene, command)
    yield* quiet
    const seen = yield* look(scene)
    compare(scene, seen)
    check(scene, seen)
    if ("queue" in command && command.queue !== undefined) yield* apiAgrees(scene, command.queue)
    if (command._tag.startsWith("schedule")) yield* schedulesAgree(scene)
    if (command._tag.endsWith("lock")) yield* locksAgree(scene)
  })
