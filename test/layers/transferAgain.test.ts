/** Moving house in more than one go, back, to oneself, and from what is not whole: nothing is there twice, and nothing is missed. */
import { type Job, Queue, Schedules, Transfer, Wake, Worker } from "alkstore"
import { Chunk, Deferred, Effect, Either, Schedule, Schema, Stream } from "effect"
import { describe, expect, it } from "vitest"
import { exported, type House, housing, imported, ways } from "../support/houses.js"

const open = housing("transfer-again")

/** Nothing but its own calls wakes anybody there. */
const unheard = housing("transfer-unheard", {
  sqlite: { pollInterval: "1 hour", watch: false },
  postgres: { pollInterval: "1 hour", listen: false }
})

const Any = Queue.make("any", { payload: Schema.Unknown })
/** Of a period so long that none of its boundaries comes meanwhile. */
const pulse = Schedules.make("pulse", { every: "10 days", queue: Any, payload: "pulse", catchUp: "all" })
const period = 10 * 86_400_000

const payloads = async (house: House) => (await house.run(Any.list())).map(({ payload }) => JSON.parse(payload))

const boundaries = async (house: House) =>
  (await house.run(Any.list())).map(({ headers }) => Date.parse(JSON.parse(headers ?? "{}")["alkstore-boundary"]))

const fireDue = Effect.flatMap(Schedules.Schedules, (schedules) => schedules.fireDue)

/** The next boundary of the schedule is this one. */
const owes = ({ rows, table }: House, at: number) =>
  rows(`UPDATE ${table("schedules")} SET next_at = ${at}, fire_at = ${at}`)

const refusalOf = <A>(house: House, effect: Effect.Effect<A, unknown, Transfer.Transfer>) =>
  house.run(Effect.map(Effect.flip(effect), (error) => (error as { readonly message: string }).message))

/** Two houses, one of which has a schedule that the other has taken over. */
const shared = async (source: House, target: House) => {
  await source.run(Schedules.put(pulse))
  await source.run(Any.pause)
  await target.run(imported(await source.run(exported())))
  return period * Math.floor(Date.now() / period)
}

describe.each(ways)("from %s to %s", (from, to) => {
  it("boundaries that an older home fired since are not fired again (G182)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    const last = await shared(source, target)
    await owes(source, last - period)
    await owes(target, last - period)
    await source.run(fireDue)
    expect(await boundaries(source)).toEqual([last - period, last])
    const records = await source.run(exported())
    expect((await target.run(imported(records))).schedules).toEqual({ imported: 1, skipped: 0, refused: 0 })
    expect((await target.run(imported(records))).schedules).toEqual({ imported: 0, skipped: 1, refused: 0 })
    await target.run(fireDue)
    expect(await boundaries(target)).toEqual([last - period, last])
    const [next] = await target.rows(`SELECT fire_at FROM ${target.table("schedules")}`)
    expect(Number(next?.fire_at)).toBe(last + period)
  })

  it("nor is one that had its dedupe key held there (G182)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    const keyed = Schedules.make("pulse", { every: "10 days", queue: Any, payload: "pulse", dedupeKey: "k" })
    const last = period * Math.floor(Date.now() / period)
    await source.run(Schedules.put(keyed))
    const { id } = await source.run(Any.enqueue("holder", { dedupeKey: "k" }))
    await source.run(Any.pause)
    await owes(source, last)
    await target.run(imported(await source.run(exported())))
    await source.run(fireDue)
    await source.run(Any.cancel(id))
    await target.run(Any.clear)
    expect((await target.run(imported(await source.run(exported())))).schedules).toMatchObject({ imported: 1 })
    await target.run(fireDue)
    expect(await payloads(target)).toEqual([])
  })

  it("a job that was triggered there since is the schedule's own here, too (G106, G182)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    const last = period * Math.floor(Date.now() / period)
    await source.run(
      Schedules.put(Schedules.make("pulse", { every: "10 days", queue: Any, payload: "pulse", overlap: "skip" }))
    )
    await source.run(Any.pause)
    await target.run(imported(await source.run(exported())))
    await source.run(Schedules.trigger("pulse"))
    const triggered = await target.run(Schedules.trigger("pulse"))
    await target.run(imported(await source.run(exported())))
    expect(await payloads(target)).toEqual(["pulse", "pulse"])
    // Either of the two
    await target.run(Any.cancel(triggered.id))
    await owes(target, last)
    await target.run(fireDue)
    expect(await payloads(target)).toEqual(["pulse"])
    await target.run(Any.clear)
    await target.rows(
      `UPDATE ${target.table("schedules")} SET last_at = ${last - period}, next_at = ${last}, fire_at = ${last}`
    )
    await target.run(fireDue)
    expect(await boundaries(target)).toEqual([last])
  })

  it("one that was paused at its older home since is paused here, too, and fires nothing of the pause (G178, G182)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    const last = await shared(source, target)
    await owes(source, last - period)
    await source.run(fireDue)
    await source.run(Schedules.pause("pulse"))
    await owes(source, last - period)
    await source.rows(`UPDATE ${source.table("schedules")} SET fire_at = NULL`)
    expect((await target.run(imported(await source.run(exported())))).schedules).toMatchObject({ imported: 1 })
    await target.run(fireDue)
    const fired = (await boundaries(target)).filter((at) => at > last)
    expect(fired).toEqual([])
    const [row] = await target.rows(`SELECT paused_at, fire_at FROM ${target.table("schedules")}`)
    expect([row?.paused_at === null, row?.fire_at]).toEqual([false, null])
  })

  it("times at the far end arrive by lines, as they were (G178)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    const Far = Queue.make("far", { payload: Schema.Unknown, expires: "1 day" })
    await source.run(Far.enqueue("never", { runAt: new Date(253_402_300_799_999) }))
    await source.run(Far.pause)
    const text = await source.run(Transfer.export().pipe(Transfer.toJsonLines, Stream.mkString))
    const summary = await target.run(Transfer.import(Transfer.fromJsonLines(Stream.make(text))))
    expect(summary).toMatchObject({ complete: true, jobs: { imported: 1 } })
    expect((await target.run(Far.list())).map(({ dueAt }) => dueAt)).toEqual([253_402_300_799_999])
  })

  it("that both homes have fired is said (G182)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    const last = await shared(source, target)
    for (const house of [source, target]) {
      await owes(house, last)
      await house.run(fireDue)
    }
    const summary = await target.run(imported(await source.run(exported())))
    expect(summary.schedules).toEqual({ imported: 0, skipped: 0, refused: 1 })
    expect(summary.refusals).toMatchObject([{ type: "schedule", source: "pulse", reason: "schedule" }])
    expect(summary.refusals[0]?.message).toContain("has fired where it comes from since")
  })

  it("a schedule that is paused in the target stays paused, and owes what was due before that (G104, G178)", async () => {
    const last = period * Math.floor(Date.now() / period)
    for (const { due, fired, paused } of [
      { paused: last + 1, due: last, fired: [last] },
      { paused: last - 1, due: last, fired: [] }
    ]) {
      await using source = await open(from)
      await using target = await open(to)
      await source.run(Schedules.put(pulse))
      await source.run(Any.pause)
      await target.run(Schedules.put(pulse))
      await target.run(Schedules.pause("pulse"))
      await target.rows(`UPDATE ${target.table("schedules")} SET paused_at = ${paused}`)
      await owes(source, due)
      await target.run(imported(await source.run(exported())))
      await target.run(fireDue)
      expect(await payloads(target)).toEqual([])
      await target.run(Schedules.resume("pulse"))
      await target.run(fireDue)
      expect(await boundaries(target)).toEqual(fired)
    }
  })

  it("nothing of an ordering key is taken over before a job that is refused (G178, G180)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    const keyed = { orderingKey: "k" }
    await source.run(Any.enqueue(1, { ...keyed, dedupeKey: "held" }))
    await source.run(Any.enqueue(2, { ...keyed, dedupeKey: "its own" }))
    await source.run(
      Any.enqueueMany(
        Array.from({ length: 700 }, (_, n) => n + 3),
        keyed
      )
    )
    await source.run(Any.enqueue("other", { orderingKey: "other" }))
    await source.run(Any.pause)
    const holder = await target.run(Any.enqueue("holder", { dedupeKey: "held" }))
    const records = await source.run(exported())
    const first = await target.run(imported(records))
    expect(first.jobs).toEqual({ imported: 1, skipped: 0, refused: 702 })
    expect(new Set(first.refusals.map(({ reason }) => reason))).toEqual(new Set(["dedupeKey", "orderingKey"]))
    expect(first.refusals[1]?.message).toContain("a job before it of its ordering key")
    expect(await payloads(target)).toEqual(["holder", "other"])
    // What stays holds no key here
    expect(await target.run(Any.enqueue("free", { dedupeKey: "its own" }))).toMatchObject({ deduplicated: false })
    await target.run(Any.clear)
    expect(await target.run(Any.cancel(holder.id))).toBe("tooLate")
    expect((await target.run(imported(records))).jobs).toEqual({ imported: 702, skipped: 1, refused: 0 })
    expect((await target.run(Any.list({ limit: 1_000 }))).map(({ payload }) => Number(payload))).toEqual(
      Array.from({ length: 702 }, (_, n) => n + 1)
    )
  })

  it("settings that a worker gave in the target stand, those of a producer are replaced (G178)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    const define = (house: House, name: string, maxCrashes: number, by: "worker" | "producer") => {
      const { settings } = Queue.make(name, { payload: Schema.Unknown, maxCrashes })
      return house.run(Effect.flatMap(Queue.Queue, (store) => store.define(settings, by)))
    }
    for (const by of ["producer", "worker"] as const) {
      await define(source, by, 3, "worker")
      await define(target, by, 7, by)
    }
    await target.run(imported(await source.run(exported({ force: true }))))
    expect(
      await target.rows(`SELECT name, max_crashes, defined_by FROM ${target.table("queues")} ORDER BY name`)
    ).toEqual([
      { name: "producer", max_crashes: 3, defined_by: "worker" },
      { name: "worker", max_crashes: 7, defined_by: "worker" }
    ])
  })

  it("a dedupe key whose job was deleted by hand in the target holds nobody off (G180)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await source.run(Any.enqueue("moved", { dedupeKey: "held" }))
    await source.run(Any.pause)
    await target.run(Any.enqueue("deleted", { dedupeKey: "held" }))
    await target.rows(`DELETE FROM ${target.table("jobs")}`)
    const summary = await target.run(imported(await source.run(exported())))
    expect(summary.jobs).toEqual({ imported: 1, skipped: 0, refused: 0 })
    expect(await target.run(Any.enqueue("again", { dedupeKey: "held" }))).toMatchObject({ deduplicated: true })
    expect(await payloads(target)).toEqual(["moved"])
  })

  it("a lease that has ended is none: its job is exported as a claim would find it (G181)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await source.run(Any.enqueue("crashed"))
    await source.run(Any.claim({ visibilityTimeout: "1 hour" }))
    await source.run(Any.pause)
    await source.rows(`UPDATE ${source.table("jobs")} SET visible_at = 3600000`)
    await target.run(imported(await source.run(exported())))
    expect(await target.run(Any.list())).toMatchObject([{ state: "ready", attempt: 1, crashes: 1 }])
  })

  it("an import wakes the workers that wait for its jobs (G57, G178)", async () => {
    await using source = await open(from)
    await using target = await unheard(to)
    await source.run(Any.enqueue("moved"))
    const records = await source.run(exported({ force: true }))
    const program = Effect.gen(function* () {
      const got = yield* Deferred.make<unknown>()
      const handler = ({ payload }: Job.Job<unknown>) => Deferred.succeed(got, payload)
      const worker = yield* Worker.make(Any, { handler, shutdownGrace: 0 })
      // It has looked once and waits
      yield* Effect.repeat(worker.health, {
        until: ({ lastClaimMillisAgo }) => (lastClaimMillisAgo ?? 0) > 100,
        schedule: Schedule.spaced("10 millis")
      }).pipe(Effect.timeout("10 seconds"))
      yield* imported(records)
      return yield* Effect.timeout(Deferred.await(got), "20 seconds")
    })
    expect(await target.run(Effect.scoped(program))).toBe("moved")
  })

  it("and those of other processes (G60, G178)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await using beside = await target.beside()
    await source.run(Any.enqueue("moved"))
    const records = await source.run(exported({ force: true }))
    const woken = Effect.gen(function* () {
      const wake = yield* Wake.Wake
      yield* Effect.repeat(wake.state, {
        until: ({ _tag }) => _tag === "Live",
        schedule: Schedule.spaced("10 millis")
      }).pipe(Effect.timeout("10 seconds"))
      const subscription = yield* wake.subscribe(Wake.queueTopic(Any.name))
      yield* Effect.promise(() => target.run(imported(records)))
      yield* Effect.timeout(subscription.await, "10 seconds")
    })
    await beside.run(Effect.scoped(woken))
  })

  it("is refused into the namespace that it comes from, and into one that it was taken over from (G179)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await using third = await open(from)
    await source.run(Any.enqueueMany([1, 2, 3]))
    await source.run(Any.pause)
    const records = await source.run(exported())
    expect(await refusalOf(source, imported(records))).toContain("this very namespace")
    await target.run(imported(records))
    const back = await target.run(exported())
    expect(await refusalOf(source, imported(back))).toContain("has taken over from this one")
    // By way of another, too
    await third.run(imported(back))
    expect(await refusalOf(source, imported(await third.run(exported())))).toContain("has taken over from this one")
    // And what has come by way of another does not come from its first home again
    expect(await refusalOf(third, imported(records))).toContain("by way of it")
    expect(await payloads(source)).toEqual([1, 2, 3])
    expect(await payloads(third)).toEqual([1, 2, 3])
  })

  const Held = Queue.make("held", { payload: Schema.Unknown, onDead: "block" })
  const k = { orderingKey: "k" }

  /** What is claimed and acked, one after the other, until nothing more may be. */
  const drained = Effect.gen(function* () {
    const all: Array<unknown> = []
    for (;;) {
      const [job] = yield* Held.claim()
      if (job === undefined) return all
      all.push(job.payload)
      yield* job.ack
    }
  })

  const expire = ({ rows, run, table }: House, payload: string) =>
    rows(`UPDATE ${table("jobs")} SET expires_at = 1 WHERE payload = '${payload}'`).then(() =>
      run(Effect.flatMap(Queue.Queue, (queue) => queue.sweepExpired()))
    )

  it("a letter holds what came after it, and nothing before it, as at home (G165, G178)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await source.run(Held.enqueueMany([1, 2, 3, 4], k))
    await source.run(Held.pause)
    await expire(source, "3")
    await target.run(imported(await source.run(exported())))
    await target.run(Held.resume)
    expect(await target.run(drained)).toEqual([1, 2])
    await target.run(Held.deadLetters.requeue({ all: true }))
    expect(await target.run(drained)).toEqual([3, 4])
  })

  it("so does one that dies while the export reads (G177, G178)", async () => {
    await using source = await open(from)
    await using target = await open(to)
    await source.run(Held.enqueueMany(Array.from({ length: 600 }, (_, n) => `beside ${n}`)))
    await source.run(Held.enqueueMany([1, 2, 3], k))
    await source.run(Held.pause)
    let dying = true
    const reading = Transfer.export().pipe(
      Stream.tap(({ type }) => {
        if (type !== "job" || !dying) return Effect.void
        dying = false
        return Effect.promise(() => expire(source, "2"))
      })
    )
    const records = Chunk.toReadonlyArray(await source.run(Stream.runCollect(reading)))
    const summary = await target.run(imported(records))
    expect(summary).toMatchObject({ complete: true, jobs: { imported: 602 }, deadLetters: { imported: 1 } })
    await target.run(Held.resume)
    expect((await target.run(drained)).filter((payload) => typeof payload === "number")).toEqual([1])
  })
})

describe("what is not whole", () => {
  const furnished = async (house: House) => {
    await house.run(Any.enqueueMany([1, 2, 3, 4, 5]))
    await house.run(Any.pause)
    return house.run(Transfer.export().pipe(Transfer.toJsonLines, Stream.mkString))
  }
  const read = (text: string) => Transfer.import(Transfer.fromJsonLines(Stream.make(text)))

  it("of which a line is missing anywhere is not complete (G179, G184)", async () => {
    await using source = await open("sqlite")
    const lines = (await furnished(source)).trimEnd().split("\n")
    for (const [index, line] of lines.entries()) {
      if (index === 0) continue
      await using target = await open("sqlite")
      const summary = await target.run(read(lines.filter((other) => other !== line).join("\n")))
      expect(summary.complete).toBe(false)
      expect((await target.run(read(lines.join("\n")))).complete).toBe(true)
      expect((await payloads(target)).sort()).toEqual([1, 2, 3, 4, 5])
    }
  })

  it("two exports in one stream are complete when both are (G179)", async () => {
    await using source = await open("sqlite")
    await using target = await open("sqlite")
    const first = await furnished(source)
    await source.run(Any.enqueueMany([6, 7]))
    const second = await source.run(Transfer.export().pipe(Transfer.toJsonLines, Stream.mkString))
    const cut = second.split("\n").slice(0, -3).join("\n")
    expect((await target.run(read(`${first}${cut}\n`))).complete).toBe(false)
    expect((await target.run(read(`${cut}\n${first}`))).complete).toBe(false)
    expect((await target.run(read(`${first}${second}`))).complete).toBe(true)
    expect(await payloads(target)).toEqual([1, 2, 3, 4, 5, 6, 7])
    expect(await refusalOf(target, read(`${first}${second.split("\n")[2]}\n`))).toContain("header")
  })

  const changes: ReadonlyArray<readonly [type: string, property: string, value: unknown]> = [
    ["job", "priority", 70_000],
    ["job", "attempt", 5e12],
    ["job", "attempt", -5],
    ["job", "crashes", 3e9],
    ["job", "maxAttempts", 0],
    ["job", "holdsKey", true],
    ["job", "payload", "not json"],
    ["job", "payload", '"\ud800"'],
    ["job", "headers", '{"a":1}'],
    ["job", "errors", "{}"],
    ["job", "dueAt", 1e16],
    ["job", "dedupeScope", "running"],
    ["queue", "onDead", "explode"],
    ["queue", "retainDeadMillis", -1],
    ["queue", "deadLetterQueue", "any"],
    ["schedule", "catchUp", "some"],
    ["schedule", "cron", "* * * * *"],
    ["schedule", "lastError", "\u0000"],
    ["schedule", "name", "x".repeat(600)]
  ]

  it.each(changes)(
    "a %s whose %s is %j is refused with its line, or its place (G183)",
    async (type, property, value) => {
      await using source = await open("sqlite")
      await using target = await open("sqlite")
      await source.run(Schedules.put(pulse))
      const lines = (await furnished(source)).trimEnd().split("\n")
      const index = lines.findIndex((line) => line.startsWith(`{"type":"${type}"`))
      const changed = { ...JSON.parse(lines[index] as string), [property]: value }
      const text = lines.map((line, at) => (at === index ? JSON.stringify(changed) : line)).join("\n")
      expect(await refusalOf(target, read(text))).toMatch(new RegExp(`^records: line ${index + 1} is not as expected`))
      const records = Chunk.toReadonlyArray(await source.run(Stream.runCollect(Transfer.export())))
      expect(await refusalOf(target, imported(records.map((record, at) => (at === index ? changed : record))))).toMatch(
        new RegExp(`^records: record ${index + 1} is not as expected`)
      )
      expect(Either.isRight(await target.run(Effect.either(imported(records))))).toBe(true)
    }
  )
})
