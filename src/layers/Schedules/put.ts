/**
 * put: creates or changes a schedule, firing first what was due under what stood there before.
 */
import { Effect, Either } from "effect"
import type { Recurrence } from "../../schedule/Recurrence.js"
import type { StoreError } from "../../services/Errors.js"
import { parseJson } from "../../services/json.js"
import type { NewSchedule, PutOutcome } from "../../services/ScheduleStore.js"
import type { Row, Session } from "../engine.js"
import { bool, int, intOrNull, textOrNull } from "../Queue/statements/rows.js"
import { storeError } from "../storeError.js"
import { firstAfter, never, nextAfter, replacedRule, ruleOf } from "./decide.js"
import type { Fire, Fired } from "./fire.js"
import { givenOf, sameRule, sameSchedule } from "./rows.js"
import type { ScheduleStatements } from "./statements.js"

export interface Put {
  readonly outcome: PutOutcome
  /** What was owed and is fired. */
  readonly fired: Fired | undefined
}

/** How long a boundary that can be fired later waits for a lock, as PostgreSQL reads it. */
export const patience = "200ms"

/** Of what follows in the transaction; answers how long it waited before. */
export const hurry = ({ hurry }: ScheduleStatements, session: Session, patience: string) =>
  hurry === undefined
    ? Effect.succeed(patience)
    : Effect.map(session.execute(hurry, { patience }), ([row]) => String(row?.patience))

/**
 * Fires what is owed by a row before it is changed; of one that is paused, what was due when it was paused. Where that cannot be done,
 * the change stands if it has failed before (the change must be able to mend it), or if it is owed afterwards (`stays`): then an open
 * transaction in its way is not waited for either.
 */
export const fireOwed = (
  statements: ScheduleStatements,
  fire: Fire,
  session: Session,
  row: Row,
  stays: boolean
): Effect.Effect<Fired | undefined, StoreError> => {
  if (int(row.next_at) > int(row.paused_at ?? row.now)) return Effect.succeed(undefined)
  const then = row.paused_at === null ? row : { ...row, now: row.paused_at }
  const fired = Effect.map(fire.fire(session, then), Either.getOrUndefined)
  if (int(row.failures) === 0 && !stays) return fired
  const release = session.execute(statements.release, {})
  const setting = stays ? hurry(statements, session, patience) : Effect.succeed(undefined)
  return Effect.zipRight(
    session.execute(statements.savepoint, {}),
    Effect.flatMap(setting, (before) =>
      Effect.matchEffect(fired, {
        // What would fail again has told so before, in the schedule's last error
        onFailure: (error) =>
          error.retryable && !(stays && error.reason === "busy")
            ? Effect.fail(error)
            : Effect.as(Effect.zipRight(session.execute(statements.rollback, {}), release), undefined),
        onSuccess: (owed) =>
          Effect.zipRight(
            before === undefined ? Effect.void : hurry(statements, session, before),
            Effect.as(release, owed)
          )
      })
    )
  )
}

/** `undefined` when the rule has no boundary left. */
export const makePut =
  (statements: ScheduleStatements, fire: Fire) =>
  (session: Session, schedule: NewSchedule, recurrence: Recurrence): Effect.Effect<Put | undefined, StoreError> => {
    const { name } = schedule
    const given = () => givenOf(schedule, recurrence.rule)

    const create = Effect.gen(function* () {
      const [row] = yield* session.execute(statements.present, {})
      const nextAt = nextAfter(recurrence, int(row?.now), null)
      if (nextAt === never) return undefined
      const rows = yield* session.execute(statements.insert, {
        ...given(),
        name,
        declared: schedule.declared ? 1 : 0,
        nextAt
      })
      return rows.length > 0
    })

    const change = (row: Row): Effect.Effect<Put | undefined, StoreError> =>
      Effect.gen(function* () {
        const declared = bool(row.declared) || schedule.declared ? 1 : 0
        if (sameSchedule(row, schedule, recurrence.rule)) {
          if (declared === 1 && !bool(row.declared)) yield* session.execute(statements.declare, { name, declared })
          return { outcome: "unchanged", fired: undefined }
        }
        const same = sameRule(row, recurrence.rule)
        // A paused one fires nothing; what it owes still is `resume`'s
        const owed = row.paused_at === null ? yield* fireOwed(statements, fire, session, row, same) : undefined
        const now = int(row.now)
        const lastAt = owed === undefined ? intOrNull(row.last_at) : owed.lastAt
        // What a failing one owes, it owes still when its times are the same
        const stays = owed === undefined && same
        const replaced = row.paused_at === null ? parseJson(textOrNull(row.previous_rule)) : undefined
        const nextAt = stays ? int(row.next_at) : firstAfter(recurrence, now, lastAt, same ? undefined : replaced)
        if (nextAt === never && !stays) return undefined
        const previousRule = same ? textOrNull(row.previous_rule) : replacedRule(ruleOf(row), now)
        yield* session.execute(statements.change, { ...given(), name, declared, previousRule, nextAt })
        return { outcome: "changed", fired: owed }
      })

    const attempt = (left: number): Effect.Effect<Put | undefined, StoreError> =>
      Effect.gen(function* () {
        const [row] = yield* session.execute(statements.lock, { name })
        if (row !== undefined) return yield* change(row)
        const created = yield* create
        if (created === undefined) return undefined
        if (created) return { outcome: "created", fired: undefined }
        // Somebody else has created it since; a snapshot older than that never sees it
        if (left === 0)
          return yield* Effect.fail(storeError("schedule_put", new Error("created by somebody else"), "conflict"))
        return yield* attempt(left - 1)
      })

    return attempt(3)
  }
