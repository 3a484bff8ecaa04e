/**
 * Statements that come to a row later than they began, on a real PostgreSQL: the present of a statement is the instant at
 * which it began, and what has been written since begins later. That is no sign of a clock that ran ahead (G38).
 */
import { PgClient } from "@effect/sql-pg"
import { Lock, Queue, Schedules } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Deferred, Effect, Layer, ManagedRuntime, Option, Redacted, Schema } from "effect"
import type pg from "pg"
import { expect, inject, test } from "vitest"
import { freshName } from "../conformance/support.js"
import { createDatabase, lockWaits, withClient } from "../support/postgres.js"
import { until } from "../support/until.js"

const gate = 4_712
const now = "floor(extract(epoch from pg_catalog.statement_timestamp()) * 1000)::bigint"

/** What has this name stands still while the gate is shut, when it looks at its first row. */
const shadow = (name: string) => (url: string) =>
  `
  CREATE SCHEMA slow;
  CREATE FUNCTION slow.statement_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$
  BEGIN
    IF current_query() LIKE '%alkstore:${name}%' THEN PERFORM pg_advisory_xact_lock_shared(${gate}); END IF;
    RETURN pg_catalog.statement_timestamp();
  END $$;
  ALTER DATABASE "${new URL(url).pathname.slice(1)}" SET search_path = slow, pg_catalog, public`

// Three connections: two calls may wait for locks at once
const options: Pg.Options = { connections: 3, sweeper: false, scheduler: false, listen: false }

const waits = (client: pg.Client) => async () => {
  const { rows } = await client.query(lockWaits)
  return rows.length === 1
}

const place = async (
  use: (
    run: <A, E>(self: Effect.Effect<A, E, Pg.Services>) => Promise<A>,
    client: pg.Client,
    url: string
  ) => Promise<void>,
  prepare = (_: string) => "SELECT 1"
) => {
  const url = await createDatabase(inject("pgUrl"))
  await withClient(url, (client) => client.query(prepare(url)))
  const runtime = ManagedRuntime.make(
    Layer.provideMerge(Pg.layer(options), PgClient.layer({ url: Redacted.make(url), maxConnections: 6 }))
  )
  try {
    await runtime.runPromise(Effect.void)
    await withClient(url, (client) => use((self) => runtime.runPromise(self), client, url))
  } finally {
    await runtime.dispose()
  }
}

test("an attempt that waited does not take a lock from who got it meanwhile (G67)", () =>
  place(async (run, client) => {
    const name = freshName("lock")
    await run(Lock.tryAcquire(name, { ttl: "100 millis" }))
    const over = `SELECT 1 FROM alkstore.locks WHERE name = $1 AND expires_at <= ${now}`
    await until("a lock that is over", async () => (await client.query(over, [name])).rows.length === 1)
    await client.query("BEGIN")
    await client.query("SELECT 1 FROM alkstore.locks WHERE name = $1 FOR UPDATE", [name])
    const attempt = run(Lock.tryAcquire(name))
    await until("an attempt that waits", waits(client))
    // What another attempt does, which began later and came first
    await client.query(
      `UPDATE alkstore.locks SET token = nextval('alkstore.tokens'), owner = 'other', acquired_at = ${now}, expires_at = ${now} + 30000, ttl_ms = 30000 WHERE name = $1`,
      [name]
    )
    await client.query("COMMIT")
    expect(await attempt).toEqual(Option.none())
  }))

test("a sweep that stood still does not move a job whose lease was renewed meanwhile (G19, G29)", () =>
  place(async (run, client) => {
    const queue = Queue.make(freshName("late"), { payload: Schema.String })
    await run(queue.enqueue("a"))
    const [job] = await run(queue.claim({ visibilityTimeout: "1 second" }))
    const over = `SELECT 1 FROM alkstore.jobs WHERE visible_at <= ${now}`
    await until("a lease that is over", async () => (await client.query(over)).rows.length === 1)
    await client.query("SELECT pg_advisory_lock($1)", [gate])
    const sweep = run(Effect.flatMap(Queue.Queue, (store) => store.sweepExpired()))
    await until("a sweep that stands still", waits(client))
    await run(job?.heartbeat() ?? Effect.die("nothing was claimed"))
    await client.query("SELECT pg_advisory_unlock($1)", [gate])
    await sweep
    await run(job?.ack ?? Effect.void)
  }, shadow("give_back")))

test("a job that is claimed while its cancellation waits for it is asked to end, and has one end (G156, G185)", () =>
  place(async (run, client) => {
    const queue = Queue.make(freshName("late"), { payload: Schema.String })
    const { id } = await run(queue.enqueue("a"))
    const [claimed, commit] = await Effect.runPromise(Effect.all([Deferred.make<void>(), Deferred.make<void>()]))
    const claim = Effect.zipLeft(
      queue.claim(),
      Effect.zipRight(Deferred.succeed(claimed, undefined), Deferred.await(commit))
    )
    const claiming = run(Queue.transaction(claim))
    await Effect.runPromise(Deferred.await(claimed))
    const cancelling = run(queue.cancel(id))
    await until("a cancellation that waits", waits(client))
    await Effect.runPromise(Deferred.succeed(commit, undefined))
    const [job] = await claiming
    expect(await cancelling).toBe("requested")
    await run(job?.ack ?? Effect.die("nothing was claimed"))
    expect(await run(queue.deadLetters.list())).toEqual([])
  }))

test("an enqueue that stood still does not take its key from a letter that was requeued meanwhile (G9, G146)", () =>
  place(async (run, client) => {
    const queue = Queue.make(freshName("late"), { payload: Schema.String })
    await run(queue.enqueue("a", { dedupeKey: "key", dedupeWindow: "1 milli" }))
    const [job] = await run(queue.claim())
    await run(job?.fail("no") ?? Effect.die("nothing was claimed"))
    const over = `SELECT 1 FROM alkstore.dedupe_keys WHERE free_at <= ${now}`
    await until("a window that has passed", async () => (await client.query(over)).rows.length === 1)
    const [requeued, commit] = await Effect.runPromise(Effect.all([Deferred.make<void>(), Deferred.make<void>()]))
    await client.query("SELECT pg_advisory_lock($1)", [gate])
    const enqueue = run(queue.enqueue("b", { dedupeKey: "key" }))
    await until("an enqueue that has seen the key, and stands still", waits(client))
    const requeue = run(
      Queue.transaction(
        Effect.zipRight(
          Effect.zipRight(queue.deadLetters.requeue({ all: true }), Deferred.succeed(requeued, undefined)),
          Deferred.await(commit)
        )
      )
    )
    await Effect.runPromise(Deferred.await(requeued))
    await client.query("SELECT pg_advisory_unlock($1)", [gate])
    await until("an enqueue that waits for the requeue", waits(client))
    await Effect.runPromise(Deferred.succeed(commit, undefined))
    await requeue
    expect(await enqueue).toMatchObject({ id: job?.id, deduplicated: true })
    expect((await run(queue.claim({ limit: 5 }))).map(({ payload }) => payload)).toEqual(["a"])
  }, shadow("enqueue_holders")))

test("a batch that replaces jobs takes them in one order, whatever its own (G188)", () =>
  place(async (run, client) => {
    const queue = Queue.make(freshName("late"), { payload: Schema.String })
    const replace = (keys: ReadonlyArray<string>) =>
      run(queue.enqueueMany(keys, (dedupeKey) => ({ dedupeKey, onDuplicate: "replace" })))
    const [first, second] = await replace(["a", "b"])
    await client.query("BEGIN")
    await client.query("SELECT 1 FROM alkstore.jobs WHERE id = $1 FOR UPDATE", [first?.id])
    const batch = replace(["b", "a"])
    await until("a batch that waits for the first", waits(client))
    await client.query("SELECT 1 FROM alkstore.jobs WHERE id = $1 FOR UPDATE NOWAIT", [second?.id])
    await client.query("COMMIT")
    expect((await batch).map(({ id, replaced }) => [id, replaced])).toEqual([
      [second?.id, true],
      [first?.id, true]
    ])
  }))

const fireDue = Effect.flatMap(Schedules.Schedules, (schedules) => schedules.fireDue)

/** An hour later, as schedules see it. */
const anHourLater = "UPDATE alkstore.schedules SET next_at = next_at - 3600000, fire_at = fire_at - 3600000"

test("a schedule that is due while it is paused gives its boundary one job (G102)", () =>
  place(async (run, client) => {
    const queue = Queue.make(freshName("late"), { payload: Schema.String })
    const schedule = Schedules.make("schedule", { every: "1 hour", queue, payload: "a" })
    await run(Schedules.put(schedule))
    await client.query(anHourLater)
    await client.query("SELECT pg_advisory_lock($1)", [gate])
    const pausing = run(Schedules.pause(schedule.name))
    await until("a pause that stands still before its job is there", waits(client))
    let over = false
    const firing = run(fireDue).finally(() => {
      over = true
    })
    await until("a pass that is over, or waits", async () => over || (await client.query(lockWaits)).rows.length > 1)
    await client.query("SELECT pg_advisory_unlock($1)", [gate])
    expect(await firing).toBe(0)
    await pausing
    expect(await run(queue.claim({ limit: 5 }))).toHaveLength(1)
  }, shadow("enqueue")))

test("schedules that are locked hold up no other, however many they are (G107)", () =>
  place(async (run, client) => {
    const queue = Queue.make(freshName("late"), { payload: Schema.String })
    const names = Array.from({ length: 101 }, (_, n) => String(1_000 + n))
    const put = (name: string) => Schedules.put(Schedules.make(name, { every: "1 hour", queue, payload: name }))
    await run(Effect.forEach(names, put))
    await client.query(anHourLater)
    await client.query("BEGIN")
    await client.query("SELECT 1 FROM alkstore.schedules WHERE name <> $1 FOR UPDATE", [names.at(-1)])
    expect(await run(Effect.timeout(fireDue, "10 seconds"))).toBe(1)
    await client.query("COMMIT")
    expect((await run(queue.claim({ limit: 5 }))).map(({ payload }) => payload)).toEqual([names.at(-1)])
  }))

test("of two that put a schedule at the same moment one creates it, and the other finds it (G100)", () =>
  place(async (run, client) => {
    const queue = Queue.make(freshName("late"), { payload: Schema.String })
    const put = Schedules.put(Schedules.make("schedule", { every: "1 hour", queue, payload: "a" }))
    const [created, commit] = await Effect.runPromise(Effect.all([Deferred.make<void>(), Deferred.make<void>()]))
    const first = run(
      Queue.transaction(
        Effect.zipLeft(put, Effect.zipRight(Deferred.succeed(created, undefined), Deferred.await(commit)))
      )
    )
    await Effect.runPromise(Deferred.await(created))
    const second = run(put)
    await until("a second that waits", waits(client))
    await Effect.runPromise(Deferred.succeed(commit, undefined))
    expect([await first, await second]).toEqual(["created", "unchanged"])
  }))

test("enqueues that wait leave a connection to what keeps leases and locks (G35)", () =>
  place(async (run, client) => {
    const queues = ["a", "b", "c"].map((name) => Queue.make(freshName(name), { payload: Schema.String }))
    await client.query("BEGIN")
    await client.query("LOCK TABLE alkstore.jobs IN SHARE MODE")
    // With keys: they share no statement
    const enqueues = run(
      Effect.forEach(queues, (queue) => queue.enqueue("a", { dedupeKey: "key" }), { concurrency: "unbounded" })
    )
    await until("enqueues that wait", async () => (await client.query(lockWaits)).rows.length > 0)
    expect(Option.isSome(await run(Effect.timeout(Lock.tryAcquire(freshName("lock")), "5 seconds")))).toBe(true)
    await client.query("COMMIT")
    expect(await enqueues).toHaveLength(3)
  }))
