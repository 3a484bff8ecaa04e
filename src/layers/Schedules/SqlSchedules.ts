/**
 * The Schedules service over a Database: rows that are put, fired and listed under the row's own lock.
 */
import { Cause, Effect, Either, Layer, Option } from "effect"
import { parse, restore } from "../../schedule/Recurrence.js"
import { InvalidArgument, ScheduleNotFound, StoreError, type TransactionOpen } from "../../services/Errors.js"
import { describe } from "../../services/Job.js"
import { countEnqueued } from "../../services/metrics.js"
import { type NewSchedule, Schedules, type Service } from "../../services/ScheduleStore.js"
import { queueTopic, scheduleTopic, Wake } from "../../services/Wake.js"
import type { Database, Verb } from "../Database/Database.js"
import type { Row, Session } from "../engine.js"
import { int, intOrNull } from "../Queue/statements/rows.js"
import { makeAnnounce } from "../Wake/announce.js"
import { afterPause, nextAfter, resumedRule, ruleOf } from "./decide.js"
import { type Fired, makeFire } from "./fire.js"
import { fireOwed, hurry, makePut, patience } from "./put.js"
import { scheduleInfo } from "./rows.js"
import { scheduleStatements } from "./statements.js"

export interface SqlSchedulesOptions {
  /** Send a NOTIFY with what changes a schedule or makes work visible (PostgreSQL). */
  readonly notify: boolean
}

/** How many due schedules are listed at once. */
const page = 100

/** How many of the due schedules may wait for a lock, one after the other; the others are due as well. */
const mostWaits = 10

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

    const told = (fired?: Fired) => {
      if (fired !== undefined) countEnqueued(fired.queue, fired.jobs, fired.deduplicated)
      return announce([scheduleTopic, ...(fired === undefined || fired.jobs === 0 ? [] : [queueTopic(fired.queue)])])
    }

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
      ).pipe(Effect.flatMap(told))

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
      ).pipe(Effect.flatMap(told))

    const trigger: Service["trigger"] = (name) =>
      changing("schedule_trigger", name, (session, row) =>
        Effect.map(fire.trigger(session, row), (result) => ({ result, queue: String(row.queue) }))
      ).pipe(
        Effect.flatMap(({ queue, result }) => {
          if (Either.isRight(result)) {
            const { deduplicated } = result.right
            countEnqueued(queue, deduplicated ? 0 : 1, deduplicated ? 1 : 0)
            return Effect.as(announce([queueTopic(queue)]), result.right)
          }
          const message = `schedule ${JSON.stringify(name)}: ${result.left}; put it again`
          return Effect.fail(new InvalidArgument({ argument: "schedule", message }))
        })
      )

    /**
     * `undefined` when it is not due any more, or somebody has it locked; `"busy"` when it waited for what an open transaction has
     * locked: it is tried again later.
     */
    const fireOne = (
      name: string,
      lockTimeout: string
    ): Effect.Effect<Fired | "busy" | undefined, TransactionOpen | StoreError> => {
      const verb: Verb<Either.Either<Fired, string> | undefined> = (session) =>
        Effect.flatMap(session.execute(statements.lockDue, { name }), ([row]) =>
          row === undefined
            ? Effect.succeed(undefined)
            : Effect.zipRight(hurry(statements, session, lockTimeout), fire.fire(session, row))
        )
      const failed = (error: string) =>
        db.apart("waits", "schedule_fail", (session) =>
          session.execute(statements.fail, { name, error: stored(error) })
        )
      return db.apart("waits", "schedule_fire", verb, "transaction").pipe(
        Effect.sandbox,
        Effect.matchEffect({
          onFailure: (cause) => {
            const error = Cause.squash(cause)
            const busy = error instanceof StoreError && error.reason === "busy"
            return Effect.as(failed(describe(error)), busy ? ("busy" as const) : undefined)
          },
          onSuccess: (fired) =>
            fired === undefined || Either.isRight(fired)
              ? Effect.succeed(fired?.right)
              : Effect.as(failed(fired.left), undefined)
        })
      )
    }

    const fireDue: Service["fireDue"] = Effect.gen(function* () {
      const tried = new Set<string>()
      let dealtWith = 0
      let waits = 0
      for (;;) {
        const limit = page + tried.size
        const due = yield* db.apart("read", "schedules_due", (session) => session.execute(statements.due, { limit }))
        const names = due.map(({ name }) => String(name)).filter((name) => !tried.has(name))
        for (const name of names) {
          tried.add(name)
          const fired = yield* fireOne(name, waits < mostWaits ? patience : "1ms")
          if (fired === "busy") waits++
          if (fired === undefined || fired === "busy") continue
          dealtWith++
          countEnqueued(fired.queue, fired.jobs, fired.deduplicated)
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
