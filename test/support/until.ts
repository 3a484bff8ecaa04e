/** Waiting for something to become true, in real time, with an end. */
import { setImmediate, setTimeout } from "node:timers/promises"

/**
 * Asks again and again until the answer is neither false nor undefined, and answers it. Rejects with `what` and the
 * last answer after `millis`.
 */
export const until = async <A>(
  what: string,
  ask: () => A | Promise<A>,
  millis = 10_000
): Promise<Exclude<A, false | undefined>> => {
  const end = performance.now() + millis
  // Thousands of waits that are over at once would keep timers and messages from their turn
  await setImmediate()
  for (;;) {
    const answer = await ask()
    if (answer !== false && answer !== undefined) return answer as Exclude<A, false | undefined>
    if (performance.now() > end) throw new Error(`After ${millis} ms still not: ${what}`)
    await setTimeout(20)
  }
}
