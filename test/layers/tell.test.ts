/** SQLite: what other processes are told of a change, one write after the other. */
import { Effect, Exit } from "effect"
import { expect, it } from "vitest"
import type { Database } from "../../src/layers/Database/Database.js"
import { sqliteNames } from "../../src/layers/engine.js"
import { storeError } from "../../src/layers/storeError.js"
import { makeTell } from "../../src/layers/Wake/tell.js"

const gone = storeError("wake", new Error("gone"))

it("what changes while others are told of something is told after it, also when that has failed (G60)", () =>
  Effect.runPromise(
    Effect.gen(function* () {
      const writes: Array<(exit: Exit.Exit<void, typeof gone>) => void> = []
      const told: Array<unknown> = []
      const apart: Database["apart"] = (_access, _operation, verb) =>
        Effect.zipRight(
          Effect.async<void, typeof gone>((resume) => void writes.push(resume)),
          verb({
            writes: true,
            joined: false,
            execute: (statement, parameters) =>
              Effect.sync(() => {
                told.push("topics" in parameters ? parameters.topics : statement.name)
                return []
              })
          })
        )
      const tell = makeTell({ names: sqliteNames("_"), apart } as Database, yield* Effect.scope)
      const turns = Effect.repeatN(Effect.yieldNow(), 50)
      yield* tell(["a"])
      yield* turns
      yield* tell(["b"])
      yield* tell(["c", "b"])
      yield* turns
      expect(writes).toHaveLength(1)
      writes[0]?.(Exit.void)
      yield* turns
      expect(told.splice(0)).toEqual(['["a"]', "wake_forget"])
      expect(writes).toHaveLength(2)
      yield* tell(["d"])
      writes[1]?.(Exit.fail(gone))
      yield* turns
      expect(told).toEqual([])
      writes[2]?.(Exit.void)
      yield* turns
      expect(told.splice(0)).toEqual(['["d"]', "wake_forget"])
      yield* tell(["e"])
      yield* turns
      writes[3]?.(Exit.void)
      yield* turns
      expect(told).toEqual(['["e"]', "wake_forget"])
    }).pipe(Effect.scoped)
  ))
