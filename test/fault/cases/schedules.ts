/** The Schedules service. */

import { Queue } from "alkstore"
import { Effect } from "effect"
import { type NewSchedule, Schedules, type Service } from "../../../src/services/ScheduleStore.js"
import { type Case, type Operation, settings, type World } from "../world.js"
import type { CasesOf } from "./enumerate.js"

const schedule = ({ name }: World, fields: Partial<NewSchedule> = {}): NewSchedule => ({
  name: name("schedule"),
  queue: name("queue"),
  // Once a year: no boundary passes by itself
  rule: { cron: "0 0 1 1 *" },
  payload: '"pulse"',
  options: "{}",
  catchUp: "latest",
  overlap: "allow",
  declared: false,
  ...fields
})

/** Its boundary has come. */
const fallDue = ({ database, name, operator }: World, suffix = "schedule") =>
  operator(
    `UPDATE ${database.table("schedules")} SET next_at = 1700000000000, fire_at = CASE WHEN paused_at IS NULL THEN 1 END WHERE name = '${name(suffix)}'`
  )

const calling = (
  name: string,
  before: (service: Service, world: World) => Effect.Effect<unknown, unknown>,
  call: (service: Service, name: string, world: World) => Operation,
  more: Partial<Case> = {}
): Case => ({
  name,
  ...more,
  prepare: (world) =>
    Effect.gen(function* () {
      yield* Effect.flatMap(Queue.Queue, (store) => store.define(settings(world.name("queue")), "producer"))
      const service = yield* Schedules
      yield* before(service, world)
      return call(service, world.name("schedule"), world)
    })
})

const there = (service: Service, world: World) => service.put(schedule(world))
const due = (service: Service, world: World) => Effect.zipRight(there(service, world), fallDue(world))
const paused = (service: Service, world: World) =>
  Effect.zipRight(there(service, world), service.pause(world.name("schedule")))

/** One that failed is tried again, with a backoff of its own. */
const fireLater: NonNullable<Case["later"]> = ({ database, operator }) =>
  Effect.zipRight(
    operator(`UPDATE ${database.table("schedules")} SET fire_at = 1 WHERE failures > 0`),
    Effect.flatMap(Schedules, (service) => service.fireDue)
  )

export const scheduleCases: CasesOf<Service> = {
  put: [
    calling(
      "a new one",
      () => Effect.void,
      (service, _, world) => service.put(schedule(world))
    ),
    calling("changed while it is due", due, (service, _, world) =>
      service.put(schedule(world, { payload: '"other"', declared: true }))
    )
  ],
  get: [calling("one", there, (service, name) => service.get(name))],
  list: [calling("one", there, (service) => service.list)],
  pause: [calling("one that is due", due, (service, name) => service.pause(name))],
  resume: [calling("one", paused, (service, name) => service.resume(name))],
  remove: [calling("one", there, (service, name) => service.remove(name))],
  prune: [
    calling(
      "one of two",
      (service, world) =>
        Effect.zipRight(
          service.put(schedule(world, { declared: true })),
          service.put(schedule(world, { declared: true, name: world.name("kept") }))
        ),
      (service, _, world) => service.prune([world.name("kept")])
    )
  ],
  trigger: [calling("one", there, (service, name) => service.trigger(name), { adds: true })],
  nextInMillis: [calling("one", there, (service) => service.nextInMillis)],
  fireDue: [
    calling(
      "two that are due",
      (service, world) =>
        Effect.all([
          due(service, world),
          service.put(schedule(world, { name: world.name("second"), overlap: "skip" })),
          fallDue(world, "second")
        ]),
      (service) => service.fireDue,
      { later: fireLater, alone: true }
    )
  ]
}
