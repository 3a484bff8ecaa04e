/** Random commands: options often left out, keys and queues few, so that commands meet. */
import fc from "fast-check"
import type {
  Apart,
  Command,
  DeadFilterSpec,
  EnqueueSpec,
  LiveFilterSpec,
  ScheduleName,
  Settling,
  Simple,
  Transaction
} from "./commands.js"
import type { QueueName } from "./queues.js"
import type { Reason, ScheduleSpec } from "./state.js"
import { stories } from "./stories.js"

const second = 1_000
const minute = 60 * second
const hour = 60 * minute

/** Most commands of a sequence are about one queue, so that they are about each other. */
const queueOf = (focus: QueueName): fc.Arbitrary<QueueName> =>
  fc.oneof(
    { weight: 12, arbitrary: fc.constant(focus) },
    { weight: 2, arbitrary: fc.constantFrom<QueueName>("jobs", "ledger", "mail") },
    { weight: 1, arbitrary: fc.constantFrom<QueueName>("graveyard", "numbers") }
  )
const place = fc.constantFrom("x", "y")
const key = fc.constantFrom("k", "l")
/** From the latest. */
const at = fc.constantFrom(0, 0, 0, 0, 1, 1, 2, 3, 5, 8)
const delay = fc.constantFrom(0, second, 10 * second, minute)
const maybe = <A>(arbitrary: fc.Arbitrary<A>) => fc.option(arbitrary, { nil: undefined, freq: 1 })

type Given<A> = A extends unknown
  ? { readonly [K in keyof A as undefined extends A[K] ? never : K]: A[K] } & {
      readonly [K in keyof A as undefined extends A[K] ? K : never]?: Exclude<A[K], undefined>
    }
  : never

/** Without the fields that are undefined. */
const given = <A extends object>(fields: A): Given<A> =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Given<A>

const enqueueSpec: fc.Arbitrary<EnqueueSpec> = fc
  .record({
    payload: fc.oneof(
      { weight: 2, arbitrary: fc.nat({ max: 99 }) },
      { weight: 1, arbitrary: fc.constantFrom("a", "b\u0000") }
    ),
    when: fc.oneof(
      { weight: 5, arbitrary: fc.constant({}) },
      { weight: 2, arbitrary: fc.record({ delay }) },
      { weight: 1, arbitrary: fc.record({ runAt: fc.constantFrom(-5 * second, 5 * second, minute) }) }
    ),
    priority: maybe(fc.constantFrom(-1, 0, 5)),
    maxAttempts: maybe(fc.constantFrom(1, 2, 5)),
    until: fc.oneof(
      { weight: 5, arbitrary: fc.constant({}) },
      { weight: 2, arbitrary: fc.record({ expires: fc.constantFrom(second, 30 * second) }) },
      { weight: 1, arbitrary: fc.record({ expiresAt: fc.constantFrom(0, 5 * second, 5 * second, 2 * minute) }) }
    ),
    dedupe: maybe(
      fc.record({
        dedupeKey: key,
        onDuplicate: maybe(fc.constantFrom("keep" as const, "replace" as const, "replace" as const)),
        dedupeScope: maybe(fc.constantFrom("live" as const, "waiting" as const)),
        dedupeWindow: maybe(fc.constantFrom(5 * second, 5 * minute))
      })
    ),
    orderingKey: maybe(place),
    headers: maybe(fc.constantFrom({ h: "1" }, {}))
  })
  .map(({ dedupe, until, when, ...rest }) => ({ ...given(rest), ...when, ...until, ...(dedupe && given(dedupe)) }))

const ats = fc.array(at, { minLength: 1, maxLength: 3 })
const liveState = fc.constantFrom("ready" as const, "delayed" as const, "blocked" as const, "leased" as const)
const someReasons = fc.constantFrom<ReadonlyArray<Reason>>(
  ["cancelled"],
  ["failed", "exhausted"],
  ["expired", "crashed"]
)

const liveFilter: fc.Arbitrary<LiveFilterSpec> = fc.oneof(
  fc.record({ by: fc.constant("any" as const), at }),
  fc.record({ by: fc.constant("all" as const) }),
  fc.record({ by: fc.constant("orderingKey" as const), key: place }),
  fc.record({ by: fc.constant("dedupeKey" as const), key }),
  fc.record({ by: fc.constant("state" as const), state: liveState }),
  fc.record({ by: fc.constant("several" as const), ats }),
  fc.record({ by: fc.constant("keyAndState" as const), key: place, state: liveState }),
  fc.record({
    by: fc.constant("age" as const),
    most: fc.constantFrom(0, second, minute),
    least: fc.constantFrom(-1, 0, second)
  })
)

const deadFilter: fc.Arbitrary<DeadFilterSpec> = fc.oneof(
  fc.record({ by: fc.constant("any" as const), at }),
  fc.record({ by: fc.constant("all" as const) }),
  fc.record({ by: fc.constant("orderingKey" as const), key: place }),
  fc.record({ by: fc.constant("reason" as const), reasons: someReasons }),
  fc.record({ by: fc.constant("keyAndReason" as const), key: place, reasons: someReasons }),
  fc.record({ by: fc.constant("several" as const), ats }),
  fc.record({ by: fc.constant("error" as const), text: fc.constantFrom("boom", "bang") }),
  fc.record({ by: fc.constantFrom("older" as const, "younger" as const), than: fc.constantFrom(0, second, minute) })
)

const scheduleName = fc.constantFrom<ScheduleName>("often", "often", "often", "cron", "daily")

/** Few, so that some are put again. */
const often = fc.constantFrom<ScheduleSpec>(
  { queue: "jobs", payload: 0, catchUp: "latest", overlap: "allow" },
  { queue: "jobs", payload: 1, catchUp: "latest", overlap: "skip" },
  { queue: "jobs", payload: 0, priority: 3, catchUp: "skip", overlap: "allow" }
)
const seldom = fc.constantFrom<ScheduleSpec>(
  { queue: "mail", payload: 0, expires: 30 * second, catchUp: "all", overlap: "allow" },
  { queue: "mail", payload: 1, maxAttempts: 1, catchUp: "all", overlap: "skip" }
)

const tagged = <T extends string, A extends object>(tag: T, fields: fc.Arbitrary<A>) =>
  fields.map((all) => ({ _tag: tag, ...given(all) }))

const settle = tagged(
  "settle",
  fc.record({
    at,
    how: fc.constantFrom<Settling>("ack", "ack", "retry", "retry", "fail", "release", "snooze"),
    delay: maybe(delay),
    error: fc.constantFrom("boom", "bang")
  })
)

const enqueue = (queue: fc.Arbitrary<QueueName>) =>
  tagged(
    "enqueue",
    fc.record({
      queue,
      jobs: fc.oneof(
        { weight: 3, arbitrary: fc.array(enqueueSpec, { minLength: 1, maxLength: 1 }) },
        { weight: 2, arbitrary: fc.array(enqueueSpec, { maxLength: 5 }) }
      )
    })
  )

const claim = (queue: fc.Arbitrary<QueueName>) =>
  tagged(
    "claim",
    fc.record({
      queue,
      limit: fc.constantFrom(1, 1, 1, 2, 2, 3, 100, 0),
      visibility: fc.constantFrom(second, 10 * second, 30 * second),
      worker: fc.nat({ max: 2 })
    })
  )

const fetch = (queue: fc.Arbitrary<QueueName>) =>
  tagged(
    "fetch",
    fc.record({
      queue,
      limit: fc.constantFrom(0, 1, 1, 2),
      prefetch: fc.constantFrom(0, 1, 2, 5),
      visibility: fc.constantFrom(second, 10 * second),
      worker: fc.nat({ max: 2 })
    })
  )

const how = fc.oneof(
  fc.record({ delay: fc.constantFrom(0, 0, 10 * second) }),
  fc.record({ runAt: fc.constantFrom(-second, 20 * second) }),
  fc.record({ priority: fc.constantFrom(-1, 0, 5) })
)

const change = (queue: fc.Arbitrary<QueueName>) =>
  tagged(
    "change",
    fc.record({ queue, filter: liveFilter, how }).map(({ filter, how, queue }) => ({ queue, filter, ...how }))
  )

const requeue = (queue: fc.Arbitrary<QueueName>) => {
  const to = fc.option(fc.constantFrom<QueueName>("numbers", "ledger", "jobs"), { nil: undefined, freq: 1 })
  return tagged("requeue", fc.record({ queue, filter: deadFilter, delay, to }))
}

const schedule = fc.oneof(
  { weight: 3, arbitrary: tagged("schedule", fc.record({ name: fc.constant("often" as const), spec: often })) },
  {
    weight: 1,
    arbitrary: tagged("schedule", fc.record({ name: fc.constantFrom("cron" as const, "daily" as const), spec: seldom }))
  },
  { weight: 2, arbitrary: tagged("schedulePause", fc.record({ name: scheduleName })) },
  { weight: 2, arbitrary: tagged("scheduleResume", fc.record({ name: scheduleName })) },
  { weight: 2, arbitrary: tagged("scheduleRemove", fc.record({ name: scheduleName })) },
  { weight: 1, arbitrary: tagged("trigger", fc.record({ name: scheduleName })) }
)

const simple = (queue: fc.Arbitrary<QueueName>): fc.Arbitrary<Simple> =>
  fc.oneof(
    { weight: 22, arbitrary: enqueue(queue) },
    { weight: 14, arbitrary: claim(queue) },
    { weight: 6, arbitrary: fetch(queue) },
    { weight: 18, arbitrary: settle },
    { weight: 5, arbitrary: tagged("claimNarrow", fc.record({ visibility: fc.constant(10 * second) })) },
    { weight: 2, arbitrary: tagged("ackMany", fc.record({ queue })) },
    { weight: 4, arbitrary: tagged("cancel", fc.record({ at })) },
    { weight: 1, arbitrary: tagged("cancelMany", fc.record({ queue, filter: liveFilter })) },
    { weight: 3, arbitrary: change(queue) },
    { weight: 1, arbitrary: tagged("clear", fc.record({ queue })) },
    { weight: 1, arbitrary: tagged("pause", fc.record({ queue })) },
    { weight: 4, arbitrary: tagged("resume", fc.record({ queue })) },
    { weight: 6, arbitrary: requeue(queue) },
    { weight: 2, arbitrary: tagged("purge", fc.record({ queue, filter: deadFilter })) },
    { weight: 6, arbitrary: schedule }
  )

/** Times of a test: short ones mostly, since whatever waits is over after a long one. */
const millis = fc.constantFrom(
  ...[1, 500, second, second, 5 * second, 10 * second, 10 * second, 30 * second, 30 * second, minute],
  ...[minute, 10 * minute, 10 * minute, hour, 25 * hour, 25 * hour]
)

const apart = (queue: fc.Arbitrary<QueueName>): fc.Arbitrary<Apart> =>
  fc.oneof(
    { weight: 12, arbitrary: tagged("advance", fc.record({ millis })) },
    { weight: 4, arbitrary: tagged("sweep", fc.record({ queue: maybe(queue) })) },
    { weight: 3, arbitrary: tagged("beat", fc.record({ queue })) },
    { weight: 4, arbitrary: tagged("heartbeat", fc.record({ at, progress: maybe(fc.nat({ max: 9 })) })) },
    { weight: 6, arbitrary: tagged("fire", fc.record({})) },
    { weight: 1, arbitrary: tagged("crash", fc.record({ worker: fc.nat({ max: 2 }) })) },
    {
      weight: 3,
      arbitrary: tagged("lock", fc.record({ name: fc.constantFrom("a", "b"), ttl: fc.constantFrom(second, minute) }))
    },
    { weight: 2, arbitrary: tagged("unlock", fc.record({ at })) },
    { weight: 2, arbitrary: tagged("relock", fc.record({ at })) },
    { weight: 1, arbitrary: tagged("forceUnlock", fc.record({ name: fc.constantFrom("a", "b") })) }
  )

const transaction = (commands: fc.Arbitrary<Simple | Transaction>, maxLength: number): fc.Arbitrary<Transaction> =>
  tagged(
    "transaction",
    fc.record({
      end: fc.constantFrom("commit" as const, "rollback" as const, "strict" as const),
      commands: fc.array(commands, { maxLength, size: "max" })
    })
  )

const command = (about: QueueName): fc.Arbitrary<Command> => {
  const queue = queueOf(about)
  const one = simple(queue)
  const inner = transaction(one, 3)
  return fc.oneof(
    { weight: 60, arbitrary: one },
    { weight: 24, arbitrary: apart(queue) },
    {
      weight: 8,
      arbitrary: fc.constantFrom(...stories(about)).map((commands) => ({ _tag: "story" as const, commands }))
    },
    {
      weight: 10,
      arbitrary: transaction(fc.oneof({ weight: 6, arbitrary: one }, { weight: 1, arbitrary: inner }), 5)
    }
  )
}

/** A command for fast-check, which so knows how far a failing list has come, and shrinks that part alone. */
export class ModelCommand implements fc.AsyncCommand<(command: Command) => Promise<void>, object> {
  constructor(readonly command: Command) {}
  check = () => true
  run = (execute: (command: Command) => Promise<void>): Promise<void> => execute(this.command)
  toString = () => `\n  ${JSON.stringify(this.command)}`
}

/** Lists of any length up to `most`, long ones as likely as short ones. */
export const commandLists = (most: number, replayPath: string | undefined) =>
  fc.noBias(
    fc.constantFrom<QueueName>("jobs", "ledger", "jobs", "ledger", "mail").chain((about) =>
      fc.commands([command(about).map((one) => new ModelCommand(one))], {
        maxCommands: most,
        size: "max",
        ...(replayPath === undefined ? {} : { replayPath })
      })
    )
  )
