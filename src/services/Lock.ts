/**
 * Named locks with a time-limited lease and a growing fencing token.
 *
 * @since 0.1.0
 */
import { Context, type Duration, Effect, type Option } from "effect"
import { InvalidArgument, type LockError, type LockLost, type LockTimeout } from "./Errors.js"

/**
 * The proof of a held lock.
 *
 * @since 0.1.0
 * @category models
 */
export interface LockLease {
  readonly name: string
  /** The fencing token: every acquisition's is greater than all before it. Hand it to whatever the lock protects. */
  readonly token: number
  /** When the lock ends unless it is renewed, in milliseconds since the Unix epoch by the database's clock. */
  readonly expiresAt: number
  readonly ttlMillis: number
}

/**
 * A lock as it stands in the database.
 *
 * @since 0.1.0
 * @category models
 */
export interface LockInfo {
  readonly name: string
  readonly token: number
  readonly owner: string
  readonly acquiredAt: Date
  readonly expiresAt: Date
}

/**
 * @since 0.1.0
 * @category models
 */
export interface AcquireOptions {
  /** How long the lock is held without a renewal. Default 30 s, at least 100 ms. */
  readonly ttl?: Duration.DurationInput | undefined
  /** How long to wait for it; then `LockTimeout`. Default: as long as it takes. */
  readonly timeout?: Duration.DurationInput | undefined
}

/**
 * Lock names: 1 to 512 bytes; names that begin with `__alkstore_` are reserved. Locks are never part of a
 * transaction, and waiting for one holds no database connection. A dead holder's lock is free when its lease ends.
 *
 * @since 0.1.0
 * @category models
 */
export interface Service {
  /** Takes the lock if it is free. */
  readonly tryAcquire: (
    name: string,
    options?: { readonly ttl?: Duration.DurationInput | undefined }
  ) => Effect.Effect<Option.Option<LockLease>, LockError>
  /** Takes the lock, waiting for it. It is held until `release`, or until its ttl passes without a `renew`. */
  readonly acquire: (name: string, options?: AcquireOptions) => Effect.Effect<LockLease, LockError | LockTimeout>
  /** Holds the lock for its ttl again, from now. `LockLost` when somebody else has it, or it was released. */
  readonly renew: (lease: LockLease) => Effect.Effect<LockLease, LockError | LockLost>
  /** Frees the lock and wakes those who wait for it. `LockLost` when it was no longer held under this token. */
  readonly release: (lease: LockLease) => Effect.Effect<void, LockError | LockLost>
  /** Frees a lock whoever holds it: for operators. Its holder's next renewal answers `LockLost`. */
  readonly forceRelease: (name: string) => Effect.Effect<boolean, LockError>
  /** The locks that are held now, by name. */
  readonly list: Effect.Effect<ReadonlyArray<LockInfo>, LockError>
  /**
   * Runs an effect while holding the lock, renewing it every third of its ttl. When the lock is lost the effect is
   * interrupted and the whole fails with `LockLost`; before its ttl can pass unrenewed it is interrupted likewise.
   */
  readonly withLock: (
    name: string,
    options?: AcquireOptions
  ) => <A, E, R>(self: Effect.Effect<A, E, R>) => Effect.Effect<A, E | LockError | LockLost | LockTimeout, R>
}

/**
 * @since 0.1.0
 * @category tags
 */
export class Lock extends Context.Tag("alkstore/Lock")<Lock, Service>() {}

/** The library's own locks: holding one would stop the fleet's schedules or sweeps. */
const reserved = "__alkstore_"

/**
 * See `Service.withLock`.
 *
 * @since 0.1.0
 * @category combinators
 */
export const withLock =
  (name: string, options?: AcquireOptions) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E | LockError | LockLost | LockTimeout, R | Lock> =>
    typeof name === "string" && name.startsWith(reserved)
      ? Effect.fail(
          new InvalidArgument({
            argument: "lock name",
            message: `lock name: names that begin with ${reserved} are reserved; choose another`
          })
        )
      : Effect.flatMap(Lock, (lock) => lock.withLock(name, options)(self))

/**
 * See `Service.tryAcquire`.
 *
 * @since 0.1.0
 * @category accessors
 */
export const tryAcquire = (
  name: string,
  options?: { readonly ttl?: Duration.DurationInput | undefined }
): Effect.Effect<Option.Option<LockLease>, LockError, Lock> =>
  Effect.flatMap(Lock, (lock) => lock.tryAcquire(name, options))

/**
 * See `Service.acquire`.
 *
 * @since 0.1.0
 * @category accessors
 */
export const acquire = (
  name: string,
  options?: AcquireOptions
): Effect.Effect<LockLease, LockError | LockTimeout, Lock> =>
  Effect.flatMap(Lock, (lock) => lock.acquire(name, options))

/**
 * See `Service.renew`.
 *
 * @since 0.1.0
 * @category accessors
 */
export const renew = (lease: LockLease): Effect.Effect<LockLease, LockError | LockLost, Lock> =>
  Effect.flatMap(Lock, (lock) => lock.renew(lease))

/**
 * See `Service.release`.
 *
 * @since 0.1.0
 * @category accessors
 */
export const release = (lease: LockLease): Effect.Effect<void, LockError | LockLost, Lock> =>
  Effect.flatMap(Lock, (lock) => lock.release(lease))

/**
 * See `Service.forceRelease`.
 *
 * @since 0.1.0
 * @category accessors
 */
export const forceRelease = (name: string): Effect.Effect<boolean, LockError, Lock> =>
  Effect.flatMap(Lock, (lock) => lock.forceRelease(name))

/**
 * See `Service.list`.
 *
 * @since 0.1.0
 * @category accessors
 */
export const list: Effect.Effect<ReadonlyArray<LockInfo>, LockError, Lock> = Effect.flatMap(Lock, (lock) => lock.list)
