/**
 * The Schedules service over a Database: rows that are put, fired and listed under the row's own lock.
 */
import { Cause, Effect, Either, Layer, Option } from "effect"
import { parse, restore } from "../../schedule/Recurrence.js"
import { InvalidArgument, ScheduleNotFound, type StoreError, type TransactionOpen } from "../../services/Errors.js"
import { describe } from "../../services/Job.js"
import { type NewSchedule, Schedules, type Service } from "../../services/ScheduleStore.js"
import { queueTopic, scheduleTopic, Wake } from "../../services/Wake.js"
import type { Database, Verb } from "../Database/Database.js"
import type { Row, Session } from "../engine.js"
import { int, intOrNull } from "../Queue/statements/rows.js"
import { makeAnnounce } from "../Wake/announce.js"
import { afterPause, nextAfter, resumedRule, ruleOf } from "./decide.js"
import { type Fired, makeFire } from "./fire.js"
import { fireOwed, makePut } from "./put.js"
import { scheduleInfo } from "./rows.js"
import { scheduleStatements } from "./statements.js"

export interface SqlSchedulesOptions {
  /** Send a NOTIFY with what changes a schedule or makes work visible (PostgreSQL). */
  readonly notify: boolean
}

/** How many due schedules are listed at once. */
const page = 100

/** How long a schedule that is fired waits for a lock, as PostgreSQL reads it. */
const patience = "200ms"

const notFound = (schedule: string) =>
  new ScheduleNotFound({ schedule, message: `there is no schedule ${JSON.stringify(schedule)}; nothing was changed` })

/** An error as it is stored: short, and text on both engines. */
const stored = (message: string): string =>
  message
    .slice(0, 2_000)
    .replaceAll("\u0000", " ")
    .replace(/\p{Surrogate}/gu, " ")

const make = (db: Database, { notify }: SqlSchedulesOptions) =>
  Effect.gen(function* () {
    const wake = yield* Wake
    const { change: announce } = makeAnnounce(db, wake, yield* Effect.scope)
    const statements = scheduleStatements(db.names)
    const fire = makeFire(db.names, statements, notify)
    const putRow = makePut(statements, fire)

    /** Tells the schedulers of other processes, by the commit; SQLite's see that the file has changed. */
    const tell = (session: Session) =>
      notify && db.names.engine === "postgres"
        ? Effect.asVoid(session.execute(statements.notify, { channel: db.names.channel, topic: scheduleTopic }))
        : Effect.void

    const told = (queue?: string) => announce([scheduleTopic, ...(queue === undefined ? [] : [queueTopic(queue)])])

    /** A change of one row under its lock; `undefined` when there is none. */
    const changing = <A>(
      operation: string,
      name: string,
      change: (session: Session, row: Row) => Effect.Effect<A, StoreError>
    ) =>
      Effect.flatMap(
        db.joined(
          "waits",
          operation,
          (session) =>
            Effect.flatMap(session.execute(statements.lock, { name }), ([row]) =>
              row === undefined ? Effect.succeed(Option.none<A>()) : Effect.map(change(session, row), Option.some)
            ),
          "transaction"
        ),
        Option.match({ onNone: () => Effect.fail(notFound(name)), onSome: Effect.succeed })
      )

    const put: Service["put"] = (schedule: NewSchedule) =>
      Effect.gen(function* () {
        const recurrence = yield* parse(schedule.rule)
        const done = yield* db.joined(
          "waits",
          "schedule_put",
          (session) =>
            Effect.tap(putRow(session, schedule, recurrence), (result) =>
              result === undefined || result.outcome === "unchanged" ? Effect.void : tell(session)
            ),
          "transaction"
        )
        if (done === undefined) {
          const argument = recurrence.rule.cron === null ? "every" : "cron"
          return yield* new InvalidArgument({
            argument,
            message: `${argument}: schedule ${JSON.stringify(schedule.name)} would never fire from now on`
          })
        }
        if (done.outcome !== "unchanged") yield* told(done.fired)
        return done.outcome
      })

    const pause: Service["pause"] = (name) =>
      changing("schedule_pause", name, (session, row) =>
        Effect.gen(function* () {
          if (row.paused_at !== null) return undefined
          const owed = yield* fireOwed(statements, fire, session, row, true)
          yield* session.execute(statements.pause, { name })
          yield* tell(session)
          return owed
        })
      ).pipe(Effect.flatMap((owed) => told(owed?.queue)))

    const resume: Service["resume"] = (name) =>
      changing("schedule_resume", name, (session, row) =>
        Effect.gen(function* () {
          if (row.paused_at === null) return undefined
          const owed = yield* fireOwed(statements, fire, session, row, true)
          // One that this version cannot read is looked at at once, which says so in its error
          const nextAt = Either.match(restore(ruleOf(row)), {
            onLeft: () => int(row.now),
            onRight: (recurrence) =>
              owed === undefined
                ? afterPause(recurrence, row, intOrNull(row.last_at))
                : nextAfter(recurrence, int(row.now), owed.lastAt)
          })
          const previousRule = resumedRule(row, nextAt <= int(row.paused_at))
          yield* session.execute(statements.resume, { name, nextAt, previousRule })
          yield* tell(session)
          return owed
        })
      ).pipe(Effect.flatMap((owed) => told(owed?.queue)))

    const trigger: Service["trigger"] = (name) =>
      changing("schedule_trigger", name, (session, row) =>
        Effect.map(fire.trigger(session, row), (result) => ({ result, queue: String(row.queue) }))
      ).pipe(
        Effect.flatMap(({ queue, result }) =>
          Either.isRight(result)
            ? Effect.as(announce([queueTopic(queue)]), result.right)
            : Effect.fail(
                new InvalidArgument({
                  argument: "schedule",
                  message: `schedule ${JSON.stringify(name)}: ${result.left}; put it again`
                })
              )
        )
      )

    /** Others are due as well: one that waits for what an open transaction has locked is tried again later. */
    const hurry = (session: Session) =>
      db.names.engine === "postgres" ? session.execute(statements.hurry, { patience }) : Effect.void

    /** `undefined` when it is not due any more, or somebody has it locked. */
    const fireOne = (name: string): Effect.Effect<Fired | undefined, TransactionOpen | StoreError> => {
      const verb: Verb<Fired | string | undefined> = (session) =>
        Effect.flatMap(session.execute(statements.lockDue, { name }), ([row]) =>
          row === undefined
            ? Effect.succeed(undefined)
            : Effect.zipRight(hurry(session), Effect.map(fire.fire(session, row), Either.merge))
        )
      return db.apart("waits", "schedule_fire", verb, "transaction").pipe(
        Effect.sandbox,
        Effect.catchAll((cause) => Effect.succeed(describe(Cause.squash(cause)))),
        Effect.flatMap((result) =>
          typeof result === "string"
            ? Effect.as(
                db.apart("waits", "schedule_fail", (session) =>
                  session.execute(statements.fail, { name, error: stored(result) })
                ),
                undefined
              )
            : Effect.succeed(result)
        )
      )
    }

    const fireDue: Service["fireDue"] = Effect.gen(function* () {
      const tried = new Set<string>()
      let dealtWith = 0
      for (;;) {
        const limit = page + tried.size
        const due = yield* db.apart("read", "schedules_due", (session) => session.execute(statements.due, { limit }))
        const names = due.map(({ name }) => String(name)).filter((name) => !tried.has(name))
        for (const name of names) {
          tried.add(name)
          const fired = yield* fireOne(name)
          if (fired === undefined) continue
          dealtWith++
          if (fired.jobs > 0) yield* wake.wake([queueTopic(fired.queue)])
        }
        if (due.length < limit) return dealtWith
      }
    })

    return {
      put,
      get: (name) =>
        Effect.map(
          db.joined("read", "schedule", (session) => session.execute(statements.get, { name })),
          ([row]) => Option.map(Option.fromNullable(row), scheduleInfo)
        ),
      list: Effect.map(
        db.joined("read", "schedules", (session) => session.execute(statements.list, {})),
        (rows) => rows.map(scheduleInfo)
      ),
      pause,
      resume,
      remove: (name) =>
        db
          .joined(
            "waits",
            "schedule_remove",
            (session) => Effect.tap(session.execute(statements.remove, { name }), () => tell(session)),
            "transaction"
          )
          .pipe(
            Effect.map((rows) => rows.length > 0),
            Effect.tap(() => told())
          ),
      prune: (keep) =>
        Effect.map(
          db.joined("waits", "schedule_prune", (session) =>
            session.execute(statements.prune, { declared: 1, keep: JSON.stringify(keep) })
          ),
          (rows) => rows.map((row) => String(row.name))
        ),
      trigger,
      nextInMillis: Effect.map(
        db.apart("read", "schedule_next", (session) => session.execute(statements.nextIn, {})),
        ([row]) => (row === undefined ? undefined : int(row.next_in))
      ),
      fireDue
    } satisfies Service
  })

/** The Schedules service of a database whose tables are there. */
export const layer = (db: Database, options: SqlSchedulesOptions) => Layer.scoped(Schedules, make(db, options))
