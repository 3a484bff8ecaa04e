/**
 * A worker that comes to look and then to wait, beside producers, in every order of their steps. The worker is the
 * product's own: its state, which subscribes, and its fetcher; but nobody runs what it has claimed.
 */
import type { Queue } from "alkstore"
import { Deferred, Duration, Effect, Fiber, Queue as Mailbox, Scope } from "effect"
import type pg from "pg"
import { makeWakeHub } from "../../src/layers/Wake/WakeHub.js"
import type { Service as QueueService } from "../../src/services/QueueStore.js"
import type { Subscription, Service as WakeService } from "../../src/services/Wake.js"
import { fetcher } from "../../src/workers/fetcher.js"
import { makeState } from "../../src/workers/makeState.js"
import { checkPolicy } from "../../src/workers/policy.js"
import { makeStream } from "../../src/workers/stream.js"
import { postgresChannel, type SteppedEngine } from "./steppedEngines.js"
import { actor, type Choose, everyOrder, makeStage } from "./steps.js"

export type AnyQueue = Queue.Definition<unknown, unknown>
export type Act = Effect.Effect<unknown, unknown, Queue.Queue>

/** What it needs is done first, by the same process; the answer is what is done step by step. */
export type Producer = (queue: AnyQueue) => Effect.Effect<Act, unknown, Queue.Queue>

export interface Way {
  /** Whether the worker registers before it looks, as it does, or `late`: between its look and its wait. */
  readonly registers: "first" | "late"
  /**
   * Who listens for the worker's process: nobody, where producers share its process; somebody since long ago; the worker
   * itself as the first of its steps, or after its first look; or somebody who takes these steps meanwhile.
   */
  readonly channel: "none" | "live" | "first" | "late" | ReadonlyArray<"LISTEN" | "wakeAll">
  /** Whether producers send wakes: within the process, or notifications, which go with their commits. */
  readonly wakes: boolean
}

export interface Scene {
  readonly makeQueue: () => AnyQueue
  readonly producers: ReadonlyArray<Producer>
  /** How many jobs the worker takes with one claim. Default 10. */
  readonly concurrency?: number | undefined
  /** Whether the worker has looked and waits before anybody begins. Default false. */
  readonly idle?: boolean | undefined
}

export interface Played {
  readonly steps: ReadonlyArray<string>
  /** Jobs that the worker has claimed. */
  readonly got: number
  /** Jobs that could be claimed while it slept. */
  readonly missed: number
}

export interface World {
  readonly engine: SteppedEngine
  /** The connection that listens. */
  readonly listener?: pg.Client
}

const hour = Duration.hours(1)
const elsewhere = () => makeWakeHub({ _tag: "Live" }, hour).service
const listening = `LISTEN "${postgresChannel}"`

/** The processes, which one play after the other uses, each with a queue of its own. */
const theatre = ({ engine, listener }: World, way: Way, { concurrency, idle = false, makeQueue, producers }: Scene) =>
  Effect.gen(function* () {
    const ask = (text: string) => Effect.promise(async () => void (await listener?.query(text)))
    let sent = 0
    // What was notified before an answer has come before it
    const stage = makeStage(async () => {
      if (engine.sent() !== sent) await listener?.query("SELECT 1")
      sent = engine.sent()
    })
    const hub = makeWakeHub({ _tag: "Live" }, hour)
    const apart = way.channel !== "none"
    const policy = yield* checkPolicy({ concurrency })

    /** What comes after the first look, where it should have come before. */
    let afterwards: Array<Effect.Effect<void>> = []
    const wake: WakeService = {
      ...hub.service,
      subscribe: (topic) =>
        Effect.gen(function* () {
          if (way.registers === "first") return yield* hub.service.subscribe(topic)
          const scope = yield* Effect.scope
          const made = yield* Deferred.make<Subscription>()
          afterwards.push(Effect.intoDeferred(Scope.extend(hub.service.subscribe(topic), scope), made))
          return { await: Effect.flatMap(Deferred.await(made), (subscription) => subscription.await) }
        }),
      wake: (topics) =>
        apart
          ? hub.service.wake(topics)
          : stage.step("hub.wake", way.wakes === false ? Effect.void : hub.service.wake(topics))
    }
    const late = Effect.suspend(() => {
      const [...all] = afterwards
      afterwards = []
      return all.length === 0 ? Effect.void : stage.step("registers", Effect.all(all))
    })
    const notify = apart && way.wakes !== false
    const here = yield* engine.process({ stage, wake, notify })
    const theirs = yield* Effect.forEach(producers, () =>
      apart ? engine.process({ stage, wake: elsewhere(), notify }) : Effect.succeed(here)
    )
    const checker = yield* engine.process({ stage, wake: elsewhere(), notify: false })
    yield* ask(way.channel === "live" ? listening : "UNLISTEN *")

    return (choose: Choose) =>
      Effect.gen(function* () {
        const queue = makeQueue()
        const acts = yield* Effect.forEach(producers, (prepare, n) => {
          const process = theirs[n] as (typeof theirs)[number]
          return Effect.map(Effect.provide(prepare(queue), process), (act) =>
            Effect.locally(Effect.provide(act, process), actor, `${n + 1}`)
          )
        })
        if (way.channel !== "live") yield* ask("UNLISTEN *")
        yield* ask("SELECT 1")
        const mailbox = yield* Mailbox.unbounded<string>()
        listener?.removeAllListeners("notification")
        listener?.on("notification", ({ payload = "" }) => mailbox.unsafeOffer(payload))

        stage.close()
        const notified = Effect.flatMap(Mailbox.take(mailbox), (topic) =>
          stage.step("notification", hub.service.wake([topic]))
        )
        yield* Effect.forkScoped(Effect.locally(Effect.forever(notified), actor, "channel"))
        const connecting = typeof way.channel === "string" ? [] : way.channel
        const connect = Effect.forEach(connecting, (what) =>
          stage.step(what, what === "LISTEN" ? ask(listening) : Effect.sync(hub.wakeAll))
        ).pipe(Effect.locally(actor, "channel"))
        afterwards = way.channel === "late" ? [ask(listening)] : []
        let got = 0
        const work = Effect.gen(function* () {
          if (way.channel === "first") yield* stage.step("LISTEN", ask(listening))
          const made = makeState(queue.name, "worker", policy, () => {})
          const { buffer, ...state } = yield* way.registers === "first"
            ? stage.step("registers", made)
            : stage.part(made)
          // A claim has been answered before the worker knows
          const hears = Effect.zipRight(stage.step("hears", Effect.void), late)
          const claim: QueueService["claim"] = (request) => Effect.zipLeft(state.queue.claim(request), hears)
          // Jobs end when they begin, and are never settled
          const start = () => {
            got += buffer.splice(0).length
          }
          return yield* fetcher({ ...state, buffer, queue: { ...state.queue, claim } }, { start }, makeStream(state))
        })
        const working = yield* Effect.forkScoped(Effect.locally(Effect.provide(work, here), actor, "worker"))
        // Whatever happens, nobody is left waiting for a turn
        yield* Effect.addFinalizer(() => Effect.sync(stage.open))
        if (idle) yield* Effect.promise(() => stage.play(() => 0))
        const others = yield* Effect.forEach([...acts, connect], (act) => Effect.forkScoped(act))
        const steps = yield* Effect.promise(() => stage.play(choose))
        stage.open()
        yield* Effect.forEach(others, Fiber.join)
        if ((yield* Fiber.poll(working))._tag === "Some") return yield* Fiber.join(working)
        const left = yield* Effect.provide(queue.claim({ limit: 100 }), checker)
        return { steps, got, missed: left.length } satisfies Played
      }).pipe(Effect.scoped)
  })

/** All orders, or as many as it takes until one is `enough`. */
export const everyPlay = (world: World, way: Way, scene: Scene, enough?: (played: Played) => boolean) =>
  Effect.gen(function* () {
    const play = yield* theatre(world, way, scene)
    return yield* Effect.promise(() => everyOrder((choose) => Effect.runPromise(play(choose)), enough))
  }).pipe(Effect.scoped, Effect.runPromise)
