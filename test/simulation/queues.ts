/** The queues, the outbox and the schedules of the fleet. Every payload is a number that is used once. */
import { Backoff, Outbox, Queue, Schedules } from "alkstore"
import { Schema } from "effect"
import type { Rule } from "./oracle/calendar.js"

const payload = Schema.Struct({ n: Schema.Number })
export type Payload = typeof payload.Type

/** What becomes of the dead of `Plain`. */
export const Morgue = Queue.make("morgue", { payload: Queue.deadEnvelope(payload), maxAttempts: 3 })

export const Plain = Queue.make("plain", {
  payload,
  maxAttempts: 4,
  maxCrashes: 1,
  retainDead: "50 minutes",
  retainCompleted: "20 minutes",
  deadLetterQueue: Morgue
})

export const Keyed = Queue.make("keyed", { payload, maxAttempts: 4, retainDead: "50 minutes" })

/** Its worker is transactional. */
export const Books = Queue.make("books", { payload, maxAttempts: 6 })

export const Mail = Outbox.make("mail", { message: payload, key: ({ n }) => (n % 4 === 0 ? undefined : `k${n % 3}`) })

export const Ticks = Queue.make("ticks", { payload, maxAttempts: 3, retainDead: "50 minutes" })

/** Of failures, in all of them. */
export const backoff = { base: 2_000, factor: 3, cap: 600_000, jitter: 0.2 }
export const retry = Backoff.exponential(backoff)

/** How long a handler may take. */
export const timeoutMillis = 900_000

/** How often each process sweeps. */
export const sweepMinutes = 30

/** The lengths of leases, in seconds. Workers look for work that often, and these looks are most of what a day costs. */
export const visibility = { least: 120, most: 360 }

interface Plan {
  readonly name: string
  readonly rule: Rule
  readonly catchUp: "latest" | "all" | "skip"
  readonly overlap: "allow" | "skip"
}

export const plans: ReadonlyArray<Plan> = [
  {
    name: "berlin-night",
    rule: { at: "02:30", timeZone: "Europe/Berlin" },
    catchUp: "all",
    overlap: "allow"
  },
  {
    name: "new-york-night",
    rule: { at: "01:30", timeZone: "America/New_York" },
    catchUp: "latest",
    overlap: "allow"
  },
  {
    name: "new-york-gap",
    rule: { at: "02:10", timeZone: "America/New_York" },
    catchUp: "skip",
    overlap: "allow"
  },
  {
    name: "berlin-steps",
    rule: { minutes: 60, timeZone: "Europe/Berlin" },
    catchUp: "all",
    overlap: "allow"
  },
  {
    name: "new-york-steps",
    rule: { minutes: 15, timeZone: "America/New_York" },
    catchUp: "latest",
    overlap: "skip"
  },
  { name: "period", rule: { everyMinutes: 100 }, catchUp: "all", overlap: "allow" }
]

const ruleOptions = (rule: Rule) => {
  if ("everyMinutes" in rule) return { every: `${rule.everyMinutes} minutes` } as const
  const { timeZone } = rule
  if ("minutes" in rule) return { cron: rule.minutes === 60 ? "0 * * * *" : `*/${rule.minutes} * * * *`, timeZone }
  const [hour, minute] = rule.at.split(":").map(Number)
  return { cron: `${minute} ${hour} * * *`, timeZone }
}

export const schedules = plans.map(({ catchUp, name, overlap, rule }, index) =>
  Schedules.make(name, { ...ruleOptions(rule), queue: Ticks, payload: { n: -1 - index }, catchUp, overlap })
)
