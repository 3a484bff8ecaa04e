/**
 * Payloads: from a Schema's type to JSON text and back.
 */
import { Effect, Either, ParseResult, Schema } from "effect"
import { InvalidPayload } from "./Errors.js"
import { toJson } from "./json.js"

/** The greatest payload, in UTF-8 bytes of its JSON text: 1 MiB. */
export const maxPayloadBytes = 1024 * 1024

const reason = (error: unknown): string =>
  ParseResult.isParseError(error)
    ? ParseResult.TreeFormatter.formatErrorSync(error)
    : error instanceof Error
      ? error.message
      : "it cannot be encoded"

/**
 * Encodes payloads of one queue; every flaw is an `InvalidPayload`, also one that makes the Schema throw. What a Schema
 * that needs no effect, as nearly all, answers is an Either: an effect that costs no step.
 */
export const encoder = <A, I>(queue: string, schema: Schema.Schema<A, I>) => {
  const encode = Schema.encode(schema)
  return (payload: A, index: number): Either.Either<string, InvalidPayload> | Effect.Effect<string, InvalidPayload> => {
    const refuse = (message: string, cause?: unknown) =>
      new InvalidPayload({
        queue,
        index,
        message: `payload ${index} for queue ${queue}: ${message}`,
        ...(cause === undefined ? {} : { cause })
      })
    const text = (encoded: unknown) => Either.mapLeft(toJson(encoded, maxPayloadBytes), (message) => refuse(message))
    try {
      const encoded: Effect.Effect<unknown, ParseResult.ParseError> = encode(payload)
      if (Either.isEither(encoded)) {
        return Either.isRight(encoded) ? text(encoded.right) : Either.left(refuse(reason(encoded.left), encoded.left))
      }
      return encoded.pipe(
        Effect.catchAllDefect(Effect.fail),
        Effect.mapError((error) => refuse(reason(error), error)),
        Effect.flatMap(text)
      )
    } catch (error) {
      return Either.left(refuse(reason(error), error))
    }
  }
}

/**
 * Decodes stored texts: the payload, or why this process cannot read it, and goes on with that, at once. Never fails, never dies
 * by itself. A Schema that needs no effect, as nearly all, costs none.
 */
export const reader = <A, I>(schema: Schema.Schema<A, I>) => {
  const decode = Schema.decodeUnknown(schema)
  const parse = (text: string): Either.Either<A, string> | Effect.Effect<Either.Either<A, string>> => {
    try {
      const result = decode(JSON.parse(text))
      if (Either.isEither(result)) return Either.mapLeft(result as Either.Either<A, unknown>, reason)
      return result.pipe(
        Effect.mapError(reason),
        Effect.catchAllDefect((defect) => Effect.fail(reason(defect))),
        Effect.either
      )
    } catch (error) {
      return Either.left(reason(error))
    }
  }
  return <B, E, R>(
    text: string,
    then: (payload: Either.Either<A, string>) => Effect.Effect<B, E, R>
  ): Effect.Effect<B, E, R> => {
    const parsed = parse(text)
    return Either.isEither(parsed) ? then(parsed) : Effect.flatMap(parsed, then)
  }
}

/** The same, as an effect. */
export const decoder = <A, I>(schema: Schema.Schema<A, I>) => {
  const read = reader(schema)
  return <B, E, R>(text: string, then: (payload: Either.Either<A, string>) => Effect.Effect<B, E, R>) =>
    Effect.suspend(() => read(text, then))
}
