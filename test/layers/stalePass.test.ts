/**
 * A pass over an ordering key that stands still between its snapshot and its turn, on a real PostgreSQL: what has become
 * of the key meanwhile must not be undone by what the pass saw. Its model is `formal/ordering.pml`.
 */
import { PgClient } from "@effect/sql-pg"
import { Queue, transaction } from "alkstore"
import * as Pg from "alkstore/Pg"
import { Deferred, Effect, Layer, ManagedRuntime, Redacted, Schema } from "effect"
import { expect, inject, test } from "vitest"
import { freshName } from "../conformance/support.js"
import { createDatabase, lockWaits, withClient } from "../support/postgres.js"
import { until } from "../support/until.js"

const gate = 4_711

/** The first pass that asks for its turn without waiting stands still while the gate is shut; it has its snapshot then. */
const shadow = (url: string) => `
  CREATE SCHEMA slow;
  CREATE TABLE slow.once AS SELECT 1;
  CREATE FUNCTION slow.pg_try_advisory_xact_lock(lane bigint) RETURNS boolean LANGUAGE plpgsql AS $$
  BEGIN
    PERFORM 1 FROM slow.once FOR UPDATE SKIP LOCKED;
    IF FOUND THEN PERFORM pg_catalog.pg_advisory_xact_lock_shared(${gate}); END IF;
    RETURN pg_catalog.pg_try_advisory_xact_lock(lane);
  END $$;
  ALTER DATABASE "${new URL(url).pathname.slice(1)}" SET search_path = slow, pg_catalog, public`

const options: Pg.Options = { sweeper: false, scheduler: false, listen: false, notify: false }
const same = { orderingKey: "k" }

const party = (url: string) => {
  const client = PgClient.layer({ url: Redacted.make(url), maxConnections: 6 })
  return ManagedRuntime.make(Layer.provideMerge(Pg.layer(options), client))
}

test("a pass that stood still lets nobody pass a dead letter that holds its key (G165)", async () => {
  const url = await createDatabase(inject("pgUrl"))
  await withClient(url, (client) => client.query(shadow(url)))
  const here = party(url)
  const there = party(url)
  try {
    await withClient(url, async (client) => {
      const queue = Queue.make(freshName("stale"), { payload: Schema.String, onDead: "block" })
      const claim = queue.claim({ limit: 10, visibilityTimeout: "1 hour" })
      const waiting = async () => {
        const { rows } = await client.query(`${lockWaits} AND locktype = 'advisory'`)
        return rows.length
      }
      // Its settings are stored
      await here.runPromise(claim)
      await there.runPromise(claim)

      // The first has its id before the second, and commits after the second's pass has its snapshot
      const inserted = await Effect.runPromise(Deferred.make<void>())
      const commit = await Effect.runPromise(Deferred.make<void>())
      const insert = Effect.zipRight(queue.enqueue("first", same), Deferred.succeed(inserted, undefined))
      const first = here.runPromise(transaction(Effect.zipRight(insert, Deferred.await(commit))))
      await Effect.runPromise(Deferred.await(inserted))
      await client.query("SELECT pg_advisory_lock($1)", [gate])
      const second = here.runPromise(queue.enqueue("second", same))
      await until("a pass that stands still", async () => (await waiting()) === 1)
      await Effect.runPromise(Deferred.succeed(commit, undefined))
      await first

      // Another process claims, and fails what it has; or it waits for the pass that stands still
      let answered = false
      const failed = there
        .runPromise(Effect.tap(claim, (jobs) => Effect.forEach(jobs, (job) => job.fail("dead"))))
        .finally(() => {
          answered = true
        })
      await until("a claim that is answered, or waits", async () => answered || (await waiting()) === 2)
      await client.query("SELECT pg_advisory_unlock($1)", [gate])
      await second
      expect((await failed).length).toBe(1)

      const [letter, ...others] = await there.runPromise(queue.deadLetters.list())
      expect(others).toEqual([])
      const held = letter?.id ?? expect.fail("nothing has died")
      await here.runPromise(queue.enqueue("third", same))
      // What is before the letter, by its id, may go on; nothing behind it may
      const takeAll = Effect.tap(claim, (jobs) => Effect.forEach(jobs, (job) => job.ack))
      for (let turn = 0; turn < 3; turn++)
        expect((await there.runPromise(takeAll)).filter(({ id }) => id > held)).toEqual([])
      await there.runPromise(queue.deadLetters.purge({ id: held }))
      expect((await there.runPromise(claim)).length).toBe(1)
    })
  } finally {
    await Promise.all([here.dispose(), there.dispose()])
  }
})
