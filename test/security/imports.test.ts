/** No text of an import becomes SQL either: whatever stands in a record, the statements are those of an import. */
import { SqlClient } from "@effect/sql"
import { Queue, Schedules, Transfer } from "alkstore"
import { Chunk, Effect, Either, ManagedRuntime, Schema, Stream } from "effect"
import fc from "fast-check"
import { afterAll, beforeAll, describe, expect, it } from "vitest"
import { type EngineServices, postgres, sqliteFile } from "../support/engines.js"
import { runs, seed, timeout } from "../support/form.js"
import { hostile, hostileName } from "./hostile.js"
import { makeTap, type Tap } from "./tap.js"

const Letters = Queue.make("letters", {
  payload: Schema.Unknown,
  retainCompleted: "1 day",
  retainDead: "1 day",
  deadLetterQueue: "undertaker",
  onDead: "block"
})

/** Something of each kind, with something in each column that holds a text. */
const furnish = Effect.gen(function* () {
  const full = { orderingKey: "o", dedupeWindow: "1 day", headers: { a: "b" }, expires: "1 day" } as const
  yield* Letters.enqueueMany(["done", "dead", "waiting"], (_, n) => ({ ...full, dedupeKey: `key ${n}` }))
  for (const end of ["ack", "dead", "back"]) {
    const [job] = yield* Letters.claim()
    if (job === undefined) break
    yield* job.heartbeat({ at: 1 })
    yield* end === "ack" ? job.ack : end === "dead" ? job.fail("no") : job.release
  }
  yield* Schedules.put(Schedules.make("s", { cron: "0 3 * * *", queue: Letters, payload: "s" }))
  const records = yield* Stream.runCollect(Transfer.export({ force: true, completed: true }))
  return Chunk.toReadonlyArray(records) as ReadonlyArray<Readonly<Record<string, unknown>>>
})

const quiet = { sweeper: false }

describe.each([postgres, sqliteFile])("$name", (engine) => {
  const runtime = ManagedRuntime.make(engine.layer({ silent: true, scheduler: false, sqlite: quiet, postgres: quiet }))
  const run = <A, E>(effect: Effect.Effect<A, E, EngineServices>) => runtime.runPromise(Effect.either(effect))
  const sql = (text: string) => Effect.flatMap(SqlClient.SqlClient, (client) => client.unsafe(text))
  let records: Effect.Effect.Success<typeof furnish> = []
  let tap: Tap
  let origins = 0

  beforeAll(async () => {
    await run(sql("CREATE TABLE canary (note text)"))
    await run(sql("INSERT INTO canary VALUES ('alive')"))
    records = Either.getOrThrow(await run(furnish))
    tap = makeTap()
  })
  afterAll(async () => {
    tap.close()
    await runtime.dispose()
  })

  /** An import of some records, as lines of a file, from a namespace that nothing has come from yet; and its statements. */
  const imported = async (some: ReadonlyArray<unknown>) => {
    const origin = `origin ${++origins}`
    const lines = [{ ...records[0], origin }, ...some, { type: "end", records: some.length + 2 }]
    tap.clear()
    const text = Stream.fromIterable(lines.map((line) => `${JSON.stringify(line)}\n`))
    const result = await run(Transfer.import(Transfer.fromJsonLines(text)))
    // PostgreSQL takes neither U+0000 nor lone surrogates: rolled back, on a connection that is made anew
    return { result, texts: tap.texts.filter((given) => !/^SET statement_timeout|ROLLBACK$/.test(given)) }
  }

  it(
    "G200: any text in any column",
    async () => {
      const body = records.slice(1, -1)
      expect(new Set(body.map(({ type }) => type))).toEqual(
        new Set(["queue", "dead", "job", "completed", "key", "schedule"])
      )
      const places = body.flatMap((record) =>
        Object.entries(record)
          .filter(([, value]) => typeof value === "string" || value === null)
          .map(([property]) => ({ record, property }))
      )
      const at = ({ property, record }: (typeof places)[number], text: string) => [{ ...record, [property]: text }]
      const known = new Set<string>()
      // The whole twice, since what is there already is another case; and a harmless text in each place
      for (const some of [body, body, ...places.map((place) => at(place, "harmless"))])
        for (const text of (await imported(some)).texts) known.add(text)
      await fc.assert(
        fc.asyncProperty(fc.constantFrom(...places), fc.oneof(hostile, hostileName), async (place, text) => {
          const { result, texts } = await imported(at(place, text))
          for (const given of texts) expect(known).toContain(given)
          if (Either.isLeft(result))
            expect(result.left).toMatchObject({ _tag: expect.stringMatching(/^(InvalidArgument|StoreError)$/) })
        }),
        { seed, numRuns: runs(80, 5_000) }
      )
      expect(await run(sql("SELECT note FROM canary"))).toEqual(Either.right([{ note: "alive" }]))
    },
    timeout(60_000, 900_000)
  )
})
