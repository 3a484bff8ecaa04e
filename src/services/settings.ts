/**
 * The stored settings of a queue, from its options.
 */
import { type Duration, Either } from "effect"
import type { Defaults } from "./EnqueueOptions.js"
import { InvalidArgument } from "./Errors.js"
import { checkDuration, checkQueueName } from "./input.js"
import type { QueueSettings } from "./QueueStore.js"

interface SettingOptions {
  readonly retainCompleted?: Duration.DurationInput | undefined
  readonly retainDead?: Duration.DurationInput | undefined
  readonly deadLetterQueue?: string | { readonly name: string } | undefined
  readonly onDead?: "continue" | "block" | undefined
}

/** What stands in for settings that are invalid, and are never stored. */
export const plainSettings = (name: string, maxCrashes: number): QueueSettings => ({
  name,
  maxCrashes,
  retainCompletedMillis: null,
  retainDeadMillis: null,
  deadLetterQueue: null,
  onDead: "continue",
  defaults: null
})

export const settingsOf = (
  name: string,
  options: SettingOptions,
  maxCrashes: number,
  { maxAttempts, priority }: Defaults
): Either.Either<QueueSettings, InvalidArgument> =>
  Either.gen(function* () {
    const { deadLetterQueue, onDead = "continue", retainCompleted, retainDead } = options
    const to = typeof deadLetterQueue === "object" ? deadLetterQueue.name : deadLetterQueue
    if (to !== undefined) yield* checkQueueName(to)
    const refuse = (argument: string, message: string) =>
      Either.left(new InvalidArgument({ argument, message: `${argument}: ${message}` }))
    if (to === name) return yield* refuse("deadLetterQueue", `queue ${name} cannot be its own; name another queue`)
    if (onDead !== "continue" && onDead !== "block") return yield* refuse("onDead", 'must be "continue" or "block"')
    const retention = (argument: string, value: Duration.DurationInput | undefined) =>
      value === undefined ? Either.right(null) : checkDuration(argument, value, { min: 1 })
    return {
      name,
      maxCrashes,
      retainCompletedMillis: yield* retention("retainCompleted", retainCompleted),
      retainDeadMillis: yield* retention("retainDead", retainDead),
      deadLetterQueue: to ?? null,
      onDead,
      defaults: JSON.stringify({ priority, maxAttempts })
    }
  })
