/**
 * The SQL of locks, both engines.
 */
import { Effect, Option } from "effect"
import type { StoreError } from "../../services/Errors.js"
import { lockTopic } from "../../services/Wake.js"
import { type Names, nextval, type PerEngine, type Row, type Session, statement } from "../engine.js"
import { int } from "../Queue/statements/rows.js"

export interface LockVerbs {
  readonly acquire: (
    session: Session,
    name: string,
    owner: string,
    ttl: number
  ) => Effect.Effect<Option.Option<{ readonly token: number; readonly expiresAt: number }>, StoreError>
  readonly renew: (
    session: Session,
    name: string,
    token: number,
    ttl: number
  ) => Effect.Effect<Option.Option<number>, StoreError>
  readonly release: (session: Session, name: string, token: number) => Effect.Effect<boolean, StoreError>
  /** What this very attempt has taken: a token that was rolled back may be somebody else's by now. */
  readonly giveBack: (
    session: Session,
    name: string,
    token: number,
    owner: string
  ) => Effect.Effect<boolean, StoreError>
  readonly forceRelease: (session: Session, name: string) => Effect.Effect<boolean, StoreError>
  /** Milliseconds until the lock's lease ends. */
  readonly freeIn: (session: Session, name: string) => Effect.Effect<number, StoreError>
  readonly list: (session: Session) => Effect.Effect<ReadonlyArray<Row>, StoreError>
}

/** Held: not ended, and not written by a clock that ran ahead (its lease would begin only in the future). */
const held = (n: Names, alias: string) =>
  `(${alias}.expires_at > ${n.now} AND ${alias}.expires_at - ${alias}.ttl_ms <= ${n.latest})`

const rest = (
  n: Names,
  release: (condition: string) => string
): Omit<LockVerbs, "acquire" | "release" | "giveBack" | "forceRelease"> & {
  readonly free: (
    session: Session,
    by: "token" | "attempt" | "name",
    parameters: object
  ) => Effect.Effect<boolean, StoreError>
} => {
  const renew = statement(
    n,
    "lock_renew",
    `UPDATE ${n.locks} SET expires_at = ${n.now} + :ttl, ttl_ms = :ttl WHERE name = :name AND token = :token RETURNING expires_at`
  )
  const unlock = {
    token: statement(n, "unlock", release(" AND token = :token")),
    attempt: statement(n, "unlock_attempt", release(" AND token = :token AND owner = :owner")),
    name: statement(n, "unlock_force", release(""))
  }
  const freeIn = statement(
    n,
    "lock_free_in",
    `SELECT expires_at - ${n.now} AS free_in FROM ${n.locks} l WHERE name = :name AND ${held(n, "l")}`
  )
  const list = statement(n, "locks", `SELECT * FROM ${n.locks} l WHERE ${held(n, "l")} ORDER BY name`)
  return {
    renew: (session, name, token, ttl) =>
      Effect.map(session.execute(renew, { name, token, ttl }), ([row]) =>
        row === undefined ? Option.none() : Option.some(int(row.expires_at))
      ),
    free: (session, by, parameters) =>
      Effect.map(session.execute(unlock[by], { ...parameters }), (rows) => rows.length > 0),
    freeIn: (session, name) =>
      Effect.map(session.execute(freeIn, { name }), ([row]) => (row === undefined ? 0 : int(row.free_in))),
    list: (session) => session.execute(list, {})
  }
}

const upsert = (n: Names, token: string) =>
  statement(
    n,
    "lock",
    `INSERT INTO ${n.locks} AS l (name, token, owner, acquired_at, expires_at, ttl_ms)
    VALUES (:name, ${token}, :owner, ${n.now}, ${n.now} + :ttl, :ttl)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token, owner = excluded.owner, acquired_at = excluded.acquired_at,
      expires_at = excluded.expires_at, ttl_ms = excluded.ttl_ms
    WHERE NOT ${held(n, "l")}
    RETURNING token, expires_at`
  )

const taken = (rows: ReadonlyArray<Row>) =>
  rows[0] === undefined ? Option.none() : Option.some({ token: int(rows[0].token), expiresAt: int(rows[0].expires_at) })

const postgres = (n: Names): LockVerbs => {
  const acquire = upsert(n, nextval(n.tokens))
  const { free, ...common } = rest(
    n,
    (condition) => `WITH freed AS (DELETE FROM ${n.locks} WHERE name = :name${condition} RETURNING name)
    SELECT pg_notify(:channel, :topic) FROM freed`
  )
  const wake = (name: string) => ({ channel: n.channel, topic: lockTopic(name) })
  return {
    ...common,
    acquire: (session, name, owner, ttl) => Effect.map(session.execute(acquire, { name, owner, ttl }), taken),
    release: (session, name, token) => free(session, "token", { name, token, ...wake(name) }),
    giveBack: (session, name, token, owner) => free(session, "attempt", { name, token, owner, ...wake(name) }),
    forceRelease: (session, name) => free(session, "name", { name, ...wake(name) })
  }
}

/** The counter is another row: taken in the same write transaction, and only when the lock is. */
const sqlite = (n: Names): LockVerbs => {
  const acquire = upsert(n, `(SELECT value + 1 FROM ${n.tokens} WHERE id = 1)`)
  const step = statement(n, "lock_token", `UPDATE ${n.tokens} SET value = value + 1 WHERE id = 1`)
  const { free, ...common } = rest(
    n,
    (condition) => `DELETE FROM ${n.locks} WHERE name = :name${condition} RETURNING name`
  )
  return {
    ...common,
    acquire: (session, name, owner, ttl) =>
      Effect.tap(Effect.map(session.execute(acquire, { name, owner, ttl }), taken), (lease) =>
        Option.isSome(lease) ? session.execute(step, {}) : Effect.void
      ),
    release: (session, name, token) => free(session, "token", { name, token }),
    giveBack: (session, name, token, owner) => free(session, "attempt", { name, token, owner }),
    forceRelease: (session, name) => free(session, "name", { name })
  }
}

export const lockVerbs: PerEngine<(n: Names) => LockVerbs> = { postgres, sqlite }
