/**
 * Leases: at most one is valid, whoever settles or renews holds it, tokens only grow, and a job is acked by nothing but
 * the success of its handler.
 */
import type { Change, Row } from "../database.js"
import { backoff } from "../queues.js"
import type { Court, Handling, Scene } from "./oracle.js"
import { nOf, num } from "./oracle.js"

/** Whether the lease of a row has ended by the database's clock. */
const isOver = (row: Row, now: number) => num(row.visible_at) <= now

/** Whether it is an instant by which the statements of a transaction may have been stamped. */
const within = ({ now, since }: Scene, at: number) => at >= since && at <= now

export const makeLeases = (court: Court) => {
  const { handlings, jobs, note, paused, wrong } = court
  const tokens = new Map<number, number>()

  const claimed = (scene: Scene, before: Row, after: Row): void => {
    const { now, since } = scene
    const what = `claims ${after.id} of ${after.queue} under ${after.token}, attempt ${after.attempt}`
    note(scene, what)
    const not = (reason: string) => wrong(`${scene.by.name} ${what}, but ${reason}`)
    if (before.token !== null) not(`it is leased under ${before.token}`)
    if (num(after.token) <= (tokens.get(num(after.id)) ?? 0)) not(`it had a later token before`)
    tokens.set(num(after.id), num(after.token))
    if (before.visible_at === null) not("it is blocked")
    if (num(before.visible_at) > now || num(before.due_at) > now) not("it is not due")
    if (before.expires_at !== null && num(before.expires_at) <= since) not("it has expired")
    if (num(after.attempt) !== num(before.attempt) + 1) not(`${before.attempt} attempts were made before`)
    if (num(after.attempt) > num(after.max_attempts)) not("its attempts were spent")
    if (!within(scene, num(after.visible_at) - num(after.visibility_ms))) not("its lease is of another length")
    if (paused.has(String(after.queue))) not("its queue is paused")
  }

  const renewed = (scene: Scene, before: Row, after: Row): void => {
    if (after.visible_at === before.visible_at) return
    const holder = jobs.get(num(after.id))?.holder
    note(scene, `renews ${after.id} under ${after.token}`)
    if (holder !== scene.by) wrong(`${scene.by.name} renews ${after.id}, whose lease ${holder?.name} holds`)
    if (!within(scene, num(after.visible_at) - num(after.visibility_ms)))
      wrong(`${after.id} is renewed for another time`)
  }

  /** What the runtime decides after a failure: the policy's delay, within its jitter. */
  const checkDelay = (scene: Scene, before: Row, after: Row, handling: Handling): void => {
    const { said } = handling
    const at = num(after.due_at)
    const delay = at - scene.now
    if (num(after.visible_at) !== (after.expires_at === null ? at : Math.min(at, num(after.expires_at))))
      wrong(`${after.id} is met neither when it is due nor by its expiry`)
    const spent = num(before.attempt) - num(after.attempt) === 0
    const failed = num(after.failures) - num(before.failures)
    // One that is given up has failed, whatever it says later; and a COMMIT may fail after the last word
    if (handling.kind === "stubborn" || (said?._tag === "done" && after.queue === "books")) return
    if (said?._tag === "done" || said?._tag === "fatal")
      wrong(`the handler of ${after.id} has said ${said._tag}, and the job comes back`)
    else if (said?._tag === "again") {
      if (said.spent !== spent) wrong(`${after.id} comes back, its attempt ${spent ? "" : "not "}spent`)
      if (!within(scene, at - said.millis))
        wrong(`${after.id} asked for ${said.millis} ms, and comes back in ${delay} ms`)
    } else if (said?._tag === "failed") {
      if (failed !== 1 || !spent) wrong(`${after.id} has failed, and has ${failed} failures more`)
      const middle = Math.min(backoff.cap, backoff.base * backoff.factor ** (num(after.failures) - 1))
      if (delay < middle * 0.79 - (scene.now - scene.since) || delay > middle * 1.21 + 1)
        wrong(`failure ${after.failures} of ${after.id} delays it by ${delay} ms instead of ${middle}`)
    }
  }

  const returned = (scene: Scene, before: Row, after: Row): void => {
    const holder = jobs.get(num(after.id))?.holder
    const lapsed = num(after.crashes) > num(before.crashes)
    const way = lapsed ? "lapse" : `${num(after.due_at) - scene.now} ms`
    note(scene, `gives back ${after.id} under ${before.token} (${way}), attempts ${after.attempt}`)
    const handling = handlings.get(num(before.token))
    if (lapsed) {
      if (!isOver(before, scene.now)) wrong(`${after.id} lapses under ${before.token} before its lease has ended`)
      if (after.attempt !== before.attempt) wrong(`the lapse of ${after.id} changes its attempts`)
      if (num(after.crashes) > num(court.settings.get(String(after.queue))?.max_crashes))
        wrong(`${after.id} has crashed ${after.crashes} times, and comes back`)
      if (handling !== undefined) checkLapse(before, handling)
      return
    }
    if (holder !== scene.by) wrong(`${scene.by.name} gives back ${after.id}, whose lease ${holder?.name} holds`)
    if (handling !== undefined) checkDelay(scene, before, after, handling)
  }

  /** Who lives on, and has had the time to write what the handler said, has written it. */
  const checkLapse = (before: Row, { by, kind, said, saidAt }: Handling): void => {
    if (said === undefined || kind !== "worker" || by.state !== "running" || by.leaving) return
    if (Math.max(saidAt, by.troubledAt) < num(before.visible_at) - 30_000)
      wrong(`${by.name} lets ${before.id} lapse under ${before.token}, whose handler has ended (${said._tag})`)
  }

  const left = (scene: Scene, before: Row): void => {
    const id = num(before.id)
    const job = jobs.get(id)
    const letter = scene.changes.find(({ after, table }) => table === "dead_letters" && num(after?.id) === id)?.after
    const end = letter === undefined ? "acked" : `dead (${letter.reason})`
    note(scene, `${id} of ${before.queue} ${before.token === null ? "" : `under ${before.token} `}is ${end}`)
    if (job !== undefined) job.end = end
    const not = (reason: string) => wrong(`${scene.by.name}: ${id} of ${before.queue} is ${end}, but ${reason}`)
    if (letter !== undefined) checkLetter(scene, before, letter, not)
    else if (before.token === null) not("nobody held it")
    else {
      if (job?.holder !== scene.by) not(`its lease is ${job?.holder?.name}'s`)
      if (handlings.get(num(before.token))?.said?._tag !== "done") not("its handler has not succeeded")
    }
  }

  const checkLetter = (scene: Scene, before: Row, letter: Row, not: (reason: string) => void): void => {
    const handling = handlings.get(num(before.token))
    const mine = jobs.get(num(before.id))?.holder === scene.by
    switch (letter.reason) {
      case "expired":
        if (before.token !== null || before.expires_at === null || num(before.expires_at) > scene.now) not("it has not")
        break
      case "cancelled":
        if (before.token === null ? !court.asked(scene.by, "cancel") : before.cancel_requested_at === null)
          not("nobody asked for that")
        if (before.token !== null && !mine && !isOver(before, scene.now)) not("it is leased by another")
        break
      case "crashed":
        if (!isOver(before, scene.now)) not("its lease has not ended")
        if (
          num(letter.crashes) <= num(court.settings.get(String(before.queue))?.max_crashes) &&
          num(before.attempt) < num(before.max_attempts)
        )
          not("neither is spent")
        break
      case "failed":
        if (!mine) not("another holds its lease")
        if (handling?.said?._tag !== "fatal") not("its handler did not say so")
        break
      default:
        if (!mine) not("another holds its lease")
        if (num(before.attempt) < num(before.max_attempts)) not("attempts are left")
    }
  }

  return {
    look: (scene: Scene, { after, before }: Change): void => {
      if (before === undefined && after !== undefined) {
        const times = `due ${num(after.due_at) - scene.now} ms, expires ${after.expires_at}`
        note(scene, `adds ${after.id} (${nOf(after)}) to ${after.queue}, ${times}, key ${after.ordering_key}`)
        if (after.token !== null) wrong(`${after.id} is leased from the beginning`)
      } else if (before !== undefined && after === undefined) left(scene, before)
      else if (before !== undefined && after !== undefined) {
        if (after.token !== before.token) (after.token === null ? returned : claimed)(scene, before, after)
        else if (after.token !== null) renewed(scene, before, after)
      }
    }
  }
}
