/**
 * SQLite: statements of a connection, each prepared once and for good. The client's own cache of them costs more steps of the
 * runtime than all else about a short statement; its `executeUnprepared` is an effect that keeps the prepared statement and
 * the list of its values, so that the effect can be run again with other values in the list.
 */
import type { SqlError } from "@effect/sql"
import { Effect } from "effect"
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

/** Through the client's own cache: for a connection that several fibers may use at once. */
export const cached =
  (connection: Connection): Run =>
  (operation, text, parameters) =>
    Effect.mapError(
      Effect.suspend(() =>
        connection.execute(
          // In front: SQLite keeps what follows the column of an ALTER TABLE
          generation === 0 ? text : `/* ${generation} */ ${text}`,
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
      effect: Effect.matchEffect(connection.executeUnprepared(text, values, undefined), {
        onFailure: (error) => {
          values.length = 0
          return Effect.fail(storeError(prepared.operation, error))
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
        // The driver throws where it cannot prepare; such a statement is not kept
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

/** Whether an effect of this client, run again, takes the values that are in its list then. */
const runsAgain = (connection: Connection): Effect.Effect<boolean, SqlError.SqlError> =>
  Effect.suspend(() => {
    const values: Array<object> = [{ value: 1 }]
    const given = (value: number) => (rows: ReadonlyArray<Row>) => Number(rows[0]?.value) === value
    const select = connection.executeUnprepared("SELECT :value AS value", values, undefined)
    return Effect.zipWith(
      Effect.map(select, given(1)),
      Effect.map(
        Effect.suspend(() => {
          values[0] = { value: 2 }
          return select
        }),
        given(2)
      ),
      (first, second) => first && second
    )
  })

/** Of a connection that one fiber at a time has. */
export const makeRun = (connection: Connection): Effect.Effect<Run, StoreError> =>
  Effect.mapBoth(runsAgain(connection), {
    onFailure: (error) => storeError("connect", error),
    onSuccess: (again) => (again ? kept(connection) : cached(connection))
  })
