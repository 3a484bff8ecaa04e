/** Moving house: from one real database to another, interrupted, repeated, twice at once. */
import { Outbox, Queue, Schedules, Transfer, Worker } from "alkstore"
import { Chunk, Deferred, Effect, Either, Exit, Fiber, Schema, Stream } from "effect"
import { describe, expect, it } from "vitest"
import { exported, type House, housing, imported, type Row, ways } from "../support/houses.js"
import { until } from "../support/until.js"

const open = housing("transfer")

const Any = Queue.make("any", {
  payload: Schema.Unknown,
  maxCrashes: 3,
  retainCompleted: "1 day",
  retainDead: "9 days"
})
const Events = Outbox.make("events", { message: Schema.Number, key: () => "k" })
const pulse = Schedules.make("pulse", { every: "1 hour", queue: Any, payload: "pulse", catchUp: "all" })
const still = Schedules.make("still", { cron: "0 3 * * *", timeZone: "Europe/Berlin", queue: Any, payload: "still" })

const awkward = ["\u0000", "\ud800", "naïve \u{1f980}", "\\u0000", '"', "\u2028"]

/** Something in every state, with everything that a job can have. */
const furnish = Effect.gen(function* () {
  const claim = Effect.map(Any.claim(), ([job]) => job ?? expect.fail("nothing to claim"))
  yield* Any.enqueue({ n: "window" }, { dedupeKey: "window", dedupeWindow: "1 hour" })
  yield* Effect.flatMap(claim, (job) => job.ack)
  yield* Any.enqueue({ n: "fatal" }, { dedupeKey: "dead", dedupeWindow: "1 hour", headers: { a: "\u0000 b" } })
  yield* Effect.flatMap(claim, (job) => job.fail(new Error("no such \u0000 address")))
  yield* Any.enqueue({ n: "lives" }, { expires: "1 day" })
  yield* Effect.flatMap(claim, (job) => job.fail("first life"))
  yield* Any.deadLetters.requeue({ error: "first life" }, { delay: "20 minutes" })
  yield* Any.enqueue({ n: "retried" }, { dedupeKey: "freed", dedupeScope: "waiting" })
  const retried = yield* claim
  yield* retried.heartbeat({ done: 3 })
  yield* retried.retry({ delay: "30 minutes", error: "not now" })
  yield* Any.enqueue(awkward, { dedupeKey: "\u{1f980}", priority: -5, headers: { "x-\u00e9": awkward.join() } })
  yield* Any.enqueue({ n: "later" }, { delay: "1 hour", expires: "2 hours", priority: 7, maxAttempts: 2 })
  yield* Any.enqueue({ n: "cancelled" }, { delay: "1 hour" }).pipe(Effect.flatMap(({ id }) => Any.cancel(id)))
  yield* Any.enqueueMany([1, 2, 3], { orderingKey: "in order", dedupeWindow: "1 minute", dedupeKey: "one of three" })
  yield* Any.enqueueMany([4, 5, 6], { orderingKey: "in order" })
  const [head] = yield* Any.claim({ limit: 1 })
  expect(head?.orderingKey).toBe("in order")
  yield* head?.retry({ delay: "10 minutes" }) ?? Effect.void
  yield* Events.publishMany([1, 2, 3])
  const [event] = yield* Events.queue.claim()
  yield* event?.fail("no such topic") ?? Effect.void
  yield* Schedules.put(pulse)
  yield* Schedules.put(still)
  yield* Schedules.trigger("pulse")
  yield* Schedules.pause("still")
  yield* Any.pause
  yield* Events.pause
})

const ignored = /^(id|job_id|letter_id|token|worker|claimed_at|visibility_ms|updated_at|live_jobs)$/

/** All that a namespace holds, row by row, but for the ids: in their order. */
const inventory = async (house: House) => {
  const all: Record<string, ReadonlyArray<Row>> = {}
  const orders = {
    jobs: "id",
    dead_letters: "id",
    completed_jobs: "id",
    dedupe_keys: "queue, dedupe_key",
    lane_blocks: "queue, ordering_key",
    queues: "name",
    schedules: "name"
  }
  for (const [table, order] of Object.entries(orders)) {
    const rows = await house.rows(`SELECT * FROM ${house.table(table)} ORDER BY ${order}`)
    all[table] = rows.map((row) =>
      Object.fromEntries(
        Object.entries(row)
          .filter(([column]) => !ignored.test(column))
          // One driver gives large numbers as text, and the other truth as a number
          .map(([column, value]) => [
            column,
            typeof value === "boolean"
              ? Number(value)
              : typeof value === "string" && /^\d+$/.test(value) && column !== "payload"
                ? Number(value)
                : value
          ])
      )
    )
  }
  return all
}

const counted = (summary: Transfer.Summary, of: keyof Transfer.Tally) =>
  [summary.jobs, summary.deadLetters, summary.completed, summary.queues, summary.keys, summary.schedules]
    .map((tally) => tally[of])
    .reduce((a, b) => a + b)

describe.each(ways)("from %s to %s", (from, to) => {
  it("dead letters that would come back to their queue in the target have no queue of their own there (G150, G178)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    const named = (name: string, deadLetterQueue: string) =>
      Queue.make(name, { payload: Schema.Unknown, deadLetterQueue })
    const queues = [named("b", "c"), named("c", "a"), named("x", "y")]
    await source.run(Effect.forEach(queues, (queue) => Effect.zipRight(queue.enqueue(1), queue.pause)))
    await target.run(named("a", "b").enqueue(1))
    const summary = await target.run(imported(await source.run(exported())))
    expect(summary).toMatchObject({ complete: true, jobs: { imported: 3 }, refusals: [{ type: "queue", queue: "c" }] })
    const leads = await target.rows(
      `SELECT name, dead_letter_queue AS leads FROM ${target.table("queues")} ORDER BY name`
    )
    expect(leads.filter(({ leads }) => leads !== null)).toEqual([
      { name: "a", leads: "b" },
      { name: "b", leads: "c" },
      { name: "x", leads: "y" }
    ])
  })

  it("big payloads come few at a time, whatever they are among (G177)", async () => {
    await using source = await open(from)
    const big = "b".repeat(1_000_000)
    const payloads = Array.from({ length: 60 }, (_, n) => (n % 3 === 0 ? `${n}` : `${n}${big}`))
    await source.run(Any.enqueueMany(payloads))
    await source.run(Any.pause)
    const sizes: Array<number> = []
    const found: Array<string> = []
    const note = (records: Chunk.Chunk<Transfer.TransferRecord>) =>
      Effect.sync(() => {
        const texts = [...records].flatMap((record) => (record.type === "job" ? [record.payload] : []))
        sizes.push(texts.join("").length)
        found.push(...texts.map((text) => String(JSON.parse(text))))
      })
    await source.run(Stream.runForEachChunk(Transfer.export(), note))
    expect(found).toEqual(payloads)
    expect(Math.max(...sizes)).toBeLessThan(10_000_000)
  })

  it("everything arrives as it was, through lines of JSON, once (G177, G178, G179)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await source.run(furnish)
    const before = await inventory(source)
    for (const table of Object.values(before)) expect(table.length).toBeGreaterThan(0)
    const text = await source.run(Transfer.export({ completed: true }).pipe(Transfer.toJsonLines, Stream.mkString))
    expect(await inventory(source)).toEqual(before)
    // In pieces that end anywhere
    const pieces = text.match(/[\s\S]{1,1000}/g) ?? []
    const take = Transfer.import(Transfer.fromJsonLines(Stream.fromIterable(pieces)))
    const summary = await target.run(take)
    expect(summary).toMatchObject({ complete: true, refusals: [], origin: await source.run(Transfer.origin) })
    expect([counted(summary, "imported"), counted(summary, "refused")]).toEqual([
      text.trimEnd().split("\n").length - 2 - summary.deadLetters.skipped,
      0
    ])
    expect(await inventory(target)).toEqual(before)
    // Again: nothing more
    expect(counted(await target.run(take), "imported")).toBe(0)
    expect(await inventory(target)).toEqual(before)

    // A letter's window is its own here, too: it can be requeued while it lasts
    const requeued = await target.run(Any.deadLetters.requeue({ reason: "failed" }))
    expect(requeued).toMatchObject({ requeued: 1, keyHeld: 0 })

    // Payloads are what they were, the order is, and a blocked key goes on in order when its letter is requeued
    const done: Array<unknown> = []
    const handler = (job: { readonly payload: unknown }) => Effect.sync(() => void done.push(job.payload))
    await target.run(
      Effect.scoped(
        Effect.gen(function* () {
          yield* Any.resume
          yield* Events.resume
          yield* Any.runNow({ all: true })
          yield* Events.deadLetters.requeue({ all: true })
          yield* Worker.make(Any, { handler })
          yield* Worker.make(Events.queue, { handler })
          yield* Effect.promise(() =>
            until("all is done", async () => (await target.rows(`SELECT 1 FROM ${target.table("jobs")}`)).length === 0)
          )
        })
      )
    )
    expect(done).toContainEqual(awkward)
    expect(done.filter((payload) => [4, 5, 6].includes(payload as number))).toEqual([4, 5, 6])
    expect(counted(await target.run(take), "imported")).toBe(0)
    expect(await target.rows(`SELECT 1 FROM ${target.table("jobs")}`)).toEqual([])
  })

  it("cut off anywhere and run again, it comes to the same end (G179)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await source.run(furnish)
    await source.run(Any.enqueueMany(Array.from({ length: 1_600 }, (_, n) => n)))
    const records = await source.run(exported({ completed: true }))
    const cuts = [1, 2, 3, 5, 8, 9, 10, 11, 12, 20, 300, 501, 502, 900, 1_200, 1_500, records.length - 2]
    for (const cut of cuts) {
      expect((await target.run(imported(records.slice(0, cut)))).complete).toBe(false)
      const failing = Stream.concat(Stream.fromIterable(records.slice(0, cut + 250)), Stream.fail("cut"))
      expect(await target.run(Effect.flip(Transfer.import(failing)))).toBe("cut")
    }
    // Interrupted in the middle of it
    await target.run(
      Effect.gen(function* () {
        const reached = yield* Deferred.make<void>()
        const until = Math.floor(records.length / 2)
        const read = Stream.fromIterable(records).pipe(
          Stream.rechunk(1),
          Stream.zipWithIndex,
          Stream.tap(([, index]) =>
            index === until ? Effect.zipRight(Deferred.succeed(reached, undefined), Effect.never) : Effect.void
          ),
          Stream.map(([record]) => record)
        )
        const fiber = yield* Effect.fork(Transfer.import(read))
        yield* Deferred.await(reached)
        expect(Exit.isInterrupted(yield* Fiber.interrupt(fiber))).toBe(true)
      })
    )
    const last = await target.run(imported(records))
    expect(last.complete).toBe(true)
    expect(await inventory(target)).toEqual(await inventory(source))
  })

  it("two imports at once take each thing over once (G179)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await using other = await target.beside()
    await source.run(furnish)
    await source.run(Any.enqueueMany(Array.from({ length: 3_000 }, (_, n) => n)))
    const records = await source.run(exported({ completed: true }))
    const [a, b] = await Promise.all([target.run(imported(records)), other.run(imported(records))])
    expect(counted(a, "imported") + counted(b, "imported")).toBe(
      new Set(records.map((record) => ("id" in record ? record.id : JSON.stringify(record)))).size - 2
    )
    expect(counted(a, "refused") + counted(b, "refused")).toBe(0)
    expect(await inventory(target)).toEqual(await inventory(source))
  })

  it("a job whose dedupe key is held in the target is refused and reported, and comes later (G180)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await source.run(Any.enqueueMany(["a", "b"], (payload) => ({ dedupeKey: String(payload) })))
    await source.run(Any.pause)
    const holder = await target.run(Any.enqueue("theirs", { dedupeKey: "a" }))
    const records = await source.run(exported())
    const first = await target.run(imported(records))
    expect(first.jobs).toEqual({ imported: 1, skipped: 0, refused: 1 })
    expect(first.refusals).toMatchObject([{ type: "job", queue: "any", reason: "dedupeKey" }])
    expect(first.refusals[0]?.message).toContain(`job ${holder.id}`)
    expect((await source.run(Any.list())).length).toBe(2)
    await target.run(Any.cancel(holder.id))
    expect((await target.run(imported(records))).jobs).toEqual({ imported: 1, skipped: 1, refused: 0 })
    expect((await target.run(Any.list())).map(({ payload }) => payload)).toEqual(['"b"', '"a"'])
    expect((await target.run(Any.enqueue("c", { dedupeKey: "a" }))).deduplicated).toBe(true)
  })

  it("what is in use is not exported unless it is forced; leased jobs are given back then (G181)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await source.run(Any.enqueueMany(["a", "b"], { maxAttempts: 3 }))
    const refused = () => source.run(Effect.flip(exported()))
    expect(await refused()).toMatchObject({ _tag: "QueuesInUse", unpaused: ["any"], leased: [] })
    await source.run(Any.claim({ visibilityTimeout: "1 hour" }))
    await source.run(Any.pause)
    expect(await refused()).toMatchObject({ _tag: "QueuesInUse", unpaused: [], leased: ["any"] })
    await target.run(imported(await source.run(exported({ force: true }))))
    expect(await target.run(Any.list())).toMatchObject([
      { payload: '"a"', state: "ready", attempt: 1, crashes: 0 },
      { payload: '"b"', state: "ready", attempt: 0 }
    ])
  })

  it("no boundary of a schedule is lost or fired twice (G182)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await source.run(Schedules.put(pulse))
    await source.run(Any.pause)
    const fireDue = Effect.flatMap(Schedules.Schedules, (schedules) => schedules.fireDue)
    // A boundary comes while nobody is at home
    const owed = 3_600_000 * Math.floor(Date.now() / 3_600_000)
    await source.rows(
      `UPDATE ${source.table("schedules")} SET next_at = ${owed}, fire_at = ${owed}, last_at = ${owed - 3_600_000}`
    )
    const records = await source.run(exported())
    // The new home knows it from its own code already
    await target.run(Schedules.put(pulse))
    expect((await target.run(imported(records))).schedules).toEqual({ imported: 1, skipped: 0, refused: 0 })
    await target.run(fireDue)
    expect((await target.run(imported(records))).schedules).toEqual({ imported: 0, skipped: 1, refused: 0 })
    await target.run(fireDue)
    const jobs = await target.run(Any.list())
    expect(jobs.map(({ headers }) => JSON.parse(headers ?? "{}")["alkstore-boundary"])).toEqual([
      new Date(owed).toISOString()
    ])
    // One that has come to a boundary here is another
    await using elsewhere = await open(to)
    await elsewhere.run(Schedules.put(pulse))
    await elsewhere.rows(`UPDATE ${elsewhere.table("schedules")} SET next_at = ${owed}, fire_at = ${owed}`)
    await elsewhere.run(fireDue)
    const met = await elsewhere.run(imported(records))
    expect(met.schedules).toEqual({ imported: 0, skipped: 0, refused: 1 })
    expect(met.refusals).toMatchObject([{ type: "schedule", source: "pulse", reason: "schedule" }])
  })
})

describe("an export", () => {
  it("that was cut short, is none, or is of another version is refused with its line (G183)", async () => {
    await using source = await open("sqlite")
    await using target = await open("sqlite")
    await source.run(Any.enqueueMany([1, 2, 3]))
    await source.run(Any.pause)
    const text = await source.run(Transfer.export().pipe(Transfer.toJsonLines, Stream.mkString))
    const take = (some: string) => target.run(Effect.either(Transfer.import(Transfer.fromJsonLines(Stream.make(some)))))
    const refusal = async (some: string) => Either.getOrThrow(Either.flip(await take(some)))
    expect(await refusal("")).toMatchObject({ _tag: "InvalidArgument" })
    expect((await refusal("hello\n")).message).toBe(
      "records: line 1 is not an object in JSON: it was cut short, or is no export. Nothing was imported"
    )
    expect((await refusal(text.replace('"version":1', '"version":2'))).message).toContain("version 2")
    expect((await refusal(text.split("\n").slice(1).join("\n"))).message).toContain("header")
    const lines = text.split("\n")
    const job = lines.findIndex((line) => line.includes('"payload":"3"'))
    const within = [...lines.slice(0, job), lines[job]?.slice(0, 30)].join("\n")
    expect((await refusal(within)).message).toContain(`line ${job + 1} is not an object in JSON: it was cut short`)
    expect((await refusal(within)).message).toContain("What came before it has been imported; import the whole again")
    // What came before it stays imported, however little that was
    expect(await target.run(Any.counts)).toMatchObject({ ready: { count: 2 } })
    expect((await refusal(text.replace('"queue":"any"', '"queue":"a;b"'))).message).toContain("queue")
    const whole = await take(text)
    expect(whole).toMatchObject({ right: { complete: true, jobs: { imported: 1, skipped: 2 } } })
  })

  it("has what dies while it reads (G177)", async () => {
    await using source = await open("sqlite")
    const [first] = await source.run(Any.enqueueMany(["dead"]))
    // Pages of others come between
    const others = await source.run(Any.enqueueMany([...Array.from({ length: 1_200 }, (_, n) => n), "dying"]))
    const second = others.at(-1)
    await source.run(Effect.zipRight(Any.cancel(first?.id ?? 0), Any.pause))
    const cancelNow = Any.cancel(second?.id ?? 0)
    const reading = Transfer.export().pipe(Stream.tap(({ type }) => (type === "dead" ? cancelNow : Effect.void)))
    const records = Chunk.toReadonlyArray(await source.run(Stream.runCollect(reading)))
    const ids = records.flatMap((record) => (record.type === "dead" ? [record.id] : []))
    expect(new Set(ids)).toEqual(new Set([first?.id, second?.id]))
  })

  it("of some queues has those and their schedules only (G177)", async () => {
    await using source = await open("sqlite")
    await source.run(furnish)
    const records = await source.run(exported({ queues: ["events"] }))
    expect(new Set(records.flatMap((record) => ("queue" in record ? [record.queue] : [])))).toEqual(new Set(["events"]))
    const unknown = await source.run(Effect.flip(exported({ queues: ["events", "nope", "neither"] })))
    expect(unknown).toMatchObject({ _tag: "InvalidArgument", argument: "queues" })
    expect(unknown.message).toContain("no queue nope, neither")
    const none = await source.run(exported({ schedules: false }))
    expect(none.filter(({ type }) => type === "schedule" || type === "completed")).toEqual([])
  })

  it("of twenty thousand jobs moves them in order; a worker there does each once (G178, G179)", async () => {
    await using source = await open("sqlite")
    await using target = await open("postgres")
    const count = 20_000
    const Numbers = Queue.make("numbers", { payload: Schema.Number })
    await source.run(Numbers.enqueueMany(Array.from({ length: count }, (_, n) => n)))
    await source.run(Numbers.pause)
    const lines = source.run(Transfer.export().pipe(Transfer.toJsonLines, Stream.runCollect))
    const summary = await target.run(Transfer.import(Transfer.fromJsonLines(Stream.fromChunk(await lines))))
    expect(summary.jobs).toEqual({ imported: count, skipped: 0, refused: 0 })
    const payloads = await target.rows(`SELECT payload FROM ${target.table("jobs")} ORDER BY id`)
    expect(payloads.map(({ payload }) => Number(payload))).toEqual(Array.from({ length: count }, (_, n) => n))
    const times = new Array<number>(count).fill(0)
    await target.run(
      Effect.scoped(
        Effect.gen(function* () {
          yield* Numbers.resume
          yield* Worker.make(Numbers, {
            concurrency: 50,
            handler: ({ payload }) =>
              Effect.sync(() => {
                times[payload] = (times[payload] ?? 0) + 1
              })
          })
          yield* Effect.promise(() =>
            until(
              "all are done",
              async () => (await target.rows(`SELECT 1 FROM ${target.table("jobs")} LIMIT 1`)).length === 0,
              60_000
            )
          )
        })
      )
    )
    expect(times.filter((time) => time !== 1)).toEqual([])
  }, 120_000)
})
