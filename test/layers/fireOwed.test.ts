/** What a change of a schedule does with a boundary that could not be fired before it. */
import { Effect } from "effect"
import { expect, test } from "vitest"
import { postgresNames, type Session, type Statement } from "../../src/layers/engine.js"
import type { Fire } from "../../src/layers/Schedules/fire.js"
import { fireOwed } from "../../src/layers/Schedules/put.js"
import { scheduleStatements } from "../../src/layers/Schedules/statements.js"
import { storeError } from "../../src/layers/storeError.js"
import type { StoreErrorReason } from "../../src/services/Errors.js"

/** It has failed once, and fails again. */
const scene = (reason: StoreErrorReason) => {
  const sent: Array<string> = []
  const execute = ({ name }: Statement) =>
    Effect.as(
      Effect.sync(() => void sent.push(name)),
      []
    )
  const fire = { fire: () => Effect.fail(storeError("enqueue", new Error("no"), reason)) }
  const statements = scheduleStatements(postgresNames("alkstore", "database"))
  const row = { paused_at: null, failures: 1, next_at: 1, now: 2 }
  return { sent, fired: fireOwed(statements, fire as unknown as Fire, { execute } as unknown as Session, row, false) }
}

test("what would fail again is undone, and the change stands (G108)", async () => {
  const { fired, sent } = scene("constraint")
  expect(await Effect.runPromise(fired)).toBeUndefined()
  expect(sent).toEqual(["schedule_savepoint", "schedule_rollback", "schedule_release"])
})

test.each(["conflict", "connection"] as const)(
  "where the database is in trouble, all of it is tried again: %s (G107, G108)",
  async (reason) => {
    const { fired, sent } = scene(reason)
    expect(await Effect.runPromise(Effect.flip(fired))).toMatchObject({ _tag: "StoreError", reason })
    expect(sent).toEqual(["schedule_savepoint"])
  }
)
