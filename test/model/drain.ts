/** The end of a sequence: whatever is there can move on, until nothing is left. */
import { Effect } from "effect"
import type { Command } from "./commands.js"
import { queueNames } from "./queues.js"
import { step } from "./run.js"
import { demand, describe, type Scene } from "./scene.js"
import type { State } from "./state.js"

const day = 86_400_000

const rounds = 12

const all = (scene: Scene, commands: ReadonlyArray<Command>) =>
  Effect.forEach(commands, (command) => step(scene, command), { discard: true })

const busy = ({ dead, live }: State) =>
  queueNames.filter((queue) => live.some((job) => job.queue === queue) || dead.some((letter) => letter.queue === queue))

/** Claims and acks, as time passes, until every live job is done; those behind a dead letter wait for it. */
const work = (scene: Scene) =>
  Effect.gen(function* () {
    const { state } = scene
    const waits = () =>
      state.live.filter(
        (job) =>
          job.lease !== null ||
          job.open ||
          !state.dead.some(
            ({ holds, orderingKey, queue }) => holds && queue === job.queue && orderingKey === job.orderingKey
          )
      )
    for (let round = 0; waits().length > 0; round++) {
      demand(round < rounds, () => `${waits().map(describe).join(", ")} cannot move on`)
      for (const queue of new Set(waits().map((job) => job.queue)))
        yield* all(scene, [
          { _tag: "claim", queue, limit: 1_000, visibility: 1_000, worker: 9 },
          { _tag: "ackMany", queue }
        ])
      scene.hands = []
      if (waits().some((job) => job.lease !== null || job.dueAt > state.now))
        yield* all(scene, [{ _tag: "advance", millis: day }, { _tag: "sweep" }])
    }
  })

export const drain = (scene: Scene) =>
  Effect.gen(function* () {
    const { state } = scene
    const filter = { by: "all" } as const
    yield* all(
      scene,
      state.schedules.map(({ name }) => ({ _tag: "scheduleRemove", name }) as Command)
    )
    yield* all(
      scene,
      state.paused.map((queue) => ({ _tag: "resume", queue }))
    )
    yield* work(scene)
    // Each letter has a second life
    yield* all(
      scene,
      busy(state).map((queue) => ({ _tag: "requeue", queue, filter, delay: 0 }))
    )
    yield* work(scene)
    yield* all(
      scene,
      busy(state).map((queue) => ({ _tag: "purge", queue, filter }))
    )
    yield* work(scene)
    yield* all(
      scene,
      busy(state).map((queue) => ({ _tag: "purge", queue, filter }))
    )
    yield* all(scene, [{ _tag: "advance", millis: day }, { _tag: "sweep" }])
    const { completed, dead, keys, live } = state
    demand(
      live.length + dead.length + completed.length === 0,
      () => "something is left that nobody will ever take away"
    )
    demand(
      keys.every(({ freeAt }) => freeAt !== null),
      () => "a dedupe key is left that nobody will ever free"
    )
  })
