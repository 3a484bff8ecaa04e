/** What the suites share: an engine's Layer in two kinds of time, queues of a test's own, and looks at the rows. */
import { SqlClient } from "@effect/sql"
import { layer, type Vitest } from "@effect/vitest"
import { Queue } from "alkstore"
import { Effect, Schema } from "effect"
import { expect } from "vitest"
import type { EngineServices, EngineUnderTest } from "../support/engines.js"

export interface ConformanceOptions {
  /** No wake ever comes: everything must be found by polling. */
  readonly silent: boolean
  /** Schedules fire by themselves in tests whose time is TestClock's, too. */
  readonly scheduler?: boolean
}

export type Suite = (engine: EngineUnderTest, options: ConformanceOptions) => void

type Virtual = Vitest.MethodsNonLive<EngineServices, false>
type Live = Vitest.MethodsNonLive<EngineServices, true>

/** Tests whose time is TestClock's. They share a database and the clock, so each has a queue of its own. */
export const virtual = (
  engine: EngineUnderTest,
  { scheduler = false, silent }: ConformanceOptions,
  name: string,
  tests: (it: Virtual) => void
): void => layer(engine.layer({ virtual: true, silent, scheduler }))(name, tests)

/** Tests in real time, with the engine's own wakes unless they are silenced. */
export const live = (
  engine: EngineUnderTest,
  { silent }: ConformanceOptions,
  name: string,
  tests: (it: Live) => void
): void => layer(engine.layer({ silent }), { excludeTestServices: true })(name, tests)

let counter = 0

/** A name that no other test has. */
export const freshName = (prefix = "queue"): string => `${prefix}-${++counter}`

/** A queue that no other test has, of any JSON. */
export const freshQueue = (options: Partial<Queue.Options<unknown, unknown>> = {}) =>
  Queue.make(freshName(), { payload: Schema.Unknown, ...options })

type AnyQueue = { readonly name: string }

/** The live rows of a queue, by id. */
export const liveRows = (queue: AnyQueue) =>
  Effect.flatMap(Queue.Queue, (store) => store.list(queue.name, { limit: 20_000, after: 0 }))

/** The dead letters of a queue, newest first. */
export const deadRows = (queue: AnyQueue) =>
  Effect.flatMap(Queue.Queue, (store) => store.listDead(queue.name, { limit: 20_000 }))

/** Nothing of the queue is in the database. */
export const expectEmpty = (queue: AnyQueue) =>
  Effect.gen(function* () {
    expect(yield* liveRows(queue)).toEqual([])
    expect(yield* deadRows(queue)).toEqual([])
  })

/** The one live row of a queue. */
export const onlyRow = (queue: AnyQueue) =>
  Effect.map(liveRows(queue), (rows) => {
    expect(rows).toHaveLength(1)
    return rows[0] as (typeof rows)[number]
  })

/** The one dead letter of a queue. */
export const onlyLetter = (queue: AnyQueue) =>
  Effect.map(deadRows(queue), (rows) => {
    expect(rows).toHaveLength(1)
    return rows[0] as (typeof rows)[number]
  })

/** Claims exactly one job. */
export const claimOne = <A, I>(queue: Queue.Definition<A, I>, options: Queue.ClaimOptions = {}) =>
  Effect.map(queue.claim({ limit: 1, ...options }), (jobs) => {
    expect(jobs).toHaveLength(1)
    return jobs[0] as (typeof jobs)[number]
  })

/** Settles or cuts leases without the clock: the sweep of one queue, by whoever. */
export const sweep = (queue?: AnyQueue) => Effect.flatMap(Queue.Queue, (store) => store.sweepExpired(queue?.name))

/** The error of a call that has to fail, of the expected kind. */
export const failsWith = <A, E extends { readonly _tag: string }, R, Tag extends E["_tag"]>(
  self: Effect.Effect<A, E, R>,
  tag: Tag
): Effect.Effect<Extract<E, { readonly _tag: Tag }>, never, R> =>
  Effect.match(self, {
    onSuccess: (value) => expect.fail(`expected ${tag}, got ${JSON.stringify(value)}`),
    onFailure: (error) => {
      expect(error._tag).toBe(tag)
      return error as Extract<E, { readonly _tag: Tag }>
    }
  })

/** Rows of a table that meet a condition (on NEW) cannot be inserted, or updated, any more. */
export const refuse = (
  engine: "postgres" | "sqlite",
  name: string,
  table: string,
  condition: string,
  write: "INSERT" | "UPDATE" = "INSERT"
) =>
  Effect.flatMap(SqlClient.SqlClient, (sql) =>
    Effect.forEach(
      engine === "postgres"
        ? [
            `CREATE FUNCTION ${name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF ${condition} THEN RAISE EXCEPTION 'boom'; END IF; RETURN NEW; END $$`,
            `CREATE TRIGGER ${name} BEFORE ${write} ON ${table} FOR EACH ROW EXECUTE FUNCTION ${name}()`
          ]
        : [
            `CREATE TRIGGER ${name} BEFORE ${write} ON ${table} WHEN ${condition} BEGIN SELECT RAISE(ABORT, 'boom'); END`
          ],
      (text) => sql.unsafe(text)
    )
  )
