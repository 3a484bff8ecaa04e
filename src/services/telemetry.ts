/**
 * Spans of messages, named after OpenTelemetry's messaging conventions, and the trace context that a job carries in its
 * headers from whoever enqueued it to whoever handles it.
 *
 * Spans are made for a tracer that somebody installed: Effect's own default one would make them for nobody. With it, only
 * the context of the span that is current at an enqueue is carried on.
 */
import { Cause, Context, DefaultServices, Effect, Exit, type Fiber, FiberRef, Tracer } from "effect"
import { countEnqueued, metrics, record } from "./metrics.js"
import type { ClaimResult, NewJob, Receipt } from "./QueueStore.js"
import type { ClaimedRow, Settlement } from "./Settlement.js"

const untraced = Context.get(DefaultServices.liveServices, Tracer.Tracer)

/** Whether spans of a fiber with this tracer go anywhere. */
export const isTraced = (enabled: boolean, tracer: Tracer.Tracer): boolean => enabled && tracer !== untraced

const zeros = /^0*$/

/** The W3C text of a span's context, or undefined when it has none: where tracing is disabled ids are not ids. */
export const traceparentOf = (span: Tracer.AnySpan): string | undefined => {
  const text = `00-${span.traceId}-${span.spanId}-${span.sampled ? "01" : "00"}`
  return parseTraceparent(text) === undefined ? undefined : text
}

/** The span that a W3C `traceparent` names, or undefined when the text is malformed. */
export const parseTraceparent = (text: string): Tracer.ExternalSpan | undefined => {
  const found = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/.exec(text)
  if (found === null) return undefined
  const [, version = "", traceId = "", spanId = "", flags = "", rest] = found
  if (version === "ff" || (version === "00" && rest !== undefined) || zeros.test(traceId) || zeros.test(spanId))
    return undefined
  return Tracer.externalSpan({ traceId, spanId, sampled: (Number.parseInt(flags, 16) & 1) === 1 })
}

/** In stored headers: a name follows a brace or a comma, which no text value does. */
const carried = /[{,]\s*"traceparent"\s*:\s*"([^"\\]*)"/i

/** The producer's span of stored headers, if they name one. */
export const producerOf = (headers: string | null): Tracer.ExternalSpan | undefined => {
  if (headers === null) return undefined
  const found = carried.exec(headers)
  return found === null ? undefined : parseTraceparent((found[1] as string).toLowerCase())
}

/** Stored headers with a trace context; what the caller himself has given stands. The limit was his headers' alone. */
export const carrying = (headers: string | null, traceparent: string): string => {
  if (headers === null) return `{"traceparent":"${traceparent}"}`
  return /[{,]"traceparent":/i.test(headers) ? headers : `{"traceparent":"${traceparent}",${headers.slice(1)}`
}

const carryingAll = (jobs: ReadonlyArray<NewJob>, span: Tracer.AnySpan): ReadonlyArray<NewJob> => {
  const traceparent = traceparentOf(span)
  return traceparent === undefined
    ? jobs
    : jobs.map((job) => Object.assign({}, job, { headers: carrying(job.headers, traceparent) }))
}

/** What kind of error it is, of few kinds: its tag or the name of its class. Never throws. */
export const errorType = (error: unknown): string => {
  try {
    if (typeof error !== "object" || error === null) return "_OTHER"
    const tag = (error as { _tag?: unknown })._tag
    const name = typeof tag === "string" ? tag : error instanceof Error ? error.name : undefined
    return typeof name === "string" && name !== "" ? name.slice(0, 200) : "_OTHER"
  } catch {
    return "_OTHER"
  }
}

const failure = <E>(cause: Cause.Cause<E>): unknown => {
  try {
    return Cause.squash(cause)
  } catch {
    return undefined
  }
}

/** What all of our spans say. `messaging.system` is what the conventions called `messaging.system.name` until 1.44. */
const attributes = (queue: string, operation: string, type: string): Record<string, unknown> => ({
  "messaging.system": "alkstore",
  "messaging.system.name": "alkstore",
  "messaging.destination.name": queue,
  "messaging.operation.name": operation,
  "messaging.operation.type": type
})

/** One message by its id, several by their number. */
const messages = (given: Record<string, unknown>, rows: ReadonlyArray<ClaimedRow>): Record<string, unknown> => {
  const [first] = rows
  if (rows.length !== 1 || first === undefined) given["messaging.batch.message_count"] = rows.length
  else {
    given["messaging.message.id"] = String(first.id)
    given["alkstore.attempt"] = first.attempt
  }
  return given
}

const linksTo = (rows: ReadonlyArray<ClaimedRow>): ReadonlyArray<Tracer.SpanLink> => {
  const links: Array<Tracer.SpanLink> = []
  for (const row of rows) {
    const span = producerOf(row.headers)
    if (span !== undefined)
      links.push({ _tag: "SpanLink", span, attributes: { "messaging.message.id": String(row.id) } })
  }
  return links
}

const received = (queue: string, receipts: ReadonlyArray<Receipt>): void => {
  const deduplicated = receipts.filter((receipt) => receipt.deduplicated).length
  countEnqueued(queue, receipts.length - deduplicated, deduplicated)
}

const spanned = <E, R>(
  queue: string,
  jobs: ReadonlyArray<NewJob>,
  send: (jobs: ReadonlyArray<NewJob>) => Effect.Effect<ReadonlyArray<Receipt>, E, R>
) => {
  const given = attributes(queue, "send", "send")
  if (jobs.length > 1) given["messaging.batch.message_count"] = jobs.length
  return Effect.useSpan(`send ${queue}`, { kind: "producer", attributes: given, captureStackTrace: false }, (span) =>
    send(carryingAll(jobs, span)).pipe(
      Effect.withParentSpan(span),
      Effect.tapBoth({
        onFailure: (error) => Effect.sync(() => span.attribute("error.type", errorType(error))),
        onSuccess: ([receipt]) =>
          Effect.sync(() => {
            if (jobs.length !== 1 || receipt === undefined) return
            span.attribute("messaging.message.id", String(receipt.id))
            if (receipt.deduplicated) span.attribute("alkstore.deduplicated", true)
          })
      })
    )
  )
}

/** An enqueue, counted, as a producer's span whose context its jobs carry. */
export const sending = <A, E, R>(
  queue: string,
  jobs: ReadonlyArray<NewJob>,
  send: (jobs: ReadonlyArray<NewJob>) => Effect.Effect<ReadonlyArray<Receipt>, E, R>,
  answer: (receipts: ReadonlyArray<Receipt>) => A
): Effect.Effect<A, E, R> =>
  Effect.map(
    Effect.withFiberRuntime<ReadonlyArray<Receipt>, E, R>((fiber) => {
      const enabled = fiber.getFiberRef(FiberRef.currentTracerEnabled)
      if (isTraced(enabled, fiber.currentTracer)) return spanned(queue, jobs, send)
      const span = enabled ? fiber.currentSpan : undefined
      return send(span === undefined ? jobs : carryingAll(jobs, span))
    }),
    (receipts) => {
      received(queue, receipts)
      return answer(receipts)
    }
  )

/** What a span says of an ended run, where that is not simply how it ended. */
export interface Seen {
  readonly exit: Exit.Exit<unknown, unknown>
  readonly attributes?: Record<string, unknown>
}

const described = (span: Tracer.Span, { attributes: said = {}, exit }: Seen): Exit.Exit<unknown, unknown> => {
  for (const name of Object.keys(said)) span.attribute(name, said[name])
  if (Exit.isFailure(exit) && said["error.type"] === undefined && !Cause.isInterruptedOnly(exit.cause))
    span.attribute("error.type", errorType(failure(exit.cause)))
  return exit
}

/**
 * A run of a handler as a consumer's span, linked to the spans of those who enqueued its jobs; a trace of its own, which
 * the handler's spans are children in. To be called where it cannot be interrupted. A tracer that throws costs no job.
 */
export const processing = <A, E, R>(
  queue: string,
  worker: string,
  rows: ReadonlyArray<ClaimedRow>,
  handled: Effect.Effect<Exit.Exit<A, E>, never, R>,
  see: (exit: Exit.Exit<A, E>) => Seen
): Effect.Effect<Exit.Exit<A, E>, never, R> =>
  Effect.suspend(() => {
    let begun = false
    let ended: Exit.Exit<A, E> | undefined
    const given = messages(attributes(queue, "process", "process"), rows)
    given["messaging.client.id"] = worker
    const options = {
      kind: "consumer",
      root: true,
      links: linksTo(rows),
      attributes: given,
      captureStackTrace: false
    } as const
    return Effect.useSpan(`process ${queue}`, options, (span) => {
      begun = true
      return Effect.flatMap(Effect.withParentSpan(handled, span), (exit) => {
        ended = exit
        return described(span, see(exit))
      })
    }).pipe(
      Effect.exit,
      Effect.flatMap((exit) => {
        if (ended !== undefined) return Effect.succeed(ended)
        return begun && Exit.isFailure(exit) ? Effect.succeed(Exit.failCause(exit.cause as Cause.Cause<E>)) : handled
      })
    )
  })

const isFiberTraced = (fiber: Fiber.RuntimeFiber<unknown, unknown>): boolean =>
  isTraced(fiber.getFiberRef(FiberRef.currentTracerEnabled), fiber.currentTracer)

/** A claim by hand, counted, as a client's span that is linked to the spans of those who enqueued what it brings. */
export const receiving = <E, R>(
  queue: string,
  claim: Effect.Effect<ClaimResult, E, R>
): Effect.Effect<ClaimResult, E, R> =>
  Effect.map(
    Effect.withFiberRuntime<ClaimResult, E, R>((fiber) => {
      if (!isFiberTraced(fiber)) return claim
      const given = attributes(queue, "receive", "receive")
      return Effect.useSpan(
        `receive ${queue}`,
        { kind: "client", attributes: given, captureStackTrace: false },
        (span) =>
          claim.pipe(
            Effect.withParentSpan(span),
            Effect.tapBoth({
              onFailure: (error) => Effect.sync(() => span.attribute("error.type", errorType(error))),
              onSuccess: ({ jobs }) =>
                Effect.sync(() => {
                  span.attribute("messaging.batch.message_count", jobs.length)
                  const links = linksTo(jobs)
                  if (links.length > 0) span.addLinks(links)
                })
            })
          )
      )
    }),
    (result) => {
      if (result.jobs.length > 0) record(metrics(queue).claimed, result.jobs.length)
      return result
    }
  )

const wordOf = (row: ClaimedRow, settlement: Settlement): "ack" | "retry" | "release" | "fail" =>
  settlement._tag === "Ack"
    ? "ack"
    : settlement._tag === "Bury"
      ? "fail"
      : settlement.attempt < row.attempt
        ? "release"
        : "retry"

/** A settle by hand as a client's span: `ack`, `retry`, `release` or `fail`. Counted unless a worker counts it. */
export const settling = <E, R>(
  row: ClaimedRow,
  settlement: Settlement,
  byWorker: boolean,
  settle: Effect.Effect<Settlement, E, R>
): Effect.Effect<Settlement, E, R> =>
  Effect.withFiberRuntime<Settlement, E, R>((fiber) => {
    const counted = byWorker ? settle : Effect.tap(settle, (done) => Effect.sync(() => countSettled(row, done)))
    if (!isFiberTraced(fiber)) return counted
    const word = wordOf(row, settlement)
    const given = messages(attributes(row.queue, word, "settle"), [row])
    const options = { kind: "client", links: linksTo([row]), attributes: given, captureStackTrace: false } as const
    return Effect.useSpan(`${word} ${row.queue}`, options, (span) =>
      counted.pipe(
        Effect.withParentSpan(span),
        Effect.tapError((error) => Effect.sync(() => span.attribute("error.type", errorType(error))))
      )
    )
  })

/** A job that was settled by hand, in the counters of its queue. */
export const countSettled = (row: ClaimedRow, settlement: Settlement): void => {
  const of = metrics(row.queue)
  const word = wordOf(row, settlement)
  if (settlement._tag === "Bury") record(of.dead(settlement.reason), 1)
  else record(word === "ack" ? of.acked : word === "release" ? of.released : of.retried, 1)
}
