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
import { postgresChannel, type SteppedEngine } from "./steppedEngines.js"
import { type Choose, everyOrder, makeStage } from "./steps.js"

export type AnyQueue = Queue.Definition<unknown, unknown>
export type Act = Effect.Effect<unknown, unknown, Queue.Queue>

/** What it needs is done first, by the same process; the answer is what is done step by step. */
export type Producer = (queue: AnyQueue) => Effect.Effect<Act, unknown, Queue.Queue>

export interface Way {
  /** `late`: the worker registers when it comes to wait, which is after it has looked. */
  readonly subscribes: "first" | "late"
  /**
   * Who listens for the worker's process: nobody; somebody since long ago; the worker itself as the first of its steps,
   * or when it comes to wait; or somebody who takes these steps meanwhile.
   */
  readonly channel: "none" | "live" | "first" | "late" | ReadonlyArray<"LISTEN" | "wakeAll">
  /** Whether producers are processes of their own, or share the worker's. */
  readonly apart: boolean
  readonly notify: boolean
}

export interface Scene {
  readonly makeQueue: () => AnyQueue
  readonly producers: ReadonlyArray<Producer>
  /** How many jobs the worker takes with one claim. Default 10. */
  readonly concurrency?: number
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
const theatre = ({ engine, listener }: World, way: Way, { concurrency, makeQueue, producers }: Scene) =>
  Effect.gen(function* () {
    const ask = (text: string) => Effect.promise(async () => void (await listener?.query(text)))
    // What was notified before an answer has come before it
    const stage = makeStage(async () => void (await listener?.query("SELECT 1")))
    const hub = makeWakeHub({ _tag: "Live" }, hour)
    const policy = yield* checkPolicy({ concurrency })

    /** What comes after the first look, where it should have come before. */
    let afterwards: Array<Effect.Effect<void>> = []
    const wake: WakeService = {
      ...hub.service,
      subscribe: (topic) =>
        Effect.gen(function* () {
          if (way.subscribes === "first") return yield* hub.service.subscribe(topic)
          const scope = yield* Effect.scope
          const made = yield* Deferred.make<Subscription>()
          afterwards.push(Effect.intoDeferred(Scope.extend(hub.service.subscribe(topic), scope), made))
          return { await: Effect.flatMap(Deferred.await(made), (subscription) => subscription.await) }
        }),
      wake: (topics) => (way.apart ? hub.service.wake(topics) : stage.step("wake", hub.service.wake(topics)))
    }
    const late = Effect.suspend(() => {
      const [...all] = afterwards
      afterwards = []
      return all.length === 0 ? Effect.void : stage.step("worker registers", Effect.all(all))
    })
    const process = (name: string, service = elsewhere()) =>
      engine.process({ name, stage, wake: service, notify: name !== "checker" && way.notify })
    const here = yield* process("worker", wake)
    const theirs = yield* Effect.forEach(producers, (_, n) => (way.apart ? process(`${n + 1}`) : Effect.succeed(here)))
    const checker = yield* process("checker")
    yield* ask(way.channel === "live" ? listening : "UNLISTEN *")

    return (choose: Choose) =>
      Effect.gen(function* () {
        const queue = makeQueue()
        const acts = yield* Effect.forEach(producers, (prepare, n) => {
          const own = theirs[n] ?? here
          return Effect.map(Effect.provide(prepare(queue), own), Effect.provide(own))
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
        yield* Effect.forkScoped(Effect.forever(notified))
        const connecting = typeof way.channel === "string" ? [] : way.channel
        const connect = Effect.forEach(connecting, (what) =>
          stage.step(`channel ${what}`, what === "LISTEN" ? ask(listening) : Effect.sync(hub.wakeAll))
        )
        const others = yield* Effect.forEach([...acts, connect], (act) => Effect.forkScoped(act))
        afterwards = way.channel === "late" ? [ask(listening)] : []
        let got = 0
        const work = Effect.gen(function* () {
          if (way.channel === "first") yield* stage.step("worker LISTEN", ask(listening))
          const made = makeState(queue.name, "worker", policy, () => {})
          const { buffer, ...state } = yield* way.subscribes === "first" ? stage.step("worker registers", made) : stage.part(made)
          const claim: QueueService["claim"] = (request) => Effect.tap(state.queue.claim(request), late)
          // Jobs end when they begin, and are never settled
          const start = () => {
            got += buffer.splice(0).length
          }
          return yield* fetcher({ ...state, buffer, queue: { ...state.queue, claim } }, { start })
        })
        const working = yield* Effect.forkScoped(Effect.provide(work, here))
        // Whatever happens, nobody is left waiting for a turn
        yield* Effect.addFinalizer(() => Effect.sync(stage.open))
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
