/**
 * The verbs of one namespace, their statements compiled once.
 */
import type { Effect, Scope } from "effect"
import type { Database } from "../Database/Database.js"
import { type Statement, statement } from "../engine.js"
import type { Echoes } from "../Wake/echoes.js"
import { claim } from "./statements/claim.js"
import { counts } from "./statements/counts.js"
import { define } from "./statements/define.js"
import { enqueue } from "./statements/enqueue.js"
import { handOver } from "./statements/handOver.js"
import { inspect } from "./statements/inspect.js"
import { type Lanes, lanes } from "./statements/lanes.js"
import { letters } from "./statements/letters.js"
import { operate } from "./statements/operate.js"
import { renew } from "./statements/renew.js"
import { select } from "./statements/select.js"
import { settle } from "./statements/settle.js"
import { sweep } from "./statements/sweep.js"

export interface SqlQueueOptions {
  /** Send a NOTIFY with what makes work visible (PostgreSQL). */
  readonly notify: boolean
  /** Whom to tell of notifications that this process need not hear. */
  readonly echoes?: Echoes | undefined
  /** See the service; default: one that is closed by nobody else. */
  readonly innerScope?: Effect.Effect<Scope.CloseableScope> | undefined
}

export interface Verbs {
  readonly present: Statement
  readonly define: ReturnType<(typeof define)["postgres"]>
  readonly enqueue: ReturnType<(typeof enqueue)["postgres"]>
  readonly handOver: ReturnType<(typeof handOver)["postgres"]>
  readonly claim: ReturnType<(typeof claim)["postgres"]>
  readonly settle: ReturnType<(typeof settle)["postgres"]>
  readonly renew: ReturnType<(typeof renew)["postgres"]>
  readonly sweep: ReturnType<(typeof sweep)["postgres"]>
  readonly lanes: Lanes
  readonly select: ReturnType<(typeof select)["postgres"]>
  readonly counts: ReturnType<(typeof counts)["postgres"]>
  readonly inspect: ReturnType<(typeof inspect)["postgres"]>
  readonly letters: ReturnType<(typeof letters)["postgres"]>
  readonly operate: ReturnType<(typeof operate)["postgres"]>
}

export const makeVerbs = ({ names }: Database, { notify }: SqlQueueOptions): Verbs => ({
  present: statement(names, "present", `SELECT ${names.now} AS now`),
  define: define[names.engine](names),
  enqueue: enqueue[names.engine](names, notify),
  handOver: handOver[names.engine](names, notify),
  claim: claim[names.engine](names),
  settle: settle[names.engine](names, notify),
  renew: renew[names.engine](names),
  sweep: sweep[names.engine](names, notify),
  lanes: lanes[names.engine](names, notify),
  select: select[names.engine](names),
  counts: counts[names.engine](names),
  inspect: inspect[names.engine](names),
  letters: letters[names.engine](names, notify),
  operate: operate[names.engine](names, notify)
})
