/** Wakes: every subscription gets each, they coalesce, none is lost; and a silent engine works without any. */
import { Lock, Queue, transaction, Wake } from "alkstore"
import * as Testing from "alkstore/Testing"
import { Duration, Effect, Fiber, Option, Schedule } from "effect"
import { expect } from "vitest"
import { claimOne, freshName, freshQueue, live, liveRows, type Suite, virtual } from "./support.js"

/** Far more than a wake needs, far less than a wrong poll could hide in. */
const patience = "20 seconds"

/** Ends with the next wake after which the condition holds: wakes may be spurious. */
const wokenWhen = <E, R>(subscription: Wake.Subscription, condition: Effect.Effect<boolean, E, R>) =>
  subscription.await.pipe(
    Effect.zipRight(condition),
    Effect.repeat({ until: (holds) => holds }),
    Effect.timeoutFail({ duration: patience, onTimeout: () => ({ _tag: "NoWake" as const }) })
  )

const subscribeTo = (topic: string) => Effect.flatMap(Wake.Wake, (wake) => wake.subscribe(topic))

export const wakeSuite: Suite = (engine, options) => {
  if (options.silent) return silentWakes(engine, options)

  virtual(engine, options, "wakes", (it) => {
    it.scoped("reach every subscription of their topic, and no other (G62)", () =>
      Effect.gen(function* () {
        const wake = yield* Wake.Wake
        const [topic, other] = [freshName(), freshName()]
        const listeners = yield* Effect.forEach([topic, topic, topic, other], (name) =>
          Effect.flatMap(wake.subscribe(name), ({ await: next }) => Effect.fork(next))
        )
        yield* Testing.settle
        yield* wake.wake([topic])
        yield* Testing.settle
        const woken = yield* Effect.forEach(listeners, (fiber) => Effect.map(Fiber.poll(fiber), Option.isSome))
        expect(woken).toEqual([true, true, true, false])
      })
    )

    it.scoped("coalesce: any number before an await end it once (G62)", () =>
      Effect.gen(function* () {
        const wake = yield* Wake.Wake
        const topic = freshName()
        const subscription = yield* wake.subscribe(topic)
        for (let n = 0; n < 5; n++) yield* wake.wake([topic, topic])
        yield* subscription.await
        const second = yield* Effect.fork(subscription.await)
        yield* Testing.settle
        expect(yield* Fiber.poll(second)).toEqual(Option.none())
        yield* wake.wake([topic])
        yield* Fiber.join(second)
      })
    )

    it.scoped("are not lost between the subscription and the await, nor between two awaits (G62)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const subscription = yield* subscribeTo(Wake.queueTopic(queue.name))
        for (let n = 0; n < 3; n++) {
          yield* queue.enqueue(n)
          yield* Testing.settle
          yield* subscription.await
        }
      })
    )

    it.scoped("do not come while the transaction is open (G63)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const subscription = yield* subscribeTo(Wake.queueTopic(queue.name))
        const waiting = yield* Effect.fork(subscription.await)
        yield* transaction(
          Effect.gen(function* () {
            yield* queue.enqueue(1)
            yield* Testing.settle
            expect(yield* Fiber.poll(waiting)).toEqual(Option.none())
          })
        )
        // On PostgreSQL by a notification, to which nobody listens here
        if (engine.engine === "sqlite") yield* Fiber.join(waiting)
      })
    )

    it.scoped("end with their scope (G62)", () =>
      Effect.gen(function* () {
        const wake = yield* Wake.Wake
        const topic = freshName()
        yield* Effect.scoped(wake.subscribe(topic))
        const later = yield* wake.subscribe(topic)
        yield* wake.wake([topic])
        yield* later.await
      })
    )

    it.scoped("come with whatever makes a job ready: retry, snooze, release, a recovered lease (G57)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        yield* queue.enqueue(1)
        const subscription = yield* subscribeTo(Wake.queueTopic(queue.name))
        const woken = Effect.gen(function* () {
          const waiting = yield* Effect.fork(subscription.await)
          yield* Testing.settle
          expect(Option.isSome(yield* Fiber.poll(waiting))).toBe(true)
        })
        yield* (yield* claimOne(queue)).retry({ delay: 0 })
        yield* woken
        yield* (yield* claimOne(queue)).release
        yield* woken
        yield* (yield* claimOne(queue)).snooze(0)
        yield* woken
        yield* claimOne(queue, { visibilityTimeout: "1 second" })
        yield* Testing.advance("1 second")
        yield* woken
      })
    )
  })

  live(engine, options, "wakes in real time", (it) => {
    it.scoped("come after an enqueue, when the job can be seen (G57, G63)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const subscription = yield* subscribeTo(Wake.queueTopic(queue.name))
        for (let n = 1; n <= 10; n++) {
          const waiting = yield* Effect.fork(
            wokenWhen(
              subscription,
              Effect.map(liveRows(queue), (rows) => rows.length === n)
            )
          )
          yield* queue.enqueue(n)
          yield* Fiber.join(waiting)
        }
      })
    )

    it.scoped("come after the commit of the caller's transaction, when the job can be seen (G63)", () =>
      Effect.gen(function* () {
        const queue = freshQueue()
        const subscription = yield* subscribeTo(Wake.queueTopic(queue.name))
        for (let n = 1; n <= 5; n++) {
          const waiting = yield* Effect.fork(
            wokenWhen(
              subscription,
              Effect.map(liveRows(queue), (rows) => rows.length === n)
            )
          )
          yield* transaction(Effect.zipRight(queue.enqueue(n), Effect.sleep(20)))
          yield* Fiber.join(waiting)
        }
      })
    )

    it.scoped("come with the release of a lock (G69)", () =>
      Effect.gen(function* () {
        const name = freshName("lock")
        const lease = yield* Lock.acquire(name)
        const subscription = yield* subscribeTo(Wake.lockTopic(name))
        const free = Effect.map(Lock.list, (locks) => locks.every((lock) => lock.name !== name))
        const waiting = yield* Effect.fork(wokenWhen(subscription, free))
        yield* Lock.release(lease)
        yield* Fiber.join(waiting)
        yield* Lock.acquire(name)
        const forced = yield* Effect.fork(wokenWhen(subscription, free))
        yield* Lock.forceRelease(name)
        yield* Fiber.join(forced)
      })
    )

    it.effect("become Live, over a poll that is a net (G59)", () =>
      Effect.gen(function* () {
        const wake = yield* Wake.Wake
        const live = Effect.map(wake.state, ({ _tag }) => _tag === "Live")
        yield* live.pipe(
          Effect.repeat({ until: (yes) => yes, schedule: Schedule.spaced(20) }),
          Effect.timeout(patience)
        )
        expect(yield* wake.state).toEqual({ _tag: "Live" })
        expect(Duration.toMillis(wake.pollInterval)).toBeLessThanOrEqual(5_000)
      })
    )
  })
}

const silentWakes: Suite = (engine, options) =>
  virtual(engine, options, "no wakes", (it) => {
    it.scoped("none comes, the state says so, and claims find everything (G59)", () =>
      Effect.gen(function* () {
        const wake = yield* Wake.Wake
        expect(yield* wake.state).toMatchObject({ _tag: "PollOnly" })
        const queue = freshQueue()
        const waiting = yield* Effect.fork(
          Effect.flatMap(subscribeTo(Wake.queueTopic(queue.name)), (subscription) => subscription.await)
        )
        yield* Testing.settle
        yield* queue.enqueue(1)
        yield* Effect.flatMap(Queue.Queue, (store) => store.transaction(queue.enqueue(2)))
        yield* Testing.settle
        expect(yield* Fiber.poll(waiting)).toEqual(Option.none())
        expect((yield* queue.claim({ limit: 5 })).map(({ payload }) => payload)).toEqual([1, 2])
      })
    )
  })
