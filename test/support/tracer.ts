/** A tracer that keeps its spans. */
import { type Context, type Exit, Option, Tracer } from "effect"

export interface Recorded {
  readonly name: string
  readonly kind: Tracer.SpanKind
  readonly traceId: string
  readonly spanId: string
  readonly parent: Tracer.AnySpan | undefined
  readonly links: Array<Tracer.SpanLink>
  readonly attributes: ReadonlyMap<string, unknown>
  /** How it ended, once it has. */
  exit: Exit.Exit<unknown, unknown> | undefined
}

export interface Recorder {
  readonly tracer: Tracer.Tracer
  /** In the order of their starts. */
  readonly spans: ReadonlyArray<Recorded>
  readonly named: (name: string) => ReadonlyArray<Recorded>
}

let counter = 0

const hex = (digits: number) => (++counter).toString(16).padStart(digits, "a")

export const makeRecorder = (options: { readonly sampled?: boolean } = {}): Recorder => {
  const spans: Array<Recorded> = []
  const span = (
    name: string,
    parent: Option.Option<Tracer.AnySpan>,
    context: Context.Context<never>,
    links: ReadonlyArray<Tracer.SpanLink>,
    startTime: bigint,
    kind: Tracer.SpanKind
  ): Tracer.Span => {
    const attributes = new Map<string, unknown>()
    const traceId = Option.match(parent, { onNone: () => hex(32), onSome: (of) => of.traceId })
    const recorded: Recorded = {
      name,
      kind,
      traceId,
      spanId: hex(16),
      parent: Option.getOrUndefined(parent),
      links: [...links],
      attributes,
      exit: undefined
    }
    spans.push(recorded)
    let status: Tracer.SpanStatus = { _tag: "Started", startTime }
    return {
      _tag: "Span",
      name,
      spanId: recorded.spanId,
      traceId,
      parent,
      context,
      get status() {
        return status
      },
      attributes,
      links,
      sampled: options.sampled ?? true,
      kind,
      end: (endTime, exit) => {
        status = { _tag: "Ended", startTime, endTime, exit }
        recorded.exit = exit
      },
      attribute: (key, value) => void attributes.set(key, value),
      event: () => {},
      addLinks: (more) => void recorded.links.push(...more)
    }
  }
  return {
    tracer: Tracer.make({ span, context: (execution) => execution() }),
    spans,
    named: (name) => spans.filter((each) => each.name === name)
  }
}
