/**
 * The verbs of one namespace, their statements compiled once.
 */
import type { Database } from "../Database/Database.js"
import { type Statement, statement } from "../engine.js"
import { claim } from "./statements/claim.js"
import { define } from "./statements/define.js"
import { enqueue } from "./statements/enqueue.js"
import { list } from "./statements/list.js"
import { renew } from "./statements/renew.js"
import { settle } from "./statements/settle.js"
import { sweep } from "./statements/sweep.js"

export interface SqlQueueOptions {
  /** Send a NOTIFY with what makes work visible (PostgreSQL). */
  readonly notify: boolean
}

export interface Verbs {
  readonly present: Statement
  readonly define: ReturnType<(typeof define)["postgres"]>
  readonly enqueue: ReturnType<(typeof enqueue)["postgres"]>
  readonly claim: ReturnType<(typeof claim)["postgres"]>
  readonly settle: ReturnType<(typeof settle)["postgres"]>
  readonly renew: ReturnType<(typeof renew)["postgres"]>
  readonly sweep: ReturnType<(typeof sweep)["postgres"]>
  readonly list: ReturnType<(typeof list)["postgres"]>
}

export const makeVerbs = ({ names }: Database, { notify }: SqlQueueOptions): Verbs => ({
  present: statement(names, "present", `SELECT ${names.now} AS now`),
  define: define[names.engine](names),
  enqueue: enqueue[names.engine](names, notify),
  claim: claim[names.engine](names),
  settle: settle[names.engine](names, notify),
  renew: renew[names.engine](names),
  sweep: sweep[names.engine](names),
  list: list[names.engine](names)
})
