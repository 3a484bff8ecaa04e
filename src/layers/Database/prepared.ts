/**
 * SQLite: statements of a connection, each prepared once and for good. The client's own cache of them costs more steps of the
 * runtime than all else about a short statement; its `executeUnprepared` is an effect that keeps the prepared statement and
 * the list of its values, so that the effect can be run again with other values in the list.
 */
import type { SqlError } from "@effect/sql"
import { Cause, Effect } from "effect"
import type { StoreError } from "../../services/Errors.js"
import type { Row } from "../engine.js"
import { storeError } from "../storeError.js"
import type { Connection } from "./Database.js"

/** Runs a statement with these named values. Its errors are those of the operation. */
export type Run = (
  operation: string,
  text: string,
  parameters?: object
) => Effect.Effect<ReadonlyArray<Row>, StoreError>

/**
 * The client caches failed preparations as well as good ones: a statement that met a missing table once would fail for
 * ten minutes after it came back. A new generation makes every text a new one.
 */
let generation = 0

/** What a text begins with. The generation comes after it: SQLite keeps what follows the column of an ALTER TABLE. */
const named = /^(?:\/\* alkstore:\w+ \*\/ )?/

/** Through the client's own cache: for a connection that several fibers may use at once. */
export const cached =
  (connection: Connection): Run =>
  (operation, text, parameters) =>
    Effect.mapError(
      Effect.suspend(() =>
        connection.execute(
          generation === 0 ? text : text.replace(named, `$&/* ${generation} */ `),
          parameters === undefined ? [] : [parameters],
          undefined
        )
      ),
      (error) => {
        if (error.message.startsWith("Failed to prepare")) generation++
        return storeError(operation, error)
      }
    )

interface Prepared {
  /** Whose errors they are. */
  operation: string
  readonly values: Array<unknown>
  readonly effect: Effect.Effect<ReadonlyArray<Row>, StoreError>
}

/** For a connection that one fiber at a time has: nobody else may come between giving the values and their use. */
const kept = (connection: Connection): Run => {
  const statements = new Map<string, Prepared>()
  const prepare = (operation: string, text: string): Prepared => {
    const values: Array<unknown> = []
    const prepared: Prepared = {
      operation,
      values,
      effect: Effect.matchCauseEffect(connection.executeUnprepared(text, values, undefined), {
        onFailure: (cause) => {
          values.length = 0
          // A client that prepares only when it runs throws then
          return Effect.failCause(failedBy(prepared.operation, cause))
        },
        onSuccess: (rows) => {
          // A batch of megabytes is not kept until the next one
          values.length = 0
          return Effect.succeed(rows)
        }
      })
    }
    statements.set(text, prepared)
    return prepared
  }
  return (operation, text, parameters) =>
    Effect.suspend(() => {
      let prepared = statements.get(text)
      if (prepared === undefined) {
        // The stock client throws what it cannot prepare; such a statement is not kept
        try {
          prepared = prepare(operation, text)
        } catch (error) {
          return Effect.fail(storeError(operation, error))
        }
      }
      prepared.operation = operation
      if (parameters !== undefined) prepared.values[0] = parameters
      return prepared.effect
    })
}

const failedBy = (operation: string, cause: Cause.Cause<SqlError.SqlError>): Cause.Cause<StoreError> =>
  Cause.isInterruptedOnly(cause)
    ? (cause as Cause.Cause<never>)
    : Cause.fail(storeError(operation, Cause.squash(cause)))

/** Whether an effect of this client, run again, takes the values that are in its list then. */
const runsAgain = (connection: Connection): Effect.Effect<boolean> =>
  Effect.suspend(() => {
    const values: Array<object> = [{ value: 1 }]
    const select = connection.executeUnprepared("SELECT :value AS value", values, undefined)
    const answers = (value: number) => Effect.map(select, ([row]: ReadonlyArray<Row>) => Number(row?.value) === value)
    const second = Effect.suspend(() => {
      values[0] = { value: 2 }
      return answers(2)
    })
    return Effect.zipWith(answers(1), second, (one, two) => one && two)
  }).pipe(Effect.catchAllCause(() => Effect.succeed(false)))

/** Of a connection that one fiber at a time has. A client whose effects cannot be run again prepares as it always does. */
export const makeRun = (connection: Connection): Effect.Effect<Run> =>
  Effect.map(runsAgain(connection), (again) => (again ? kept(connection) : cached(connection)))
