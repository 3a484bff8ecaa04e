/**
 * A settle that must be refused. What is committed is compared with a run of the same product: what no product may do, a
 * case has to say itself.
 */
import { Queue } from "alkstore"
import { Effect } from "effect"
import { acksOf, type Case, claim, claimed, job, lapse } from "../world.js"

export const strangersLease: Case = {
  name: "under leases that are over, of jobs that are another's",
  alone: true,
  prepare: (world) =>
    Effect.gen(function* () {
      const name = world.name("queue")
      const service = yield* Queue.Queue
      const mine = yield* claimed(name, job("plain"), job("keyed", { dedupeKey: "k" }))
      yield* lapse(world, name)
      const theirs = yield* claim(name)
      if (theirs.length !== 2) yield* Effect.die(new Error(`${theirs.length} of 2 leases that are over were taken`))
      return Effect.flatMap(service.settle(name, acksOf(mine)), (outcomes) =>
        outcomes.every((outcome) => outcome === "lost")
          ? Effect.void
          : Effect.die(new Error(`settled under a stranger's lease: ${outcomes.join()}`))
      )
    })
}
