/**
 * One call with a fault at each of its statements. A first run without faults tells how many there are and what is
 * committed after each; then, whatever happens at the n-th, what is committed must be what was committed there, the answer
 * must agree with it, and everything must go on.
 */
import { setImmediate } from "node:timers/promises"
import { Lock, Queue } from "alkstore"
import { Cause, Effect, Exit, Logger, Option } from "effect"
import { activity } from "../../src/layers/Database/Database.js"
import { isLong } from "../support/form.js"
import { until } from "../support/until.js"
import { drain } from "./drain.js"
import type { Database, FaultServices } from "./engines.js"
import { type Kind, nameOf } from "./faults.js"
import { dangling, describeState, tables } from "./state.js"
import type { Case, Operation, World } from "./world.js"

export interface Totals {
  methods: number
  statements: number
  faults: number
  recovered: number
  uncertain: number
  refused: number
}

/** What is logged on the way is of no use here: what goes wrong is told by the suite. */
export const silence = Logger.remove(Logger.defaultLogger)

type State = ReadonlyArray<string>

/** Nothing waits so long for anything here: who does, hangs. */
const patience = "15 seconds"

let worlds = 0

export const newWorld = (database: Database): Effect.Effect<World> =>
  Effect.promise(async () => {
    const prefix = `w${++worlds}.`
    await database.operator(tables.map((table) => `DELETE FROM ${database.table(table)}`).join("; "))
    return {
      database,
      prefix,
      name: (suffix) => `${prefix}${suffix}`,
      operator: (text) => Effect.promise(() => database.operator(text))
    }
  })

/** What goes on behind a call that has been answered has come to its end. */
const quiet = Effect.promise(async () => {
  for (let turns = 0, before = -1; turns < 5; turns++) {
    if (activity.open > 0 || activity.total !== before) turns = 0
    before = activity.total
    await setImmediate()
  }
})

const stateOf = ({ database, prefix }: World): Effect.Effect<State> =>
  Effect.map(Effect.promise(database.look), (raw) => describeState(raw, prefix))

const equal = (a: State, b: State | undefined) => b !== undefined && a.join("\n") === b.join("\n")

const difference = (is: State, wanted: State): string =>
  [
    ...is.filter((line) => !wanted.includes(line)).map((line) => `+ ${line}`),
    ...wanted.filter((line) => !is.includes(line)).map((line) => `- ${line}`)
  ].join("\n      ") || "(as many, in another number)"

interface TypedError {
  readonly _tag: string
  readonly reason?: string
  readonly message?: string
}

/** Without a bound a call that hangs would end the suite without a word. */
const answered = (operation: Operation) =>
  Effect.exit(
    Effect.timeoutFail(Effect.disconnect(operation), { duration: patience, onTimeout: () => ({ _tag: "Hang" }) })
  )

const inTransaction = (operation: Operation): Operation =>
  Effect.flatMap(Queue.Queue, (store) => store.transaction(operation))

/** The caller catches the failure, and commits what else there is: nothing of the failed call may be in it. */
const inPatientTransaction = (operation: Operation): Operation =>
  Effect.flatMap(Queue.Queue, (store) => Effect.flatten(store.transaction(Effect.either(operation))))

export interface Trace {
  readonly texts: ReadonlyArray<string>
  /** What is committed at first, and after each statement. */
  readonly states: ReadonlyArray<State>
}

/** The run without faults. Answers nothing where the call refuses to be part of a transaction. */
export const trace = (database: Database, tried: Case, prepare: Case["prepare"]) =>
  Effect.gen(function* () {
    const world = yield* newWorld(database)
    const operation = yield* prepare(world)
    yield* quiet
    const texts: Array<string> = []
    const states = [yield* stateOf(world)]
    database.faults.watch(async (text) => {
      texts.push(text)
      states.push(describeState(await database.look(), world.prefix))
    })
    const exit = yield* answered(operation)
    yield* quiet
    const { count } = database.faults.rest()
    yield* Effect.promise(() => until("all is seen", () => states.length === count + 1))
    if (Exit.isFailure(exit)) {
      const error = Option.getOrUndefined(Cause.failureOption(exit.cause)) as TypedError | undefined
      if (error?._tag === "TransactionOpen") return undefined
      return yield* Effect.die(new Error(`${tried.name}: fails without a fault: ${Cause.pretty(exit.cause)}`))
    }
    return { texts, states } satisfies Trace
  })

/** Those who come next meet nothing of it: each connection works, no lock is kept. */
const usable = (database: Database): Effect.Effect<unknown, unknown, FaultServices> =>
  Effect.gen(function* () {
    const store = yield* Queue.Queue
    yield* Effect.promise(() => until("no open transaction", async () => (await database.stray()).length === 0))
    const reads = Effect.all(
      [store.queues, store.transaction(store.queues), store.transaction(store.queues), store.queues],
      {
        concurrency: "unbounded"
      }
    )
    const lock = yield* Lock.Lock
    yield* Effect.zipRight(reads, Effect.flatMap(lock.acquire("usable", { timeout: "5 seconds" }), lock.release))
    yield* quiet
  })

export interface Strike {
  readonly at: number
  readonly kind: Kind
}

/** Everything that is wrong with what came of one fault. */
const strike = (
  database: Database,
  tried: Case,
  prepare: Case["prepare"],
  { states, texts }: Trace,
  { at, kind }: Strike,
  totals: Totals
) =>
  Effect.gen(function* () {
    const problems: Array<string> = []
    const world = yield* newWorld(database)
    const operation = yield* prepare(world)
    yield* quiet
    const [first = []] = states
    const last = states.at(-1) ?? []
    if (!equal(yield* stateOf(world), first)) problems.push("it begins with another state")
    database.faults.arm(at, kind)
    const exit = yield* answered(operation)
    yield* quiet
    if (database.faults.rest().struck === undefined) problems.push("the statement never came")
    totals.faults++

    const state = yield* stateOf(world)
    const there = states[kind.took ? at : at - 1] ?? []
    const caused = Exit.isFailure(exit) ? Option.getOrUndefined(Cause.failureOption(exit.cause)) : undefined
    const error = caused as TypedError | undefined
    const healed = Effect.gen(function* () {
      if (tried.later === undefined || equal(yield* stateOf(world), last)) return
      yield* tried.later(world)
      yield* quiet
    })
    const repeat = Effect.gen(function* () {
      const again = yield* answered(operation)
      yield* quiet
      const tag = Exit.isFailure(again)
        ? (Option.getOrUndefined(Cause.failureOption(again.cause)) as TypedError)?._tag
        : ""
      if (Exit.isFailure(again) && !(tried.done ?? []).includes(String(tag)))
        problems.push(`a second call fails: ${Cause.pretty(again.cause)}`)
    })

    if (Exit.isFailure(exit)) {
      if (error === undefined) problems.push(`a defect: ${Cause.pretty(exit.cause)}`)
      else if (!["StoreError", ...(tried.errors ?? [])].includes(error._tag))
        problems.push(`fails with ${error._tag} ${error.message ?? ""}`)
      if (!equal(state, there))
        problems.push(`after ${error?._tag} ${error?.reason ?? ""} there is\n      ${difference(state, there)}`)
      if (error !== undefined && tried.clean?.(error) === true && !equal(state, first))
        problems.push(
          `${error._tag} ${error.reason ?? ""} says that nothing was done, and there is\n      ${difference(state, first)}`
        )
      if (error?._tag === "EnqueueUncertain" || error?.reason === "uncertain") totals.uncertain++
    }
    const after = yield* Effect.exit(Effect.timeout(Effect.disconnect(usable(database)), patience))
    if (Exit.isFailure(after)) problems.push(`those who come next fail: ${Cause.pretty(after.cause)}`)
    problems.push(...dangling(yield* Effect.promise(database.look)))
    if (Exit.isFailure(exit) ? !equal(state, last) || tried.adds !== true : false) yield* repeat
    yield* healed
    const end = yield* stateOf(world)
    if (!equal(end, last)) problems.push(`at the end there is\n      ${difference(end, last)}`)
    problems.push(...(yield* drain(world)))
    if (problems.length === 0) totals.recovered++
    const where = `${tried.name}: ${kind.name} at ${at} (${nameOf(texts[at - 1] ?? "")}), ${Exit.isSuccess(exit) ? "done" : `${error?._tag} ${error?.reason ?? ""}`}`
    return problems.map((problem) => `${where}: ${problem}`)
  })

/** What can happen to the statement: all of it in the long form, and in turn in the short one. */
const strikesOf = (database: Database, { states, texts }: Trace, turn: () => number): ReadonlyArray<Strike> =>
  texts.flatMap((text, index) => {
    const at = index + 1
    const kinds = database.faults.kinds.filter(({ applies }) => applies(text))
    // Where something is committed, before and after it make all the difference
    const decisive = kinds.filter(({ silent, took }) => took || silent).slice(0, 2)
    const some = [kinds[turn() % kinds.length] as Kind]
    const chosen = isLong ? kinds : equal(states[index] ?? [], states[at]) ? some : [...new Set([...decisive, ...some])]
    return chosen.map((kind) => ({ at, kind }))
  })

/** Tries one case, by itself and inside a transaction; answers what is wrong. */
export const tryCase = (database: Database, tried: Case, totals: Totals, turn: () => number) =>
  Effect.gen(function* () {
    const problems: Array<string> = []
    const within = (name: string, wrap: (operation: Operation) => Operation): Case => ({
      ...tried,
      name: `${tried.name}, ${name}`,
      clean: ({ reason }) => reason !== "uncertain",
      prepare: (world) => Effect.map(tried.prepare(world), wrap)
    })
    const inside = [
      within("in a transaction", inTransaction),
      within("in a transaction that goes on", inPatientTransaction)
    ]
    for (const variant of tried.alone === true ? [tried] : [tried, ...inside]) {
      const found = yield* trace(database, variant, variant.prepare)
      if (found === undefined) {
        totals.refused++
        continue
      }
      if ((tried.silent === true) !== (found.texts.length === 0))
        problems.push(`${variant.name}: ${found.texts.length} statements`)
      totals.statements += found.texts.length
      for (const one of strikesOf(database, found, turn))
        problems.push(...(yield* strike(database, variant, variant.prepare, found, one, totals)))
    }
    return problems
  })
