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

/** `lost`: the statement was executed, and its answer did not come. `after`: once it was executed. */
export type Fault =
  | { readonly _tag: "refused"; readonly code: string }
  | { readonly _tag: "lost"; readonly code: string }
  | { readonly _tag: "rests"; readonly millis: number }
  | { readonly _tag: "slow"; readonly millis: number; readonly after: boolean }
  | { readonly _tag: "killed"; readonly after: boolean }

const codes = ["SQLITE_IOERR_READ", "SQLITE_FULL", "SQLITE_BUSY", "SQLITE_CANTOPEN"]

/** Of ten thousand statements; and of those that only look whether there is something to do, which are most. */
const perTenThousand = { refused: 60, lost: 50, killed: 12, slow: 60 }
const ofLooks = { refused: 8, lost: 0, killed: 1, slow: 8 }
/** And of those that come seldom, and on which much depends. */
const ofRare = { refused: 150, lost: 120, killed: 60, slow: 350 }
const rare = /^\/\* alkstore:(schedule_(due|advance)|lock|lock_renew|unlock|renew_all|give_back|settle_find) /
const looks = /^\/\* alkstore:(claim_(ready|next)|schedule_next|sweep_\w+) /

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
    process.trouble()
    this.world.note(process.name, `is cut off for ${millis} ms`)
    this.outages.set(process, this.world.now + millis)
  }

  private noted(kind: FaultKind, by: Process, text: string): void {
    this.count(kind)
    by.trouble()
    this.world.note(by.name, `${kind}: ${/^\/\* (.*?) \*\//.exec(text)?.[1] ?? text.replace(/_\d+$/, "")}`)
  }

  ofStatement(by: Process, text: string, inTransaction: boolean): Fault | undefined {
    if (this.over) return undefined
    const { chance, now } = this.world
    // A rollback that a driver does not get through is done by the database, when it misses the client
    if (text.startsWith("ROLLBACK")) return undefined
    if ((this.outages.get(by) ?? 0) > now) {
      by.trouble()
      return { _tag: "refused", code: "SQLITE_CANTOPEN" }
    }
    // Between an answer and what is made of it there is time for anything
    if (chance.happens(0.02)) return { _tag: "rests", millis: chance.between(1, 30) }
    const dice = chance.below(10_000)
    let from = 0
    const share = looks.test(text) ? ofLooks : rare.test(text) ? ofRare : perTenThousand
    const falls = (some: number) => {
      from += some
      return dice < from
    }
    if (falls(share.refused)) {
      this.noted("refused", by, text)
      return { _tag: "refused", code: chance.pick(codes) }
    }
    if (falls(share.lost)) {
      // A COMMIT of SQLite that fails has not committed; what the caller does not hear of is what kills it
      if (text === "COMMIT") {
        this.noted("killed after a commit", by, text)
        return { _tag: "killed", after: true }
      }
      if (!inTransaction) return undefined
      this.noted("lost", by, text)
      return { _tag: "lost", code: chance.pick(codes) }
    }
    if (falls(share.killed)) {
      this.noted("killed in a statement", by, text)
      return { _tag: "killed", after: false }
    }
    if (falls(share.slow)) {
      this.noted("slow", by, text)
      const millis = chance.weighted([
        [8, chance.between(1, 50)],
        // Nobody else can write meanwhile: for somewhat longer than they wait
        [inTransaction ? 1 : 3, chance.between(1_000, inTransaction ? 7_000 : 15_000)],
        [inTransaction ? 0 : 1, chance.between(60_000, 600_000)]
      ])
      return { _tag: "slow", millis, after: chance.happens(0.5) }
    }
    return undefined
  }
}
