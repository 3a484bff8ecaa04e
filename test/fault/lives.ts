/** Lives with a fault each, several beside each other: what has come of all of them at the end. */
import { type Context, Effect, Exit, Layer, Schedule, Scope } from "effect"
import { afterAll, beforeAll, expect, it } from "vitest"
import { isLong, runs, seed, timeout } from "../support/form.js"
import { until } from "../support/until.js"
import { drain } from "./drain.js"
import type { Database, FaultServices } from "./engines.js"
import { type Kind, nameOf, type Place } from "./faults.js"
import { type HeldUp, watchTurns } from "./heldUp.js"
import { type Diary, endless, live, visibilityMillis } from "./life.js"
import { newWorld, silence } from "./methods.js"
import { dangling, type Raw } from "./state.js"

interface Lane {
  readonly database: Database
  readonly services: Context.Context<FaultServices>
  readonly turns: HeldUp
}

type Plan = readonly [at: Place, kind: Kind]

const lanes = 6
const often = { schedule: Schedule.spaced("200 millis") }
const options = {
  postgres: { sweeper: often, scheduler: true, pollInterval: "250 millis" },
  sqlite: { sweeper: often, scheduler: true, pollInterval: "250 millis", watch: true }
} as const

/** The jobs of each queue's handlers, and what each leaves behind. */
const runsOf = [
  "plain",
  "fails once",
  "fatal",
  "spent",
  "snoozes",
  "slow",
  "first of a key",
  "second of a key",
  "later",
  "effect",
  endless,
  "whole 1",
  "whole 2",
  "batch 1",
  "batch 2",
  "batch 3",
  "pulse"
]
const once = ["effect", "whole 1", "whole 2"]
/** Their handlers need no database: nothing but a lost lease lets them run again. */
const runOnce = ["plain", "first of a key", "second of a key", "later", "batch 1", "batch 2", "batch 3"]

/** How long a worker has at its end for its last writes, and a little. */
const shutdownMillis = 1_500

/** What has come of a life. */
const wrongWith = (raw: Raw, diary: Diary, struck: boolean, turns: HeldUp): ReadonlyArray<string> => {
  const problems: Array<string> = []
  for (const text of runsOf) if (!diary.runs.has(text)) problems.push(`${text} was never run`)
  // An outcome that could not be written is written later, under the same lease
  if (!diary.events.some(({ _tag }) => _tag === "LeaseLost"))
    for (const text of runOnce)
      if (diary.runs.get(text) !== 1) problems.push(`${text} ran ${diary.runs.get(text)} times`)
  for (const text of once) {
    const count = (raw.marks ?? []).filter((row) => row.text === text).length
    if (count !== 1) problems.push(`${text} was written ${count} times`)
  }
  if (diary.delivered.size !== 1) problems.push(`${diary.delivered.size} messages were delivered`)
  const letters = (raw.dead_letters ?? []).map(({ payload, reason }) => `${payload} ${reason}`).sort()
  const died = struck ? /^"fatal" failed,"spent" (exhausted|crashed)$/ : /^"fatal" failed,"spent" exhausted$/
  if (!died.test(letters.join())) problems.push(`dead are ${letters.join()}`)
  const live = (raw.jobs ?? []).map(({ payload }) => payload)
  if (live.join() !== `"${endless}"`) problems.push(`left are ${live.join()}`)
  const [left] = raw.jobs ?? []
  // Unless it is that very statement that failed, or nothing ran in the time that there is for it
  const end = diary.events.find(({ _tag }) => _tag === "Draining")?.at ?? 0
  const inTime = turns.between(end, end + shutdownMillis) < shutdownMillis / 4
  if (!struck && inTime && left !== undefined && (left.token !== null || left.attempt !== 0))
    problems.push(`what ran at the end was not given back: attempt ${left.attempt}`)
  // A lease that nobody has taken is not lost: a settle that is repeated finds its own, unless all stood still
  const lost = diary.events.filter(
    ({ _tag, at }) => _tag === "LeaseLost" && turns.between(at - visibilityMillis, at) < visibilityMillis / 4
  ).length
  if (lost > 0) problems.push(`${lost} leases were lost`)
  for (const event of diary.events)
    if (event._tag === "Restarted" || event._tag === "Failed") problems.push(`${event._tag}: ${event.reason}`)
  return [...problems, ...dangling(raw)]
}

const lived = ({ database, services, turns }: Lane, plan: Plan | undefined, names: Array<string>) =>
  Effect.gen(function* () {
    const world = yield* newWorld(database)
    const diary: Diary = { runs: new Map(), delivered: new Set(), events: [] }
    if (plan === undefined) database.faults.watch((text) => names.push(nameOf(text)))
    else database.faults.arm(...plan)
    const problems = [...(yield* live(world, diary))]
    const { struck } = database.faults.rest()
    problems.push(...wrongWith(yield* Effect.promise(database.look), diary, struck !== undefined, turns))
    yield* Effect.promise(() => until("no open transaction", async () => (await database.stray()).length === 0))
    problems.push(...(yield* drain(world)))
    const where =
      plan === undefined ? "no fault" : `${plan[1].name} at ${JSON.stringify(plan[0])} (${nameOf(struck ?? "never")})`
    return { struck: struck !== undefined, problems: problems.map((problem) => `${where}: ${problem}`) }
  }).pipe(Effect.provide(services), Effect.provide(silence))

/** How many statements the short form picks, at equal distances: where it begins depends on the seed. */
const picked = 15

/**
 * The long form: every statement with every fault. The short one: the first and the last of each name, with its answer lost or not done
 * at all in turn, and some of all, with a fault in turn.
 */
const plansOf = (names: ReadonlyArray<string>, kinds: ReadonlyArray<Kind>): ReadonlyArray<Plan> => {
  if (isLong) return names.flatMap((_, index) => kinds.map((kind): Plan => [index + 1, kind]))
  const lost = kinds.filter(({ silent }) => silent)
  const inTurn = (some: ReadonlyArray<Kind>, index: number) => some[(index + seed) % some.length] as Kind
  const times = new Map<string, number>()
  for (const name of names) times.set(name, (times.get(name) ?? 0) + 1)
  const stride = Math.max(1, Math.floor(names.length / picked))
  const byNumber = names.map((_, index) => index + 1).filter((at) => at % stride === seed % stride)
  return [
    ...[...times].flatMap(
      ([name, last], index): ReadonlyArray<Plan> => [
        [{ name, time: 1 }, inTurn(lost, index)],
        ...(last > 1 ? [[{ name, time: last }, inTurn(lost, index + 1)] as const] : [])
      ]
    ),
    ...byNumber.map((at, index): Plan => [at, inTurn(kinds, index)])
  ]
}

export const lifeSuite = (make: Effect.Effect<Database, unknown, Scope.Scope>): void => {
  const scope = Effect.runSync(Scope.make())
  const turns = watchTurns()
  let open: ReadonlyArray<Lane> = []

  beforeAll(async () => {
    const lane = Effect.gen(function* () {
      const database = yield* make
      return { database, services: yield* Effect.provide(Layer.build(database.layer(options)), silence), turns }
    })
    open = await Effect.runPromise(Scope.extend(Effect.replicateEffect(lane, lanes), scope))
  })
  afterAll(async () => {
    turns.stop()
    await Effect.runPromise(Scope.close(scope, Exit.void))
  })

  it(
    "G42, G43, G75, G83: workers, relay, sweeper and scheduler come to the same end whichever statement fails",
    async () => {
      const [first] = open
      if (first === undefined) throw new Error("no lane")
      const names: Array<string> = []
      const untouched = await Effect.runPromise(lived(first, undefined, names))
      expect(untouched.problems).toEqual([])
      const plans = plansOf(names, first.database.faults.kinds)
      const left = plans.slice(0, runs(plans.length, plans.length))
      const results: Array<{ readonly struck: boolean; readonly problems: ReadonlyArray<string> }> = []
      await Promise.all(
        open.map(async (lane) => {
          for (let plan = left.shift(); plan !== undefined; plan = left.shift())
            results.push(await Effect.runPromise(lived(lane, plan, names)))
        })
      )
      const struck = results.filter((result) => result.struck)
      const problems = results.flatMap((result) => result.problems)
      const recovered = struck.filter((result) => result.problems.length === 0)
      console.log(
        `fault (${first.database.name}): lives of ${names.length} statements, ${struck.length} faults, ${recovered.length} recovered`
      )
      expect(problems.join("\n")).toBe("")
      expect(struck.length).toBeGreaterThan(results.length / 2)
    },
    timeout(180_000, 3_600_000)
  )
}
