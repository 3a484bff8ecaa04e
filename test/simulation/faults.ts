/**
 * What can go wrong, how often, and how often it has: statements, wakes, processes and clocks.
 */
import type { Process, World } from "./world.js"

export const faultKinds = [
  "refused",
  "lost",
  "slow",
  "busy",
  "outage",
  "killed in a statement",
  "killed after a commit",
  "killed",
  "stopped",
  "deploy",
  "clock step",
  "wake lost",
  "wake late",
  "wake spurious"
] as const

export type FaultKind = (typeof faultKinds)[number]

/** `lost`: the statement was executed, and its answer did not come. */
export type Fault =
  | { readonly _tag: "refused"; readonly code: string }
  | { readonly _tag: "lost"; readonly code: string }
  | { readonly _tag: "slow"; readonly millis: number }
  | { readonly _tag: "killed"; readonly after: boolean }

const codes = ["SQLITE_IOERR_READ", "SQLITE_FULL", "SQLITE_BUSY", "SQLITE_CANTOPEN"]

/** Of ten thousand statements. */
const perTenThousand = { refused: 15, lost: 8, killed: 2, slow: 12 }

export class Faults {
  readonly counts = new Map<FaultKind, number>(faultKinds.map((kind) => [kind, 0]))
  /** When everything is well again. */
  over = false
  /** Of each process that cannot reach the database: until when. */
  private readonly outages = new WeakMap<Process, number>()

  constructor(
    private readonly world: World,
    /** What becomes of a process that is killed. */
    readonly bury: (process: Process) => void
  ) {}

  count(kind: FaultKind): void {
    this.counts.set(kind, (this.counts.get(kind) ?? 0) + 1)
  }

  kill(process: Process): void {
    if (process.state !== "dead") this.bury(process)
  }

  /** The process does not reach the database for so long. */
  cutOff(process: Process, millis: number): void {
    this.count("outage")
    process.troubles++
    this.world.note(process.name, `is cut off for ${millis} ms`)
    this.outages.set(process, this.world.now + millis)
  }

  private noted(kind: FaultKind, by: Process, text: string): void {
    this.count(kind)
    by.troubles++
    this.world.note(by.name, `${kind}: ${/^\/\* (.*?) \*\//.exec(text)?.[1] ?? text.replace(/_\d+$/, "")}`)
  }

  ofStatement(by: Process, text: string, inTransaction: boolean): Fault | undefined {
    if (this.over) return undefined
    const { chance, now } = this.world
    // A rollback that a driver does not get through is done by the database, when it misses the client
    if (text.startsWith("ROLLBACK")) return undefined
    if ((this.outages.get(by) ?? 0) > now) {
      by.troubles++
      return { _tag: "refused", code: "SQLITE_CANTOPEN" }
    }
    const dice = chance.below(10_000)
    let from = 0
    const falls = (share: number) => {
      from += share
      return dice < from
    }
    if (falls(perTenThousand.refused)) {
      this.noted("refused", by, text)
      return { _tag: "refused", code: chance.pick(codes) }
    }
    if (falls(perTenThousand.lost)) {
      // A COMMIT of SQLite that fails has not committed; what the caller does not hear of is what kills it
      if (text === "COMMIT") {
        this.noted("killed after a commit", by, text)
        return { _tag: "killed", after: true }
      }
      if (!inTransaction) return undefined
      this.noted("lost", by, text)
      return { _tag: "lost", code: chance.pick(codes) }
    }
    if (falls(perTenThousand.killed)) {
      this.noted("killed in a statement", by, text)
      return { _tag: "killed", after: false }
    }
    if (falls(perTenThousand.slow)) {
      this.noted("slow", by, text)
      return {
        _tag: "slow",
        millis: chance.weighted([
          [12, chance.between(1, 50)],
          [1, chance.between(1_000, 12_000)]
        ])
      }
    }
    return undefined
  }
}
