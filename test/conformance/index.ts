/** Every promise of the store, the locks, the wakes and the workers, put to one engine. */
import { besideSuite } from "./beside.js"
import { claimSuite } from "./claim.js"
import { deadLetterQueuesSuite } from "./deadLetterQueues.js"
import { deadLettersSuite } from "./deadLetters.js"
import { dedupeSuite } from "./dedupe.js"
import { dedupeOptionsSuite } from "./dedupeOptions.js"
import { enqueueSuite } from "./enqueue.js"
import { errorsSuite } from "./errors.js"
import { expirySuite } from "./expiry.js"
import { groupCommitSuite } from "./groupCommit.js"
import { introspectionSuite } from "./introspection.js"
import { leaseSuite } from "./lease.js"
import { lockSuite } from "./lock.js"
import { namespaceSuite } from "./namespace.js"
import { operationsSuite } from "./operations.js"
import { orderingSuite } from "./ordering.js"
import { outboxSuite } from "./outbox.js"
import { refusalSuite } from "./refusal.js"
import { retentionSuite } from "./retention.js"
import { schedulesSuite } from "./schedules.js"
import { settleSuite } from "./settle.js"
import { settleManySuite } from "./settleMany.js"
import type { Suite } from "./support.js"
import { textSuite } from "./text.js"
import { transactionSuite } from "./transaction.js"
import { wakeSuite } from "./wake.js"
import { workerBatchSuite } from "./workerBatch.js"
import { workerControlSuite } from "./workerControl.js"
import { workerEndingsSuite } from "./workerEndings.js"
import { workerFaultsSuite } from "./workerFaults.js"
import { workerHandOverSuite } from "./workerHandOver.js"
import { workerIsolationSuite } from "./workerIsolation.js"
import { workerLeasesSuite } from "./workerLeases.js"
import { workerOrderingSuite } from "./workerOrdering.js"
import { workerOutagesSuite } from "./workerOutages.js"
import { workerShutdownSuite } from "./workerShutdown.js"
import { workerSlotsSuite } from "./workerSlots.js"
import { workerSupervisorSuite } from "./workerSupervisor.js"
import { workerTelemetrySuite } from "./workerTelemetry.js"
import { workerTimesSuite } from "./workerTimes.js"
import { workerTransactionalSuite } from "./workerTransactional.js"

export type { ConformanceOptions } from "./support.js"

const suites: ReadonlyArray<Suite> = [
  enqueueSuite,
  refusalSuite,
  textSuite,
  dedupeSuite,
  claimSuite,
  settleSuite,
  settleManySuite,
  leaseSuite,
  expirySuite,
  errorsSuite,
  transactionSuite,
  groupCommitSuite,
  lockSuite,
  wakeSuite,
  namespaceSuite
]

const operationSuites: ReadonlyArray<Suite> = [
  besideSuite,
  orderingSuite,
  schedulesSuite,
  deadLettersSuite,
  deadLetterQueuesSuite,
  retentionSuite,
  dedupeOptionsSuite,
  operationsSuite,
  introspectionSuite
]

const workerSuites: ReadonlyArray<Suite> = [
  outboxSuite,
  workerEndingsSuite,
  workerSlotsSuite,
  workerHandOverSuite,
  workerIsolationSuite,
  workerLeasesSuite,
  workerTelemetrySuite,
  workerTimesSuite,
  workerFaultsSuite,
  workerOutagesSuite,
  workerOrderingSuite,
  workerShutdownSuite,
  workerControlSuite,
  workerTransactionalSuite,
  workerBatchSuite,
  workerSupervisorSuite
]

/** The store, the locks and the wakes. */
export const conformance: Suite = (engine, options) => {
  for (const suite of suites) suite(engine, options)
}

/** Ordering keys, schedules, dead letters and what operators do. */
export const operationsConformance: Suite = (engine, options) => {
  for (const suite of operationSuites) suite(engine, options)
}

/** The workers, in files of their own: they take as long again. */
export const workerConformance: Suite = (engine, options) => {
  for (const suite of workerSuites) suite(engine, options)
}
