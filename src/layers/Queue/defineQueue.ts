/**
 * A queue's settings, made known to the fleet once per process: beside the caller's transaction on PostgreSQL, so that
 * nobody waits for its end; within it on SQLite, which has one connection. Outside of transactions, calls that come
 * while one is under way wait for it: thousands may meet a queue for the first time at the same moment.
 */
import { Cause, Deferred, Effect, Exit, FiberId } from "effect"
import { InvalidArgument, type StoreError } from "../../services/Errors.js"
import type { QueueSettings, Service } from "../../services/QueueStore.js"
import type { Database, Verb } from "../Database/Database.js"
import type { Session } from "../engine.js"
import type { Verbs } from "./verbs.js"

const leadsBack = (name: string, to: string) =>
  new InvalidArgument({
    argument: "deadLetterQueue",
    message: `deadLetterQueue: the dead letters of queue ${name} would go to ${to} and from there back to ${name}; name a queue that does not lead back`
  })

type Ended = "stored" | "failed" | "interrupted"

/** One of equal calls at a time; the others wait for it. Of its failure each makes its own call, as fast as without. */
const sharing = () => {
  const flights = new Map<string, Deferred.Deferred<Ended>>()
  const share = <E>(key: string, call: Effect.Effect<void, E>): Effect.Effect<void, E> =>
    Effect.uninterruptibleMask((restore) => {
      const first = flights.get(key)
      if (first !== undefined)
        return Effect.flatMap(restore(Deferred.await(first)), (ended) =>
          ended === "stored" ? Effect.void : restore(ended === "failed" ? call : share(key, call))
        )
      const flight = Deferred.unsafeMake<Ended>(FiberId.none)
      flights.set(key, flight)
      return Effect.onExit(restore(call), (exit) => {
        flights.delete(key)
        const ended = Exit.isSuccess(exit) ? "stored" : Cause.isInterrupted(exit.cause) ? "interrupted" : "failed"
        return Deferred.succeed(flight, ended)
      })
    })
  return share
}

export const makeDefineQueue = (db: Database, { define }: Pick<Verbs, "define">): Service["define"] => {
  const defined = { producer: new Map<string, QueueSettings>(), worker: new Map<string, QueueSettings>() }
  const shares = { producer: sharing(), worker: sharing() }

  return (settings, by) => {
    // Mostly the very same definition: nothing is compared on the way of every enqueue
    if (defined[by].get(settings.name) === settings) return Effect.void
    return Effect.suspend(() => {
      const { deadLetterQueue: to, name } = settings
      const last = defined[by].get(name)
      if (last !== undefined && JSON.stringify(last) === JSON.stringify(settings)) return Effect.void
      // Read where the caller is: behind a pooler, transactions may have every connection that there is
      const known = db.joined("read", "define", (session) => define.known(session, settings, by))
      const put = (session: Session) => Effect.as(define.upsert(session, settings, by), undefined)
      /** A queue whose dead letters would come back to it, directly or not, is refused: by one process after the other. */
      const upsert: Verb<InvalidArgument | undefined> = (session) =>
        to === null
          ? put(session)
          : Effect.flatMap(
              Effect.zipRight(define.turn(session), define.leadsTo(session, to, name)),
              (cycle): Effect.Effect<InvalidArgument | undefined, StoreError> =>
                cycle ? Effect.succeed(leadsBack(name, to)) : put(session)
            )
      const once = Effect.gen(function* () {
        const joins = yield* db.joins
        const inside = joins && db.names.engine === "sqlite"
        const beside = Effect.flatMap(joins ? known : Effect.succeed(false), (done) =>
          done
            ? Effect.succeed(undefined)
            : db.apart("waits", "define", upsert, to === null ? undefined : "transaction")
        )
        const refused = yield* Effect.catchTags(inside ? db.joined("waits", "define", upsert) : beside, {
          // Said again by the next call outside of that transaction
          ForeignTransaction: () => Effect.succeed("later" as const),
          TransactionOpen: () => Effect.succeed("later" as const)
        })
        if (refused instanceof InvalidArgument) return yield* Effect.fail(refused)
        if (!inside && refused === undefined) defined[by].set(name, settings)
      })
      // Who has a transaction open may have what the first one waits for
      return db.standing((stands) => (stands === "outside" ? shares[by](JSON.stringify(settings), once) : once))
    })
  }
}
