import { expect, test } from "vitest"
import { stateOf, transitions } from "../../src/services/JobState.js"

test("the state of a row follows from its token, the instant from which it is visible, and the present", () => {
  expect(stateOf({ token: 1, visibleAt: 10 }, 5)).toBe("leased")
  expect(stateOf({ token: 1, visibleAt: null }, 5)).toBe("leased")
  // Past its deadline a lease stands until somebody takes the job
  expect(stateOf({ token: 1, visibleAt: 1 }, 5)).toBe("leased")
  expect(stateOf({ token: null, visibleAt: null }, 5)).toBe("blocked")
  expect(stateOf({ token: null, visibleAt: 5 }, 5)).toBe("ready")
  expect(stateOf({ token: null, visibleAt: 6 }, 5)).toBe("delayed")
})

test("no state is one for ever: from each, some way leads to an end", () => {
  const ends = (from: string, seen: ReadonlyArray<string> = []): boolean =>
    from === "gone" ||
    from === "dead" ||
    (!seen.includes(from) &&
      Object.values(transitions[from as keyof typeof transitions]).some((to) => ends(to, [...seen, from])))
  for (const state of Object.keys(transitions)) expect(ends(state)).toBe(true)
})

test("only a leased job can be settled, and only a ready one claimed", () => {
  for (const [state, events] of Object.entries(transitions)) {
    expect("ack" in events).toBe(state === "leased")
    expect("claim" in events).toBe(state === "ready")
  }
})
