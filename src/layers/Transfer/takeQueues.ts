/**
 * A page of queues of an import: their settings, and whether their dead letters would come back to them.
 */
import { Effect } from "effect"
import { partition } from "effect/Array"
import type { Refusal } from "../../services/Transfer.js"
import { controlTopic } from "../../services/Wake.js"
import { fresh, nothing, type Of, type Take, talliesOf } from "./page.js"
import type { Given, Writes } from "./write.js"

export const takeQueues =
  (writes: Writes): Take<Of<"queue">> =>
  (session, origin, records) =>
    Effect.gen(function* () {
      const left = yield* fresh(writes, session, origin, "queue", records, ({ name }) => name)
      const [plain, leading] = partition(left, ({ deadLetterQueue }) => deadLetterQueue !== null)
      if (plain.length > 0) yield* writes.addQueues(session, plain as ReadonlyArray<Given>)
      // One after the other, so that none is stored that closes a circle
      const circular: Array<Of<"queue">> = []
      if (leading.length > 0) yield* writes.define.turn(session)
      for (const record of leading) {
        const { deadLetterQueue: to, name } = record
        const leadsBack = yield* writes.define.leadsTo(session, String(to), name)
        if (leadsBack) circular.push(record)
        yield* writes.addQueues(session, [leadsBack ? { ...record, deadLetterQueue: null } : record])
      }
      yield* writes.note(
        session,
        origin,
        "queue",
        left.map(({ name }) => ({ source: name, targetId: null }))
      )
      const topics = left.filter(({ pausedAt }) => pausedAt !== null).map(({ name }) => controlTopic(name))
      yield* writes.tell(session, topics)
      const refusals = circular.map(
        ({ deadLetterQueue, name }): Refusal => ({
          type: "queue",
          source: name,
          queue: name,
          reason: "deadLetterQueue",
          message: `queue ${name}: its dead letters would go to ${deadLetterQueue} and from there back to it; it is taken over without that`
        })
      )
      return { ...nothing, tallies: talliesOf(records, left), refusals, topics }
    })
