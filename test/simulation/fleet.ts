/**
 * The fleet: hosts that each run one process at a time, made of the product's own Layers over its own client of the one
 * database, with a clock and wakes of its own. A process that dies is started again, as by a process manager.
 */
import { SqlClient } from "@effect/sql"
import { Supervisor } from "alkstore"
import {
  Cause,
  type Context,
  Duration,
  Effect,
  Exit,
  type Fiber,
  Layer,
  Logger,
  LogLevel,
  Random,
  Schedule
} from "effect"
import { makeSqliteDatabase, type SqliteSettings } from "../../src/layers/Database/SqliteDatabase.js"
import { sqliteNames } from "../../src/layers/engine.js"
import { migrate } from "../../src/layers/Queue/migrations/migrate.js"
import { makeWakeHub, type WakeHub } from "../../src/layers/Wake/WakeHub.js"
import { services } from "../../src/Sqlite.js"
import { Clock, type Service as ClockService } from "../../src/services/Clock.js"
import { Wake } from "../../src/services/Wake.js"
import * as Scheduler from "../../src/workers/Scheduler.js"
import * as Sweeper from "../../src/workers/Sweeper.js"
import { FleetDatabase } from "./database.js"
import { Faults } from "./faults.js"
import { makeHandlers } from "./handlers.js"
import type { Oracle } from "./oracle/oracle.js"
import { sweepMinutes } from "./queues.js"
import { Process, type World } from "./world.js"

const names = sqliteNames("_alkstore_")
const settings: SqliteSettings = { busyTimeout: 5, busyLimit: "5 seconds", synchronous: "NORMAL" }

/** How often each looks for what no wake told it of, and how often it sweeps: rarer than by default, so that days are short. */
const pollMinutes = 45
const sweeping = Schedule.jittered(Schedule.spaced(Duration.minutes(sweepMinutes)))

export type Services = Layer.Layer.Success<ReturnType<typeof services>> | Wake | Clock | SqlClient.SqlClient

export interface Host {
  readonly index: number
  process: Process | undefined
  /** The services of its process, once it has started. */
  context: Context.Context<Services> | undefined
  fiber: Fiber.RuntimeFiber<unknown, unknown> | undefined
  /** It is being shut down; and what had befallen it before. */
  leaving: boolean
  troubles: number
  wakes: WakeHub | undefined
  /** What its process has ever listened to. */
  topics: Set<string>
  starts: number
  /** What its wall clock is ahead of the database's. */
  skew: number
}

export const hostCount = 10

export class Fleet {
  readonly hosts: ReadonlyArray<Host> = Array.from({ length: hostCount }, (_, index) => ({
    index,
    process: undefined,
    context: undefined,
    fiber: undefined,
    leaving: false,
    troubles: 0,
    wakes: undefined,
    topics: new Set(),
    starts: 0,
    skew: 0
  }))
  readonly database: FleetDatabase
  readonly faults: Faults
  /** Nobody is told of anything any more: all is found by polling. */
  silent = false
  /** Told of each process that begins to run a handler, and whether that takes its time. */
  ambush: (process: Process, long: boolean) => void = () => {}

  constructor(
    readonly world: World,
    readonly oracle: Oracle
  ) {
    this.faults = new Faults(world, (process) => this.killed(process))
    this.database = new FleetDatabase(world, this.faults, oracle.commit)
    for (const host of this.hosts) {
      // Most are seconds off, one is on another day
      const off = world.chance.weighted([
        [6, 5_000],
        [3, 600_000],
        [1, 86_400_000]
      ])
      host.skew = world.chance.between(-off, off)
    }
  }

  /** Brings the tables up to date, before anything can go wrong. */
  migrate(): void {
    const process = new Process(this.world, "operator", 0, this.world.now)
    this.faults.over = true
    const made = this.run(
      process,
      Effect.flatMap(this.database.client(process), (sql) =>
        Effect.flatMap(makeSqliteDatabase(sql, names, this.clock(process), settings), (db) => migrate(db, "migrate"))
      )
    )
    this.world.advance(this.world.now)
    const exit = made.unsafePoll()
    if (exit === null || Exit.isFailure(exit)) throw new Error(`the tables could not be made: ${exit}`)
    process.kill()
    this.database.watch()
    this.faults.over = false
  }

  /** Whoever could do something now. */
  able(): ReadonlyArray<Host> {
    return this.hosts.filter(({ context, leaving, process }) => context && !leaving && process?.state === "running")
  }

  start(host: Host): void {
    const { chance } = this.world
    const process = new Process(
      this.world,
      `h${host.index}.${++host.starts}`,
      host.skew,
      this.world.now - chance.below(10 ** 9)
    )
    host.process = process
    host.leaving = false
    this.world.note(process.name, "starts")
    host.fiber = this.run(process, Effect.scoped(this.program(host, process)))
    host.fiber.addObserver(() => this.ended(host, process))
  }

  /** As by SIGTERM. */
  shutDown(host: Host): void {
    const { fiber, process } = host
    if (fiber === undefined || process === undefined || host.leaving) return
    host.leaving = true
    process.leaving = true
    this.faults.count("deploy")
    process.trouble()
    host.troubles = process.troubles
    this.world.note(process.name, "is to end")
    fiber.unsafeInterruptAsFork(fiber.id())
    this.world.offer(process)
  }

  /** Runs an effect in a host's process, beside its workers. */
  fork(host: Host, effect: Effect.Effect<unknown, unknown, Services>): void {
    const { context, process } = host
    if (context === undefined || process === undefined) return
    this.run(process, Effect.provide(effect, context))
  }

  private run<A, E>(process: Process, effect: Effect.Effect<A, E>): Fiber.RuntimeFiber<A, E> {
    const alone = effect.pipe(
      Effect.withClock(process.clock),
      Effect.withRandom(Random.make(`${this.world.seed} ${process.name}`)),
      Effect.withTracerEnabled(false),
      Logger.withMinimumLogLevel(LogLevel.Error),
      Effect.provide(Logger.replace(Logger.defaultLogger, this.logger(process)))
    )
    return Effect.runFork(alone, { scheduler: process, immediate: false })
  }

  /** No fault that is injected here is a reason for an error in the log, but of a loop that has died and those that say so. */
  private logger(process: Process): Logger.Logger<unknown, void> {
    return Logger.make(({ cause, message }) => {
      this.world.note(process.name, `logs ${String(message)}`)
      if (/died/.test(String(message)))
        this.oracle.court.wrong(`${process.name} logs ${String(message)}: ${Cause.pretty(cause)}`)
    })
  }

  private clock(process: Process): ClockService {
    return {
      // As a server's: statements are stamped by the database, and its clients may think what they like
      source: "database",
      virtual: false,
      now: Effect.sync(() => this.world.now),
      monotonic: Effect.sync(() => process.monotonic()),
      monotonicOf: () => process.monotonic(),
      stall: () => Effect.succeed({ millis: 0, mark: 0 }),
      lull: () => Effect.void,
      breath: (call) => call
    }
  }

  private program(host: Host, process: Process) {
    return Effect.gen(this, function* () {
      const hub = makeWakeHub({ _tag: "Live" }, Duration.minutes(pollMinutes))
      const sql = yield* this.database.client(process)
      const clock = this.clock(process)
      const db = yield* makeSqliteDatabase(sql, names, clock, settings)
      yield* migrate(db, "migrate")
      const wake: Wake["Type"] = {
        ...hub.service,
        subscribe: (topic) => {
          host.topics.add(topic)
          return hub.service.subscribe(topic)
        },
        wake: (topics) => Effect.sync(() => this.told(host, hub, [...topics]))
      }
      const base = Layer.mergeAll(
        Layer.succeed(Wake, wake),
        Layer.succeed(Clock, { ...clock, now: Effect.sync(() => this.world.now + process.skew) }),
        Layer.succeed(SqlClient.SqlClient, sql)
      )
      const engine = Layer.provideMerge(services(db), base)
      const all = Layer.provideMerge(Layer.merge(Sweeper.layer({ schedule: sweeping }), Scheduler.layer), engine)
      const context = yield* Layer.build(all)
      host.wakes = hub
      host.context = context
      yield* Effect.provide(Supervisor.make(makeHandlers(this, host, process)), context)
      yield* Effect.never
    })
  }

  /** A wake of one process, which the others hear of, or not, or late. */
  private told(host: Host, hub: WakeHub, topics: ReadonlyArray<string>): void {
    hub.wake(topics)
    const { chance } = this.world
    if (host.process !== undefined) this.oracle.rings(host.process, topics)
    for (const other of this.hosts) {
      if (other === host || other.wakes === undefined || !topics.some((topic) => other.topics.has(topic))) continue
      const fate = this.faults.over ? (this.silent ? "lost" : "well") : chance.weighted(fates)
      if (fate === "lost") {
        this.faults.count("wake lost")
        continue
      }
      if (fate === "late") this.faults.count("wake late")
      const { process, wakes } = other
      const delay = fate === "late" ? chance.between(1_000, 600_000) : chance.between(1, 20)
      process?.after(delay, () => {
        wakes.wake(topics)
        this.oracle.told(process, topics)
      })
    }
  }

  private killed(process: Process): void {
    const host = this.hosts.find((one) => one.process === process)
    this.world.note(process.name, "is killed")
    process.kill()
    this.database.abandon(process)
    if (host !== undefined) this.restart(host)
  }

  private ended(host: Host, process: Process): void {
    if (process.state === "dead") return
    this.world.note(process.name, host.leaving ? "has ended" : "could not start")
    if (host.leaving && host.troubles === process.troubles) this.oracle.leaves(process)
    process.kill()
    this.database.abandon(process)
    this.restart(host)
  }

  private restart(host: Host): void {
    host.process = undefined
    host.context = undefined
    host.fiber = undefined
    host.wakes = undefined
    host.topics = new Set()
    host.leaving = false
    const wait = this.faults.over ? 1_000 : this.world.chance.between(500, 120_000)
    this.world.after(wait, () => this.start(host))
  }
}

const fates = [
  [85, "well"],
  [10, "lost"],
  [5, "late"]
] as const
