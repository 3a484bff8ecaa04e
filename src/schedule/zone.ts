/**
 * Time zones: offsets from UTC, and what local times mean. Out of the system's calendar, whose changes of offset have to
 * be searched for.
 */

export interface Zone {
  readonly name: string
  /** Local time minus UTC, in milliseconds, at an instant. */
  readonly offset: (at: number) => number
  /** The instant at which a local time comes for the first time; the end of the gap when it is skipped. */
  readonly firstAt: (local: number) => number
  /** The first instant in the interval at which the offset is another than at its start: there is one such change. */
  readonly changeIn: (start: number, end: number) => number
}

/** Farther than any offset from UTC, nearer than any two changes of one zone. */
const around = 30 * 3_600_000

const makeOffset = (timeZone: string): Zone["offset"] => {
  if (timeZone === "UTC") return () => 0
  const format = new Intl.DateTimeFormat("en-US", {
    timeZone,
    numberingSystem: "latn",
    year: "numeric",
    month: "numeric",
    day: "numeric",
    hour: "numeric",
    minute: "numeric",
    second: "numeric",
    hourCycle: "h23"
  })
  return (at) => {
    const whole = Math.floor(at / 1_000) * 1_000
    const [month = 1, day = 1, year = 1970, hour = 0, minute = 0, second = 0] = (
      format.format(whole).match(/\d+/g) ?? []
    ).map(Number)
    return Date.UTC(year, month - 1, day, hour, minute, second) - whole
  }
}

/** `undefined` when there is no such IANA zone. Nothing is trimmed or guessed: a typo must not become UTC. */
export const makeZone = (name: unknown): Zone | undefined => {
  if (typeof name !== "string" || !/^[A-Za-z][A-Za-z0-9_+-]*(\/[A-Za-z0-9_+-]+)*$/.test(name)) return undefined
  let offset: Zone["offset"]
  try {
    offset = makeOffset(name)
  } catch {
    return undefined
  }
  const changeIn: Zone["changeIn"] = (start, end) => {
    const before = offset(start)
    let [low, high] = [start, end]
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2)
      if (offset(middle) === before) low = middle
      else high = middle
    }
    return high
  }
  return {
    name,
    offset,
    changeIn,
    firstAt: (local) => {
      const before = offset(local - around)
      const after = offset(local + around)
      if (before === after) return local - before
      const candidates = [local - before, local - after].filter((at) => local - at === offset(at))
      return candidates.length > 0 ? Math.min(...candidates) : changeIn(local - around, local + around)
    }
  }
}
