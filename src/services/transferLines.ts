/**
 * The records of an export as lines of JSON.
 */
import { Effect, Either, Option, Stream } from "effect"
import type { InvalidArgument } from "./Errors.js"
import { parseJson } from "./json.js"
import { checkedAt, type TransferRecord } from "./TransferRecord.js"

const cut = new WeakSet<InvalidArgument>()

/** Whether these were records as far as they went: the last line has no end. */
export const isCutShort = (error: InvalidArgument): boolean => cut.has(error)

/**
 * One line of JSON for each record, with its line break.
 *
 * @since 0.1.0
 * @category conversions
 */
export const toJsonLines = <E, R>(records: Stream.Stream<TransferRecord, E, R>): Stream.Stream<string, E, R> =>
  Stream.map(records, (record) => `${JSON.stringify(record)}\n`)

/**
 * Records from text in pieces of any size.
 *
 * @since 0.1.0
 * @category conversions
 */
export const fromJsonLines = <E, R>(
  text: Stream.Stream<string, E, R>
): Stream.Stream<TransferRecord, E | InvalidArgument, R> =>
  Stream.suspend(() => {
    let ended = true
    return text.pipe(
      Stream.tap((piece) =>
        Effect.sync(() => {
          if (piece !== "") ended = piece.endsWith("\n")
        })
      ),
      Stream.splitLines,
      Stream.zipWithIndex,
      Stream.zipWithNext,
      Stream.filter(([[line]]) => line !== ""),
      Stream.mapEffect(([[line, index], next]) =>
        Either.mapLeft(checkedAt("line", index, parseJson(line)), (error) => {
          if (!ended && index > 0 && Option.isNone(next)) cut.add(error)
          return error
        })
      )
    )
  })
