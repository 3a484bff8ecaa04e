/**
 * Layers that are built over a fresh database, over one of the first version and over one that is up to date, with a fault
 * at one of their statements: they fail typed and leave nothing behind, or are built; after that they can be built again.
 */
import { inspect } from "node:util"
import { Queue, Schedules } from "alkstore"
import { Cause, type Context, Effect, Exit, Layer, Option, Schema, Scope } from "effect"
import { afterAll, beforeAll, describe, expect, it } from "vitest"
import { isLong, seed, timeout } from "../support/form.js"
import { until } from "../support/until.js"
import type { Ground } from "./builtEngines.js"
import type { FaultServices } from "./engines.js"
import { isCommit, type Kind, nameOf } from "./faults.js"
import { silence } from "./methods.js"

/** What a namespace is before the Layer is built. */
const beginnings = ["fresh", "of the first version", "up to date"] as const

type Beginning = (typeof beginnings)[number]

type Built = Exit.Exit<Context.Context<FaultServices>, unknown>

const Letters = Queue.make("letters", { payload: Schema.String })

const nightly = Schedules.make("nightly", { cron: "0 3 * * *", queue: Letters, payload: "go" })

/** All that a program builds when it starts: a client, the engine, what it declares. */
const program = (ground: Ground, namespace: string) =>
  Layer.provideMerge(Schedules.layer([nightly]), ground.layer(namespace))

/** One build, and what is asked of it when it succeeds; all is closed when this is over. */
const built = (ground: Ground, namespace: string, use: Effect.Effect<unknown, unknown, FaultServices>) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const build = Scope.extend(Layer.build(program(ground, namespace)), scope)
    const exit: Built = yield* Effect.exit(
      Effect.timeoutFail(Effect.disconnect(build), { duration: "20 seconds", onTimeout: () => ({ _tag: "Hang" }) })
    )
    const { count, struck } = ground.faults.rest()
    const used = Exit.isSuccess(exit) ? yield* Effect.exit(Effect.provide(use, exit.value)) : Exit.void
    yield* Scope.close(scope, Exit.void)
    return { exit, used, count, struck }
  }).pipe(Effect.provide(silence))

const prepared = async (ground: Ground, beginning: Beginning, namespace: string): Promise<void> => {
  if (beginning === "of the first version") await ground.installFirst(namespace)
  if (beginning === "up to date") await Effect.runPromise(built(ground, namespace, Effect.void))
}

/** A job's whole way, and those that were there before. */
const works = (beginning: Beginning) =>
  Effect.gen(function* () {
    yield* Letters.enqueue("new", { dedupeKey: "k" })
    const jobs = yield* Letters.claim({ limit: 10 })
    const texts = jobs.map(({ payload }) => payload).sort()
    const wanted = beginning === "of the first version" ? ["new", "old"] : ["new"]
    if (texts.join() !== wanted.join()) yield* Effect.fail(new Error(`there is ${texts.join()}`))
    yield* Effect.forEach(jobs, (job) => job.ack, { discard: true })
    if (Option.isNone(yield* Schedules.get("nightly"))) yield* Effect.fail(new Error("no schedule"))
  })

/** As callers may see or log it. */
const shown = (cause: Cause.Cause<unknown>): string =>
  [Cause.pretty(cause), inspect(cause, { depth: 10 }), JSON.stringify(cause)].join("\n")

const tags = ["StoreError", "SqlError"]

/** What is wrong with how a build has failed. */
const wrongWith = (cause: Cause.Cause<unknown>, secret: string): ReadonlyArray<string> => {
  const error = Option.getOrUndefined(Cause.failureOption(cause)) as { readonly _tag: string } | undefined
  return [
    ...(error === undefined ? [`a defect: ${Cause.pretty(cause)}`] : []),
    ...(error !== undefined && !tags.includes(error._tag) ? [`fails with ${error._tag}`] : []),
    ...(shown(cause).includes(secret) ? [`tells the secret: ${shown(cause)}`] : [])
  ]
}

interface Traced {
  readonly texts: ReadonlyArray<string>
  /** The tables that are committed at first, and after each statement: they change with a COMMIT, if at all. */
  readonly schemas: ReadonlyArray<string>
}

let namespaces = 0
const fresh = () => `n${++namespaces}_`

const trace = async (ground: Ground, beginning: Beginning): Promise<Traced> => {
  const namespace = fresh()
  await prepared(ground, beginning, namespace)
  const texts: Array<string> = []
  const schemas = [await ground.schema(namespace)]
  ground.faults.watch((text) => {
    texts.push(text)
    // What is open has its tables locked
    if (!isCommit(text)) return schemas.push(schemas.at(-1) ?? "")
    return Promise.resolve(ground.schema(namespace)).then((schema) => schemas.push(schema))
  })
  const { count, exit, used } = await Effect.runPromise(built(ground, namespace, works(beginning)))
  await until("all is seen", () => schemas.length === count + 1)
  if (Exit.isFailure(exit)) throw new Error(`fails without a fault: ${Cause.pretty(exit.cause)}`)
  if (Exit.isFailure(used)) throw new Error(`does not work without a fault: ${Cause.pretty(used.cause)}`)
  return { texts, schemas }
}

interface Counts {
  faults: number
  failed: number
  built: number
}

/** One build with a fault at the n-th statement, and another without. */
const strike = async (
  ground: Ground,
  beginning: Beginning,
  { schemas, texts }: Traced,
  { at, kind }: Plan,
  counts: Counts
): Promise<ReadonlyArray<string>> => {
  const namespace = fresh()
  await prepared(ground, beginning, namespace)
  const problems: Array<string> = []
  ground.faults.arm(at, kind)
  const { exit, struck, used } = await Effect.runPromise(built(ground, namespace, works(beginning)))
  counts.faults++
  if (struck === undefined) problems.push("the statement never came")
  if (Exit.isFailure(exit)) {
    counts.failed++
    problems.push(...wrongWith(exit.cause, ground.secret))
  } else counts.built++
  if (Exit.isFailure(used)) problems.push(`what was built does not work: ${Cause.pretty(used.cause)}`)
  await until("nothing is left behind", async () => (await ground.left()).length === 0).catch(async () =>
    problems.push(`is left behind: ${(await ground.left()).join()}`)
  )
  const wanted = schemas[kind.took ? at : at - 1]
  if (Exit.isFailure(exit) && (await ground.schema(namespace)) !== wanted) problems.push("half a migration is left")
  // Those whose first build worked have no old job any more
  const again = Exit.isFailure(exit) ? beginning : "up to date"
  const second = await Effect.runPromise(built(ground, namespace, works(again)))
  for (const end of [second.exit, second.used])
    if (Exit.isFailure(end)) problems.push(`a second build fails: ${Cause.pretty(end.cause)}`)
  if ((await ground.schema(namespace)) !== schemas.at(-1)) problems.push("a second build has another schema")
  return problems.map((problem) => `${kind.name} at ${at} (${nameOf(texts[at - 1] ?? "")}): ${problem}`)
}

interface Plan {
  readonly at: number
  readonly kind: Kind
}

/** How many statements the short form picks, at equal distances. */
const picked = 6

/** Lost before and after. */
const silent = (kinds: ReadonlyArray<Kind>) => kinds.filter((kind) => kind.silent).slice(0, 2)

/** The long form: every statement with every fault. The short one: COMMITs lost before and after, and one in turn at some. */
const plansOf = ({ texts }: Traced, kinds: ReadonlyArray<Kind>): ReadonlyArray<Plan> => {
  const stride = Math.max(1, Math.ceil(texts.length / picked))
  return texts.flatMap((text, index) => {
    const possible = kinds.filter(({ applies }) => applies(text))
    const turn = possible[Math.floor(index / stride + seed) % possible.length] as Kind
    const some = isCommit(text) ? silent(possible) : index % stride === seed % stride ? [turn] : []
    return (isLong ? possible : some).map((kind) => ({ at: index + 1, kind }))
  })
}

export const buildSuite = (make: Effect.Effect<Ground, unknown, Scope.Scope>): void => {
  const scope = Effect.runSync(Scope.make())
  const counts: Counts = { faults: 0, failed: 0, built: 0 }
  let ground: Ground

  beforeAll(async () => {
    ground = await Effect.runPromise(Scope.extend(make, scope))
  })
  afterAll(async () => {
    await Effect.runPromise(Scope.close(scope, Exit.void))
    const { built, failed, faults } = counts
    console.log(`fault (${ground.name}): builds with ${faults} faults, ${failed} failed typed, ${built} were built`)
  })

  describe("G75, G84, G88, G89: a Layer whose statement fails while it is built, each in turn", () => {
    it.each(beginnings)(
      "over tables that are %s",
      async (beginning) => {
        const traced = await trace(ground, beginning)
        const problems: Array<string> = []
        for (const plan of plansOf(traced, ground.faults.kinds))
          problems.push(...(await strike(ground, beginning, traced, plan, counts)))
        expect(problems.join("\n")).toBe("")
      },
      timeout(120_000, 1_800_000)
    )
  })
}
