/**
 * The world: virtual time, and processes whose fibers run only when the world lets them. Nothing here waits for real
 * time or for Node's event loop, so what happens is decided by the seed alone.
 *
 * Effect's TestClock is one clock for all, and lets milliseconds of real time pass for each timer. Here each process has
 * a clock of its own, and days take a fraction of a second.
 */
import { Clock, Duration, Effect } from "effect"
import { defaultScheduler, PriorityBuckets, type Scheduler, type Task } from "effect/Scheduler"
import { type Chance, makeChance } from "./random.js"

interface Timer {
  readonly at: number
  /** Undefined when it was cancelled. */
  run: (() => void) | undefined
}

/** More steps than any instant takes: somebody runs in circles. */
const mostSteps = 1_000_000

/** Timers of Node reach no further: a longer sleep would never end, and neither does it here. */
const longestTimer = 2 ** 31 - 1

export class World {
  now: number
  readonly chance: Chance
  readonly trace: Array<string> = []
  /** The latest first, so that the next one is at the end. */
  private readonly timers: Array<Timer> = []
  private ready: Array<Process> = []

  constructor(
    readonly seed: number,
    start: number
  ) {
    this.now = start
    this.chance = makeChance(seed)
  }

  note(who: string, what: string): void {
    this.trace.push(`${new Date(this.now).toISOString()} ${who} ${what}`)
  }

  after(millis: number, run: () => void): () => void {
    const timer: Timer = { at: this.now + Math.max(0, Math.ceil(millis)), run }
    let low = 0
    let high = this.timers.length
    while (low < high) {
      const middle = (low + high) >>> 1
      // Behind those of the same instant: they are fired in the order in which they were set
      if ((this.timers[middle] as Timer).at > timer.at) low = middle + 1
      else high = middle
    }
    this.timers.splice(low, 0, timer)
    return () => {
      timer.run = undefined
    }
  }

  offer(process: Process): void {
    if (!this.ready.includes(process)) this.ready.push(process)
  }

  /** Runs what is ready, process by process as chance will have it, until nothing is. */
  private settle(): void {
    for (let steps = 0; this.ready.length > 0; steps++) {
      if (steps > mostSteps) throw new Error(`time stands still: ${this.ready.map(({ name }) => name)} run in circles`)
      const at = this.chance.below(this.ready.length)
      const process = this.ready[at] as Process
      if (!process.runOne()) this.ready.splice(this.ready.indexOf(process), 1)
    }
  }

  /** Lets time pass until that instant, or until it is `enough`. */
  advance(until: number, enough: () => boolean = () => false): void {
    for (;;) {
      this.settle()
      if (enough()) return
      const next = this.timers.at(-1)
      if (next === undefined || next.at > until) break
      this.timers.pop()
      this.now = next.at
      next.run?.()
    }
    this.now = until
  }
}

/** One process of the fleet, from its start to its death: a scheduler of fibers, and a clock. */
export class Process implements Scheduler {
  /** `stopped` as by SIGSTOP: no fiber runs, no timer is noticed, and nothing knows of it. */
  state: "running" | "stopped" | "dead" = "running"
  /** How often it has been stopped. */
  stops = 0
  /** What has befallen it, that included: reasons for which it may do less than it should; and when it was the last time. */
  troubles = 0
  troubledAt = Number.NEGATIVE_INFINITY
  /** When it went on after it had stood still, the last time. */
  wentOnAt = Number.NEGATIVE_INFINITY
  /** When a transaction of its own that took time ended. */
  wroteUntil = Number.NEGATIVE_INFINITY
  /** Of each queue that it works on: how many handlers it may run, and how many it runs. */
  leaving = false
  readonly startedAt: number
  readonly slots = new Map<string, { readonly size: number; running: number }>()
  /** When it has told others of a topic, the last time. */
  readonly rang = new Map<string, number>()
  /** What its wall clock is ahead of the world's. */
  skew: number
  readonly clock: Clock.Clock
  private tasks = new PriorityBuckets()
  private turn: Array<Task> = []
  private overdue: Array<() => void> = []

  constructor(
    readonly world: World,
    readonly name: string,
    skew: number,
    /** When its machine was switched on: its monotonic clock has nothing to do with any calendar. */
    private readonly bootedAt: number
  ) {
    this.skew = skew
    this.startedAt = world.now
    this.clock = makeClock(this)
  }

  readonly shouldYield: Scheduler["shouldYield"] = (fiber) => defaultScheduler.shouldYield(fiber)

  readonly scheduleTask: Scheduler["scheduleTask"] = (task, priority) => {
    if (this.state === "dead") return
    this.tasks.scheduleTask(task, priority)
    if (this.state === "running") this.world.offer(this)
  }

  /** One step of one fiber; answers whether there may be another. */
  runOne(): boolean {
    if (this.state !== "running") return false
    if (this.turn.length === 0) {
      this.turn = this.tasks.buckets.flatMap(([, tasks]) => tasks).reverse()
      this.tasks.buckets = []
    }
    const task = this.turn.pop()
    task?.()
    return task !== undefined
  }

  after(millis: number, run: () => void): () => void {
    let cancelled = false
    const fire = () => {
      if (cancelled || this.state === "dead") return
      if (this.state === "stopped") this.overdue.push(fire)
      else run()
    }
    this.world.after(millis, fire)
    return () => {
      cancelled = true
    }
  }

  /** Something befalls it. */
  trouble(): void {
    this.troubles++
    this.troubledAt = this.world.now
  }

  /** As by SIGSTOP. */
  stop(): void {
    if (this.state !== "running") return
    this.state = "stopped"
    this.stops++
    this.trouble()
  }

  /** Others have its processor for some milliseconds: no trouble for anybody. */
  rest(millis: number): void {
    if (this.state !== "running") return
    this.state = "stopped"
    const { stops } = this
    this.world.after(millis, () => {
      if (this.stops === stops) this.goOn()
    })
  }

  /** As by SIGCONT: all timers that are overdue are noticed at once. */
  go(): void {
    if (this.state !== "stopped") return
    this.wentOnAt = this.world.now
    this.troubledAt = this.world.now
    this.goOn()
  }

  private goOn(): void {
    if (this.state !== "stopped") return
    this.state = "running"
    for (const fire of this.overdue.splice(0)) fire()
    this.world.offer(this)
  }

  /** As by SIGKILL: no finalizer runs, nothing is handed back. */
  kill(): void {
    this.state = "dead"
    this.tasks = new PriorityBuckets()
    this.turn = []
    this.overdue = []
  }

  monotonic(): number {
    return this.world.now - this.bootedAt
  }
}

const makeClock = (process: Process): Clock.Clock => {
  const millis = () => process.world.now + process.skew
  const nanos = () => BigInt(process.monotonic()) * 1_000_000n
  const schedule: Clock.ClockScheduler = {
    unsafeSchedule: (task, duration) => {
      const length = Duration.toMillis(duration)
      if (length > longestTimer) return () => false
      let done = false
      const cancel = process.after(Math.max(1, length), () => {
        done = true
        task()
      })
      return () => {
        cancel()
        return !done
      }
    }
  }
  return {
    [Clock.ClockTypeId]: Clock.ClockTypeId,
    unsafeCurrentTimeMillis: millis,
    unsafeCurrentTimeNanos: nanos,
    currentTimeMillis: Effect.sync(millis),
    currentTimeNanos: Effect.sync(nanos),
    scheduler: () => Effect.succeed(schedule),
    sleep: (duration) =>
      Effect.async<void>((resume) => {
        const cancel = schedule.unsafeSchedule(() => resume(Effect.void), duration)
        return Effect.sync(() => void cancel())
      })
  } as Clock.Clock
}
