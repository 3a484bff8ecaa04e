/**
 * What the kinds of records of an import have in common: what is new, and what became of it.
 */
import { Effect } from "effect"
import type { StoreError } from "../../services/Errors.js"
import type { Refusal, Tally } from "../../services/Transfer.js"
import type { TransferRecord } from "../../services/TransferRecord.js"
import type { Session } from "../engine.js"
import type { Writes } from "./write.js"

export type Of<Type extends TransferRecord["type"]> = Extract<TransferRecord, { readonly type: Type }>

/** What became of a page. */
export interface Taken {
  readonly tallies: ReadonlyArray<readonly [TransferRecord["type"], Tally]>
  readonly refusals: ReadonlyArray<Refusal>
  /** Ordering keys, by `placeOf`, of which a job was refused. */
  readonly waiting: ReadonlyArray<string>
  /** Queues with ordering keys that may have a first job now. */
  readonly keyed: ReadonlySet<string>
  readonly topics: ReadonlyArray<string>
}

export type Take<R> = (
  session: Session,
  origin: string,
  records: ReadonlyArray<R>,
  waiting: ReadonlySet<string>
) => Effect.Effect<Taken, StoreError>

export const nothing = { refusals: [], waiting: [], keyed: new Set<string>(), topics: [] }

/** What became of records of each type: imported, refused, or there before. */
export const talliesOf = <R extends TransferRecord>(
  records: ReadonlyArray<R>,
  imported: ReadonlyArray<TransferRecord>,
  refused: ReadonlyArray<TransferRecord> = []
): Taken["tallies"] =>
  [...new Set(records.map(({ type }) => type))].map((of) => {
    const count = (some: ReadonlyArray<TransferRecord>) => some.filter(({ type }) => type === of).length
    const tally = { imported: count(imported), refused: count(refused) }
    return [of, { ...tally, skipped: count(records) - tally.imported - tally.refused }] as const
  })

/** Those of the page that nobody has taken over yet; a page may name one twice. */
export const fresh = <R>(
  writes: Writes,
  session: Session,
  origin: string,
  kind: string,
  records: ReadonlyArray<R>,
  sourceOf: (record: R) => string
) =>
  Effect.gen(function* () {
    yield* writes.lock(session)
    const met = new Set((yield* writes.known(session, origin, kind, records.map(sourceOf))).keys())
    return records.filter((record) => {
      const source = sourceOf(record)
      return !met.has(source) && met.add(source) !== undefined
    })
  })
