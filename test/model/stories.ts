/** Commands that are about each other, one after the other: what seldom comes about by chance. */
import type { Settling, Story } from "./commands.js"
import type { QueueName } from "./queues.js"
import type { ScheduleSpec } from "./state.js"

const second = 1_000
const minute = 60 * second
const hour = 60 * minute

const advance = (millis: number) => ({ _tag: "advance" as const, millis })
const settle = (how: Settling) => ({ _tag: "settle" as const, at: 0, how, delay: 0, error: "boom" })
const strange = { _tag: "enqueue" as const, queue: "jobs" as const, jobs: [{ payload: "a" }] }
const narrow = { _tag: "claimNarrow" as const, visibility: second }
const beat = { _tag: "heartbeat" as const, at: 0, progress: 1 }
const fire = { _tag: "fire" as const }
const lock = { _tag: "lock" as const, name: "a", ttl: second }

const put = (name: "often" | "cron", spec: Pick<ScheduleSpec, "catchUp" | "overlap">) => ({
  _tag: "schedule" as const,
  name,
  spec: { queue: "jobs" as const, payload: 0, ...spec }
})
const [latest, skipping] = [
  { catchUp: "latest", overlap: "allow" },
  { catchUp: "skip", overlap: "allow" }
] as const

export const stories = (queue: QueueName): ReadonlyArray<Story["commands"]> => {
  const take = { _tag: "claim" as const, queue, limit: 1, visibility: second, worker: 0 }
  // Before all others
  const first = { payload: 1, priority: 9, dedupeKey: "k", onDuplicate: "replace" as const }
  const keyed = { _tag: "enqueue" as const, queue, jobs: [first] }
  const sweep = { _tag: "sweep" as const, queue }
  const all = { queue, filter: { by: "all" } } as const
  const requeue = { _tag: "requeue" as const, ...all, delay: 0 }
  return [
    [keyed, take, keyed, settle("retry"), keyed, take, settle("ack")],
    [take, beat, settle("retry"), take],
    [take, settle("fail"), requeue, take],
    [take, settle("fail"), { _tag: "purge", ...all }, take],
    [take, settle("fail"), { ...requeue, to: "numbers" }],
    [take, advance(5 * second), take, settle("retry")],
    [take, advance(5 * second), sweep, settle("ack")],
    [take, advance(5 * second), beat, settle("ack")],
    [take, advance(5 * second), take, { ...beat, at: 1, progress: 2 }, { ...settle("fail"), at: 1 }, settle("ack")],
    [take, { _tag: "cancel", at: 0 }, settle("release")],
    [strange, narrow, advance(25 * hour), narrow],
    [put("often", { ...latest, overlap: "skip" }), advance(minute), fire, advance(minute), fire],
    [put("often", skipping), advance(minute), fire, advance(minute + 30 * second), fire],
    [
      put("often", latest),
      { _tag: "schedulePause", name: "often" },
      advance(minute),
      { _tag: "scheduleResume", name: "often" }
    ],
    [put("cron", { ...latest, catchUp: "all" }), advance(25 * hour), fire],
    [
      take,
      { _tag: "cancelMany", queue, filter: { by: "state", state: "leased" } },
      { _tag: "beat", queue },
      settle("retry")
    ],
    [lock, lock, advance(second), lock, { _tag: "relock", at: 1 }, { _tag: "unlock", at: 0 }, { _tag: "unlock", at: 1 }]
  ]
}
