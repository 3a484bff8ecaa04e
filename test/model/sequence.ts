/** A sequence of commands, from an empty database to an empty database. */
import { SqlClient } from "@effect/sql"
import { Effect, Runtime, TestClock } from "effect"
import fc from "fast-check"
import type { EngineServices, EngineUnderTest } from "../support/engines.js"
import { commandLists } from "./arbitraries.js"
import type { Command } from "./commands.js"
import { drain } from "./drain.js"
import { step } from "./run.js"
import type { Scene } from "./scene.js"
import { emptyState } from "./state.js"

const day = 86_400_000

/** Of rows only: what queues are set to stays known to the process. */
const tables = [
  "jobs",
  "dead_letters",
  "completed_jobs",
  "dedupe_keys",
  "lane_marks",
  "lane_blocks",
  "schedules",
  "locks"
]

/** Nothing is left of the sequence before; time begins at a midnight, so that each sequence is the same at any time. */
const fresh = (engine: EngineUnderTest, count: Scene["count"]) =>
  Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    for (const table of tables) yield* sql.unsafe(`DELETE FROM ${engine.table(table)}`)
    yield* sql.unsafe(`UPDATE ${engine.table("queues")} SET paused_at = NULL`)
    const now = (Math.floor((yield* TestClock.currentTimeMillis) / day) + 1) * day
    yield* TestClock.setTime(now)
    const scene: Scene = {
      engine,
      state: emptyState(now),
      hands: [],
      locks: [],
      ids: [],
      tokens: new Set(),
      lastToken: 0,
      lastId: 0,
      depth: 0,
      pending: new Set(),
      marked: false,
      failures: 0,
      executed: 0,
      count
    }
    return scene
  })

/** What the sequences of an engine add up to. */
export interface Tally {
  readonly counts: Map<string, number>
  commands: number
  draining: number
}

const mostCommands = 80

type CommandList = ReturnType<typeof commandLists> extends fc.Arbitrary<infer A> ? A : never

/** Real time that shrinking may take: what it has come to by then is told. */
const shrinkingMillis = 60_000

/** Why a seed fails, after shrinking, and how to see it again; undefined when it does not. */
export const failure = async (
  runtime: Runtime.Runtime<EngineServices>,
  engine: EngineUnderTest,
  tally: Tally,
  seed: number
): Promise<string | undefined> => {
  const { ALKSTORE_PATH: path, ALKSTORE_REPLAY: replayPath } = process.env
  const run = Runtime.runPromise(runtime)
  const count = (what: string) => void tally.counts.set(what, (tally.counts.get(what) ?? 0) + 1)
  const sequence = async (commands: CommandList) => {
    const scene = await run(fresh(engine, count))
    const execute = (command: Command) => run(step(scene, command))
    await fc.asyncModelRun(() => ({ model: execute, real: {} }), commands)
    const random = scene.executed
    scene.count = () => {}
    await run(drain(scene))
    tally.commands += random
    tally.draining += scene.executed - random
  }
  // From the first failure on: a sequence that takes long on a busy machine is none
  let giveUpAt = Number.POSITIVE_INFINITY
  const property = fc.asyncProperty(commandLists(mostCommands, replayPath), async (commands) => {
    if (performance.now() > giveUpAt) return
    try {
      await sequence(commands)
    } catch (error) {
      giveUpAt = Math.min(giveUpAt, performance.now() + shrinkingMillis)
      throw error
    }
  })
  const details = await fc.check(property, {
    seed,
    numRuns: 1,
    ...(path === undefined ? {} : { path })
  })
  if (!details.failed) return undefined
  const [commands, replayed = ""] = String(details.counterexample?.[0]).split("/*replayPath=")
  const replay = `npm run prove -- model --seed ${seed} --runs 1 -- -t ${JSON.stringify(engine.name)}`
  const paths = `ALKSTORE_PATH=${details.counterexamplePath} ALKSTORE_REPLAY=${replayed.replace("*/", "")}`
  return [
    `model (${engine.name}): the engine and the model disagree after these commands (${details.numShrinks} shrinks):${commands}`,
    `${details.error}`,
    `replay: ${replay}`,
    `without shrinking: ${paths} ${replay}`
  ].join("\n")
}
