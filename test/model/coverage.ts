/** What has to happen for the model test to mean something: each command, in each of its interesting ways. */

const settles = ["ack", "retry", "fail", "release", "snooze"]

/** Each of these happens in the short form, on each engine. */
const wanted: ReadonlyArray<string> = [
  ...["", ": batch", ": none", ": ready", ": delayed", ": blocked", ": deduplicated", ": replaced"].map(
    (way) => `enqueue${way}`
  ),
  ...["not replaced, leased", "held by a window", "InvalidArgument", "InvalidPayload"].map((way) => `enqueue: ${way}`),
  ...["", ": none", ": several", ": paused", ": ordered", ": last attempt", ": frees a key"].map(
    (way) => `claim${way}`
  ),
  ...["after a crash", "after a failure", "after a requeue", "progress", "expires"].map((way) => `claim: ${way}`),
  ...["recovered", "crashed"].flatMap((way) => [`claim: lapsed, ${way}`, `sweep: ${way}`]),
  ...settles.flatMap((how) => [`settle: ${how}`, `settle: ${how}, lease lost`]),
  "settle: exhausted",
  "settle: after the lease's end",
  "undecodable: back",
  "undecodable: dead",
  "ackMany",
  "ackMany: mixed",
  ...["", ": progress", ": lease lost", ": after the lease's end"].map((way) => `heartbeat${way}`),
  ...["renewed", "cancelled", "lost", "gone"].map((way) => `beat: ${way}`),
  ...["", ": ahead", ": leaves one to a free handler"].map((way) => `fetch${way}`),
  ...["cancelled", "requested", "tooLate"].map((way) => `cancel: ${way}`),
  "cancelMany",
  ...["any", "all", "orderingKey", "dedupeKey", "state", "several", "keyAndState", "age"].map((by) => `jobs by: ${by}`),
  ...["any", "all", "orderingKey", "reason", "error", "older", "younger", "several", "keyAndReason"].map(
    (by) => `letters by: ${by}`
  ),
  ...["changed", "leased", "tooLate"].map((way) => `change: ${way}`),
  "clear",
  "pause: changed",
  "resume: changed",
  ...["", ": at the head", ": joins the end", ": with a key", ": key held", ": not accepted"].map(
    (way) => `requeue${way}`
  ),
  "requeue: to another queue",
  "purge",
  "purge: frees an ordering key",
  ...["", ": expired", ": purged"].map((way) => `sweep${way}`),
  ...["created", "changed", "unchanged", "paused", "resumed", "removed", "triggered"].map((way) => `schedule: ${way}`),
  ...["not found", "fires what is owed"].map((way) => `schedule: ${way}`),
  ...["", ": none", ": one", ": catches up", ": skipped", ": overlap"].map((way) => `fire${way}`),
  ...["lock", "lock: held", "relock", "relock: lost", "unlock", "unlock: lost", "forceUnlock"],
  "advance",
  "crash",
  ...["committed", "rolled back", "failed with a command"].map((way) => `transaction: ${way}`),
  ...["committed", "rolled back"].map((way) => `transaction: nested, ${way}`),
  ...[
    "enqueue",
    "claim",
    "settle",
    "ackMany",
    "cancel",
    "cancelMany",
    "change",
    "clear",
    "pause",
    "requeue",
    "purge"
  ].map((command) => `within a transaction: ${command}`)
]

export const missing = (counts: ReadonlyMap<string, number>): ReadonlyArray<string> =>
  wanted.filter((what) => !counts.has(what))

export interface Totals {
  readonly sequences: number
  readonly commands: number
  /** Of the ends of sequences, where everything that is left is done. */
  readonly draining: number
  readonly seed: number
}

export const summary = (engine: string, totals: Totals, counts: ReadonlyMap<string, number>): string => {
  const { commands, draining, seed, sequences } = totals
  const by = [...counts].sort(([a], [b]) => (a < b ? -1 : 1)).map(([what, many]) => `${what} ${many}`)
  return `model (${engine}): ${sequences} sequences, ${commands} commands and ${draining} to drain, seed ${seed}, by command: ${by.join("; ")}`
}
